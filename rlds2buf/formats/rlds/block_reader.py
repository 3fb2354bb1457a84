"""From the records of an RLDS dataset to blocks of episodes, pictures decoded ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from rlds2buf.codecs.images.pool import DecodePool, PendingFrames
from rlds2buf.codecs.tfrecord.example import ExampleParser
from rlds2buf.codecs.tfrecord.record_table import RecordTable
from rlds2buf.core import nest
from rlds2buf.core.budget import Tally
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.fields import FLAG_FIELDS, STEP_FIELDS
from rlds2buf.errors import EpisodeError, SourceFormatError
from rlds2buf.formats.rlds.episode_reader import EpisodeReader, Record
from rlds2buf.formats.rlds.leaf_columns import LeafColumn
from rlds2buf.io.record_blocks import Block, Part, Place, RecordBlocks, derived_flags

__all__ = ["RldsBlocks"]

_PIXEL_BYTES: Final = 1 << 24
"""So much of pixels in one block: the memory of some blocks is used again and again."""

_BYTES_PER_VALUE: Final = 8

_Pixels = dict[str, PendingFrames]


class RldsBlocks(RecordBlocks[_Pixels]):
    """Reads blocks of RLDS episodes once.

    Args:
        reader: of single records.
        rows, bytes, wanted, keeps_records: see :class:`~rlds2buf.io.record_blocks.RecordBlocks`.
        threads: see :class:`~rlds2buf.codecs.images.pool.DecodePool`.
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
        self._threads = threads
        self._pool: DecodePool | None = None
        self._parser = ExampleParser()
        keys: dict[str, int] = {}

        def column(leaf: Any, is_per_step: bool) -> LeafColumn:
            return LeafColumn(leaf, lambda key: keys.setdefault(key, len(keys)), is_per_step=is_per_step)

        self._steps = nest.map_structure(lambda leaf: column(leaf, True), reader.steps)
        self._metadata = nest.map_structure(lambda leaf: column(leaf, False), reader.metadata)
        self._step_columns: list[LeafColumn] = [leaf for _, leaf in nest.flatten(self._steps)]
        self._fact_columns: list[LeafColumn] = [leaf for _, leaf in nest.flatten(self._metadata)]
        self._columns = [*self._step_columns, *self._fact_columns]
        self._pictures = [leaf for leaf in self._columns if leaf.has_pixels]
        self._strings = [leaf for leaf in self._columns if leaf.has_strings]
        super().__init__(
            list(keys),
            row_bytes=reader.spec.row_bytes,
            rows=rows,
            bytes=min(bytes, _PIXEL_BYTES) if self._pictures else bytes,
            wanted=wanted,
            keeps_records=keeps_records,
        )

    def read(self, parts: Iterable[Part]) -> Iterator[EpisodeBatch | EpisodeError]:
        """See :meth:`RecordBlocks.read`; while a block is in use the pictures of the next one are decoded."""
        if not self._pictures:
            yield from super().read(parts)
            return
        with DecodePool(self._threads) as self._pool:
            yield from super().read(parts)

    @property
    def num_ahead(self) -> int:
        return 0 if self._pool is None or self._pool.threads < 2 else 1

    def lengths(self, table: RecordTable, sizes: np.ndarray) -> np.ndarray:
        budget = self._reader.budget
        lengths = self._step_columns[0].lengths(table)
        usual = (lengths > 0) & (sizes < budget.max_bytes // _BYTES_PER_VALUE)
        strings = np.zeros(len(table), np.int64)
        for column in self._pictures:
            usual &= ~column.too_much(table, budget)
        for column in self._strings:
            strings += column.num_strings(table)
        for column in self._step_columns[1:]:
            usual &= column.lengths(table) == lengths
        for column in self._fact_columns:
            usual &= column.lengths(table) == 1
        return np.where(usual & (strings <= budget.max_objects), lengths, -1)

    def start(self, block: Block) -> _Pixels:
        if self._pool is None:
            return {}
        files = [column.files(block.table, self._reader.budget) for column in self._pictures]
        pairs: Any = zip(self._pictures, files, strict=True)
        return {column.reader.key: self._pool.submit(found.tolist(), column.reader.leaf) for column, found in pairs}

    def batch(self, block: Block, work: _Pixels | None) -> EpisodeBatch:
        pixels = {key: pending.result() for key, pending in (work or {}).items()}
        one_by_one = any(column.is_read_one_by_one for column in self._columns)
        tallies = [Tally(self._reader.budget) for _ in range(len(block.lengths) if one_by_one else 0)]

        def read(column: LeafColumn) -> np.ndarray:
            return column.read(block.table, tallies, pixels.get(column.reader.key))

        steps = nest.map_structure(read, self._steps)
        known = {field: steps.pop(field) for field in STEP_FIELDS if field in steps}
        derived = [name for name in FLAG_FIELDS if name not in known]
        known.update(derived_flags(derived, block.starts, int(block.lengths.sum())))
        rows = Episode(**known, extras=steps, source=block.file, index=int(block.numbers[0]))
        facts = nest.map_structure(read, self._metadata)
        metadata, placeholder = self._reader.own.fact_columns(facts, len(block.lengths))
        return EpisodeBatch(rows, block.starts, placeholder, index=block.numbers, metadata=metadata, derived=derived)

    def done(self, block: Block, work: _Pixels | None) -> Sequence[dict[str, np.ndarray]]:
        """The pixels of each record, where no picture of the block is damaged."""
        parts: list[dict[str, np.ndarray]] = [{} for _ in range(len(block.lengths))]
        for column in self._pictures if work else ():
            assert work is not None
            try:
                found = column.pixels_of(block.table, work[column.reader.key].result())
            except SourceFormatError:
                return ()
            for part, pixels in zip(parts, found, strict=True):
                part[column.reader.key] = pixels
        return parts

    def one(self, record: bytes, place: Place, done: dict[str, np.ndarray] | None) -> Episode | EpisodeError:
        try:
            features = self._parser.parse(record)
        except SourceFormatError as cause:
            raise cause.at(f"{place.file}: record {place.number} (episode {place.episode})") from cause
        return self._reader.episode(Record(features, *place), done or {})
