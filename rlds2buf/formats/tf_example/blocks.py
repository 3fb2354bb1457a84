"""Blocks of episodes out of raw ``tf.train.Example`` records that hold an episode each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from rlds2buf.codecs.images.claims import check_pixels
from rlds2buf.codecs.images.decode import decode_frames
from rlds2buf.codecs.images.resize import resize_frames, stack_frames
from rlds2buf.codecs.images.stored_image import StoredImage
from rlds2buf.codecs.tfrecord.example import ExampleParser
from rlds2buf.codecs.tfrecord.record_table import RecordTable
from rlds2buf.core.budget import Budget, Tally
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch, FactColumns
from rlds2buf.core.fields import FLAG_FIELDS, STEP_FIELDS
from rlds2buf.errors import EpisodeError, SourceFormatError
from rlds2buf.formats.tf_example.columns import read_whole
from rlds2buf.formats.tf_example.episode import field_tree, whole_episode
from rlds2buf.formats.tf_example.feature_map import METADATA, ExampleSpec, FieldFeature
from rlds2buf.io.record_blocks import Block, Place, RecordBlocks, derived_flags

__all__ = ["ColumnReader", "EpisodeBlocks", "as_batch", "fact_columns", "parsed"]

_BYTES_PER_VALUE: Final = 8
_STRING: Final = np.dtype(object)


def parsed(parser: ExampleParser, record: bytes, file: str, number: int) -> Mapping[str, Any]:
    """The features of a record.

    Raises:
        SourceFormatError: it is no example; says which record.
    """
    try:
        return parser.parse(record)
    except SourceFormatError as cause:
        raise cause.at(f"{file}: record {number}: no tf.train.Example") from cause


class ColumnReader:
    """Reads one field of many records: the usual way of :func:`~rlds2buf.formats.tf_example.columns.read_rows`.

    Args:
        field: which, its dtype and shape known.
        number: of its feature in the tables.
        encoded: pictures stay files.
    """

    def __init__(self, field: FieldFeature, number: int, *, encoded: bool) -> None:
        self.field = field
        self._k = number
        self._encoded = encoded
        self._shape = tuple(n for n in field.shape or () if n is not None)
        self._is_string = field.encoding != "none" or field.dtype == _STRING
        self._size = 1 if field.encoding == "image" else math.prod(self._shape)

    def lengths(self, table: RecordTable) -> np.ndarray:
        """``[n] int64``, how many rows each record has; -1 where it is not as usual."""
        counts = table.counts(self._k)
        usual = table.holds(self._k, self._kind(table))
        if self.field.encoding == "bytes":
            assert self.field.dtype is not None
            counts = self._string_bytes(table) // self.field.dtype.itemsize
            usual &= counts * self.field.dtype.itemsize == self._string_bytes(table)
        rows, rest = np.divmod(counts, self._size or 1)
        return np.where(usual & (rest == 0) & (self._size > 0), rows, -1)

    def num_strings(self, table: RecordTable) -> np.ndarray | int:
        """``[n] int64``, how many strings each record has."""
        return table.counts(self._k) if self._is_string else 0

    def read(self, table: RecordTable, budget: Budget) -> np.ndarray:
        """The rows of all records, one behind the other, ``[M, ...]``.

        Raises:
            SourceFormatError: a value is not what it should be, a picture is damaged, or they differ in shape.
        """
        field = self.field
        assert field.dtype is not None
        if field.encoding == "image":
            return self._pictures(table.strings(self._k), budget)
        if field.encoding == "bytes":
            data = table.raw(self._k)
            return data.view(field.dtype.newbyteorder("<")).astype(field.dtype, copy=False).reshape(-1, *self._shape)
        if field.dtype == _STRING:
            values = table.strings(self._k)
        elif self._kind(table) == "float":
            values = table.floats(self._k).astype(field.dtype, copy=False)
        else:
            values = table.ints(self._k, field.dtype)
        return values.reshape(-1, *self._shape)

    def _kind(self, table: RecordTable) -> str:
        """Of what most records hold: numbers may be stored as any."""
        if self._is_string:
            return "bytes"
        return "float" if table.holds(self._k, "float")[:1].any() else "int64"

    def _string_bytes(self, table: RecordTable) -> np.ndarray:
        """``[n] int64``, the bytes of each record's strings; -1 where they differ in length."""
        return table.string_bytes(self._k)

    def _pictures(self, files: np.ndarray, budget: Budget) -> np.ndarray:
        if self._encoded:
            return files
        field = self.field
        assert field.shape is not None and field.dtype is not None
        found = files.tolist()
        check_pixels(found, StoredImage((None, None, field.shape[2]), field.dtype, size=field.size), Tally(budget))
        frames = decode_frames(found, StoredImage((None, None, field.shape[2]), field.dtype))
        shapes = {frame.shape for frame in frames}
        if len(shapes) > 1 and field.size is None:
            raise SourceFormatError("pictures of several sizes")
        if any(want not in (None, got) for shape in shapes for want, got in zip(field.shape, shape, strict=True)):
            raise SourceFormatError("a picture of another shape")
        return stack_frames(frames if field.size is None else [resize_frames(frame, field.size) for frame in frames])


