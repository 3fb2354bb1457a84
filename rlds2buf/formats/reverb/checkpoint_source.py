"""A Reverb checkpoint on disk, item by item."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rlds2buf.core.budget import BUDGET, Budget, Tally
from rlds2buf.core.episode import Episode
from rlds2buf.errors import EpisodeError, SourceFormatError, SourceNotFound
from rlds2buf.files.fingerprint import fingerprint_files
from rlds2buf.formats.reverb.item_episodes import ItemSource
from rlds2buf.formats.reverb.joined_items import ItemStore
from rlds2buf.formats.reverb.protocol.checkpoint_files import latest_checkpoint, read_messages
from rlds2buf.formats.reverb.protocol.chunks import decode_tensor
from rlds2buf.formats.reverb.protocol.signature import flatten_signature

__all__ = ["ReverbCheckpointSource"]

_DECODED_CHUNKS = 64


class ReverbCheckpointSource(ItemSource):
    """The items of one table of a checkpoint, in the order of insertion, each as an episode.

    See :func:`rlds2buf.formats.reverb.item_rows.episode_of`.  The chunks are held in memory as they are
    compressed in the file.  :func:`rlds2buf.convert`, :func:`rlds2buf.push` and :func:`rlds2buf.validate` read the
    episodes that the items are of (:class:`~rlds2buf.formats.reverb.joined_items.JoinedItems`).

    Args:
        path: a checkpoint, or a checkpointer's folder, of which the latest checkpoint is taken.
        table: the table's name; it may be left out where there is one table.
        join: True: read episodes, whoever asks; False: items.
        budget: for each chunk, and for what the file of chunks takes beyond its own size.

    Raises:
        SourceNotFound: no finished checkpoint, or no such table.
        SourceFormatError: the files are damaged.
    """

    format: ClassVar[str] = "reverb-checkpoint"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        table: str | None = None,
        join: bool | None = None,
        budget: Budget = BUDGET,
    ) -> None:
        self.name = os.fspath(path)
        self.join = join
        self._budget = budget
        self._folder = latest_checkpoint(Path(path))
        tables = {
            entry.table_name: entry
            for entry in read_messages(self._folder / "tables.tfrecord", "TableCheckpoint", budget)
        }
        if table is None and len(tables) == 1:
            table = next(iter(tables))
        if table not in tables:
            which = "which table is meant? " if table is None else f"no table {table!r}; "
            raise SourceNotFound(f"{self.name}: {which}it has {', '.join(map(repr, sorted(tables))) or 'none'}")
        self._table = tables[table]
        self.fields = flatten_signature(self._table.signature) if self._table.HasField("signature") else None
        self._tensors = functools.lru_cache(maxsize=_DECODED_CHUNKS)(self._decode)

    @functools.cached_property
    def num_table_items(self) -> int:
        """The items of the table."""
        return sum(1 for _ in self._items())

    def details(self) -> dict[str, Any]:
        """The table's settings."""
        table = self._table
        return {
            "checkpoint": self._folder.name,
            "table": table.table_name,
            "items": self.num_table_items,
            "max_size": table.max_size,
            "max_times_sampled": table.max_times_sampled,
            "inserted": table.rate_limiter.insert_count,
            "sampled": table.rate_limiter.sample_count,
            "signature": self.signature(),
        }

    def read_items(self, start: int = 0, stop: int | None = None) -> Iterator[Episode | EpisodeError]:
        """Items in the order of insertion."""
        for index, item in enumerate(self._items()):
            if stop is not None and index >= stop:
                return
            if index >= start:
                yield self.episode(item, index, lambda key, number: self._tensors(key)[number])

    def fingerprint(self) -> str:
        names = ("tables.tfrecord", "items.tfrecord", "chunks.tfrecord")
        return fingerprint_files([self._folder / name for name in names])

    def store(self) -> ItemStore:
        """All of them, the chunks as they are compressed."""
        return ItemStore(list(self._items()), self._chunks, budget=self._budget)

    def _items(self) -> Iterator[Any]:
        for item in read_messages(self._folder / "items.tfrecord", "PrioritizedItem", self._budget):
            if item.table == self._table.table_name:
                yield item

    @functools.cached_property
    def _chunks(self) -> dict[int, Any]:
        file = self._folder / "chunks.tfrecord"
        chunks: dict[int, Any] = {}
        excess = -file.stat().st_size  # what the chunks, held together, take beyond their file
        for chunk in read_messages(file, "ChunkData", self._budget):
            excess += chunk.ByteSize()
            self._budget.check_bytes(excess, f"{file}, decompressed,")
            chunks[chunk.chunk_key] = chunk
        return chunks

    def _decode(self, key: int) -> list[np.ndarray]:
        chunk = self._chunks.get(key)
        if chunk is None:
            raise SourceFormatError(f"{self.name}: chunk {key} is missing")
        tensors = chunk.data.tensors or chunk.deprecated_data
        tally = Tally(self._budget)
        decoded = [decode_tensor(tensor, delta_encoded=chunk.delta_encoded, tally=tally) for tensor in tensors]
        for tensor in decoded:
            tensor.flags.writeable = False  # items share it
        return decoded
