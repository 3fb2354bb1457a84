"""Episodes into a Reverb checkpoint: a folder that a server loads when it starts."""

from __future__ import annotations

import dataclasses
import datetime
import os
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from rlds2buf.codecs.tfrecord.frames import frame
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.options import check_types
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import SinkError
from rlds2buf.files.local_path import refuse_address
from rlds2buf.files.partial import PartialFolder
from rlds2buf.formats.reverb.checkpoint_origin import Origin
from rlds2buf.formats.reverb.item_keys import ContentKeys
from rlds2buf.formats.reverb.patterns.base import Pattern, check_batch
from rlds2buf.formats.reverb.patterns.make import make_pattern, take_pattern
from rlds2buf.formats.reverb.patterns.priorities import Priority, check_priority, priorities_of
from rlds2buf.formats.reverb.protocol.insert_stream import Request
from rlds2buf.formats.reverb.protocol.item_encoder import ItemEncoder, split_items
from rlds2buf.formats.reverb.protocol.signature import encode_signature
from rlds2buf.formats.reverb.request_builder import RequestBuilder, chunk_length_for
from rlds2buf.formats.reverb.table_spec import TableSpec, take_table
from rlds2buf.io.sink import Sink

__all__ = ["FILES", "ReverbCheckpointSink"]

FILES: Final = ("tables.tfrecord", "items.tfrecord", "chunks.tfrecord")
"""The files of a checkpoint; an empty one named DONE says that they are whole."""

_BUFFER: Final = 1 << 20


