"""Blocks of episodes out of raw ``tf.train.Example`` records of one step each.

A stretch of records begins with an episode's first one.  The episodes that are whole in it become blocks; the
rest is read again with the next stretch, which is longer where no episode was whole.  A stretch in which a
record is not as usual is cut into episodes in Python (:class:`~rlds2buf.formats.tf_example.episode.StepCutter`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from rlds2buf.codecs.tfrecord.example import ExampleParser
from rlds2buf.codecs.tfrecord.frames import STRETCH_BYTES, FrameReader
from rlds2buf.codecs.tfrecord.record_table import RecordTable, Walker
from rlds2buf.core.budget import Budget
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.fields import FLAG_FIELDS
from rlds2buf.core.records import Records
from rlds2buf.errors import EpisodeError, SourceFormatError
from rlds2buf.formats.tf_example.blocks import ColumnReader, as_batch, fact_columns, parsed
from rlds2buf.formats.tf_example.episode import StepCutter, nothing_like
from rlds2buf.formats.tf_example.feature_map import METADATA, NEXT, ExampleSpec
from rlds2buf.io.blocks import blocks_of
from rlds2buf.io.record_blocks import pieces

__all__ = ["StepBlocks"]

_CHUNK: Final = 1024
_BYTES_PER_VALUE: Final = 8

_Item = Episode | EpisodeBatch | EpisodeError
_Columns = dict[tuple[str, ...], np.ndarray]


class StepBlocks:
    """Reads the episodes of one file after the other.

    Args:
        spec: what the records hold.
        episode_id: the key of a feature whose value differs between episodes, or None.
        encoded: pictures stay files.
        rows, bytes: as of :meth:`~rlds2buf.io.source.Source.read_batches`.
        row_bytes: about what a row takes.
        budget: for each episode.

    Attributes:
        index: of the next episode.
    """

    def __init__(
        self,
        spec: ExampleSpec,
        episode_id: str | None,
        *,
        encoded: bool,
        rows: int,
        bytes: int,
        row_bytes: int,
        budget: Budget,
    ) -> None:
        self._spec = spec
        self._id = episode_id
        self._encoded = encoded
        self._rows, self._bytes = rows, bytes
        self._limit = max(1, min(rows, bytes // max(1, row_bytes)))
        self._budget = budget
        self.index = 0
        keys = list(dict.fromkeys([*(field.key for field in spec.fields), *([episode_id] if episode_id else [])]))
        fields = [field for field in spec.fields if field.path[0] != METADATA]
        self._columns = [ColumnReader(field, keys.index(field.key), encoded=encoded) for field in fields]
        self._has_next = any(field.path[0] == NEXT for field in fields)
        self._facts = [(field, keys.index(field.key)) for field in spec.fields if field.path[0] == METADATA]
        self._id_number = None if episode_id is None else keys.index(episode_id)
        self._walker = Walker(keys)
        self._parser = ExampleParser()

    def read(self, reader: FrameReader, file: str, *, compressed: bool) -> Iterator[EpisodeBatch | EpisodeError]:
        """The episodes of a file.

        Raises:
            SourceFormatError: it is damaged, or a record is not what it should be.
            LimitExceeded: an episode takes too much memory.
        """
        return blocks_of(self._items(reader, file, compressed), self._rows, self._bytes)

    def _items(self, reader: FrameReader, file: str, compressed: bool) -> Iterator[_Item]:
        size, least = min(STRETCH_BYTES, self._bytes), 1
        while len(records := reader.take(size, least=least)):
            count = len(records)
            if count < least:
                reader.take()  # says so, if the file does not end here but is damaged
                yield from self._in_python(records, file, reader.number - count, compressed, is_end=True)[0]
                return
            found = self._together(records, file) if not compressed or self._is_small(records) else None
            items, used = found or self._in_python(records, file, reader.number - count, compressed, is_end=False)
            yield from items
            reader.go_back(records, used)
            size, least = (size, 1) if used else (2 * size, count + 1)

    def _is_small(self, records: Records) -> bool:
        return len(records.whole) <= self._budget.max_bytes

    def _in_python(
        self, records: Records, file: str, number: int, compressed: bool, *, is_end: bool
    ) -> tuple[Iterator[_Item], int]:
        """The episodes, and how many records they are made of."""
        cutter = StepCutter(
            self._spec,
            self._id,
            encoded=self._encoded,
            source=file,
            index=self.index,
            budget=self._budget,
            compressed=compressed,
        )
        items: list[_Item] = []
        error: SourceFormatError | None = None
        try:
            for first in range(0, len(records), _CHUNK):
                chunk = enumerate(records[first : first + _CHUNK], number + first)
                items += cutter.add([parsed(self._parser, record, file, i) for i, (record, _) in chunk])
            if is_end:
                items += cutter.finish()
        except SourceFormatError as cause:
            error = cause
        self.index = cutter.index
        return _and_then(items, error), len(records) - cutter.num_waiting

    def _together(self, records: Records, file: str) -> tuple[Iterator[_Item], int] | None:
        """As :meth:`_in_python`; None where a record is not as usual."""
        if not Walker.is_worth_it(records):
            return None
        table = self._walker.walk(records, np.arange(len(records)))
        try:
            begins, ends = self._borders(table)
        except SourceFormatError:
            return None
        used = len(records) if ends[-1] else int(np.flatnonzero(begins)[-1])
        if not used:
            return iter(()), 0
        starts = np.flatnonzero(begins[:used])
        lengths = np.diff(starts, append=used) + self._has_next
        if not self._are_usual(table, records, starts):
            return None
        items: list[_Item] = []
        first, index = 0, self.index
        try:
            for stop in pieces(lengths, self._limit):
                last = used if stop == len(starts) else int(starts[stop])
                part = table.take(int(starts[first]), last)
                items.append(self._batch(part, starts[first:stop] - starts[first], file, index + first))
                first = stop
        except (SourceFormatError, EpisodeError):
            return None
        self.index += len(starts)
        return iter(items), used

    def _borders(self, table: RecordTable) -> tuple[np.ndarray, np.ndarray]:
        """``[n] bool`` twice: which record is the first of its episode, and which is flagged as the last one."""
        flags = {c.field.path[0]: self._flag(c, table) for c in self._columns if c.field.path[0] in FLAG_FIELDS}
        none = np.zeros(len(table), np.bool_)
        ends = flags.get("is_last", none) | flags.get("is_terminal", none)
        begins = flags.get("is_first", none).copy()
        begins[1:] |= ends[:-1]
        if self._id_number is not None:
            begins[1:] |= table.differs_from_before(self._id_number)
        begins[0] = True
        return begins, ends

    def _flag(self, column: ColumnReader, table: RecordTable) -> np.ndarray:
        if table.odd.any() or (column.lengths(table) != 1).any():
            raise SourceFormatError("a flag is not as usual")
        return column.read(table, self._budget)

    def _are_usual(self, table: RecordTable, records: Records, starts: np.ndarray) -> bool:
        """Whether each record is one row, and no episode takes more than it may."""
        strings: Any = 0
        for column in self._columns:
            if (column.lengths(table) != 1).any():
                return False
            strings = strings + column.num_strings(table)
        sizes = np.add.reduceat(records.sizes, starts)
        counts = np.add.reduceat(np.broadcast_to(strings, len(table)), starts)
        budget = self._budget
        return bool((sizes < budget.max_bytes // _BYTES_PER_VALUE).all() and (counts <= budget.max_objects).all())

    def _batch(self, table: RecordTable, starts: np.ndarray, file: str, index: int) -> EpisodeBatch:
        columns = {column.field.path: column.read(table, self._budget) for column in self._columns}
        ends = np.append(starts[1:], len(table)) - 1
        facts = fact_columns(self._facts, table.pick(starts), self._budget)
        if self._has_next:
            columns, starts = _with_final_rows(columns, starts, ends)
        elif ("is_last",) in columns:
            columns["is_last",][ends] = True
        return as_batch(self._spec, columns, starts, file, np.arange(index, index + len(starts)), facts)


def _and_then(items: list[_Item], error: SourceFormatError | None) -> Iterator[_Item]:
    yield from items
    if error is not None:
        raise error


def _with_final_rows(columns: _Columns, starts: np.ndarray, ends: np.ndarray) -> tuple[_Columns, np.ndarray]:
    """Transitions as rows: behind each episode's one with the last one's next observation; flags move one on."""
    count, more = len(next(iter(columns.values()))), len(starts)
    rows = np.arange(count) + np.repeat(np.arange(more), ends - starts + 1)
    firsts, finals = starts + np.arange(more), ends + np.arange(1, more + 1)
    out: _Columns = {}
    for path, column in columns.items():
        if path[0] == NEXT:
            continue
        to = np.empty((count + more, *column.shape[1:]), column.dtype)
        if path[0] in FLAG_FIELDS:
            to[rows + 1], to[firsts] = column, False
        else:
            to[rows] = column
            after = (NEXT, *path[1:])
            last = columns[after] if path[0] == "observation" else column
            to[finals] = last[ends] if path[0] in ("observation", "discount") else nothing_like(column, path[0])
        out[path] = to
    for name, where in (("is_first", firsts), ("is_last", finals)):
        out[name,] = np.zeros(count + more, np.bool_)
        out[name,][where] = True
    return out, firsts
