"""Columns into ``tf.train.Example`` messages, without protobuf; :mod:`rlds2buf.formats.rlds.leaf_reader` reads them.

Where TFDS stores what is told there; how the messages look in :mod:`rlds2buf.codecs.tfrecord.example`.  The records
of a block are made together.  Every feature is one entry of a map.  Its values are encoded for all records
at once; what is before them depends on its name and their length only, so it is made once for each length.  Then all
pieces are joined in one call.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from rlds2buf.codecs.images.png import encode_png
from rlds2buf.codecs.images.stored_image import StoredImage
from rlds2buf.codecs.tfrecord.frames import fill_checksums, frame_header
from rlds2buf.core.records import FOOTER_BYTES, HEADER_BYTES, Records
from rlds2buf.errors import SpecMismatch
from rlds2buf.formats.rlds.features import FeatureTree, Tensor
from rlds2buf.formats.rlds.features import Sequence as SequenceFeature

__all__ = ["Buffer", "LeafWriter", "Pieces", "encode_varints", "example_records", "leaf_writers"]

BYTES, FLOAT, INT64 = 1, 2, 3
"""Numbers of the three kinds of lists in the message."""

Buffer = Any
"""Bytes, or an array ``[n] uint8`` or a memoryview of them."""

_SHORT: Final = 1 << 12
_MOST_BYTES: Final = (1 << 31) - 1


class Pieces(NamedTuple):
    """Something that each of E records has at one place.

    Attributes:
        buffers: of each record, or lists of several that follow on one another.
        sizes: ``[E] int64``, their bytes.
    """

    buffers: list[Buffer]
    sizes: np.ndarray

    @classmethod
    def cut(cls, data: Buffer, edges: np.ndarray) -> Pieces:
        """Parts of one buffer; `edges` ``[E + 1] int64`` are where each begins, and where the last one ends."""
        sizes = edges[1:] - edges[:-1]
        if len(sizes) == 1:
            return cls([data], sizes)
        # A copy of a short part costs less than a view, which the garbage collector keeps track of.
        whole = memoryview(data) if len(data) > _SHORT * len(sizes) else bytes(data)
        return cls([whole[start:stop] for start, stop in itertools.pairwise(edges.tolist())], sizes)

    def repeated(self, count: int) -> Pieces:
        """The same in `count` times as many records."""
        return Pieces(self.buffers * count, np.tile(self.sizes, count))

    @classmethod
    def joined(cls, pieces: Sequence[Pieces]) -> Pieces:
        """Those of several blocks."""
        buffers = [buffer for piece in pieces for buffer in piece.buffers]
        return cls(buffers, np.concatenate([piece.sizes for piece in pieces]))


class _Values(NamedTuple):
    """One entry of each record: what is behind the leaf's key, the list's number, what the list holds."""

    suffix: str
    kind: int
    content: Pieces


class LeafWriter:
    """Writes one leaf of each record of a block.

    Args:
        key: its path in the record, names joined by ``/``.
        leaf: what one value of it is.
        depth: how many sequences are around it: 1 for a field of a step, 0 for one of the episode.
    """

    __slots__ = ("depth", "key", "leaf")

    def __init__(self, key: str, leaf: Tensor | StoredImage, depth: int) -> None:
        self.key = key
        self.leaf = leaf
        self.depth = depth

    def write(self, column: np.ndarray, edges: np.ndarray) -> list[Pieces]:
        """The map entries for a column, in pieces.

        Args:
            column: M values, each as :meth:`rlds2buf.formats.rlds.leaf_reader.LeafReader.read` gives it for one step;
                for an image pixels, or an object array of image files, which are taken as they are.
            edges: ``[E + 1] int64``, with which value each record begins, and M.

        Raises:
            SpecMismatch: a cell of an object array is no byte string, or no array of the leaf's
                shape; names the step, where there is one record.
        """
        out: list[Pieces] = []
        try:
            for values in self._values(column, edges):
                header = functools.partial(_entry_header, self.key + values.suffix, values.kind)
                out += [_by_size(values.content.sizes, header), values.content]
        except SpecMismatch as error:
            error.path = self.key.removeprefix("steps/")
            error.step = error.step if self.depth == 1 else None
            raise
        return out

    def _values(self, column: np.ndarray, edges: np.ndarray) -> Iterator[_Values]:
        if self.depth < 2:
            yield from self._encode(column, edges, "")
            return
        cells, lengths = _flatten(column, self.depth, self.leaf)
        for i, counts in enumerate(lengths):
            yield _ints(counts, edges, f"/ragged_row_lengths_{i}")
            edges = _summed(counts)[edges]
        yield from self._encode(cells, edges, "/ragged_flat_values")

    def _encode(self, cells: np.ndarray, edges: np.ndarray, suffix: str) -> Iterator[_Values]:
        """`cells`: one value behind the other, ``[M, *shape]``, or ``[M] object`` where their shapes differ."""
        leaf = self.leaf
        if isinstance(leaf, StoredImage):
            yield _strings(self._files(cells), edges, suffix)
        elif leaf.dtype == object:
            yield _strings(self._texts(cells), edges * (cells.size // max(1, len(cells))), suffix)
        elif leaf.encoding == "bytes":
            yield from self._raw(cells, edges, leaf, suffix)
        else:
            pack = _floats if leaf.dtype.kind == "f" else _ints
            yield pack(*self._plain(cells, edges, leaf), suffix)

    def _plain(self, cells: np.ndarray, edges: np.ndarray, leaf: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """The numbers, one behind the other, and where each record's begin."""
        if cells.dtype != object:
            return cells, edges * math.prod(cells.shape[1:])
        arrays = [self._array(cell, leaf, i) for i, cell in enumerate(cells)]
        numbers = np.concatenate([array.reshape(-1) for array in arrays]) if arrays else np.empty(0, leaf.dtype)
        return numbers, _summed([array.size for array in arrays])[edges]

    def _raw(self, cells: np.ndarray, edges: np.ndarray, leaf: Tensor, suffix: str) -> Iterator[_Values]:
        dtype = leaf.dtype.newbyteorder("<")
        behind = suffix if leaf.num_unknown < 2 else f"/value{suffix}"
        if cells.dtype != object:
            raw = np.ascontiguousarray(cells, dtype).reshape(len(cells), math.prod(cells.shape[1:]))
            yield _even_strings(raw.view(np.uint8) if raw.size else np.empty((len(cells), 0), np.uint8), edges, behind)
            shapes = np.broadcast_to(np.array(cells.shape[1:], np.int64), (len(cells), cells.ndim - 1))
        else:
            arrays = [self._array(cell, leaf, i) for i, cell in enumerate(cells)]
            yield _strings([np.ascontiguousarray(array, dtype).tobytes() for array in arrays], edges, behind)
            shapes = np.array([array.shape for array in arrays], np.int64).reshape(len(arrays), len(leaf.shape))
        if leaf.num_unknown >= 2:
            yield _ints(shapes, edges * shapes.shape[1], f"/shape{suffix}")

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