class ReverbCheckpointSink(Sink):
    """Writes ``PATH/TIME/{tables,items,chunks}.tfrecord`` and ``DONE``, as a Reverb server does.

    A ``rlds2buf.json`` beside them says whose items they are.

    A server with ``checkpointer=DefaultCheckpointer(PATH)`` and a table of that name starts with the
    items; the table takes its settings from the checkpoint, its size too, whatever that server's own Table says.
    Until `commit` everything lies in
    ``.NAME.partial`` beside the target.

    Args:
        path: the checkpointer's folder; unless it is to be replaced, it must not be there, or hold nothing.
        table: the table's name; or its settings, whose `max_size` None leaves room beside what is written
            (:meth:`~rlds2buf.formats.reverb.table_spec.TableSpec.size_for`).
        pattern: what items an episode becomes: ``"trajectory"``, ``"transition"`` or ``"episode"``; or a Pattern.
        priority: of the items: a number; the name of a step field (``"extras/priority"``), read at each item's
            first row; or a function of all items of an episode that gives one number each.
        chunk_length: steps per chunk; None: 16 small steps, fewer where steps are large.
        overwrite: replace the checkpoints that are there, once the new one is whole.
        options: of the pattern, where that is a name (:func:`~rlds2buf.formats.reverb.patterns.make.make_pattern`), and
            of the table (:class:`~rlds2buf.formats.reverb.table_spec.TableSpec`), likewise.

    Raises:
        ValueError: an argument is unknown or out of range.
        TypeError: an argument is of the wrong type.

    >>> ReverbCheckpointSink("seed", TableSpec("replay"))
    <ReverbCheckpointSink seed>
    """

    options_for = (make_pattern, TableSpec)

    def __init__(
        self,
        path: str | os.PathLike[str],
        table: TableSpec | str = "replay",
        pattern: Pattern | str = "trajectory",
        *,
        priority: Priority = 1.0,
        chunk_length: int | None = None,
        overwrite: bool = False,
        **options: Any,
    ) -> None:
        refuse_address(path)
        self.name = os.fspath(path)
        check_types(ReverbCheckpointSink, {"chunk_length": chunk_length, **options})
        self.table = take_table(table, options)
        self.pattern = take_pattern(pattern, options)
        if options:
            raise ValueError(f"{', '.join(options)}: no option of a table or of its items")
        check_priority(priority, self.pattern)
        if chunk_length is not None and chunk_length < 1:
            raise ValueError(f"chunk_length must be at least 1, got {chunk_length}")
        self._priority = priority
        self._chunk_length = chunk_length
        self._overwrite = overwrite
        self._target = Path(self.name)
        self._part: PartialFolder | None = None
        self._files: list[_Records] = []
        self._builder: RequestBuilder | None = None
        self._signature: Any = None
        self._spec = StepSpec()
        self._keys: ContentKeys | None = None
        self._origin = Origin("", "", self.table.name, self.pattern.text, 0)
        self._written = self._items = self._clock = 0

    def open(self, spec: StepSpec, provenance: Mapping[str, Any]) -> None:
        """Make the part folder.

        Raises:
            SnapshotExists: the target is there already (an empty folder is not), or something else than
                checkpoints is, which is never replaced; or another process is writing it.
            SinkError: the files can't be written, or the data lack a field.
        """
        self._spec = spec
        self.pattern.reset()
        try:
            self._signature = encode_signature(self.pattern.table_signature(spec), name=self.pattern.type_name)
            columns = self.pattern.columns(spec)
        except ValueError as error:
            raise SinkError(f"{provenance['source']}: {error}") from error
        if self._chunk_length is None:
            self._chunk_length = chunk_length_for(spec, self.pattern.chunk_steps)
        # The keys of a push, so that pushing the same data on top of the checkpoint changes nothing.
        self._keys = ContentKeys(provenance, self.table.name, self.pattern.text, self._chunk_length)
        self._origin = Origin.of(
            str(provenance["source"]), str(provenance["fingerprint"]), self.table.name, self.pattern.text
        )
        self._written = self._items = 0
        self._clock = time.time_ns()
        self._part = PartialFolder(
            self._target,
            provenance=provenance,
            overwrite=self._overwrite or _is_empty(self._target),
            replaceable=lambda path: _is_empty(path) or bool(_checkpoints(path)),
            what="a folder of Reverb checkpoints",
        )
        self.found = self._part.notes
        try:
            folder = self._part.folder / _time_name(self._clock)
            folder.mkdir()
            # Chunks are compressed already, items and tables are not.
            self._files = [_Records(folder / name, level) for name, level in zip(FILES, (1, 1, 0), strict=True)]
        except OSError as cause:
            raise SinkError(f"{self.name}: {cause.strerror}") from cause
        self._builder = RequestBuilder(
            ItemEncoder(self.table.name, columns, max_chunk_length=self._chunk_length, timed=True),
            self._chunk_length,
            send=self._take,
            mark=lambda marks: None,
            times=self._times,
        )

    def write_batch(self, batch: EpisodeBatch) -> int:
        """Append the items of some episodes.

        Raises:
            EpisodeError: one does not fit the spec, or its priorities are no priorities.
            SinkError: the files can't be written, or the table could not hold the items.
        """
        if self.pattern.crosses and len(batch) > 1:
            return super().write_batch(batch)  # what is laid out follows from what was
        assert self._builder is not None and self._keys is not None, "write before open"
        check_batch(self._spec, batch)
        numbers = np.arange(self._written, self._written + len(batch)) if batch.index is None else batch.index
        laid = self.pattern.lay(batch)
        priorities, fault = priorities_of(self._priority, batch, laid)
        end = len(batch) if fault is None else fault[0]
        self._written += min(end + 1, len(batch))
        if end:
            some = np.arange(len(batch)) < end
            part = laid.take(some)
            self._count(len(part.numbers))
            keys = self._keys.episodes(numbers[:end], part.tensors, part.edges)
            self._builder.add(part, keys, priorities[: len(part.numbers)], numbers[:end].tolist())
        if fault is not None:
            if end + 1 < len(batch):
                self.pattern.take_back(batch.take(slice(end + 1, None)))
            fault[1].written = end, int(laid.counts[:end].sum())
            raise fault[1]
        return len(laid.numbers)

    def _count(self, items: int) -> None:
        self._items += items
        if self.table.max_size is not None and self._items > self.table.max_size:
            raise SinkError(
                f"{self.name}: table {self.table.name!r} would hold at most {self.table.max_size} items, and the data "
                f"have {self._items} or more"
            )

    def commit(self) -> None:
        """Write the table and DONE, sync everything, and move the folder to its place."""
        assert self._builder is not None and self._part is not None, "commit before open"
        self._builder.flush()
        tables = self._files[0]
        tables.write(frame(self.table.checkpoint(self._items, self._signature).SerializeToString()))
        try:
            for file in self._files:
                file.close()
            folder = tables.path.parent
            dataclasses.replace(self._origin, items=self._items).write(folder)
            (folder / "DONE").touch()
        except OSError as cause:
            raise SinkError(f"{self.name}: {cause.strerror}") from cause
        self._part.publish()
        self._files, self._builder = [], None
        self.notes = [
            f"table {self.table.name!r}: {self._items:,} of at most {self.table.size_for(self._items):,} items "
            f"(remover {self.table.remover}); a server that loads them takes the table's settings from here, its size "
            "too"
        ]

    def abort(self) -> None:
        """Remove the part folder."""
        for file in self._files:
            file.discard()
        self._files, self._builder = [], None
        if self._part is not None:
            self._part.close()

    def _take(self, request: Request) -> None:
        _, items, chunks = self._files
        items.write(b"".join(map(frame, split_items(request.items))))
        chunks.write(b"".join(map(frame, request.chunks)))

    def _times(self, count: int) -> np.ndarray:
        # A server that writes its own checkpoint of these items sorts them by time.
        start, self._clock = self._clock, self._clock + count
        return np.arange(start, self._clock, dtype=np.int64)


class _Records:
    """A TFRecord file, compressed as a whole with zlib, as TensorFlow's ZLIB option has it."""

    def __init__(self, path: Path, level: int) -> None:
        self.path = path
        self._file = open(path, "wb", buffering=_BUFFER)
        self._compressor = zlib.compressobj(level)

    def write(self, data: bytes) -> None:
        try:
            self._file.write(self._compressor.compress(data))
        except OSError as cause:
            raise SinkError(f"{self.path}: {cause.strerror}") from cause

    def close(self) -> None:
        self._file.write(self._compressor.flush())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def discard(self) -> None:
        # What is still buffered goes nowhere; the disk may be full.
        try:
            self._file.close()
        except OSError:
            return


def _time_name(nanoseconds: int) -> str:
    """As Reverb names the folders of its checkpoints: a time that sorts."""
    seconds, rest = divmod(nanoseconds, 10**9)
    moment = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest:09d}+00:00"


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _checkpoints(path: Path) -> list[Path]:
    """The checkpoints in a checkpointer's folder; those alone."""
    if not path.is_dir():
        return []
    inside = list(path.iterdir())
    return inside if all((each / FILES[0]).is_file() for each in inside) else []
