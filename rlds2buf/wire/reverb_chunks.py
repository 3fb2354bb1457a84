"""Reverb's chunks: some rows of several columns as one ``ChunkData`` message, and back.

A chunk holds one tensor per column, each ``[rows, ...]``, its bytes compressed with raw snappy (byte
strings are not compressed).  Items point into chunks, so a row is stored once however many items
hold it.

Sources: schema.proto and tensor_compression.cc in https://github.com/google-deepmind/reverb;
tensor.proto and types.proto of TensorFlow; https://github.com/google/snappy (format_description).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from rlds2buf.errors import MissingDependency, SourceFormatError

__all__ = ["TENSOR_DTYPES", "ChunkEncoder", "decode_tensor", "encode_varint", "tensor_dtype"]

TENSOR_DTYPES: Final = {
    "float32": 1,
    "float64": 2,
    "int32": 3,
    "uint8": 4,
    "int16": 5,
    "int8": 6,
    "object": 7,
    "complex64": 8,
    "int64": 9,
    "bool": 10,
    "uint16": 17,
    "complex128": 18,
    "float16": 19,
    "uint32": 22,
    "uint64": 23,
}
"""numpy dtype name to TensorFlow's DataType number; ``object`` stands for byte strings."""

_WORTH: Final = 0.95
_TRIALS: Final = 15
"""A column that does not become smaller than this part of itself is tried again after so many chunks."""

_NAMES: Final = {number: name for name, number in TENSOR_DTYPES.items()}
_STRING: Final = TENSOR_DTYPES["object"]