def example_records(pieces: Sequence[Pieces]) -> Records:
    """The messages that are made of these entries, in frames as TFRecord files have them.

    Raises:
        SpecMismatch: a record would be larger than the 2 GiB that TensorFlow reads.

    >>> entries = LeafWriter("n", Tensor((), np.dtype("i8")), 0).write(np.array([150, 1]), np.arange(3))
    >>> example_records(entries)[0][0].hex()
    '0a0d0a0b0a016e12061a040a029601'
    """
    inner = np.sum([piece.sizes for piece in pieces], 0)
    heads = _by_size(inner, _record_head)
    sizes = inner + heads.sizes - HEADER_BYTES
    if sizes.max() > _MOST_BYTES:
        raise SpecMismatch(f"{sizes.max()} bytes in one record; TensorFlow reads up to 2 GiB", rule="spec")
    stride = len(pieces) + 2
    parts: list[Buffer] = [bytes(FOOTER_BYTES)] * (stride * len(sizes))
    for i, piece in enumerate((heads, *pieces)):
        parts[i::stride] = piece.buffers
    if any(isinstance(piece.buffers[0], list) for piece in pieces):
        parts = [one for part in parts for one in (part if isinstance(part, list) else (part,))]
    frames = bytearray().join(parts)
    edges = _summed(sizes + (HEADER_BYTES + FOOTER_BYTES))
    fill_checksums(frames, edges)
    return Records(frames, edges)


