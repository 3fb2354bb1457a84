"""From the records of an RLDS dataset to blocks of episodes, pictures decoded ahead.

The records of a stretch are walked together, those that are made as usual are cut into blocks, and each
block's columns are filled at once.  A record that is made otherwise, or whose columns don't fit together, is
read by itself (:class:`~rlds2buf.formats.rlds.episode_reader.EpisodeReader`), and so are all of a block where
something is wrong; so it is said of each record what is wrong with it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from rlds2buf.codecs.images.pool import DecodePool, PendingFrames
from rlds2buf.codecs.tfrecord.example import ExampleParser
from rlds2buf.codecs.tfrecord.frames import STRETCH_BYTES
from rlds2buf.codecs.tfrecord.record_table import RecordTable, Walker
from rlds2buf.core import nest
from rlds2buf.core.budget import Tally
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.fields import FLAG_FIELDS, STEP_FIELDS
from rlds2buf.core.records import Records
from rlds2buf.errors import EpisodeError, SourceError, SourceFormatError
from rlds2buf.formats.rlds.episode_reader import EpisodeReader, Record
from rlds2buf.formats.rlds.leaf_columns import LeafColumn
from rlds2buf.io.blocks import blocks_of

__all__ = ["BlockReader", "Part", "RecordReader"]

_PIXEL_BYTES: Final = 1 << 24
"""So much of pixels in one block: the memory of some blocks is used again and again."""

_LEAST_STRETCH, _MOST_STRETCH = 1 << 16, 1 << 23
"""Bytes: smaller ones cost calls, larger ones fresh memory."""

_BYTES_PER_VALUE: Final = 8
_ROOM: Final = 1.05


_Item = tuple[str, EpisodeBatch | EpisodeError]
"""What is to be yielded; with the name of its file where it is small, and may be joined with its neighbours."""


class RecordReader(Protocol):
    """What reads a file: :class:`~rlds2buf.codecs.tfrecord.frames.FrameReader` and its like."""

    number: int

    def take(self, size: int = ..., most: int | None = None) -> Records: ...
    def go_back(self, records: Records, first: int) -> None: ...


class Part(NamedTuple):
    """Records ``first`` to ``first + length`` of a file that holds `total`; the first one is that `episode`."""

    open: Callable[[], AbstractContextManager[RecordReader]]
    file: str
    first: int
    length: int
    total: int
    episode: int


class _Stretch(NamedTuple):
    """Some records that were read together."""

    records: Records
    file: str
    number: int
    episode: int


class _Block(NamedTuple):
    """Records that become a block, or (with no table) are read by themselves."""

    stretch: _Stretch
    which: np.ndarray
    table: RecordTable | None = None
    lengths: np.ndarray | None = None
    pictures: tuple[tuple[LeafColumn, PendingFrames], ...] = ()


class BlockReader:
    """Reads blocks once; make another one to read again.

    Args:
        reader: of single records.
        rows, bytes: as of :meth:`~rlds2buf.io.source.Source.read_batches`.
        threads: see :class:`~rlds2buf.codecs.images.pool.DecodePool`.
        wanted: which episodes are wanted; None: all.
        keeps_records: whether blocks hold the records that they are made of.
    """

    def __init__(
        self,
        reader: EpisodeReader,
        *,
        rows: int,
        bytes: int,
        threads: int | None = None,
        wanted: Callable[[int], bool] | None = None,
        keeps_records: bool = False,
    ) -> None:
        self._reader = reader
        self._rows, self._bytes = rows, bytes
        self._threads = threads
        self._wanted = wanted
        self._keeps_records = keeps_records
        keys: dict[str, int] = {}

        def column(leaf: Any, is_per_step: bool) -> LeafColumn:
            return LeafColumn(leaf, lambda key: keys.setdefault(key, len(keys)), is_per_step=is_per_step)

        self._steps = nest.map_structure(lambda leaf: column(leaf, True), reader.steps)
        self._metadata = nest.map_structure(lambda leaf: column(leaf, False), reader.metadata)
        self._step_columns: list[LeafColumn] = [leaf for _, leaf in nest.flatten(self._steps)]
        self._columns = [*self._step_columns, *(leaf for _, leaf in nest.flatten(self._metadata))]
        self._pictures = [leaf for leaf in self._columns if leaf.has_pixels]
        self._walker = Walker(list(keys))
        self._parser = ExampleParser()
        most = min(bytes, _PIXEL_BYTES) if self._pictures else bytes
        self._limit = max(1, min(rows, most // max(1, reader.spec.row_bytes)))
        self._stretch_bytes = min(STRETCH_BYTES, bytes)

    def read(self, parts: Iterable[Part]) -> Iterator[EpisodeBatch | EpisodeError]:
        """The blocks in order, and in place of an episode that can't be had the error that says why.

        While one is in use the pictures of the next one are decoded.

        Raises:
            SourceFormatError: a record is not what features.json says, or a file does not hold what it should;
                behind a last block of what is before it.
            SourceError: a file can't be read.
        """
        with contextlib.ExitStack() as stack:
            pool = stack.enter_context(DecodePool(self._threads)) if self._pictures else None
            items = self._finished(self._blocks(parts, pool), 0 if pool is None or pool.threads < 2 else 1)
            for small_ones_of, group in itertools.groupby(items, lambda item: item[0]):
                neighbours = (item for _, item in group)
                yield from blocks_of(neighbours, self._rows, self._bytes) if small_ones_of else neighbours

    def _finished(self, blocks: Iterator[_Block | SourceError], ahead: int) -> Iterator[_Item]:
        waiting: deque[_Block | SourceError] = deque()
        for block in blocks:
            waiting.append(block)
            while len(waiting) > ahead:
                yield from self._finish(waiting.popleft())
        while waiting:
            yield from self._finish(waiting.popleft())

    def _blocks(self, parts: Iterable[Part], pool: DecodePool | None) -> Iterator[_Block | SourceError]:
        """The blocks at work; an error comes as the last one, behind those before it."""
        try:
            for part in parts:
                with part.open() as reader:
                    yield from self._blocks_of(part, reader, pool)
        except SourceError as error:
            yield error

    def _blocks_of(self, part: Part, reader: RecordReader, pool: DecodePool | None) -> Iterator[_Block]:
        episode, left = part.episode, part.length
        while left:
            records = reader.take(self._stretch_bytes, left)
            count = len(records)
            if not count:
                message = f"{part.file}: {reader.number} records, but dataset_info.json says {part.total}"
                raise SourceFormatError(message)
            stretch = _Stretch(records, part.file, reader.number - count, episode)
            used = 0
            for block, dealt_with in self._cut(stretch, is_rest=count == left):
                yield self._started(block, pool)
                used = dealt_with
            if used < count:
                reader.go_back(records, used)
            episode += used
            left -= used
        if part.first + part.length == part.total and len(reader.take(_LEAST_STRETCH, 1)):
            raise SourceFormatError(f"{part.file}: more records than the {part.total} that dataset_info.json says")

    def _cut(self, stretch: _Stretch, *, is_rest: bool) -> Iterator[tuple[_Block, int]]:
        """Blocks, each with how many records of the stretch have been dealt with.

        The last one may be left for the next stretch, so that few are much smaller than they may be.
        """
        count = len(stretch.records)
        which = np.arange(count)
        if self._wanted is not None:
            which = which[[self._wanted(stretch.episode + i) for i in range(count)]]
        if not len(which) or not Walker.is_worth_it(stretch.records):
            yield _Block(stretch, which), count
            return
        table = self._walker.walk(stretch.records, which)
        lengths = self._lengths(table, np.diff(stretch.records.edges)[which])
        self._stretch_bytes = self._next_size(stretch.records, lengths)
        first = 0
        for stop in _pieces(lengths, self._limit).tolist():
            if lengths[first] < 0:
                yield _Block(stretch, which[first:stop]), int(which[stop - 1]) + 1
            elif stop < len(which) or is_rest or first == 0:
                done = count if stop == len(which) else int(which[stop - 1]) + 1
                yield _Block(stretch, which[first:stop], table.take(first, stop), lengths[first:stop]), done
            first = stop

    def _lengths(self, table: RecordTable, sizes: np.ndarray) -> np.ndarray:
        """``[n]``: how many rows each record has; -1 for those that should be read by themselves."""
        budget = self._reader.budget
        usual = ~table.odd & (sizes < budget.max_bytes // _BYTES_PER_VALUE)
        lengths = self._step_columns[0].lengths(table)
        strings = np.zeros(len(table), np.int64)
        for column in self._columns:
            found = column.lengths(table)
            usual &= found == lengths if column in self._step_columns else found == 1
            usual &= ~column.too_much(table, budget)
            strings += column.num_strings(table)
        return np.where(usual & (lengths > 0) & (strings <= budget.max_objects), lengths, -1)

    def _next_size(self, records: Records, lengths: np.ndarray) -> int:
        """So many bytes are likely to make a block."""
        rows = int(lengths[lengths > 0].sum())
        size = int(len(records.whole) / max(1, rows) * self._limit * _ROOM)
        return max(min(size, self._bytes, _MOST_STRETCH), _LEAST_STRETCH)

    def _started(self, block: _Block, pool: DecodePool | None) -> _Block:
        """With its pictures at work."""
        if block.table is None or pool is None:
            return block
        try:
            files = [column.files(block.table, self._reader.budget) for column in self._pictures]
        except SourceFormatError:
            return block._replace(table=None)
        pairs = zip(self._pictures, files, strict=True)
        return block._replace(
            pictures=tuple((column, pool.submit(found.tolist(), column.reader.leaf)) for column, found in pairs)
        )

    def _finish(self, block: _Block | SourceError) -> Iterator[_Item]:
        if isinstance(block, SourceError):
            raise block
        pixels: dict[str, np.ndarray] = {}
        try:
            if block.table is not None and block.lengths is not None:
                for column, pending in block.pictures:
                    pixels[column.reader.key] = pending.result()
                batch = self._batch(block, block.table, block.lengths, pixels)
                yield "" if batch.num_steps >= self._limit // 4 else block.stretch.file, batch
                return
        except (SourceFormatError, EpisodeError):
            pass  # which record it is, and what is wrong with it, is found out one by one
        yield from self._one_by_one(block, pixels)

    def _batch(
        self, block: _Block, table: RecordTable, lengths: np.ndarray, pixels: dict[str, np.ndarray]
    ) -> EpisodeBatch:
        one_by_one = any(column.is_read_one_by_one for column in self._columns)
        tallies = [Tally(self._reader.budget) for _ in range(len(table) if one_by_one else 0)]

        def read(column: LeafColumn) -> np.ndarray:
            return column.read(table, tallies, pixels.get(column.reader.key))

        stretch = block.stretch
        starts = np.cumsum(lengths) - lengths
        index = stretch.episode + block.which
        steps = nest.map_structure(read, self._steps)
        known = {field: steps.pop(field) for field in STEP_FIELDS if field in steps}
        derived = [name for name in FLAG_FIELDS if name not in known]
        if derived:
            known.update(_derived(derived, starts, int(lengths.sum())))
        rows = Episode(**known, extras=steps, source=stretch.file, index=int(index[0]))
        facts, placeholder = self._reader.own.fact_columns(nest.map_structure(read, self._metadata), len(table))
        records = self._records(block)
        return EpisodeBatch(rows, starts, placeholder, index=index, metadata=facts, derived=derived, records=records)

    def _records(self, block: _Block) -> Records | None:
        if not self._keeps_records:
            return None
        which = block.which
        is_run = which[-1] - which[0] == len(which) - 1
        return block.stretch.records.take(slice(int(which[0]), int(which[-1]) + 1) if is_run else which)

    def _one_by_one(self, block: _Block, pixels: dict[str, np.ndarray]) -> Iterator[_Item]:
        parts = {} if block.table is None else self._pixels_of_each(block.table, pixels)
        stretch = block.stretch
        edges = stretch.records.edges
        for place, i in enumerate(block.which.tolist()):
            number, index = stretch.number + i, stretch.episode + i
            try:
                features = self._parser.parse(stretch.records[i][0])
            except SourceFormatError as cause:
                raise cause.at(f"{stretch.file}: record {number} (episode {index})") from cause
            record = Record(features, stretch.file, number, index)
            item = self._reader.episode(record, {key: values[place] for key, values in parts.items()})
            if isinstance(item, Episode):
                kept = Records(stretch.records.frames, edges[i : i + 2]) if self._keeps_records else None
                yield stretch.file, EpisodeBatch.of_one(item, records=kept)
            else:
                yield stretch.file, item

    def _pixels_of_each(self, table: RecordTable, pixels: dict[str, np.ndarray]) -> dict[str, list[np.ndarray]]:
        """What is decoded already, where no picture is damaged."""
        if len(pixels) < len(self._pictures):
            return {}
        return {column.reader.key: column.pixels_of(table, pixels[column.reader.key]) for column in self._pictures}


def _pieces(lengths: np.ndarray, limit: int) -> np.ndarray:
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
    return np.array(stops, np.int64)


def _derived(names: Iterable[str], starts: np.ndarray, count: int) -> dict[str, np.ndarray]:
    """Flags that are not stored, from the records' own borders."""
    flags = {name: np.zeros(count, np.bool_) for name in names}
    if "is_first" in flags:
        flags["is_first"][starts] = True
    if "is_last" in flags:
        flags["is_last"][np.append(starts[1:], count) - 1] = True
    return flags
