"""What batches, specs and buffers look like when printed: a line per field, with its type and shape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.dtypes import dtype_name
from rlds2buf.core.fields import FLAG_FIELDS, STEP_FIELDS

__all__ = ["aligned", "batch", "field_rows", "spec_rows", "value_text"]

_MAX_LINES = 24
_MAX_TEXT = 60

Row = tuple[str, str]
"""A field's name and what it is."""


def value_text(value: Any) -> str:
    """A leaf's type and shape, or a single number as it is.

    >>> value_text(np.zeros((256, 3), np.float32)), value_text(7), value_text(np.array([b"go"], object))
    ('float32[256, 3]', '7', 'string[1]')
    """
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if isinstance(value, np.ndarray):
        return f"{_dtype_text(value)}[{', '.join(map(str, value.shape))}]"
    if _is_field(value):
        return repr(value)
    if shape is None or dtype is None or isinstance(value, np.generic):
        return _short(repr(value))
    name = getattr(dtype, "name", None) or str(dtype).rpartition(".")[2]
    return f"{type(value).__name__} {name}[{', '.join(map(str, shape))}]"


def field_rows(fields: Iterable[tuple[str, nest.Nest]], indent: int = 1) -> list[Row]:
    """A row for each leaf of named nests; of what is None or empty there is none.

    >>> field_rows([("observation", {"q": np.zeros(2), "v": None}), ("reward", np.ones(2))])
    [('  observation/q', 'float64[2]'), ('  reward', 'float64[2]')]
    """
    space = "  " * indent
    return [
        (f"{space}{nest.path_name(path)}", value_text(leaf))
        for name, value in fields
        for path, leaf in nest.flatten(value, (name,))
        if leaf is not None
    ]


def spec_rows(spec: Any) -> list[Row]:
    """A row for each field of a StepSpec; the flags, which every spec has, are left out."""
    names = (*(name for name in STEP_FIELDS if name not in FLAG_FIELDS), "extras")
    rows = field_rows((name, getattr(spec, name)) for name in names)
    return [(name, text.removeprefix("FieldSpec(").removesuffix(")")) for name, text in rows]


def aligned(title: str, rows: Iterable[Row]) -> str:
    """A title and the rows under it, of many the first ones.

    >>> print(aligned("Sample", [("  reward", "float32[2]"), ("  weight", "float64[2]")]))
    Sample
      reward  float32[2]
      weight  float64[2]
    """
    every = list(rows)
    shown = every if len(every) <= _MAX_LINES else every[: _MAX_LINES - 1]
    width = max((len(name) for name, text in shown if text), default=0)
    lines = [f"{name.ljust(width)}  {text}" if text else name for name, text in shown]
    more = [f"  and {len(every) - len(shown)} more"] if len(every) > len(shown) else []
    return "\n".join([title, *lines, *more])


def batch(value: Any) -> str:
    """A NamedTuple of arrays (or of such NamedTuples), or a mapping of them by policy, as its repr."""
    return aligned(type(value).__name__, _rows_of(value, 1))


def _rows_of(value: Any, indent: int) -> Iterator[Row]:
    for name, part in value.items() if isinstance(value, Mapping) else zip(value._fields, value, strict=True):
        if hasattr(part, "_fields"):
            yield f"{'  ' * indent}{name}: {type(part).__name__}", ""
            yield from _rows_of(part, indent + 1)
        else:
            yield from field_rows([(str(name), part)], indent)


def _dtype_text(array: np.ndarray) -> str:
    """Object arrays hold byte strings, or arrays whose shapes differ."""
    if array.dtype == np.dtype(object) and array.size and not isinstance(array.flat[0], bytes | str):
        return "object"
    return dtype_name(array.dtype)


def _is_field(value: Any) -> bool:
    return hasattr(value, "accepts") and hasattr(value, "low")


def _short(text: str) -> str:
    line = text if "\n" not in text else " ".join(text.split())
    return line if len(line) <= _MAX_TEXT else f"{line[: _MAX_TEXT - 3]}..."
