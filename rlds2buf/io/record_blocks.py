"""From files of records, of which each is an episode, to blocks of episodes.

The records of a stretch are walked together, those that are made as usual are cut into blocks, and each
block's columns are filled at once.  A record that is made otherwise, or whose columns don't fit together, is
read by itself, and so are all of a block where something is wrong; so it is said of each record what is
wrong with it.
"""

from __future__ import annotations

import abc
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from rlds2buf.codecs.tfrecord.frames import STRETCH_BYTES
from rlds2buf.codecs.tfrecord.record_table import RecordTable, Walker
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.records import Records
from rlds2buf.errors import EpisodeError, SourceError, SourceFormatError
from rlds2buf.io.blocks import blocks_of

__all__ = ["Block", "Part", "Place", "RecordBlocks", "RecordReader", "derived_flags", "pieces"]

_LEAST_STRETCH, _MOST_STRETCH = 1 << 16, 1 << 23
"""Bytes: smaller ones cost calls, larger ones fresh memory."""

_ROOM: Final = 1.05


_Item = tuple[str, EpisodeBatch | EpisodeError]
"""What is to be yielded; with the name of its file where it is small, and may be joined with its neighbours."""


class RecordReader(Protocol):
    """What reads a file: :class:`~rlds2buf.codecs.tfrecord.frames.FrameReader` and its like."""

    number: int

    def take(self, size: int = ..., most: int | None = None) -> Records: ...
    def go_back(self, records: Records, first: int) -> None: ...


class Part(NamedTuple):
    """Records of one file, the first of which is that `episode`.

    Attributes:
        length: how many at most; None: all that are left.
        total: how many the file holds, by what is said elsewhere; None: nothing is said.
    """

    open: Callable[[], AbstractContextManager[RecordReader]]
    file: str
    episode: int
    length: int | None = None
    total: int | None = None


class _Stretch(NamedTuple):
    """Some records that were read together."""

    records: Records
    file: str
    number: int
    episode: int


class Place(NamedTuple):
    """Where a record is, and which episode it makes."""

    file: str
    number: int
    episode: int


class Block(NamedTuple):
    """Records that become a block.

    Attributes:
        table: of them.
        lengths: ``[E] int64``, rows of each.
        numbers: ``[E] int64``, the episode of each.
        file: that they are in.
        records: themselves, if blocks keep them.
    """

    table: RecordTable
    lengths: np.ndarray
    numbers: np.ndarray
    file: str
    records: Records | None

    @property
    def starts(self) -> np.ndarray:
        """``[E] int64``, each episode's first row."""
        return np.cumsum(self.lengths) - self.lengths


_W = TypeVar("_W")


class _Started(NamedTuple, Generic[_W]):
    """Records at work; those without a block are read by themselves."""

    stretch: _Stretch
    which: np.ndarray
    block: Block | None = None
    work: _W | None = None


