"""Many of d3rlpy's episodes, whose datasets are alike, read together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from rlds2buf.codecs.hdf5.alike import Unfit, Window
from rlds2buf.codecs.hdf5.alike_datasets import LEAST, AlikeDatasets, find_alike, window_of
from rlds2buf.codecs.hdf5.gathering import Gathering
from rlds2buf.codecs.hdf5.reading import Hdf5File
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.errors import EpisodeError
from rlds2buf.io.alike_episodes import AlikeEpisodes
from rlds2buf.io.padding import FinalRows

__all__ = ["COLUMNS", "Together"]

COLUMNS: Final = ("observations", "actions", "rewards", "terminated")


class Together(AlikeEpisodes["_Window"]):
    """Reads runs of episodes that have the four columns.

    Args:
        file: the open file.
        columns: what an episode has.
        alone: as of :class:`AlikeEpisodes`.
        source: for messages.
    """

    def __init__(
        self, file: Hdf5File, columns: Sequence[str], alone: Callable[[int], Episode | EpisodeError], source: str
    ) -> None:
        super().__init__(alone, sorted(columns) == sorted(COLUMNS) and file.is_flat)
        self._file = file
        self._source = source

    def ends(self, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows ``int64`` and terminations ``bool`` of episodes up to (not with) `stop`; 0 rows where it can't be told.

        Raises:
            SourceFormatError: the file became shorter.
        """
        lengths, terminated = np.zeros(stop, np.int64), np.zeros(stop, np.bool_)
        for start, held in self.windows(0, stop):
            if held is not None:
                own = slice(start, start + len(held.known))
                lengths[own] = held.lengths * held.known
                terminated[own] = held.terminated & held.known
        return lengths, terminated

    def look(self, start: int, count: int) -> _Window | None:
        """See :meth:`AlikeEpisodes.look`."""
        names = {name: [f"{name}_{i}" for i in range(start, start + count)] for name in COLUMNS}
        places = np.stack([self._file.addresses(names[name]) for name in COLUMNS])
        window, count = window_of(self._file, places)
        if count < LEAST:
            return None
        found = {}
        for name, own in zip(COLUMNS, places[:, :count], strict=True):
            alike = find_alike(self._file, window, own, lambda i, name=name: self._file.get(names[name][i]))  # type: ignore[misc]
            if not alike:
                raise Unfit
            found[name] = alike[()]
        return _Window(self._file, window, found, start)

    def batch(self, held: _Window, first: int, upto: int) -> EpisodeBatch:
        """See :meth:`AlikeEpisodes.batch`."""
        final, columns = held.columns_of(slice(first, upto))
        flags: dict[str, Any] = final.flags(held.terminated[first:upto])
        rows = Episode(**columns, **flags, source=self._source, index=held.start + first)
        terminated = held.terminated[first:upto]
        return EpisodeBatch(rows, final.starts, terminated if terminated.any() else None)


class _Window:
    """Episodes side by side.

    Attributes:
        columns: their datasets.
        start: the first one's number.
        known: ``[E] bool``, which can be read together.
        terminated: ``[E] bool``, which of them end in a terminal state.
        lengths: ``[E] int64``, their rows with final ones.
        row_bytes: of all columns.
    """

    def __init__(self, file: Hdf5File, window: Window, columns: dict[str, AlikeDatasets], start: int) -> None:
        self._file = file
        self._window = window
        self.columns = columns
        self.start = start
        self.row_bytes = sum(column.row_bytes for column in columns.values())
        observations, actions, rewards, terminated = (columns[name] for name in COLUMNS)
        self._count = actions.rows
        known = self._count > 0
        for column in (observations, actions, rewards):
            known &= column.known & (column.rows == self._count) & (not column.is_value)
        known &= (rewards.shape in ((), (1,))) & (rewards.dtype.kind in "biuf")
        known &= self._count <= file.budget.max_bytes // max(1, self.row_bytes)
        known &= terminated.known & terminated.is_value & (terminated.shape == ()) & (terminated.dtype.kind in "biuf")
        known &= window.holds(terminated.places, terminated.row_bytes)
        flags = np.zeros(len(known), terminated.stored)
        if known.any():
            flags[known] = window.at(terminated.places[known], terminated.row_bytes).view(terminated.stored)
        self.terminated = flags != 0
        self.known = known & ((flags == 0) | (flags == 1))
        self.lengths = self._count + self.terminated

    @property
    def leaders(self) -> set[int]:
        """Whom others are like."""
        return {i for alike in self.columns.values() for i in alike.leaders}

    def columns_of(self, run: slice) -> tuple[FinalRows, dict[str, Any]]:
        """The rows of some, all known, by the names of Episode, and which of them are final ones."""
        terminated = self.terminated[run]
        final = FinalRows(self._count[run], terminated)
        gathering = Gathering(self._file, self._window, final.lengths)
        observation, action, reward = (self.columns[name].read(gathering, run, terminated) for name in COLUMNS[:3])
        return final, {"observation": observation, "action": action, "reward": reward.reshape(gathering.total)}
