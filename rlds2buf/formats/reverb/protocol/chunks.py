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
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from rlds2buf.core.budget import BUDGET, Tally
from rlds2buf.errors import LimitExceeded, MissingDependency, SourceFormatError

__all__ = [
    "TENSOR_DTYPES",
    "ChunkEncoder",
    "Chunks",
    "decode_tensor",
    "encode_varint",
    "padded_varints",
    "tensor_dtype",
]

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

_SHORT_BYTES: Final = 4 << 10
_MANY_KNOWN: Final = 256
"""What became of so many different chunks of a column, each of up to so many bytes, is remembered."""

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


class Chunks(NamedTuple):
    """J consecutive chunks of rows of some episodes.

    Attributes:
        borders: ``[J+1] int64``, ascending: the first row of each chunk, then the end.
        keys: ``[J] uint64``, the chunks' names, by which items point at them.
        episodes: ``[J] uint64``, the ids of their episodes, by which Reverb counts a table's.
        first: ``[J] int64``, the number of each chunk's first row in its episode.
    """

    borders: np.ndarray
    keys: np.ndarray
    episodes: np.ndarray
    first: np.ndarray


class ChunkEncoder:
    """Encodes chunks of the same columns, one after the other.

    What does not change from chunk to chunk (the head of a tensor, a column of step types in the
    middle of an episode) is not made again, and a column that did not get smaller is stored as it is
    the next few times.

    >>> from rlds2buf.formats.reverb.protocol.messages import message
    >>> one = Chunks(np.array([0, 3]), np.array([7], np.uint64), np.array([1], np.uint64), np.array([0]))
    >>> chunk, = ChunkEncoder().encode(one, [0], [np.arange(3.0)])
    >>> message("ChunkData", chunk).chunk_key, decode_tensor(message("ChunkData", chunk).data.tensors[0])
    (7, array([0., 1., 2.]))
    """

    def __init__(self) -> None:
        self._columns: list[_Column] = []

    def encode(self, chunks: Chunks, which: Sequence[int], columns: Sequence[np.ndarray]) -> list[bytes]:
        """Some of the chunks, each a ``ChunkData`` message.

        Args:
            chunks: where they lie in the columns, and what they are called.
            which: numbers of those wanted.
            columns: arrays ``[R, ...]`` of equal length.

        Raises:
            MissingDependency: no snappy codec is installed.
            ValueError: a dtype that Reverb can't hold.
        """
        if len(self._columns) != len(columns):
            self._columns = [_Column() for _ in columns]
        chosen = np.asarray(which, np.int64)
        names, episodes = (_wide_varints(values[chosen]) for values in (chunks.keys, chunks.episodes))
        starts, stops = chunks.borders[chosen].tolist(), chunks.borders[chosen + 1].tolist()
        encoders = [one.encoder(column) for one, column in zip(self._columns, columns, strict=True)]
        count = b"\x30" + encode_varint(len(columns)) + b"\x38"
        out = []
        for name, episode, first, start, stop in zip(
            names, episodes, chunks.first[chosen].tolist(), starts, stops, strict=True
        ):
            tensors: list[Any] = []
            size = raw_size = 0
            for encode in encoders:
                parts, part_size, part_raw = encode(start, stop)
                tensors += parts
                size += part_size
                raw_size += part_raw
            span = b"\x08%b\x10%b\x18%b" % (episode, encode_varint(first), encode_varint(first + stop - start - 1))
            head = b"\x08%b\x12%b%b\x2a%b" % (name, encode_varint(len(span)), span, encode_varint(size))
            out.append(b"".join((head, *tensors, count, encode_varint(raw_size))))
        return out


_Encoded = tuple[tuple[Any, ...], int, int]
"""The parts of a ``tensors`` entry, their length, and that of the tensor's own bytes."""