class RecordBlocks(abc.ABC, Generic[_W]):
    """Reads blocks once; make another one to read again.

    Subclasses know what is in the records.

    Args:
        keys: of the features that are looked at.
        row_bytes: about what a row takes.
        rows, bytes: as of :meth:`~rlds2buf.io.source.Source.read_batches`.
        wanted: which episodes are wanted; None: all.
        keeps_records: whether blocks hold the records that they are made of.
    """

    WRONG_TOTAL: ClassVar[str] = "dataset_info.json says"

    def __init__(
        self,
        keys: Sequence[str],
        *,
        row_bytes: int,
        rows: int,
        bytes: int,
        wanted: Callable[[int], bool] | None = None,
        keeps_records: bool = False,
    ) -> None:
        self._rows, self._bytes = rows, bytes
        self._wanted = wanted
        self._keeps_records = keeps_records
        self._walker = Walker(keys)
        self._limit = max(1, min(rows, bytes // max(1, row_bytes)))
        self._stretch_bytes = min(STRETCH_BYTES, bytes)

    @abc.abstractmethod
    def lengths(self, table: RecordTable, sizes: np.ndarray) -> np.ndarray:
        """``[n] int64``: how many rows each record has, above 0; -1 for those that should be read by themselves.

        Args:
            table: of n records.
            sizes: bytes of each.
        """

    @abc.abstractmethod
    def batch(self, block: Block, work: _W | None) -> EpisodeBatch:
        """What becomes of a block.

        Args:
            work: what :meth:`start` gave.

        Raises:
            SourceFormatError, EpisodeError: a record is wrong, or they can't be joined; any of them is enough
                reason to read them one by one.
        """

    @abc.abstractmethod
    def one(self, record: bytes, place: Place, done: Any) -> Episode | EpisodeError:
        """What becomes of one record.

        Args:
            done: what :meth:`done` gave for it.

        Raises:
            SourceFormatError: it is not what it should be; with its place.
        """

    def start(self, block: Block) -> _W | None:
        """Begin with what takes long, such as decoding pictures; while a block is in use the next one is begun.

        Raises:
            SourceFormatError: as :meth:`batch`.
        """
        return None

    def done(self, block: Block, work: _W | None) -> Sequence[Any]:
        """What has been done already for each record of a block that could not be made; empty if nothing."""
        return ()

    @property
    def num_ahead(self) -> int:
        """How many blocks are begun while one is in use."""
        return 0

    def read(self, parts: Iterable[Part]) -> Iterator[EpisodeBatch | EpisodeError]:
        """The blocks in order, and in place of an episode that can't be had the error that says why.

        Raises:
            SourceFormatError: a record is not what it should be, or a file does not hold what it should;
                behind a last block of what is before it.
            SourceError: a file can't be read.
        """
        for small_ones_of, group in itertools.groupby(self._finished(self._begun(parts)), lambda item: item[0]):
            neighbours = (item for _, item in group)
            yield from blocks_of(neighbours, self._rows, self._bytes) if small_ones_of else neighbours

    def _finished(self, begun: Iterator[_Started[_W] | SourceError]) -> Iterator[_Item]:
        waiting: deque[_Started[_W] | SourceError] = deque()
        for started in begun:
            waiting.append(started)
            while len(waiting) > self.num_ahead:
                yield from self._finish(waiting.popleft())
        while waiting:
            yield from self._finish(waiting.popleft())

    def _begun(self, parts: Iterable[Part]) -> Iterator[_Started[_W] | SourceError]:
        """The records at work; an error comes as the last one, behind those before it."""
        try:
            for part in parts:
                with part.open() as reader:
                    yield from self._begun_in(part, reader)
        except SourceError as error:
            yield error

    def _begun_in(self, part: Part, reader: RecordReader) -> Iterator[_Started[_W]]:
        episode, left = part.episode, part.length
        while left is None or left > 0:
            records = reader.take(self._stretch_bytes, left)
            count = len(records)
            if not count and part.total is None:
                return
            if not count:
                raise SourceFormatError(f"{part.file}: {reader.number} records, but {self.WRONG_TOTAL} {part.total}")
            stretch = _Stretch(records, part.file, reader.number - count, episode)
            used = 0
            for started, dealt_with in self._cut(stretch, is_rest=count == left):
                yield self._at_work(started)
                used = dealt_with
            if used < count:
                reader.go_back(records, used)
            episode += used
            left = None if left is None else left - used
        if part.total == reader.number and len(reader.take(_LEAST_STRETCH, 1)):
            raise SourceFormatError(f"{part.file}: more records than the {part.total} that {self.WRONG_TOTAL}")

    def _cut(self, stretch: _Stretch, *, is_rest: bool) -> Iterator[tuple[_Started[_W], int]]:
        """Blocks, each with how many records of the stretch have been dealt with.

        The last one may be left for the next stretch, so that few are much smaller than they may be.
        """
        count = len(stretch.records)
        which = np.arange(count)
        if self._wanted is not None:
            which = which[[self._wanted(stretch.episode + i) for i in range(count)]]
        if not len(which) or not Walker.is_worth_it(stretch.records):
            yield _Started(stretch, which), count
            return
        table = self._walker.walk(stretch.records, which)
        lengths = np.where(table.odd, -1, self.lengths(table, stretch.records.sizes[which]))
        self._stretch_bytes = self._next_size(stretch.records, lengths)
        first = 0
        for stop in pieces(lengths, self._limit):
            part = which[first:stop]
            done = count if stop == len(which) else int(part[-1]) + 1
            if lengths[first] < 0:
                yield _Started(stretch, part), done
            elif stop < len(which) or is_rest or first == 0:
                numbers = stretch.episode + part
                records = self._kept(stretch.records, part)
                block = Block(table.take(first, stop), lengths[first:stop], numbers, stretch.file, records)
                yield _Started(stretch, part, block), done
            first = stop

    def _kept(self, records: Records, which: np.ndarray) -> Records | None:
        if not self._keeps_records:
            return None
        is_run = which[-1] - which[0] == len(which) - 1
        return records.take(slice(int(which[0]), int(which[-1]) + 1) if is_run else which)

    def _next_size(self, records: Records, lengths: np.ndarray) -> int:
        """So many bytes are likely to make a block."""
        rows = int(lengths[lengths > 0].sum())
        size = int(len(records.whole) / max(1, rows) * self._limit * _ROOM)
        return max(min(size, self._bytes, _MOST_STRETCH), _LEAST_STRETCH)

    def _at_work(self, started: _Started[_W]) -> _Started[_W]:
        if started.block is None:
            return started
        try:
            return started._replace(work=self.start(started.block))
        except SourceFormatError:
            return started._replace(block=None)

    def _finish(self, started: _Started[_W] | SourceError) -> Iterator[_Item]:
        if isinstance(started, SourceError):
            raise started
        done: Sequence[Any] = ()
        block = started.block
        if block is not None:
            try:
                batch = self.batch(block, started.work)
            except (SourceFormatError, EpisodeError):  # which record it is, and what it is, is found out one by one
                done = self.done(block, started.work)
            else:
                batch.records = block.records
                is_large = batch.num_steps >= self._limit // 4 or 4 * len(batch) >= len(started.stretch.records)
                yield "" if is_large else block.file, batch
                return
        yield from self._one_by_one(started, done)

    def _one_by_one(self, started: _Started[_W], done: Sequence[Any]) -> Iterator[_Item]:
        stretch = started.stretch
        for i, ready in zip(started.which.tolist(), done or itertools.repeat(None)):  # noqa: B905  # one is endless
            place = Place(stretch.file, stretch.number + i, stretch.episode + i)
            item = self.one(stretch.records[i][0], place, ready)
            if isinstance(item, Episode):
                kept = stretch.records.take(slice(i, i + 1)) if self._keeps_records else None
                yield stretch.file, EpisodeBatch.of_one(item, records=kept)
            else:
                yield stretch.file, item


def pieces(lengths: np.ndarray, limit: int) -> list[int]:
    """Where pieces of at most so many rows end; records of length -1 are in pieces of their own."""
    is_odd = lengths < 0
    borders = np.flatnonzero(np.diff(is_odd)) + 1
    ends = np.cumsum(np.maximum(lengths, 0))
    stops: list[int] = []
    first = 0
    for border in [*borders.tolist(), len(lengths)]:
        while first < border:
            before = int(ends[first - 1]) if first else 0
            stop = border if is_odd[first] else min(border, int(np.searchsorted(ends, before + limit, "right")))
            first = max(stop, first + 1)
            stops.append(first)
    return stops


def derived_flags(names: Iterable[str], starts: np.ndarray, count: int) -> dict[str, np.ndarray]:
    """Flags that are not stored, from the records' own borders."""
    flags = {name: np.zeros(count, np.bool_) for name in names}
    if "is_first" in flags:
        flags["is_first"][starts] = True
    if "is_last" in flags:
        flags["is_last"][np.append(starts[1:], count) - 1] = True
    return flags
