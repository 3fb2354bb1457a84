"""The rows of one HDF5 dataset, read forward in blocks.

Two readers with one interface.  :class:`LibraryRows` goes through h5py and decompresses each chunk
once.  :class:`RawRows` is for datasets that lie in the file as plain bytes, which the kernel copies where
they belong.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from rlds2buf.codecs.hdf5.reading import Hdf5File
from rlds2buf.errors import SourceFormatError

__all__ = ["LibraryRows", "RawRows", "native_dtype", "rows_of"]

_NEAR = 1 << 14
"""Rows this many bytes apart are picked out of all those between them: a system call for each takes longer."""

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

    def fill(self, out: np.ndarray, start: int) -> None:
        """Copy consecutive rows from `start` on into ``out``, as many as it has.

        Raises:
            SourceFormatError: the file's bytes can't be read or decompressed.
        """
        out[:] = self.read(start, start + len(out))

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

    def fill(self, out: np.ndarray, start: int) -> None:
        """As :meth:`LibraryRows.fill`; `out` is contiguous."""
        left: Any = out.reshape(-1).view(np.uint8).data
        at = self._offset + start * self._row_bytes
        while left:  # a call stops after 2 GiB, and at the end of the file
            done = os.preadv(self._descriptor, [left], at)
            if not done:
                raise SourceFormatError(f"{self._name}: the file became shorter while it was read")
            left, at = left[done:], at + done

    def at(self, rows: np.ndarray) -> np.ndarray:
        """As :meth:`LibraryRows.at`."""
        span = int(rows[-1] - rows[0]) + 1 if len(rows) else 0
        if span * self._row_bytes <= len(rows) * _NEAR:
            between = np.empty((span, *self.shape), self.dtype)
            if span:
                self.fill(between, int(rows[0]))
            return between.take(rows - rows[:1], axis=0)
        out = np.empty((len(rows), *self.shape), self.dtype)
        for i, row in enumerate(rows.tolist()):
            self.fill(out[i : i + 1], row)
        return out


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
