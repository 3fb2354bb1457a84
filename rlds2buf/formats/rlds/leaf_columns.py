"""From the features of many records to columns: :mod:`rlds2buf.formats.rlds.leaf_reader` for a block of episodes.

What one record may hold in many ways is read in the one way that is usual.  A leaf that has none (its shape
varies, it is compressed, it may be left out) is read record by record and joined.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from rlds2buf.codecs.images.claims import check_pixels
from rlds2buf.codecs.images.resize import stack_frames
from rlds2buf.codecs.images.stored_image import StoredImage
from rlds2buf.codecs.tfrecord.record_table import RecordTable
from rlds2buf.core.budget import Budget, Tally
from rlds2buf.errors import SourceFormatError
from rlds2buf.formats.rlds.leaf_reader import LeafReader, check_lengths, cut_rows, native, raw_dtype

__all__ = ["LeafColumn", "NotAlike"]

_USUAL: Final = 90
"""So many bytes of pixels to one of its file need no second look."""


class NotAlike(SourceFormatError):
    """Records have columns that can't be joined; each by itself may be sound."""


class LeafColumn:
    """Reads one leaf of many records.

    Args:
        reader: the same for one.
        number: gives the number of a feature in the tables, by its key.
        is_per_step: whether its outermost sequence is that of the steps; else it is one value for each record.
    """

    def __init__(self, reader: LeafReader, number: Callable[[str], int], *, is_per_step: bool) -> None:
        leaf = reader.leaf
        self.reader = reader
        self._is_per_step = is_per_step
        self._keys = [number(key) for key in reader.keys]
        self._flat, self._inner = self._keys[0], self._keys[1 : max(1, len(reader.lengths))]
        if isinstance(leaf, StoredImage) or leaf.encoding != "none" or leaf.dtype == object:
            self._kind = "bytes"
        else:
            self._kind = "float" if leaf.dtype.kind == "f" else "int64"
        self._size = _values_of_one(reader) if is_per_step or not reader.lengths else 0

    @property
    def has_pixels(self) -> bool:
        """Whether it takes pixels that are decoded ahead."""
        return self.reader.has_pixels and self._size > 0

    def lengths(self, table: RecordTable) -> np.ndarray:
        """``[n] int64``, how many rows each record has (1 of a leaf without rows); -1 where it is not as usual."""
        if not self._size and not self._is_per_step:
            return np.ones(len(table), np.int64)  # left out or not, reading will tell
        counts = table.counts(self._flat)
        usual = table.holds(self._flat, self._kind)
        for k in self._inner:
            usual &= table.holds(k, "int64")
        tensors = counts
        if self._size > 1:
            tensors, rest = np.divmod(counts, self._size)
            usual &= rest == 0
        if not self._is_per_step:
            return np.where(usual & (tensors == 1), 1, -1)
        return np.where(usual, table.counts(self._inner[0]) if self._inner else tensors, -1)

    @property
    def has_strings(self) -> bool:
        """Whether its values are strings, of which so many may be too many."""
        return self._kind == "bytes"

    def num_strings(self, table: RecordTable) -> np.ndarray:
        """``[n] int64``, how many strings each record has."""
        return table.counts(self._flat)

    def too_much(self, table: RecordTable, budget: Budget) -> np.ndarray:
        """``[n] bool``: of which record the pixels might take more memory than is allowed."""
        leaf = self.reader.leaf
        if not self.has_pixels or not isinstance(leaf, StoredImage) or None in leaf.out_shape:
            return np.zeros(len(table), np.bool_)
        size = table.counts(self._flat) * (math.prod(leaf.out_shape) * leaf.dtype.itemsize)  # type: ignore[arg-type]
        return (size > budget.max_bytes) & (size > _USUAL * table.sizes(self._flat))

    def files(self, table: RecordTable, budget: Budget) -> np.ndarray:
        """``[M] object``, the files of all pictures.

        Raises:
            LimitExceeded: their pixels might take too much memory.
        """
        files = table.strings(self._flat)
        leaf = self.reader.leaf
        if isinstance(leaf, StoredImage) and None in leaf.out_shape:
            check_pixels(files.tolist(), leaf, Tally(budget))
        return files

    def read(self, table: RecordTable, tallies: Sequence[Tally], pixels: np.ndarray | None = None) -> np.ndarray:
        """The rows of all records, one behind the other: ``[M, ...]``; ``[n, ...]`` of a leaf without rows.

        Args:
            table: of records whose :meth:`lengths` are as usual.
            tallies: of each record, for what is read record by record; may be empty where nothing is.
            pixels: what has become of the :meth:`files`.

        Raises:
            NotAlike: the records have no column in common.
            SourceFormatError: as :meth:`LeafReader.read`.
        """
        if not self._size:
            return self._one_by_one(table, tallies)
        values = self._values(table, pixels)
        for k, length in zip(reversed(self._inner), reversed(self.reader.lengths[1:]), strict=True):
            lengths = table.ints(k)
            check_lengths(lengths, length)
            values = cut_rows(values, lengths, length)
        if pixels is not None and values.dtype == object and self._is_per_step:
            raise NotAlike(f"{self.reader.key}: pictures of several sizes")
        if self._inner:
            self._check_inner(table, values.shape[1 : len(self._inner) + 1])
        return values

    @property
    def is_read_one_by_one(self) -> bool:
        """Whether there is no usual way."""
        return not self._size

    def pixels_of(self, table: RecordTable, pixels: np.ndarray) -> list[np.ndarray]:
        """The pixels of each record, as :class:`PendingFrames` would give them."""
        parts = np.split(pixels, np.cumsum(table.counts(self._flat))[:-1])
        return [stack_frames(list(part)) if part.dtype == object else part for part in parts]

    def _values(self, table: RecordTable, pixels: np.ndarray | None) -> np.ndarray:
        """``[T, *shape]``, all tensors of all records."""
        leaf = self.reader.leaf
        if pixels is not None:
            return pixels
        if isinstance(leaf, StoredImage):
            return table.strings(self._flat)
        shape: tuple[int, ...] = leaf.shape  # type: ignore[assignment]
        if leaf.encoding == "bytes":
            dtype = raw_dtype(leaf)
            flat = table.raw(self._flat, math.prod(shape) * dtype.itemsize).view(dtype)
            return native(flat, leaf).reshape(-1, *shape)
        if leaf.dtype == object:
            values = table.strings(self._flat)
        elif self._kind == "float":
            values = table.floats(self._flat).astype(leaf.dtype, copy=False)
        else:
            values = table.ints(self._flat, leaf.dtype)
        return values.reshape(-1, *shape) if shape else values

    def _check_inner(self, table: RecordTable, lengths: Sequence[int]) -> None:
        """Whether the rows of every record add up to what the record holds, not only those of all of them."""
        if len(lengths) < len(self._inner):
            raise NotAlike(f"{self.reader.key}: rows of several lengths")
        tensors = table.counts(self._flat) // self._size
        for k, behind, length in zip(self._inner, [*self._inner[1:], None], lengths, strict=True):
            have = tensors if behind is None else table.counts(behind)
            if (have != table.counts(k) * length).any():
                raise NotAlike(f"{self.reader.key}: rows of several lengths")

    def _one_by_one(self, table: RecordTable, tallies: Sequence[Tally]) -> np.ndarray:
        read = self.reader.read
        parts = [read(table.record(i, self._keys), None, tallies[i]) for i in range(len(table))]
        if not self._is_per_step:
            return _column(parts)
        if any(part.dtype != parts[0].dtype or part.shape[1:] != parts[0].shape[1:] for part in parts):
            raise NotAlike(f"{self.reader.key}: of several shapes")
        return np.concatenate(parts)


def _values_of_one(reader: LeafReader) -> int:
    """How many values of its list make one tensor; 0 where there is no usual way."""
    leaf = reader.leaf
    if isinstance(leaf, StoredImage):
        return 1
    if leaf.num_unknown or leaf.optional or leaf.encoding == "zlib" or leaf.dtype.kind not in "biufcO":
        return 0
    size = math.prod(leaf.shape)  # type: ignore[arg-type]
    if leaf.encoding == "bytes":
        return 1 if size else 0
    return 0 if leaf.dtype.kind == "c" else size


def _column(values: list[Any]) -> np.ndarray:
    """A value of each record as a column: ``[n, ...]``, or ``[n] object`` where they differ in kind or shape."""
    kinds = {(type(value), getattr(value, "dtype", None), getattr(value, "shape", None)) for value in values}
    if len(kinds) == 1 and not isinstance(values[0], bytes):
        return np.stack(values)
    out = np.empty(len(values), object)
    for i, value in enumerate(values):
        out[i] = value
    return out
