"""Thrift's compact protocol, in which Parquet keeps its metadata: structures read and written without their schema.

Source: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

import struct
from typing import Any, Final

__all__ = ["BINARY", "I32", "I64", "LIST", "STRUCT", "Malformed", "Struct", "read_struct", "write_struct"]

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
_WHOLE: Final = (I16, I32, I64)
_DEEPEST: Final = 32

Struct = dict[int, tuple[int, Any]]
"""Field number to type and value.  The value of a LIST is the type of its items, and the items; of a MAP likewise the
types of keys and values, and the pairs."""


class Malformed(ValueError):
    """Bytes that are no structure, or end within one."""


def read_struct(data: Any, at: int = 0) -> tuple[Struct, int]:
    """The structure that begins at a place in bytes, and the place behind it.

    Raises:
        Malformed: there is none.

    >>> read_struct(write_struct({1: (I32, -3), 4: (LIST, (BINARY, [b"a", b"bc"]))}))
    ({1: (5, -3), 4: (9, (8, [b'a', b'bc']))}, 10)
    """
    reader = _Reader(data, at)
    return reader.struct(0), reader.at


class _Reader:
    """Bytes, and where reading stands."""

    def __init__(self, data: Any, at: int) -> None:
        self._data = data
        self.at = at

    def _take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self._data):
            raise Malformed("it ends within a structure")
        found = bytes(self._data[self.at : self.at + count])
        self.at += count
        return found

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise Malformed("a number of more than 64 bits")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def struct(self, depth: int) -> Struct:
        found: Struct = {}
        number = 0
        while (head := self._take(1)[0]) != 0:
            kind, step = head & 0x0F, head >> 4
            number = number + step if step else self._zigzag()
            found[number] = kind, (kind == TRUE if kind in (TRUE, FALSE) else self._value(kind, depth + 1))
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if depth > _DEEPEST:
            raise Malformed("structures too deep in each other")
        if kind in _WHOLE:
            return self._zigzag()
        if kind in (TRUE, FALSE, BYTE):  # as items of a list
            return self._take(1)[0]
        if kind == BINARY:
            return self._take(self._varint())
        if kind == DOUBLE:
            return struct.unpack("<d", self._take(8))[0]
        if kind == STRUCT:
            return self.struct(depth)
        if kind in (LIST, SET):
            return self._items(depth)
        if kind == MAP:
            return self._pairs(depth)
        raise Malformed(f"no type {kind} is known")

    def _items(self, depth: int) -> tuple[int, list[Any]]:
        head = self._take(1)[0]
        kind, count = head & 0x0F, head >> 4
        count = self._varint() if count == 15 else count
        self._check_count(count)
        return kind, [self._value(kind, depth + 1) for _ in range(count)]

    def _pairs(self, depth: int) -> tuple[int, int, list[tuple[Any, Any]]]:
        count = self._varint()
        self._check_count(count)
        if not count:
            return 0, 0, []
        kinds = self._take(1)[0]
        key, value = kinds >> 4, kinds & 0x0F
        return key, value, [(self._value(key, depth + 1), self._value(value, depth + 1)) for _ in range(count)]

    def _check_count(self, count: int) -> None:
        if count > len(self._data) - self.at:
            raise Malformed("a list of more items than there are bytes")


def write_struct(fields: Struct) -> bytes:
    """The bytes of a structure, the inverse of :func:`read_struct`."""
    out = bytearray()
    before = 0
    for number, (kind, value) in sorted(fields.items()):
        if kind in (TRUE, FALSE):
            kind = TRUE if value else FALSE
        step = number - before
        out += bytes([step << 4 | kind]) if 0 < step < 16 else bytes([kind]) + _zigzag(number)
        if kind not in (TRUE, FALSE):
            out += _value(kind, value)
        before = number
    return bytes(out) + b"\0"


def _value(kind: int, value: Any) -> bytes:
    if kind in _WHOLE:
        return _zigzag(value)
    if kind in (TRUE, FALSE, BYTE):
        return bytes([value])
    if kind == BINARY:
        return _varint(len(value)) + value
    if kind == DOUBLE:
        return struct.pack("<d", value)
    if kind == STRUCT:
        return write_struct(value)
    if kind == MAP:
        key, other, pairs = value
        content = b"".join(_value(key, k) + _value(other, v) for k, v in pairs)
        return _varint(len(pairs)) + (bytes([key << 4 | other]) + content if pairs else b"")
    item, values = value
    head = bytes([len(values) << 4 | item]) if len(values) < 15 else bytes([0xF0 | item]) + _varint(len(values))
    return head + b"".join(_value(item, one) for one in values)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def _zigzag(value: int) -> bytes:
    return _varint(value << 1 if value >= 0 else (-value << 1) - 1)
