"""Rows of many episodes out of wherever in an HDF5 file they lie, one behind the other."""

from __future__ import annotations

import numpy as np

from rlds2buf.codecs.hdf5.alike import Window
from rlds2buf.codecs.hdf5.reading import Hdf5File

__all__ = ["Gathering"]

_GAP = 1 << 12
"""Values no further apart are read at once."""


class Gathering:
    """Gathers rows of episodes, one dataset after the other.

    Args:
        file: the open file.
        window: what is read of it already.
        lengths: ``[E] int64``, how many rows each episode has in the end.

    Attributes:
        starts: ``[E] int64``, each one's first row.
        total: of all of them, M.

    Raises:
        SourceFormatError: the file became shorter since it was opened.
    """

    def __init__(self, file: Hdf5File, window: Window, lengths: np.ndarray) -> None:
        file.require_whole()
        self._file = file
        self._window = window
        self._lengths = lengths
        stops = np.cumsum(lengths)
        self.starts, self._ends = stops - lengths, stops - 1
        self.total = int(stops[-1])
        self._episode = np.repeat(np.arange(len(lengths)), lengths)
        self._row = np.arange(self.total)

    def read(self, size: int, places: np.ndarray, short: bool | np.ndarray = False) -> np.ndarray:
        """``[M] V<size>``; zeros where nothing is read.

        Args:
            size: of a row in bytes.
            places: ``[E] int64``, where in the file the rows lie, one behind the other; -1 for those not to be read.
            short: whether the last row is not there, of all or ``[E] bool``.

        Raises:
            SourceFormatError: the file became shorter.
        """
        out = np.zeros(self.total, f"V{size}")
        sizes = (self._lengths - short) * size
        at = (places - self.starts * size)[self._episode] + self._row * size
        for whose, window in self._windows(places, sizes):
            mine = whose[self._episode]
            mine[self._ends if short is True else self._ends[np.broadcast_to(short, len(places))]] = False
            out[mine] = window.at(at[mine], size)
        return out

    def _windows(self, places: np.ndarray, sizes: np.ndarray) -> list[tuple[np.ndarray, Window]]:
        """For whom, ``[E] bool``, the rows are in which window."""
        there = (places >= 0) & (sizes > 0)
        near = there & self._window.holds(places, sizes)
        found = [(near, self._window)] if near.any() else []
        far = np.flatnonzero(there & ~near)
        far = far[np.argsort(places[far])]
        ends = np.maximum.accumulate(places[far] + sizes[far])
        for some in np.split(far, np.flatnonzero(places[far][1:] > ends[:-1] + _GAP) + 1) if len(far) else ():
            first = int(places[some[0]])
            own = Window(self._file.raw(first, int((places[some] + sizes[some]).max()) - first), first)
            found.append((np.isin(np.arange(len(places)), some), own))
        return found
