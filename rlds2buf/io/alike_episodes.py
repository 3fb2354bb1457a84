"""From the datasets of an HDF5 file, some for each episode, to blocks of episodes: what is alike is read together.

The episodes are looked at some thousands at a time; of each make the first is read alone, too, and has to be the
same.  Those that are not alike are read one by one, and so are all of a file where something is wrong.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from typing import Final, Generic, Protocol, TypeVar

import numpy as np

from rlds2buf.codecs.hdf5.alike import Unfit
from rlds2buf.codecs.hdf5.alike_datasets import LEAST
from rlds2buf.codecs.hdf5.reading import H5PY_RAISES
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.same import is_same
from rlds2buf.errors import EpisodeError, SourceError
from rlds2buf.io.blocks import runs

__all__ = ["AlikeEpisodes", "Held"]

_NAMES: Final = 1 << 12
"""Of so many episodes is asked at a time where they are."""

_FAILURES = (Unfit, EpisodeError, SourceError, *H5PY_RAISES)


class Held(Protocol):
    """E episodes side by side.

    Attributes:
        start: the first one's number.
        known: ``[E] bool``, which can be read together.
        lengths: ``[E] int64``, their rows with final ones.
        row_bytes: of all columns.
        leaders: whom others were found to be like, counted from `start` on.
    """

    start: int
    known: np.ndarray
    lengths: np.ndarray
    row_bytes: int

    @property
    def leaders(self) -> set[int]: ...


_H = TypeVar("_H", bound=Held)


class AlikeEpisodes(abc.ABC, Generic[_H]):
    """Reads runs of episodes whose datasets are plain numbers of one type and shape each.

    Args:
        alone: reads one, by its number.
        is_useful: whether the file is one of which this can be told.
    """

    def __init__(self, alone: Callable[[int], Episode | EpisodeError], is_useful: bool) -> None:
        self._alone = alone
        self._is_useful = is_useful

    @abc.abstractmethod
    def look(self, start: int, count: int) -> _H | None:
        """What is known of some episodes from `start` on; None if too few of them lie near one another.

        Raises:
            Unfit: they are not made of what can be read together.
            Exception: whatever reading raises where the file is damaged.
        """

    @abc.abstractmethod
    def batch(self, held: _H, first: int, upto: int) -> EpisodeBatch | None:
        """Some of those that were looked at, all known; None if something is wrong with them."""

    def read(self, start: int, stop: int, rows: int, bytes: int) -> Iterator[EpisodeBatch | Episode | EpisodeError]:
        """Yield episodes ``start`` up to (not with) ``stop``, those that are not alike one by one.

        Raises:
            SourceFormatError: as reading one alone does, or the file became shorter.
        """
        for begin, held in self.windows(start, stop):
            if held is None:
                yield self._alone(begin)
                continue
            for first, upto in runs(held.known, held.lengths, min(rows, bytes // max(1, held.row_bytes))):
                block = self.batch(held, first, upto) if held.known[first] else None
                if block is not None:
                    yield block
                else:
                    yield from map(self._alone, range(begin + first, begin + upto))

    def windows(self, start: int, stop: int) -> Iterator[tuple[int, _H | None]]:
        """Yield the number of the first of some episodes, and what is known of them; of one, if nothing is."""
        while start < stop:
            count = min(stop - start, _NAMES)
            held = self._proven(start, count) if self._is_useful and count >= LEAST else None
            yield start, held
            start += 1 if held is None else len(held.known)

    def _proven(self, start: int, count: int) -> _H | None:
        try:
            held = self.look(start, count)
            if held is None or self._is_proven(held):
                return held
        except _FAILURES:
            pass
        self._is_useful = False
        return None

    def _is_proven(self, held: _H) -> bool:
        if not held.known.any():
            return False
        for i in {i for i in held.leaders if held.known[i]} | {int(np.argmax(held.known))}:
            block = self.batch(held, i, i + 1)
            if block is None or not is_same(self._alone(held.start + i), next(iter(block))):
                return False
        return True
