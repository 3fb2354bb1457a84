"""MessagePack, with arrays as the package msgpack_numpy puts them; what it pickles stays closed.

An array is a map ``{b"nd": True, b"type": b"<f4", b"kind": b"", b"shape": [3], b"data": bytes}``, a numpy
number ``{b"nd": False, b"type": ..., b"data": ...}``.  Where ``kind`` is ``b"O"`` the data are a pickle.

Sources: https://github.com/msgpack/msgpack/blob/master/spec.md, https://github.com/lebedov/msgpack-numpy
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from rlds2buf.errors import SourceFormatError

__all__ = ["Closed", "unpack"]

_DEPTH: Final = 64
_NUMBERS: Final = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
_LENGTHS: Final = {
    0xC4: (">B", "bin"), 0xC5: (">H", "bin"), 0xC6: (">I", "bin"),
    0xD9: (">B", "str"), 0xDA: (">H", "str"), 0xDB: (">I", "str"),
    0xDC: (">H", "array"), 0xDD: (">I", "array"), 0xDE: (">H", "map"), 0xDF: (">I", "map"),
}  # fmt: skip
_CONSTANTS: Final = {0xC0: None, 0xC2: False, 0xC3: True}


class Closed:
    """Stands for a value that is a pickle, and was not loaded."""

    def __repr__(self) -> str:
        return "<a pickle, not loaded>"


def unpack(data: bytes) -> Any:
    """The value of one message: numbers, ``str``, ``bytes``, lists, dicts, arrays and numpy numbers.

    Raises:
        SourceFormatError: the bytes are no such message.

    >>> unpack(bytes.fromhex("82 a1 61 01 a1 62 92 c0 c3"))
    {'a': 1, 'b': [None, True]}
    """
    reader = _Reader(data)
    try:
        value = reader.value(0)
    except (struct.error, UnicodeDecodeError, TypeError, ValueError) as cause:
        if isinstance(cause, SourceFormatError):
            raise
        raise SourceFormatError(f"not MessagePack at byte {reader.at} ({cause})") from cause
    if reader.at != len(data):
        raise SourceFormatError(f"MessagePack of {reader.at} bytes in {len(data)}")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def value(self, depth: int) -> Any:
        if depth > _DEPTH:
            raise SourceFormatError(f"MessagePack nested deeper than {_DEPTH} levels")
        code = self.take(1)[0]
        if code < 0x80:
            return code
        if code >= 0xE0:
            return code - 0x100
        if code < 0xC0:
            return self._short(code, depth)
        if code in _CONSTANTS:
            return _CONSTANTS[code]
        if code in _NUMBERS:
            return self.number(_NUMBERS[code])
        if code in _LENGTHS:
            form, kind = _LENGTHS[code]
            return self.sized(kind, int(self.number(form)), depth)
        raise SourceFormatError(f"MessagePack of an extension type or none at all (0x{code:02x}) at byte {self.at - 1}")

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise SourceFormatError("MessagePack that ends in the middle of a value")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def sized(self, kind: str, count: int, depth: int) -> Any:
        if kind == "bin":
            return self.take(count)
        if kind == "str":
            return self.take(count).decode()
        if kind == "array":
            return [self.value(depth + 1) for _ in range(count)]
        found = {}
        for _ in range(count):
            key = self.value(depth + 1)
            found[key] = self.value(depth + 1)
        return _array(found) if b"nd" in found else found

    def _short(self, code: int, depth: int) -> Any:
        if code < 0x90:
            return self.sized("map", code & 0x0F, depth)
        if code < 0xA0:
            return self.sized("array", code & 0x0F, depth)
        return self.sized("str", code & 0x1F, depth)


def _array(found: Mapping[Any, Any]) -> Any:
    kind = found.get(b"kind", b"")
    if kind == b"O":
        return Closed()
    told, data = found.get(b"type"), found.get(b"data")
    name = told.decode("ascii") if isinstance(told, bytes) else told
    if kind or not isinstance(name, str) or not isinstance(data, bytes):
        raise SourceFormatError("an array of structures, or a malformed one")
    dtype = np.dtype(name)
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