class _Column:
    """One column: what its chunks became, and whether compressing it is worth it."""

    __slots__ = ("done", "dtype", "shape", "stored", "trial")

    def __init__(self) -> None:
        self.shape: tuple[int, ...] | None = None
        self.dtype: np.dtype | None = None
        self.done: dict[tuple[int, bytes], _Encoded] = {}  # by rows and bytes
        self.stored: dict[int, bytes] = {}  # by rows: all that comes before the bytes of a tensor that is as it is
        self.trial = 0  # so many more times it is not worth trying

    def encoder(self, values: np.ndarray) -> Callable[[int, int], _Encoded]:
        """What encodes the rows from one up to another."""
        shape, dtype = values.shape[1:], values.dtype
        if shape != self.shape or dtype != self.dtype:
            self.shape, self.dtype, self.trial = shape, dtype, 0
            self.done, self.stored = {}, {}
        if dtype.hasobject:
            return lambda start, stop: self._strings(values[start:stop])
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
        width = len(data) // max(1, len(values))

        def encode(start: int, stop: int) -> _Encoded:
            if self.trial:
                self.trial -= 1
                before, raw_size = self._stored(stop - start), (stop - start) * width
                return (before, data[start * width : stop * width]), len(before) + raw_size, raw_size
            return self._compressed(stop - start, bytes(data[start * width : stop * width]))

        return encode

    def _compressed(self, rows: int, raw: bytes) -> _Encoded:
        known = self.done.get((rows, raw))
        if known is not None:
            return known
        content = _snappy().compress_raw(raw)
        found = self._entry(rows, content, len(raw))
        if len(content) > _WORTH * len(raw):
            self.trial = _TRIALS
        elif len(raw) <= _SHORT_BYTES:
            if len(self.done) >= _MANY_KNOWN:
                self.done.clear()
            self.done[rows, raw] = found
        return found

    def _strings(self, values: np.ndarray) -> _Encoded:
        content = _encode_strings(values)
        return self._entry(len(values), content, len(content))

    def _entry(self, rows: int, content: bytes, raw_size: int) -> _Encoded:
        assert self.dtype is not None and self.shape is not None
        before = _before(_tensor_head(self.dtype, (rows, *self.shape)), len(content))
        return (before, content), len(before) + len(content), raw_size

    def _stored(self, rows: int) -> bytes:
        before = self.stored.get(rows)
        if before is None:
            assert self.dtype is not None and self.shape is not None
            size = rows * math.prod(self.shape) * self.dtype.itemsize
            literal = _literal(size)
            before = _before(_tensor_head(self.dtype, (rows, *self.shape)), len(literal) + size) + literal
            self.stored[rows] = before
        return before


def padded_varints(values: np.ndarray, width: int) -> np.ndarray:
    """``[..., width] uint8``: each value as a varint of exactly `width` bytes, which protobuf accepts."""
    values = np.asarray(values).astype(np.uint64)
    shifts = np.arange(width, dtype=np.uint64) * np.uint64(7)
    out = ((values[..., None] >> shifts) & np.uint64(0x7F)).astype(np.uint8)
    out[..., :-1] |= 0x80
    return out


def _wide_varints(values: np.ndarray) -> list[bytes]:
    """Any uint64 in ten bytes each."""
    data = padded_varints(values, 10).tobytes()
    return [data[at : at + 10] for at in range(0, len(data), 10)]


def _before(head: bytes, content: int) -> bytes:
    length = b"\x22" + encode_varint(content)
    return b"\x0a" + encode_varint(len(head) + len(length) + content) + head + length


def _literal(size: int) -> bytes:
    """What comes before so many bytes in snappy's form of them as one literal, not compressed."""
    if not size:
        return b"\x00"
    last = size - 1
    if last < 60:
        tag = bytes((last << 2,))
    else:
        width = (last.bit_length() + 7) // 8
        tag = bytes(((59 + width) << 2,)) + last.to_bytes(width, "little")
    return encode_varint(size) + tag


def decode_tensor(tensor: Any, *, delta_encoded: bool = False, tally: Tally | None = None) -> np.ndarray:
    """The array ``[rows, ...]`` of one tensor of a chunk.

    Args:
        tensor: a ``Tensor`` message of :mod:`rlds2buf.formats.reverb.protocol.messages`.
        delta_encoded: whether the chunk says so; each row of an integer tensor then holds the
            difference to the row before it.
        tally: of the chunk; None: one of the tensor's own.

    Raises:
        LimitExceeded: it would take too much memory.
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
    excess = max(0, expected - len(tensor.tensor_content))
    codec = _snappy()
    try:
        # The length is looked at first, so that a damaged one is not allocated.
        found = codec.decompress_raw_len(tensor.tensor_content)
        if found == expected:
            (tally or Tally(BUDGET)).bytes(excess, f"a {name}{list(shape)} tensor")
        raw = codec.decompress_raw(tensor.tensor_content) if found == expected else b""
    except LimitExceeded:
        raise
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
    plain = not content and len(tensor.string_val) == count
    if not plain and count > len(content):  # each has a length, of a byte at least
        raise SourceFormatError(f"a string tensor of {count} values in {len(content)} bytes")
    out = np.empty(count, object)
    if plain:
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
