"""Serialized ``tf.train.Example`` messages for tests, one value at a time, in any legal encoding."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

FIELD_OF_KIND = {"bytes": 1, "float": 2, "int64": 3}


def varint(value: int) -> bytes:
    value %= 2**64
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def delimited(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def value_list(kind: str, values: Sequence, packed: bool = True) -> bytes:
    """The list message: packed (one run), or a tag before each value; bytes are never packed."""
    if kind == "bytes":
        return b"".join(delimited(1, value) for value in values)
    if kind == "float":
        encoded, tag = [struct.pack("<f", value) for value in values], b"\x0d"
    else:
        encoded, tag = [varint(value) for value in values], b"\x08"
    if packed:
        return delimited(1, b"".join(encoded)) if encoded else b""
    return b"".join(tag + value for value in encoded)


def feature(kind: str, values: Sequence, packed: bool = True) -> bytes:
    return delimited(FIELD_OF_KIND[kind], value_list(kind, values, packed))


def example(features: Mapping[str, tuple[str, Sequence]], packed: bool = True) -> bytes:
    """``{name: (kind, values)}`` as a serialized example."""
    entries = (
        delimited(1, delimited(1, key.encode()) + delimited(2, feature(kind, values, packed)))
        for key, (kind, values) in features.items()
    )
    return delimited(1, b"".join(entries))
