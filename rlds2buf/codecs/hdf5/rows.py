"""The rows of one HDF5 dataset, read forward in blocks.

Two readers with one interface.  :class:`LibraryRows` goes through h5py and decompresses each chunk
once.  :class:`RawRows` is for datasets that lie in the file as plain bytes: it has the kernel put
rows where they belong, with gaps for rows that the file does not hold, in one copy.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlds2buf.codecs.hdf5.reading import Hdf5File
from rlds2buf.errors import SourceFormatError

__all__ = ["LibraryRows", "RawRows", "native_dtype", "rows_of"]

Piece = tuple[int, int]
"""Where `length` consecutive rows go in an output: ``(first output row, length)``."""

_MAX_PIECES = 1024
"""Linux's IOV_MAX: so many buffers may one system call fill."""

_MAX_STEP_BYTES = 1 << 28
"""No more than this is read for the sake of whole chunks."""


def native_dtype(dataset: Any) -> np.dtype:
    """The dtype of the columns made from a dataset: native byte order, strings as objects.

    Raises:
        SourceFormatError: it holds something that is neither numbers, flags nor strings.
    """
    dtype: np.dtype = dataset.dtype
    if dtype.kind in "biufc":
        return dtype.newbyteorder("=")
    kept: Any = dtype.metadata or {}
    if dtype.kind == "S" or kept.get("vlen") in (str, bytes):
        return np.dtype(object)
    raise SourceFormatError(f"{dataset.file.filename}: {dataset.name} holds {dtype}, which is no column of steps")


class LibraryRows:
    """Rows of any HDF5 dataset, through h5py.

    Reads go forward by whole chunks and the last one is kept, so that a compressed chunk that two
    blocks share is decompressed once.

    Args:
        file: the open file.
        dataset: of it ``[N, ...]``.
        squeeze: give a dataset ``[N, 1]`` as ``[N]``.
    """

    def __init__(self, file: Hdf5File, dataset: Any, *, squeeze: bool = False) -> None:
        self._file = file
        self.dtype = native_dtype(dataset)
        self.count: int = dataset.shape[0]
        self.shape: tuple[int, ...] = () if squeeze else dataset.shape[1:]
        self._dataset = dataset
        self._step: int = dataset.chunks[0] if dataset.chunks else 1
        row_bytes = max(1, dataset.dtype.itemsize * int(np.prod(dataset.shape[1:], dtype=object)))
        self._step = min(self._step, max(1, _MAX_STEP_BYTES // row_bytes))
        self._low = self._high = 0
        self._held = np.empty((0, *self.shape), self.dtype)

    def fill(self, out: np.ndarray, start: int, pieces: Sequence[Piece]) -> None:
        """Copy consecutive rows from `start` on into ``out``, piece after piece.

        Raises:
            SourceFormatError: the file's bytes can't be read or decompressed.
        """
        rows = self.read(start, start + sum(length for _, length in pieces))
        done = 0
        for first, length in pieces:
            out[first : first + length] = rows[done : done + length]
            done += length

    def at(self, rows: np.ndarray) -> np.ndarray:
        """The rows numbered by ``rows``, an ascending ``[K] int64``, as ``[K, ...]``."""
        if not len(rows):
            return np.empty((0, *self.shape), self.dtype)
        return self.read(int(rows[0]), int(rows[-1]) + 1)[rows - rows[0]]

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows ``start`` up to (not with) ``stop``; the array may be handed out again, so don't write to it."""
        if not self._low <= start <= self._high:
            self._low = self._high = start
            self._held = self._held[:0]
        if stop > self._high:
            upto = min(self.count, -(-stop // self._step) * self._step)
            fresh = self._load(self._high, upto)
            kept = self._held[start - self._low :]
            self._held = np.concatenate([kept, fresh]) if len(kept) else fresh
            self._low, self._high = start, upto
        return self._held[start - self._low : stop - self._low]

    def _load(self, start: int, stop: int) -> np.ndarray:
        values = self._file.rows(self._dataset, start, stop)
        return values.astype(self.dtype, copy=False).reshape(len(values), *self.shape)


class RawRows:
    """Rows of a dataset that is stored as one run of plain numbers, read without the HDF5 library.

    Args:
        dataset: an open h5py dataset ``[N, ...]``.
        place: the file's descriptor, and the byte where the rows begin; see :meth:`Hdf5File.place`.
        squeeze: give a dataset ``[N, 1]`` as ``[N]``.
    """

    def __init__(self, dataset: Any, place: tuple[int, int], *, squeeze: bool = False) -> None:
        self._descriptor, self._offset = place
        self._name = f"{dataset.file.filename}: {dataset.name}"
        self.dtype = native_dtype(dataset)
        self.count: int = dataset.shape[0]
        self.shape: tuple[int, ...] = () if squeeze else dataset.shape[1:]
        self._row_bytes = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def fill(self, out: np.ndarray, start: int, pieces: Sequence[Piece]) -> None:
        """As :meth:`LibraryRows.fill`."""
        for i in range(0, len(pieces), _MAX_PIECES):
            some = pieces[i : i + _MAX_PIECES]
            rows = sum(length for _, length in some)
            self._scatter([out[first : first + length] for first, length in some], start, rows)
            start += rows

    def at(self, rows: np.ndarray) -> np.ndarray:
        """As :meth:`LibraryRows.at`."""
        out = np.empty((len(rows), *self.shape), self.dtype)
        for i, row in enumerate(rows.tolist()):
            self._scatter([out[i : i + 1]], row, 1)
        return out

    def _scatter(self, parts: list[Any], start: int, rows: int) -> None:
        at = self._offset + start * self._row_bytes
        if os.preadv(self._descriptor, parts, at) == rows * self._row_bytes:
            return
        for part in parts:  # a call stops after 2 GiB, and at the end of the file
            left = memoryview(part.reshape(-1).view(np.uint8))
            while left:
                done = os.preadv(self._descriptor, [left], at)
                if not done:
                    raise SourceFormatError(f"{self._name}: the file became shorter while it was read")
                left, at = left[done:], at + done


def rows_of(file: Hdf5File, dataset: Any, *, squeeze: bool = False) -> LibraryRows | RawRows:
    """The fastest reader for a dataset.

    Args:
        file: the open file.
        dataset: of it ``[N, ...]``.
        squeeze: give a dataset ``[N, 1]`` as ``[N]``.

    Raises:
        SourceFormatError: the file ends before the rows do.
    """
    place = file.place(dataset)
    if place is not None:
        return RawRows(dataset, place, squeeze=squeeze)
    return LibraryRows(file, dataset, squeeze=squeeze)
