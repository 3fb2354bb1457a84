"""Columns into ``tf.train.Example`` messages, without protobuf; :mod:`rlds2buf.formats.rlds.leaf_reader` reads them.

Where TFDS stores what is told there; how the messages look in :mod:`rlds2buf.codecs.tfrecord.example`.  Every
feature is one entry of a map; what is before its values depends on its name and their length only,
so it is made once for each length.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from rlds2buf.codecs.images.png import encode_png
from rlds2buf.codecs.images.stored_image import StoredImage
from rlds2buf.errors import SpecMismatch
from rlds2buf.formats.rlds.features import FeatureTree, Tensor
from rlds2buf.formats.rlds.features import Sequence as SequenceFeature

__all__ = ["Buffer", "LeafWriter", "encode_varints", "example_parts", "join_example", "leaf_writers"]

BYTES, FLOAT, INT64 = 1, 2, 3
"""Numbers of the three kinds of lists in the message."""

Buffer = bytes | np.ndarray
"""Bytes, or an array ``[n] uint8`` of them."""

_MOST_HEADERS: Final = 1024


class _Values(NamedTuple):
    """One entry of the message: what is behind the leaf's key, the list's number, its content."""

    suffix: str
    kind: int
    buffers: list[Buffer]
    size: int


class LeafWriter:
    """Writes one leaf of a record.

    Args:
        key: its path in the record, names joined by ``/``.
        leaf: what one value of it is.
        depth: how many sequences are around it: 1 for a field of a step, 0 for one of the episode.
    """

    __slots__ = ("_headers", "depth", "key", "leaf")

    def __init__(self, key: str, leaf: Tensor | StoredImage, depth: int) -> None:
        self.key = key
        self.leaf = leaf
        self.depth = depth
        self._headers: dict[tuple[str, int, int], bytes] = {}

    def write(self, value: np.ndarray) -> list[Buffer]:
        """The map entries for a value.

        Args:
            value: as :meth:`rlds2buf.formats.rlds.leaf_reader.LeafReader.read` gives it; for an image pixels, or
                an object array of image files, which are taken as they are.

        Raises:
            SpecMismatch: a cell of an object array is no byte string, or no array of the leaf's
                shape; names the step.
        """
        out: list[Buffer] = []
        try:
            for values in self._values(value):
                out.append(self._header(values))
                out += values.buffers
        except SpecMismatch as error:
            error.path = self.key.removeprefix("steps/")
            error.step = error.step if self.depth == 1 else None
            raise
        return out

    def _header(self, values: _Values) -> bytes:
        place = (values.suffix, values.kind, values.size)
        known = self._headers.get(place)
        if known is None:
            if len(self._headers) >= _MOST_HEADERS:
                self._headers.clear()
            known = self._headers[place] = _entry_header(self.key + values.suffix, values.kind, values.size)
        return known

    def _values(self, value: np.ndarray) -> Iterator[_Values]:
        if self.depth < 2:
            cells = value[None] if self.depth == 0 else value
            yield from self._encode(cells, "")
            return
        cells, lengths = _flatten(value, self.depth, self.leaf)
        for i, counts in enumerate(lengths):
            yield _ints(counts, f"/ragged_row_lengths_{i}")
        yield from self._encode(cells, "/ragged_flat_values")

    def _encode(self, cells: np.ndarray, suffix: str) -> Iterator[_Values]:
        """`cells`: one value behind the other, ``[M, *shape]``, or ``[M] object`` where their shapes differ."""
        leaf = self.leaf
        if isinstance(leaf, StoredImage):
            yield _strings(self._files(cells), suffix)
        elif leaf.dtype == object:
            yield _strings(self._texts(cells), suffix)
        elif leaf.encoding == "bytes":
            yield from self._raw(cells, leaf, suffix)
        elif leaf.dtype.kind == "f":
            yield _floats(self._plain(cells, leaf), suffix)
        else:
            yield _ints(self._plain(cells, leaf), suffix)

    def _plain(self, cells: np.ndarray, leaf: Tensor) -> np.ndarray:
        if cells.dtype != object:
            return cells
        arrays = [self._array(cell, leaf, i) for i, cell in enumerate(cells)]
        return np.concatenate([array.reshape(-1) for array in arrays]) if arrays else np.empty(0, leaf.dtype)

    def _raw(self, cells: np.ndarray, leaf: Tensor, suffix: str) -> Iterator[_Values]:
        dtype = leaf.dtype.newbyteorder("<")
        if cells.dtype != object:
            raw = np.ascontiguousarray(cells, dtype).reshape(len(cells), math.prod(cells.shape[1:]))
            values = _even_strings(raw.view(np.uint8) if raw.size else np.empty((len(cells), 0), np.uint8))
            shapes = np.broadcast_to(np.array(cells.shape[1:], np.int64), (len(cells), cells.ndim - 1))
        else:
            arrays = [self._array(cell, leaf, i) for i, cell in enumerate(cells)]
            values = _strings([np.ascontiguousarray(array, dtype).tobytes() for array in arrays], "")
            shapes = np.array([array.shape for array in arrays], np.int64).reshape(len(arrays), len(leaf.shape))
        if leaf.num_unknown < 2:
            yield values._replace(suffix=suffix)
            return
        yield values._replace(suffix=f"/value{suffix}")
        yield _ints(shapes, f"/shape{suffix}")

    def _array(self, cell: Any, leaf: Tensor | StoredImage, step: int | None) -> np.ndarray:
        array = np.asarray(cell)
        fits = array.ndim == len(leaf.shape) and all(
            want in (None, have) for want, have in zip(leaf.shape, array.shape, strict=True)
        )
        if not fits or array.dtype != leaf.dtype:
            raise _misfit(f"an array {array.dtype}{list(array.shape)}", leaf, step)
        return array

    def _texts(self, cells: np.ndarray) -> list[bytes]:
        out = cells.reshape(-1).tolist()
        if all(type(text) is bytes for text in out):
            return out
        return [self._text(text, i if cells.ndim == 1 else None) for i, text in enumerate(out)]

    def _text(self, text: Any, step: int | None) -> bytes:
        if isinstance(text, str):
            return text.encode()
        if not isinstance(text, bytes):
            raise _misfit(f"a {type(text).__name__}", self.leaf, step)
        return bytes(text)

    def _files(self, cells: np.ndarray) -> list[bytes]:
        return [cell if type(cell) is bytes else self._file(cell, i) for i, cell in enumerate(cells)]

    def _file(self, cell: Any, step: int) -> bytes:
        if isinstance(cell, bytes):
            return bytes(cell)
        pixels = self._array(cell, self.leaf, step)
        if not pixels.size:
            raise _misfit("a picture without pixels", self.leaf, step)
        return encode_png(pixels)


def leaf_writers(feature: FeatureTree, key: str = "", depth: int = 0) -> dict[str, LeafWriter]:
    """The writers of a feature's leaves, by their keys in the record.

    Args:
        feature: what features.json will say.
        key: its path in the record, names joined by ``/``.
        depth: how many sequences are around it.

    >>> list(leaf_writers({"steps": SequenceFeature({"reward": Tensor((), np.dtype("f4"))})}))
    ['steps/reward']
    """
    if isinstance(feature, dict):
        out: dict[str, LeafWriter] = {}
        for name, child in feature.items():
            out.update(leaf_writers(child, f"{key}/{name}" if key else name, depth))
        return out
    if isinstance(feature, SequenceFeature):
        return leaf_writers(feature.feature, key, depth + 1)
    return {key: LeafWriter(key, feature, depth)}


def join_example(entries: Sequence[Buffer]) -> bytes:
    """One message of all entries.

    >>> entries = LeafWriter("n", Tensor((), np.dtype("i8")), 0).write(np.array(150))
    >>> join_example(entries).hex()
    '0a0d0a0b0a016e12061a040a029601'
    """
    return b"".join(example_parts(entries)[0])


def example_parts(entries: Sequence[Buffer]) -> tuple[list[Any], int]:
    """The same in pieces (bytes, or arrays ``[n] uint8``), and how many bytes they are."""
    size = sum(map(len, entries))
    head = b"\x0a" + _varint(size)
    return [head, *entries], len(head) + size


def encode_varints(values: np.ndarray) -> Buffer:
    """Integers ``[M]`` of any width, or bool, as a row of base-128 varints; negative ones take ten bytes.

    >>> bytes(encode_varints(np.array([1, 150, -1]))).hex()
    '019601ffffffffffffffffff01'
    """
    flat = np.ascontiguousarray(values).reshape(-1)
    if flat.dtype == np.bool_:
        return flat.view(np.uint8)
    if flat.size == 0:
        return b""
    if flat.dtype.kind == "u":
        largest = int(flat.max())
    else:
        largest = int(flat.max()) if flat.min() >= 0 else -1
    if 0 <= largest < 0x80:
        return flat.astype(np.uint8)
    bits = flat if flat.dtype == np.uint64 else flat.astype(np.int64).view(np.uint64)
    width = 10 if largest < 0 else -(-largest.bit_length() // 7)
    table = np.empty((len(bits), width), np.uint8)
    kept = np.ones((len(bits), width), np.bool_)
    for i in range(width):
        table[:, i] = bits & np.uint64(0x7F)
        bits = bits >> np.uint64(7)
        if i + 1 < width:
            kept[:, i + 1] = more = bits != 0
            table[:, i] |= more.view(np.uint8) << 7
    return table[kept]


def _floats(values: np.ndarray, suffix: str) -> _Values:
    data = np.ascontiguousarray(values, "<f4").reshape(-1)
    return _packed(data.view(np.uint8), FLOAT, suffix)


def _ints(values: Any, suffix: str) -> _Values:
    return _packed(encode_varints(np.asarray(values)), INT64, suffix)


def _packed(data: Any, kind: int, suffix: str) -> _Values:
    # The list's own tag and length are in the header, which is made for the values' size alone.
    return _Values(suffix, kind, [data] if len(data) else [], len(data))


def _strings(values: list[bytes], suffix: str) -> _Values:
    if values and values.count(values[0]) == len(values):
        one = b"".join((b"\x0a", _varint(len(values[0])), values[0]))
        return _Values(suffix, BYTES, [one * len(values)], len(one) * len(values))
    buffers: list[Buffer] = [b""] * (2 * len(values))
    buffers[::2] = [_string_header(size) for size in map(len, values)]
    buffers[1::2] = values
    return _Values(suffix, BYTES, buffers, sum(map(len, buffers)))


def _even_strings(rows: np.ndarray) -> _Values:
    """Rows ``[M, n] uint8`` as M strings of n bytes."""
    prefix = np.frombuffer(_string_header(rows.shape[1]), np.uint8)
    out = np.empty((len(rows), len(prefix) + rows.shape[1]), np.uint8)
    out[:, : len(prefix)] = prefix
    out[:, len(prefix) :] = rows
    return _Values("", BYTES, [out.reshape(-1)], out.size)


def _entry_header(key: str, kind: int, size: int) -> bytes:
    """What comes before the values of a map entry; the numbers' packed run has a tag and a length of its own."""
    name = key.encode()
    inner = b"\x0a" + _varint(size) if kind != BYTES and size else b""
    values = bytes([kind << 3 | 2]) + _varint(len(inner) + size) + inner
    feature = b"\x12" + _varint(len(values) + size) + values
    entry = b"\x0a" + _varint(len(name)) + name + feature
    return b"\x0a" + _varint(len(entry) + size) + entry


