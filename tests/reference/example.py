"""A naive reader of serialized ``tf.train.Example``: one byte, one value at a time.

The twin of ``rlds2buf.codecs.tfrecord.example``; written from https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import struct
from typing import Any

KINDS = {1: "bytes", 2: "float", 3: "int64"}


class Malformed(Exception):
    """The bytes are no such message."""


def decode_example(data: bytes) -> dict[str, tuple[str, list[Any]]]:
    """Every feature as ``(kind, values)``; ``("no", [])`` where there is no list."""
    out: dict[str, tuple[str, list[Any]]] = {}
    for number, wire, value in fields(data):
        if number == 1 and wire == 2:
            for entry_number, entry_wire, entry in fields(value):
                if entry_number == 1 and entry_wire == 2:
                    key, feature = decode_entry(entry)
                    out[key] = feature
    return out


def decode_entry(data: bytes) -> tuple[str, tuple[str, list[Any]]]:
    key, lists = "", []
    for number, wire, value in fields(data):
        if number == 1 and wire == 2:
            try:
                key = value.decode()
            except UnicodeDecodeError:
                raise Malformed("key") from None
        if number == 2 and wire == 2:
            lists += [(n, v) for n, w, v in fields(value) if n in KINDS and w == 2]
    kind, body = 0, b""
    for number, value in lists:
        body = body + value if number == kind else value
        kind = number
    return key, (KINDS.get(kind, "no"), decode_list(kind, body))


def decode_list(kind: int, data: bytes) -> list[Any]:
    values: list[Any] = []
    for number, wire, value in fields(data):
        if number != 1:
            continue
        if kind == 1 and wire == 2:
            values.append(value)
        elif kind == 2 and wire == 5:
            values.append(struct.unpack("<f", value)[0])
        elif kind == 2 and wire == 2:
            if len(value) % 4:
                raise Malformed("packed floats")
            values += struct.unpack(f"<{len(value) // 4}f", value)
        elif kind == 3 and wire == 0:
            values.append(signed(value))
        elif kind == 3 and wire == 2:
            at = 0
            while at < len(value):
                one, at = varint(value, at)
                values.append(signed(one))
        else:
            raise Malformed("wire type of a value")
    return values


def fields(data: bytes) -> list[tuple[int, int, Any]]:
    out: list[tuple[int, int, Any]] = []
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise Malformed("field 0")
        value: Any
        if wire == 0:
            value, at = varint(data, at)
        elif wire == 2:
            length, at = varint(data, at)
            value, at = take(data, at, length)
        elif wire in (1, 5):
            value, at = take(data, at, 8 if wire == 1 else 4)
        else:
            raise Malformed(f"wire type {wire}")
        out.append((number, wire, value))
    return out


def take(data: bytes, at: int, length: int) -> tuple[bytes, int]:
    if at + length > len(data):
        raise Malformed("past the end")
    return data[at : at + length], at + length


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for i in range(10):
        if at + i >= len(data):
            raise Malformed("varint without end")
        value |= (data[at + i] & 0x7F) << (7 * i)
        if data[at + i] < 0x80:
            return value % 2**64, at + i + 1
    raise Malformed("varint too long")


def signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
