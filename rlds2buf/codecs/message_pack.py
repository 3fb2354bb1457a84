"""MessagePack, with arrays as the package msgpack_numpy puts them; what it pickles stays closed.

An array is a map ``{b"nd": True, b"type": b"<f4", b"kind": b"", b"shape": [3], b"data": bytes}``, a numpy
number ``{b"nd": False, b"type": ..., b"data": ...}``.  Where ``kind`` is ``b"O"`` the data are a pickle.

Sources: https://github.com/msgpack/msgpack/blob/master/spec.md, https://github.com/lebedov/msgpack-numpy
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds2buf.core.dtypes import parse_dtype
from rlds2buf.errors import MissingDependency, SourceFormatError

__all__ = ["Closed", "unpack"]


class Closed:
    """Stands for a value that is a pickle, and was not loaded."""

    def __repr__(self) -> str:
        return "<a pickle, not loaded>"


def unpack(data: bytes) -> Any:
    """The value of one message: numbers, ``str``, ``bytes``, lists, dicts, arrays and numpy numbers.

    Raises:
        SourceFormatError: the bytes are no such message.
        MissingDependency: the package msgpack is not installed.

    >>> unpack(bytes.fromhex("82 a1 61 01 a1 62 92 c0 c3"))
    {'a': 1, 'b': [None, True]}
    """
    try:
        import msgpack
    except ImportError as cause:
        raise MissingDependency("episodes of RLlib's new stack need msgpack: pip install 'rlds2buf[rllib]'") from cause
    try:
        return msgpack.unpackb(data, strict_map_key=False, object_hook=_value, ext_hook=_extension)
    except SourceFormatError:
        raise
    except (msgpack.exceptions.UnpackException, TypeError, ValueError, OverflowError, RecursionError) as cause:
        raise SourceFormatError(f"not MessagePack ({cause})") from cause


def _extension(code: int, data: bytes) -> Any:
    raise SourceFormatError(f"MessagePack of the extension type {code}")


def _value(found: dict[Any, Any]) -> Any:
    return _array(found) if b"nd" in found else found


def _array(found: dict[Any, Any]) -> Any:
    kind = found.get(b"kind", b"")
    if kind == b"O":
        return Closed()
    told, data = found.get(b"type"), found.get(b"data")
    name = told.decode("ascii") if isinstance(told, bytes) else told
    if kind or not isinstance(name, str) or not isinstance(data, bytes):
        raise SourceFormatError("an array of structures, or a malformed one")
    dtype = parse_dtype(name)
    if dtype.kind not in "biufSU" or not dtype.itemsize or len(data) % dtype.itemsize:
        raise SourceFormatError(f"an array of {name} in {len(data)} bytes")
    values = np.frombuffer(data, dtype)
    if not found[b"nd"]:
        if len(values) != 1:
            raise SourceFormatError(f"a number of {name} in {len(data)} bytes")
        return values[0]
    shape = found.get(b"shape")
    if not isinstance(shape, list) or not all(isinstance(n, int) and n >= 0 for n in shape):
        raise SourceFormatError(f"an array of shape {shape}")
    return values.reshape(shape)