@functools.lru_cache(1 << 15)
def _string_header(size: int) -> bytes:
    return b"\x0a" + _varint(size)


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _flatten(value: np.ndarray, depth: int, leaf: Tensor | StoredImage) -> tuple[np.ndarray, list[np.ndarray]]:
    """All cells behind each other, and the lengths of the rows from outside in."""
    rank = 0 if isinstance(leaf, StoredImage) and value.dtype == object else len(leaf.shape)
    if value.ndim == depth + rank:
        counts = np.cumprod(value.shape[:depth])
        lengths = [np.full(counts[i], value.shape[i + 1], np.int64) for i in range(depth - 1)]
        return value.reshape(counts[-1], *value.shape[depth:]), lengths
    level = list(value)
    lengths = []
    for _ in range(depth - 1):
        for i, row in enumerate(level):
            if not isinstance(row, np.ndarray | list | tuple) or (isinstance(row, np.ndarray) and not row.ndim):
                raise _misfit(f"a {type(row).__name__}", leaf, i)
        lengths.append(np.array([len(row) for row in level], np.int64))
        level = [cell for row in level for cell in row]
    return _cells(level, rank, leaf), lengths


def _cells(cells: list[Any], rank: int, leaf: Tensor | StoredImage) -> np.ndarray:
    """Cells behind each other: ``[M, *shape]`` for scalars and for rows of strings, ``[M] object`` for others."""
    if isinstance(leaf, Tensor) and cells and (leaf.dtype == object) == bool(rank):
        try:
            out = np.stack(cells)
        except ValueError as cause:
            raise _misfit("rows of several lengths", leaf, None) from cause
        if out.dtype != leaf.dtype:
            raise _misfit(f"an array of {out.dtype}", leaf, None)
        return out
    out = np.empty(len(cells), object)
    for i, cell in enumerate(cells):
        out[i] = cell
    return out


def _misfit(what: str, leaf: Tensor | StoredImage, step: int | None) -> SpecMismatch:
    wanted = "a byte string" if leaf.dtype == object else f"{leaf.dtype}{list(leaf.shape)}"
    return SpecMismatch(f"{what} where {wanted} is expected", step=step, rule="spec")
