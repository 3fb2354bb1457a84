"""Arrays whose shape varies from row to row, packed into byte strings and back.

A packed value is made of 8-byte little-endian integers and raw elements (C order, little-endian),
each part padded to 8 bytes: the number of axes and their lengths, then the elements.  Of an object
array (rows whose parts differ in shape among themselves) the number of axes is written as ``-1 - n``
and its parts follow, packed in the same way; of byte strings all lengths follow, then the bytes.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import SpecMismatch

__all__ = ["as_bytes", "pack_rows", "unpack_rows"]

_MAX_AXES = 32
_OBJECT = np.dtype(object)


def as_bytes(column: np.ndarray, path: nest.Path) -> np.ndarray:
    """A column of ``bytes`` (``str`` is taken as UTF-8), any shape.

    Raises:
        SpecMismatch: a value is something else; says in which row.
    """
    values = column.reshape(-1).tolist()
    if set(map(type, values)) <= {bytes} and column.dtype == _OBJECT:
        return column
    out = np.empty(len(values), _OBJECT)
    for i, value in enumerate(values):
        if not isinstance(value, str | bytes | bytearray | memoryview):
            row = i * len(column) // len(values)
            what = f"expected a byte string, got {type(value).__name__}"
            raise SpecMismatch(what, path=nest.path_name(path), step=row, rule="spec")
        out[i] = value.encode() if isinstance(value, str) else bytes(value)
    return out.reshape(column.shape)


def pack_rows(column: Any, field: FieldSpec, path: nest.Path) -> np.ndarray:
    """A column of N arrays as ``[N] object`` of bytes.

    Args:
        column: ``[N, ...]`` or ``[N] object`` of arrays (or a list of them) that fit `field`.

    Raises:
        SpecMismatch: one does not fit; says in which row.
    """
    out = np.empty(len(column), _OBJECT)
    for i, value in enumerate(column):
        try:
            out[i] = _pack(value, field.shape, field)
        except (ValueError, TypeError) as cause:
            if isinstance(cause, SpecMismatch):
                cause.step = i
                raise
            what = f"expected {field}, got something else: {cause}"
            raise SpecMismatch(what, path=nest.path_name(path), step=i, rule="spec") from cause
    return out


def unpack_rows(packed: np.ndarray, field: FieldSpec) -> np.ndarray:
    """An object array of packed values, any shape, as one of arrays; what is unset or empty as an empty array.

    Raises:
        ValueError: a value is damaged.

    >>> field = FieldSpec((None, 2), np.float32)
    >>> rows = pack_rows([np.zeros((3, 2), np.float32), np.ones((1, 2), np.float32)], field, ("observation",))
    >>> [array.shape for array in unpack_rows(rows, field)]
    [(3, 2), (1, 2)]
    """
    out = np.empty(packed.shape, _OBJECT)
    flat = out.reshape(-1)
    empty = tuple(n or 0 for n in field.shape)
    for i, blob in enumerate(packed.reshape(-1).tolist()):
        if not blob:
            flat[i] = np.full(empty, b"" if field.is_string else 0, field.dtype)
            continue
        try:
            flat[i], end = _unpack(blob, 0, field)
        except (ValueError, struct.error, OverflowError, MemoryError) as cause:
            raise ValueError(f"an array of varying length is damaged: {cause}") from cause
        if end != len(blob):
            raise ValueError(f"an array of varying length is damaged: {len(blob) - end} bytes too many")
    return out


def _pack(value: Any, shape: tuple[int | None, ...], field: FieldSpec) -> bytes:
    array = np.asarray(value, _OBJECT if field.is_string and not isinstance(value, np.ndarray) else None)
    parts = array.dtype == _OBJECT and not field.is_string
    if field.is_string and array.dtype == _OBJECT and array.ndim < len(shape):
        parts = True
    axes = array.ndim
    if (not 0 < axes < len(shape) if parts else axes != len(shape)) or axes > _MAX_AXES:
        raise ValueError(f"{array.dtype}{list(array.shape)}")
    if any(want not in (None, got) for want, got in zip(shape, array.shape, strict=False)):
        raise ValueError(f"{array.dtype}{list(array.shape)}")
    head = struct.pack(f"<{axes + 1}q", -1 - axes if parts else axes, *array.shape)
    if parts:
        return head + b"".join(_pack(child, shape[axes:], field) for child in array.reshape(-1).tolist())
    if field.is_string:
        texts = as_bytes(array.astype(_OBJECT), ()).reshape(-1).tolist()
        return head + struct.pack(f"<{len(texts)}q", *map(len, texts)) + _padded(b"".join(texts))
    if not np.can_cast(array.dtype, field.dtype, "same_kind"):
        raise ValueError(f"{array.dtype}{list(array.shape)}")
    return head + _padded(array.astype(field.dtype.newbyteorder("<")).tobytes())


def _unpack(blob: bytes, at: int, field: FieldSpec) -> tuple[np.ndarray, int]:
    (axes,) = struct.unpack_from("<q", blob, at)
    parts, axes = axes < 0, -1 - axes if axes < 0 else axes
    if axes > _MAX_AXES:
        raise ValueError(f"{axes} axes")
    shape = struct.unpack_from(f"<{axes}q", blob, at + 8)
    at += 8 * (axes + 1)
    count = 1
    for length in shape:
        count *= length
        if length < 0 or count > len(blob) * 8:
            raise ValueError(f"shape {list(shape)} in {len(blob)} bytes")
    if parts or field.is_string:
        values = np.empty(count, _OBJECT)
        at = _unpack_parts(blob, at, field, values) if parts else _unpack_strings(blob, at, values)
        return values.reshape(shape), at
    dtype = field.dtype.newbyteorder("<")
    array = np.frombuffer(blob, dtype, count, at) if count else np.empty(0, dtype)
    return array.reshape(shape).astype(field.dtype.newbyteorder("=")), at + _rounded(count * dtype.itemsize)


def _unpack_parts(blob: bytes, at: int, field: FieldSpec, values: np.ndarray) -> int:
    for i in range(len(values)):
        values[i], at = _unpack(blob, at, field)
    return at


def _unpack_strings(blob: bytes, at: int, values: np.ndarray) -> int:
    lengths = struct.unpack_from(f"<{len(values)}q", blob, at)
    at += 8 * len(values)
    start = at
    for i, length in enumerate(lengths):
        if not 0 <= length <= len(blob) - at:
            raise ValueError(f"a byte string of {length} bytes")
        values[i] = blob[at : at + length]
        at += length
    return start + _rounded(at - start)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 8)


def _rounded(size: int) -> int:
    return -(-size // 8) * 8