def encode_varints(values: np.ndarray) -> tuple[Buffer, np.ndarray | None]:
    """Integers ``[M]`` of any width, or bool, as a row of base-128 varints; negative ones take ten bytes.

    Returns:
        The bytes, and how many of them each takes, ``[M] int64``; None where each takes one.

    >>> data, widths = encode_varints(np.array([1, 150, -1]))
    >>> bytes(data).hex(), widths.tolist()
    ('019601ffffffffffffffffff01', [1, 2, 10])
    """
    flat = np.ascontiguousarray(values).reshape(-1)
    if flat.dtype == np.bool_:
        return flat.view(np.uint8), None
    if flat.size == 0:
        return b"", None
    if flat.dtype.kind == "u":
        largest = int(flat.max())
    else:
        largest = int(flat.max()) if flat.min() >= 0 else -1
    if 0 <= largest < 0x80:
        return flat.astype(np.uint8), None
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
    return table[kept], kept.sum(1)


def _floats(values: np.ndarray, edges: np.ndarray, suffix: str) -> _Values:
    data = np.ascontiguousarray(values, "<f4").reshape(-1)
    return _Values(suffix, FLOAT, Pieces.cut(data.view(np.uint8), edges * data.itemsize))


def _ints(values: np.ndarray, edges: np.ndarray, suffix: str) -> _Values:
    data, widths = encode_varints(values)
    return _Values(suffix, INT64, Pieces.cut(data, edges if widths is None else _summed(widths)[edges]))


def _strings(values: list[bytes], edges: np.ndarray, suffix: str) -> _Values:
    if values and values.count(values[0]) == len(values):
        one = _string_header(len(values[0])) + values[0]
        return _Values(suffix, BYTES, Pieces.cut(one * len(values), edges * len(one)))
    buffers: list[Buffer] = [b""] * (2 * len(values))
    buffers[::2] = headers = [_string_header(size) for size in map(len, values)]
    buffers[1::2] = values
    sizes = np.fromiter(map(len, values), np.int64, len(values))
    sizes += np.fromiter(map(len, headers), np.int64, len(values))
    ends = _summed(sizes)[edges]
    lists: list[Buffer] = [buffers[2 * start : 2 * stop] for start, stop in itertools.pairwise(edges.tolist())]
    return _Values(suffix, BYTES, Pieces(lists, ends[1:] - ends[:-1]))


def _even_strings(rows: np.ndarray, edges: np.ndarray, suffix: str) -> _Values:
    """Rows ``[M, n] uint8`` as M strings of n bytes."""
    prefix = np.frombuffer(_string_header(rows.shape[1]), np.uint8)
    out = np.empty((len(rows), len(prefix) + rows.shape[1]), np.uint8)
    out[:, : len(prefix)] = prefix
    out[:, len(prefix) :] = rows
    return _Values(suffix, BYTES, Pieces.cut(out.reshape(-1), edges * out.shape[1]))


def _summed(sizes: Any) -> np.ndarray:
    """``[n + 1] int64``: how many there are before each, and all."""
    out = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=out[1:])
    return out


def _by_size(sizes: np.ndarray, make: Callable[[int], bytes]) -> Pieces:
    """What depends on a size ``[E]`` only."""
    listed = sizes.tolist()
    if len(listed) == 1:
        made = make(listed[0])
        return Pieces([made], np.array([len(made)]))
    known = {size: make(size) for size in set(listed)}
    buffers = [known[size] for size in listed]
    return Pieces(buffers, np.fromiter(map(len, buffers), np.int64, len(buffers)))


def _record_head(size: int) -> bytes:
    """What comes before `size` bytes of entries: the frame's header and the message's."""
    head = b"\x0a" + _varint(size)
    return frame_header(len(head) + size) + head


@functools.lru_cache(1 << 12)
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
