"""Episodes of a D4RL file, many in one go: each dataset's rows as they lie there, then one gather to where they go."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlds2buf.codecs.hdf5.reading import Hdf5File
from rlds2buf.codecs.hdf5.rows import LibraryRows, RawRows, rows_of
from rlds2buf.core import nest
from rlds2buf.formats.d4rl.layout import Layout
from rlds2buf.io.cuts import Cuts
from rlds2buf.io.padding import FinalRows

__all__ = ["BlockReader"]


class BlockReader:
    """Reads neighbouring episodes forward.

    Args:
        file: the open file.
        layout: its columns.
        cuts: its episodes.
        reward_shift: take a step's reward from so many rows further on.
        row_bytes: of one row of all fields.
    """

    def __init__(self, file: Hdf5File, layout: Layout, cuts: Cuts, *, reward_shift: int, row_bytes: int) -> None:
        self._file = file
        self._layout = layout
        self._cuts = cuts
        self._shift = reward_shift
        self._row_bytes = row_bytes
        self._held = np.empty(0, np.uint8)
        columns = layout.fields, layout.following or {}
        self._fields, self._following = nest.map_structure(
            lambda column: rows_of(file, column.dataset, squeeze=column.squeeze), columns
        )

    def read(self, start: int, stop: int) -> tuple[dict[str, Any], np.ndarray]:
        """Episodes ``start`` up to (not with) ``stop``.

        Returns:
            The columns and flags of all their rows, and each one's first row ``[E] int64``.

        Raises:
            SourceFormatError: rows can't be read.
            LimitExceeded: they would take too much memory.
        """
        self._claim(start, stop)
        cuts = self._cuts
        rows = cuts.rows[start:stop]
        final = FinalRows(rows, cuts.added[start:stop])
        count, total = final.count, final.total
        first, last = int(cuts.first[start]), cuts.first[start:stop] + rows - 1

        def load(reader: LibraryRows | RawRows, following: LibraryRows | RawRows | None = None) -> np.ndarray:
            if count == total:
                column = np.empty((total, *reader.shape), reader.dtype)
                reader.fill(column, first)
                return column
            column = self._room(total, reader)
            reader.fill(column[:count], first)
            column[count:] = following.at(last) if following is not None else b"" if column.dtype == object else 0
            return final.spread(column)

        fields = {name: child for name, child in self._fields.items() if name != "observation"}
        columns: dict[str, Any] = nest.map_structure(load, fields)
        following = [self._following] if self._layout.following is not None else []
        columns["observation"] = nest.map_structure(load, self._fields["observation"], *following)
        if self._shift:
            columns["reward"] = _shifted(columns["reward"], np.repeat(final.starts + rows, final.lengths), self._shift)
        columns.update(final.flags(cuts.terminated[start:stop]))
        return columns, final.starts

    def _room(self, rows: int, reader: LibraryRows | RawRows) -> np.ndarray:
        """An array for so many rows, in the same memory each time: that is in the processor's cache already."""
        if reader.dtype == object:
            return np.empty((rows, *reader.shape), object)
        size = rows * reader.dtype.itemsize * math.prod(reader.shape)
        if len(self._held) < size:
            self._held = np.empty(size, np.uint8)
        return self._held[:size].view(reader.dtype).reshape(rows, *reader.shape)

    def _claim(self, start: int, stop: int) -> None:
        """Refuse a block that takes too much memory; more than one long episode there hardly is in one."""
        rows = int(self._cuts.rows[start:stop].sum())
        if rows * self._row_bytes <= self._file.budget.max_bytes:
            return
        self._file.new_record()
        for _, column in nest.flatten(self._layout.fields):
            self._file.claim(column.dataset, rows)


def _shifted(reward: np.ndarray, stops: np.ndarray, by: int) -> np.ndarray:
    """Each row's reward from so many rows further on; 0 where those are behind `stops`, its episode's rows' end."""
    place = np.arange(len(reward)) + min(by, len(reward))
    past = place >= stops
    place[past] = 0
    shifted = reward[place]
    shifted[past] = 0
    return shifted