def encode_varint(value: int) -> bytes:
    """A non-negative integer in protobuf's base-128 form.

    >>> encode_varint(300)
    b'\\xac\\x02'
    """
    if value < _MANY:
        return _SHORT[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_MANY: Final = 1 << 12
_SHORT: Final = [bytes((i,)) if i < 0x80 else bytes((i & 0x7F | 0x80, i >> 7)) for i in range(_MANY)]


def tensor_dtype(dtype: np.dtype) -> int:
    """TensorFlow's number of a numpy dtype.

    Raises:
        ValueError: Reverb can't hold it.

    >>> tensor_dtype(np.dtype(np.float32)), tensor_dtype(np.dtype(object))
    (1, 7)
    """
    number = TENSOR_DTYPES.get(dtype.name)
    if number is None:
        raise ValueError(f"Reverb can't hold {dtype} columns")
    return number


class ChunkEncoder:
    """Encodes chunks of the same columns, one after the other.

    What does not change from chunk to chunk (the head of a tensor, a column of step types in the
    middle of an episode) is not made again, and a column that did not get smaller is stored as it is
    the next few times.

    >>> from rlds2buf.wire.reverb_messages import message
    >>> chunk = message("ChunkData", ChunkEncoder().encode(7, 1, 0, [np.arange(3.0)]))
    >>> chunk.chunk_key, decode_tensor(chunk.data.tensors[0])
    (7, array([0., 1., 2.]))
    """

    def __init__(self) -> None:
        self._last: list[_Encoded] = []
        self._stored: list[int] = []  # how many more times each column is not worth compressing
        self._compress = _snappy().compress_raw

    def encode(self, key: int, episode_id: int, start: int, columns: Sequence[np.ndarray]) -> bytes:
        """A ``ChunkData`` message.

        Args:
            key: uint64; the chunk's name, by which items point at it.
            episode_id: uint64; Reverb counts a table's episodes by it.
            start: the row of the episode at which the chunk starts.
            columns: arrays ``[rows, ...]`` of equal length, at least one row.

        Raises:
            MissingDependency: no snappy codec is installed.
            ValueError: a dtype that Reverb can't hold.
        """
        if len(self._last) != len(columns):
            self._last = [_Encoded()] * len(columns)
            self._stored = [0] * len(columns)
        tensors: list[Any] = []
        size = raw_size = 0
        for i, column in enumerate(columns):
            encoded = self._tensor(i, column)
            tensors += encoded.parts
            size += encoded.size
            raw_size += len(encoded.raw)
        span = b"".join(
            (
                b"\x08" + encode_varint(episode_id),
                b"\x10" + encode_varint(start),
                b"\x18" + encode_varint(start + len(columns[0]) - 1),
            )
        )
        return b"".join(
            (
                b"\x08" + encode_varint(key),
                b"\x12" + encode_varint(len(span)),
                span,
                b"\x2a" + encode_varint(size),
                *tensors,
                b"\x30" + encode_varint(len(columns)),
                b"\x38" + encode_varint(raw_size),
            )
        )

    def _tensor(self, i: int, column: np.ndarray) -> _Encoded:
        last = self._last[i]
        raw = _encode_strings(column) if column.dtype == object else column.tobytes()
        same = column.shape == last.shape and column.dtype is last.dtype
        if same and raw == last.raw:
            return last
        head = last.head if same else _tensor_head(column.dtype, column.shape)
        content = raw if column.dtype == object else self._pack(i, raw)
        length = b"\x22" + encode_varint(len(content))
        total = len(head) + len(length) + len(content)
        lead = b"\x0a" + encode_varint(total)
        encoded = _Encoded(column.shape, column.dtype, raw, head, (lead, head, length, content), len(lead) + total)
        self._last[i] = encoded
        return encoded

    def _pack(self, i: int, raw: bytes) -> Any:
        if self._stored[i]:
            self._stored[i] -= 1
            return _stored(raw)
        packed = self._compress(raw)
        if len(packed) > _WORTH * len(raw):
            self._stored[i] = _TRIALS
        return packed


def _stored(raw: bytes) -> bytes:
    """Snappy's form of bytes that are not compressed: one literal."""
    last = len(raw) - 1
    if last < 0:
        return b"\x00"
    if last < 60:
        tag = bytes((last << 2,))
    else:
        width = (last.bit_length() + 7) // 8
        tag = bytes(((59 + width) << 2,)) + last.to_bytes(width, "little")
    return encode_varint(len(raw)) + tag + raw


class _Encoded(NamedTuple):
    """A tensor of the last chunk: what it was made from, and its bytes."""

    shape: tuple[int, ...] | None = None
    dtype: np.dtype | None = None
    raw: bytes = b""
    head: bytes = b""
    parts: tuple[Any, ...] = ()
    size: int = 0


def decode_tensor(tensor: Any, *, delta_encoded: bool = False) -> np.ndarray:
    """The array ``[rows, ...]`` of one tensor of a chunk.

    Args:
        tensor: a ``Tensor`` message of :mod:`rlds2buf.wire.reverb_messages`.
        delta_encoded: whether the chunk says so; each row of an integer tensor then holds the
            difference to the row before it.

    Raises:
        SourceFormatError: the bytes don't fit the shape, or the dtype is one we don't know.
        MissingDependency: no snappy codec is installed.
    """
    shape = tuple(dim.size for dim in tensor.tensor_shape.dim)
    name = _NAMES.get(tensor.dtype)
    if name is None or any(size < 0 for size in shape):
        raise SourceFormatError(f"a tensor of TensorFlow dtype number {tensor.dtype} and shape {list(shape)}")
    if tensor.dtype == _STRING:
        return _decode_strings(tensor, shape)
    dtype = np.dtype(name)
    expected = math.prod(shape) * dtype.itemsize
    codec = _snappy()
    try:
        # The length is looked at first, so that a damaged one is not allocated.
        found = codec.decompress_raw_len(tensor.tensor_content)
        raw = codec.decompress_raw(tensor.tensor_content) if found == expected else b""
    except Exception as cause:  # the codec's own error class is not importable in all its versions
        raise SourceFormatError(f"a tensor's bytes are not snappy: {cause}") from cause
    if found != expected:
        raise SourceFormatError(f"a {name}{list(shape)} tensor needs {expected} bytes and has {found}")
    array = np.frombuffer(bytearray(raw), dtype).reshape(shape)
    if delta_encoded and array.ndim > 1 and dtype.kind in "iu":
        unsigned = array.view(f"u{dtype.itemsize}")
        np.cumsum(unsigned, axis=0, dtype=unsigned.dtype, out=unsigned)
    return array


def _encode_strings(column: np.ndarray) -> bytes:
    # All lengths first, then the bytes one after the other.
    values = [bytes(value) for value in column.reshape(-1)]
    return b"".join([*(encode_varint(len(value)) for value in values), *values])


def _decode_strings(tensor: Any, shape: tuple[int, ...]) -> np.ndarray:
    count = math.prod(shape)
    content = tensor.tensor_content
    out = np.empty(count, object)
    if not content and len(tensor.string_val) == count:
        out[:] = list(tensor.string_val)
        return out.reshape(shape)
    lengths = []
    at = 0
    try:
        for _ in range(count):
            length = shift = 0
            while True:
                byte = content[at]
                at += 1
                length |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    break
            lengths.append(length)
    except IndexError as cause:
        raise SourceFormatError(f"a string tensor of {count} values ends after {len(lengths)} lengths") from cause
    if at + sum(lengths) != len(content):
        raise SourceFormatError(f"a string tensor needs {at + sum(lengths)} bytes and has {len(content)}")
    for i, length in enumerate(lengths):
        out[i] = content[at : at + length]
        at += length
    return out.reshape(shape)


@functools.lru_cache(maxsize=4096)
def _tensor_head(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    dims = b""
    for size in shape:
        dim = b"\x08" + encode_varint(size)
        dims += b"\x12" + encode_varint(len(dim)) + dim
    return b"\x08" + encode_varint(tensor_dtype(dtype)) + b"\x12" + encode_varint(len(dims)) + dims


@functools.cache
def _snappy() -> Any:
    try:
        from cramjam import snappy
    except ImportError as cause:
        raise MissingDependency(
            "Reverb's chunks need a snappy codec: pip install 'rlds2buf[reverb]'", name="cramjam"
        ) from cause
    return snappy