class EpisodeBlocks(RecordBlocks[None]):
    """Reads blocks of episodes, one from each record, once.

    Args:
        spec: what the records hold.
        encoded: pictures stay files.
        row_bytes, rows, bytes: see :class:`~rlds2buf.io.record_blocks.RecordBlocks`.
        budget: for each episode.
    """

    def __init__(
        self, spec: ExampleSpec, *, encoded: bool, row_bytes: int, rows: int, bytes: int, budget: Budget
    ) -> None:
        self._spec = spec
        self._encoded = encoded
        self._budget = budget
        self._parser = ExampleParser()
        keys = list(dict.fromkeys(field.key for field in spec.fields))
        fields = [field for field in spec.fields if field.path[0] != METADATA]
        self._columns = [ColumnReader(field, keys.index(field.key), encoded=encoded) for field in fields]
        self._facts = [(field, keys.index(field.key)) for field in spec.fields if field.path[0] == METADATA]
        super().__init__(keys, row_bytes=row_bytes, rows=rows, bytes=bytes)

    def lengths(self, table: RecordTable, sizes: np.ndarray) -> np.ndarray:
        lengths = self._columns[0].lengths(table)
        usual = (lengths > 0) & (sizes < self._budget.max_bytes // _BYTES_PER_VALUE)
        strings = np.zeros(len(table), np.int64)
        for column in self._columns:
            usual &= column.lengths(table) == lengths
            strings += column.num_strings(table)
        return np.where(usual & (strings <= self._budget.max_objects), lengths, -1)

    def batch(self, block: Block, work: None) -> EpisodeBatch:
        columns = {column.field.path: column.read(block.table, self._budget) for column in self._columns}
        facts = fact_columns(self._facts, block.table, self._budget)
        return as_batch(self._spec, columns, block.starts, block.file, block.numbers, facts)

    def one(self, record: bytes, place: Place, done: Any) -> Episode | EpisodeError:
        features = parsed(self._parser, record, place.file, place.number)
        where: dict[str, Any] = {"source": place.file, "index": place.episode, "budget": self._budget}
        try:
            return whole_episode(self._spec, features, encoded=self._encoded, **where)
        except EpisodeError as error:
            return error
        except SourceFormatError as cause:
            raise cause.at(f"{place.file}: record {place.number} (episode {place.episode})") from cause


def as_batch(
    spec: ExampleSpec,
    columns: dict[tuple[str, ...], np.ndarray],
    starts: np.ndarray,
    file: str,
    numbers: np.ndarray,
    facts: FactColumns | None,
) -> EpisodeBatch:
    """Episodes of these columns, flags and shifts as the spec says.

    Args:
        columns: of all rows, by their paths.
        starts: ``[E]``, each episode's first row.
        file: that they are of.
        numbers: ``[E]``, the number of each.
        facts: about each.

    Raises:
        EpisodeError: the columns differ in length, or a flag is no flag.
    """
    count = len(next(iter(columns.values())))
    ends = np.append(starts[1:], count) - 1
    discount, terminal = columns.get(("discount",)), columns.get(("is_terminal",))
    if spec.terminal_discount and terminal is None and discount is not None:
        terminal = columns["is_terminal",] = np.zeros(len(discount), np.bool_)
        terminal[ends] = discount[ends] == 0
    for path in columns:
        if path[0] in spec.shift:
            columns[path] = _moved_up(columns[path], ends, repeat=path[0] == "discount")
    derived = [name for name in FLAG_FIELDS if (name,) not in columns]
    tree = field_tree(columns)
    known: dict[str, Any] = {name: tree.pop(name) for name in STEP_FIELDS if name in tree}
    known.update(derived_flags(derived, starts, count))
    rows = Episode(**known, extras=tree, source=file, index=int(numbers[0]))
    return EpisodeBatch(rows, starts, index=numbers, metadata=facts, derived=derived)


def fact_columns(fields: Sequence[tuple[FieldFeature, int]], table: RecordTable, budget: Budget) -> FactColumns | None:
    """What is known of each record's episode; None if nothing is.

    Args:
        fields: with the number of their feature in the table.

    Raises:
        SourceFormatError: a record has not one of them.
    """
    facts = field_tree({field.path[1:]: _values(field, k, table, budget) for field, k in fields})
    return FactColumns(facts, len(table)) if facts else None


def _values(field: FieldFeature, k: int, table: RecordTable, budget: Budget) -> list[Any]:
    """A fact of each record, as plain Python values where they are single."""
    column = ColumnReader(field, k, encoded=False)
    if not field.shape and field.encoding == "none" and (column.lengths(table) == 1).all():
        return list(column.read(table, budget).tolist())
    found = [read_whole(field, table.record(i, [k])) for i in range(len(table))]
    return [value.item() if isinstance(value, np.generic) else value for value in found]


def _moved_up(column: np.ndarray, ends: np.ndarray, *, repeat: bool) -> np.ndarray:
    """Each row's value from the row behind it; an episode's last one's 0, or (a discount) what it was."""
    out = np.roll(column, -1, axis=0)
    out[ends] = column[ends] if repeat else (b"" if out.dtype == object else 0)
    return out
