"""Many of d3rlpy's episodes, whose datasets are alike, read together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from rlds2buf.codecs.hdf5.alike import Window
from rlds2buf.codecs.hdf5.alike_datasets import LEAST, AlikeDatasets, find_alike, window_of
from rlds2buf.codecs.hdf5.gathering import Gathering
from rlds2buf.codecs.hdf5.reading import H5PY_RAISES, Hdf5File
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.same import is_same
from rlds2buf.errors import EpisodeError, SourceError
from rlds2buf.io.blocks import runs
from rlds2buf.io.padding import FinalRows

__all__ = ["COLUMNS", "Together"]

COLUMNS: Final = ("observations", "actions", "rewards", "terminated")
_NAMES = 1 << 12
"""Of so many episodes is asked at a time where they are."""

_FAILURES = (EpisodeError, SourceError, *H5PY_RAISES)


class Together:
    """Reads runs of episodes that have the four columns, each a dataset of plain numbers of one type and shape.

    The first of each make is read alone, too, and has to be the same.

    Args:
        file: the open file.
        columns: what an episode has.
        alone: reads one, by its number.
        source: for messages.
    """

    def __init__(
        self, file: Hdf5File, columns: Sequence[str], alone: Callable[[int], Episode | EpisodeError], source: str
    ) -> None:
        self._file = file
        self._alone = alone
        self._source = source
        self._useful = sorted(columns) == sorted(COLUMNS) and file.is_flat

    def read(self, start: int, stop: int, rows: int, bytes: int) -> Iterator[EpisodeBatch | Episode | EpisodeError]:
        """Yield episodes ``start`` up to (not with) ``stop``, those that are not alike one by one.

        Raises:
            SourceFormatError: as reading one alone does, or the file became shorter.
        """
        for begin, held in self._windows(start, stop):
            if held is None:
                yield self._alone(begin)
                continue
            for first, upto in runs(held.known, held.lengths, min(rows, bytes // max(1, held.row_bytes))):
                if held.known[first]:
                    yield held.batch(first, upto)
                else:
                    yield from map(self._alone, range(begin + first, begin + upto))

    def ends(self, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows ``int64`` and terminations ``bool`` of episodes up to (not with) `stop`; 0 rows where it can't be told.

        Raises:
            SourceFormatError: the file became shorter.
        """
        lengths, terminated = np.zeros(stop, np.int64), np.zeros(stop, np.bool_)
        for start, held in self._windows(0, stop):
            if held is not None:
                own = slice(start, start + len(held.known))
                lengths[own] = held.lengths * held.known
                terminated[own] = held.terminated & held.known
        return lengths, terminated

    def _windows(self, start: int, stop: int) -> Iterator[tuple[int, _Window | None]]:
        """Yield the number of the first of some episodes, and what is known of them; of one, if nothing is."""
        while start < stop:
            count = min(stop - start, _NAMES)
            held = self._window(start, count) if self._useful and count >= LEAST else None
            yield start, held
            start += 1 if held is None else len(held.known)

    def _window(self, start: int, count: int) -> _Window | None:
        """What is known of some episodes from `start` on; None if nothing is."""
        names = {name: [f"{name}_{i}" for i in range(start, start + count)] for name in COLUMNS}
        places = np.stack([self._file.addresses(names[name]) for name in COLUMNS])
        window, count = window_of(self._file, places)
        if count < LEAST:
            return None
        found = {}
        try:
            for name, own in zip(COLUMNS, places[:, :count], strict=True):
                alike = find_alike(self._file, window, own, lambda i, name=name: self._file.get(names[name][i]))  # type: ignore[misc]
                if not alike:
                    break
                found[name] = alike[()]
            held = _Window(self._file, window, found, start, self._source) if len(found) == len(COLUMNS) else None
            if held is not None and held.known.any() and self._is_proven(held):
                return held
        except _FAILURES:
            pass
        self._useful = False
        return None

    def _is_proven(self, held: _Window) -> bool:
        leaders = {i for alike in held.columns.values() for i in alike.leaders if held.known[i]}
        leaders.add(int(np.argmax(held.known)))
        return all(is_same(self._alone(held.start + i), next(iter(held.batch(i, i + 1)))) for i in leaders)


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

    def __init__(
        self, file: Hdf5File, window: Window, columns: dict[str, AlikeDatasets], start: int, source: str
    ) -> None:
        self._file = file
        self._window = window
        self.columns = columns
        self.start = start
        self._source = source
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

    def batch(self, first: int, upto: int) -> EpisodeBatch:
        """Some of them, all known."""
        run = slice(first, upto)
        terminated = self.terminated[run]
        final = FinalRows(self._count[run], terminated)
        gathering = Gathering(self._file, self._window, final.lengths)
        observation, action, reward = (self.columns[name].read(gathering, run, terminated) for name in COLUMNS[:3])
        flags: dict[str, Any] = final.flags(terminated)
        rows = Episode(
            observation=observation,
            action=action,
            reward=reward.reshape(gathering.total),
            **flags,
            source=self._source,
            index=self.start + first,
        )
        return EpisodeBatch(rows, final.starts, terminated if terminated.any() else None)
