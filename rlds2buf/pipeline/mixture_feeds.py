"""What a mixture has read of its sources and not given on yet, and how their episodes are laid into one batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.errors import EpisodeError
from rlds2buf.io.blocks import alike

__all__ = ["Feed", "Piece", "close", "interleaved", "ready", "size"]

Piece = EpisodeBatch | EpisodeError


def size(piece: Piece) -> int:
    """How many items it is."""
    return 1 if isinstance(piece, EpisodeError) else len(piece)


def close(reading: Iterator[Piece]) -> None:
    """End an iterator, which may be a generator that holds files open."""
    if hasattr(reading, "close"):
        reading.close()


class Feed:
    """The items of one source, read some ahead of their turns.

    Args:
        pieces: neighbouring episodes as batches, and errors, each an item of no rows.

    Attributes:
        lengths: ``[n] int64``, the rows of the items that are here.
    """

    def __init__(self, pieces: Iterator[Piece]) -> None:
        self._reading = pieces
        self._here: deque[Piece] = deque()
        self._failure: BaseException | None = None
        self.lengths = np.zeros(0, np.int64)

    def more(self) -> bool:
        """Read another piece; False where reading has come to an end.

        What it raises then is kept for :meth:`next`: the items before it have their turns first.
        """
        if self._failure is not None:
            return False
        try:
            piece = next(self._reading)
        except Exception as error:
            self._failure = error
            return False
        self._here.append(piece)
        lengths = [0] if isinstance(piece, EpisodeError) else piece.lengths
        self.lengths = np.append(self.lengths, lengths)
        return True

    @property
    def first(self) -> Piece:
        """The piece that holds the next item.

        Raises:
            Exception: what ended the reading, where no item is left.
        """
        if not self._here and not self.more():
            assert self._failure is not None
            raise self._failure
        return self._here[0]

    def take(self, count: int) -> list[Piece]:
        """The next `count` items, which are here."""
        taken: list[Piece] = []
        self.lengths = self.lengths[count:]
        while count:
            piece = self._here.popleft()
            if isinstance(piece, EpisodeBatch) and len(piece) > count:
                self._here.appendleft(piece.take(slice(count, None)))
                piece = piece.take(slice(count))
            taken.append(piece)
            count -= size(piece)
        return taken

    def close(self) -> None:
        """Stop reading."""
        close(self._reading)


def ready(feeds: Sequence[Feed], owners: np.ndarray, rows: int) -> np.ndarray:
    """How many rows each of the next turns has: those that fit into so many rows, at least one turn.

    Sources are read for it as far as it takes.  Where the first turn is of a source that has nothing left, there
    are none.

    Args:
        feeds: of the sources.
        owners: ``[n]``, whose turns they are.
        rows: about how many rows they may have together.
    """
    places = [np.flatnonzero(owners == number) for number in range(len(feeds))]
    lengths = np.zeros(len(owners), np.int64)
    ended: set[int] = set()
    while True:
        known = len(owners)
        short = None
        for number, (feed, place) in enumerate(zip(feeds, places, strict=True)):
            count = min(len(feed.lengths), len(place))
            lengths[place[:count]] = feed.lengths[:count]
            if count < len(place) and place[count] < known:
                known, short = int(place[count]), number
        fitting = int(np.searchsorted(np.cumsum(lengths[:known]), rows, side="right"))
        if fitting < known or short is None or short in ended:
            return lengths[: min(max(fitting, 1), known)]
        if not feeds[short].more():
            ended.add(short)


def interleaved(parts: Sequence[Sequence[Piece]], owners: np.ndarray) -> Iterator[tuple[np.ndarray, Piece]]:
    """The items of several sources in the order of their turns, and which turns those of each piece are.

    Neighbours of one layout become one batch, by one gather for each field.

    Args:
        parts: the items of each source, in its order.
        owners: ``[n]``, the source whose turn it is.
    """
    kinds = np.empty(len(owners), np.int64)
    layouts: list[list[EpisodeBatch]] = []
    errors: dict[int, EpisodeError] = {}
    for number, part in enumerate(parts):
        turns = np.flatnonzero(owners == number)
        at = 0
        for piece in part:
            own = turns[at : at + size(piece)]
            at += size(piece)
            if isinstance(piece, EpisodeError):
                kinds[own], errors[int(own[0])] = -1, piece
                continue
            kind = next((i for i, batches in enumerate(layouts) if alike(batches[0], piece)), len(layouts))
            if kind == len(layouts):
                layouts.append([])
            kinds[own] = kind
            layouts[kind].append(piece)
    joined = [_in_turn(batches, owners[kinds == kind]) for kind, batches in enumerate(layouts)]
    given = [0] * len(joined)
    for run in np.split(np.arange(len(owners)), np.flatnonzero((np.diff(kinds) != 0) | (kinds[1:] < 0)) + 1):
        kind = int(kinds[run[0]])
        if kind < 0:
            yield run, errors[int(run[0])]
        else:
            yield run, joined[kind].take(slice(given[kind], given[kind] + len(run)))
            given[kind] += len(run)


def _in_turn(batches: list[EpisodeBatch], owners: np.ndarray) -> EpisodeBatch:
    """Episodes that lie source by source in the order of their turns."""
    order = np.empty(len(owners), np.int64)
    order[np.argsort(owners, kind="stable")] = np.arange(len(owners))
    return EpisodeBatch.of(batches).take(order)
