"""Types of numbers by their names, as files and people write them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

__all__ = ["as_dtype", "dtype_name", "parse_dtype"]

_NAME = re.compile(r"[<>=|]?(\?|[A-Za-z]{1,12})(\d{0,10})(\[[A-Za-z0-9/]{1,12}\])?")
_MOST_LETTERS = (1 << 29) - 1
"""Of a text of fixed length: numpy counts bytes, four a letter, in 31 bits."""


def parse_dtype(name: Any) -> np.dtype:
    """The numpy type of a name such as ``float32``, ``<f4``, ``|S10`` or ``datetime64[ns]``.

    Numpy's own parser also takes structures (``"f4,(2,3)i8"``), and reads those as Python.  What comes
    out of a file is nothing to be tried there.

    Raises:
        ValueError: it is no text, or not the name of a single type.

    >>> parse_dtype("<f4"), parse_dtype("bool")
    (dtype('float32'), dtype('bool'))
    >>> parse_dtype("f4,(")
    Traceback (most recent call last):
    ValueError: 'f4,(' is no numpy type
    """
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    try:
        if match is None or (match[2] and match[1] in _OF_ANY_LENGTH and int(match[2]) > _MOST_LETTERS):
            raise ValueError(f"{repr(name)[:80]} is no numpy type")
        return np.dtype(name.replace("a", "S", 1) if match[1] == "a" else name)  # numpy 2 warns of the old letter
    except (TypeError, SystemError) as cause:
        raise ValueError(f"{name!r} is no numpy type") from cause


_OF_ANY_LENGTH = ("S", "U", "V", "a")


def as_dtype(given: Any) -> np.dtype:
    """The numpy type that an argument means: a name, as :func:`parse_dtype` takes it, or what numpy takes besides.

    PyTorch's and TensorFlow's types too; neither is imported here.

    Raises:
        TypeError: it is no type, or NumPy has none like it (``torch.bfloat16``).

    >>> as_dtype(np.float32)
    dtype('float32')
    """
    from_torch = type(given).__module__.partition(".")[0] == "torch"
    name = str(given).removeprefix("torch.") if from_torch else getattr(given, "as_numpy_dtype", given)
    try:
        found = parse_dtype(name) if isinstance(name, str) else np.dtype(name)
        if from_torch and found.kind == "V":  # JAX, once imported, gives NumPy a "bfloat16" that few functions take
            raise TypeError(f"{found} is a type of an extension")
        return found
    except (TypeError, ValueError, SyntaxError, SystemError) as cause:
        if from_torch:
            raise TypeError(f"{given} has no counterpart in NumPy, where columns are held") from cause
        raise TypeError(f"{repr(given)[:80]} is no numpy type") from cause


def dtype_name(dtype: np.dtype) -> str:
    """A dtype's name in files and messages; variable-length byte strings are ``"string"``."""
    return "string" if dtype == np.dtype(object) else dtype.name
