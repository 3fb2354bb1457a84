"""Buffers on disk: a folder with one ``.npy`` per column and a manifest, opened by memory-mapping.

::

    hopper-buffer/
      manifest.json          format, version, spec, counts, checksums, provenance; written last
      data-1f3a9c.../        the columns, rows oldest first
        000-action.npy  001-observation.npy  ...  flags, starts

Values of any length, such as pictures kept as files, are two columns: ``NAME/bytes``, all of them one
behind the other, and ``NAME/ends``.  So is the table of a column of strings, where there are too many
for the manifest (``strings/NAME``); such a buffer is of format 2, others are of format 1.

A new buffer is written to ``.NAME.partial`` beside the target and renamed when whole.  Over an
existing one, the new columns move in beside the old ones and the manifest is replaced in one step,
so that at any moment the folder holds one whole buffer.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.buffers.add.intake import Intake
from rlds2buf.buffers.disk.manifest import is_buffer, read_manifest, write_manifest
from rlds2buf.buffers.engine import Engine
from rlds2buf.buffers.rows.blobs import is_blob
from rlds2buf.buffers.rows.block import Block
from rlds2buf.buffers.rows.columns import TABLES, table_of
from rlds2buf.buffers.rows.row_store import RowStore
from rlds2buf.buffers.rows.vocabulary import MAX_BYTES, MAX_STRINGS, TextCoder
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import EpisodeError, SinkError, SnapshotError, SnapshotExists
from rlds2buf.files.blob_file import BlobFile
from rlds2buf.files.column_file import ColumnFile
from rlds2buf.files.durable import sync_folder
from rlds2buf.files.folder_lock import writer_of
from rlds2buf.files.partial import PartialFolder, plain_json
from rlds2buf.version import __version__

__all__ = ["SnapshotFolder", "SnapshotWriter", "save_buffer", "save_state"]

_MAX_ROWS = 1 << 32
_DATA = re.compile(r"data-[0-9a-f]{12}")


def save_buffer(engine: Engine, path: Path, *, overwrite: bool = False) -> None:
    """Write a whole buffer; ``Buffer.save`` calls it."""
    with SnapshotFolder(path, overwrite=overwrite) as folder:
        version = 2 if engine.write(folder.column) else 1
        folder.finish({**engine.describe(), "version": version, "provenance": plain_json(engine.provenance)})


def save_state(state: Mapping[str, Any], made: Mapping[str, Any], path: Path, *, overwrite: bool = False) -> None:
    """Write a buffer that is saved as its state.

    Args:
        state: its ``state_dict()``: plain JSON values, and arrays under ``"arrays"``.
        made: what makes an empty one, as plain JSON values.
        path: the folder.
        overwrite: replace a saved buffer that is there.

    Raises:
        SnapshotExists: `path` is there already and `overwrite` is False.
        SinkError: the files can't be written.
    """
    with SnapshotFolder(path, overwrite=overwrite) as folder:
        for name, array in state["arrays"].items():
            folder.column(name, array.shape[1:], array.dtype).append(array)
        plain = {name: value for name, value in state.items() if name != "arrays"}
        folder.finish({"version": 3, "kind": state["kind"], "made": dict(made), "state": plain, "provenance": {}})


class SnapshotWriter:
    """Writes episodes straight into a saved buffer, without holding them.

    Args:
        path: the folder to make.
        spec: of the episodes.
        provenance: where the data come from and how they were changed; plain JSON values.
        overwrite: replace a saved buffer that is there.
        resume: go on where a writer with the same provenance was interrupted after a
            :meth:`checkpoint`; from the start if there is nothing to go on from.

    Attributes:
        episodes: how many are written, those of an interrupted writer included.
        notes: plain JSON values kept by :meth:`checkpoint`, for the caller to go on from.
        found: sentences on what earlier runs had left at the target.

    Raises:
        SnapshotExists: the target is there already, or another process is writing it.
        SnapshotError: what was interrupted had another provenance.
        SinkError: the files can't be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        spec: StepSpec,
        *,
        provenance: Mapping[str, Any] | None = None,
        overwrite: bool = False,
        resume: bool = False,
    ) -> None:
        self.spec = spec
        self.episodes = 0
        self.notes: dict[str, Any] = {}
        self._provenance = plain_json(provenance or {})
        self._folder = SnapshotFolder(
            Path(path),
            provenance={"source": self._provenance, "spec": spec.to_json()},
            overwrite=overwrite,
            resume=resume,
        )
        self.found = self._folder.notes
        self._intake = Intake(spec)
        self._store = RowStore(spec, 0)  # for the columns' names, order and dtypes
        self._rows = self._items = 0
        try:
            self._open(self._folder.journal)
        except BaseException:
            self._folder.close(keep=resume)  # a mistaken resume must not destroy what is there
            raise

    def write(self, data: Episode | EpisodeBatch) -> int:
        """Append an episode, or several; returns how many transitions they have.

        Raises:
            SpecMismatch: one doesn't fit the spec, and its `episode` says which; those before it were written.
        """
        if isinstance(data, Episode):
            try:
                return self._append(self._intake.episode(data))
            except EpisodeError as error:
                error.source, error.episode = error.source or data.source, data.index
                raise
        try:
            block = self._intake.batch(data)
        except EpisodeError:
            return sum(map(self.write, data))  # up to the one that doesn't fit
        return self._append(block)

    def _append(self, block: Block) -> int:
        rows = len(block.flags)
        if self._rows + rows > _MAX_ROWS:
            raise SinkError(f"{self._folder.target}: a saved buffer holds at most {_MAX_ROWS} rows")
        for i, (column, data) in enumerate(zip(self._columns, block.columns, strict=True)):
            if i in self._texts:
                coder, table = self._texts[i]
                data, fresh = coder.encode(data)
                table.append(fresh)
            column.append(data)
        self._flags.append(block.flags)
        self._starts.append(block.starts + self._rows)
        self._rows += rows
        self._items += block.items
        self.episodes += len(block.edges)
        return block.items

    def checkpoint(self) -> None:
        """Make what is written so far something that a later writer can go on from."""
        self._folder.sync(
            {
                "episodes": self.episodes,
                "rows": self._rows,
                "items": self._items,
                "notes": self.notes,
            }
        )

    def commit(self) -> None:
        """Finish the files and put the buffer into its place."""
        strings = {}
        for i, (coder, _) in self._texts.items():
            name, small = self._store.names[i], coder.small
            if small is not None:
                strings[name] = [text.decode("latin-1") for text in small]
                self._folder.drop(f"{TABLES}{name}/bytes")
                self._folder.drop(f"{TABLES}{name}/ends")
        self._folder.finish(
            {
                "version": 2 if len(strings) < len(self._texts) or self._store.blobs else 1,
                "kind": "circular",
                "spec": self.spec.to_json(),
                "capacity": self._rows,
                "capacity_unit": "rows",
                "options": {},
                "base": 0,
                "oldest": 0,
                "newest": self._rows,
                "episodes": self.episodes,
                "episode_rows": [],
                "open": {},
                "counts": {"added": self._items, "evicted": 0, "sampled": 0},
                "rng": None,
                "sampler": {},
                "strings": strings,
                "provenance": self._provenance,
            }
        )

    def abort(self, *, keep: bool = False) -> None:
        """Give up: leave nothing, or with `keep` what :meth:`checkpoint` saved for resuming."""
        self._folder.close(keep=keep)

    def _open(self, journal: dict[str, Any] | None) -> None:
        if journal is not None:
            self.episodes, self._rows, self._items = journal["episodes"], journal["rows"], journal["items"]
            self.notes = journal["notes"]
        store, column = self._store, self._folder.column
        self._columns: list[ColumnFile | BlobFile] = [
            BlobFile(name, store.row_shape(i), column) if is_blob(field) else column(name, array.shape[1:], array.dtype)
            for i, (name, field, array) in enumerate(zip(store.names, store.fields, store.columns, strict=True))
        ]
        self._flags = column("flags", (), np.dtype(np.uint8))
        self._starts = column("sampler/starts", (), np.dtype(np.uint32))
        self._texts: dict[int, tuple[TextCoder, BlobFile]] = {}
        for i in store.vocabularies:
            table = table_of(store.names[i], column)
            self._texts[i] = TextCoder(table.first(MAX_STRINGS, MAX_BYTES), table.rows), table


class SnapshotFolder(PartialFolder):
    """A buffer's folder in the making, with its columns."""

    def __init__(
        self,
        target: Path,
        *,
        provenance: Mapping[str, Any] | None = None,
        overwrite: bool = False,
        resume: bool = False,
    ) -> None:
        self._columns: dict[str, ColumnFile] = {}
        self._dropped: list[Path] = []
        super().__init__(
            target,
            provenance=provenance,
            overwrite=overwrite,
            resume=resume,
            replaceable=is_buffer,
            what="a saved buffer",
        )
        who = writer_of(target)
        if who is not None:
            super().close(keep=resume)
            raise SnapshotExists(f"{target}: {who} is writing it, in place; it can't be overwritten now")
        self.data = self.folder / "data"
        try:
            self.data.mkdir(exist_ok=True)
        except OSError as cause:
            raise SinkError(f"{self.data}: {cause.strerror or cause}") from cause

    def column(self, name: str, row_shape: tuple[int, ...], dtype: np.dtype) -> ColumnFile:
        """A new column, or the continuation of an interrupted one."""
        plain = re.sub(r"[^\w.-]+", ".", name)
        path = self.data / f"{len(self._columns):03d}-{plain}.npy"
        resume = tuple(self.journal["columns"][name]) if self.journal else None
        self._columns[name] = ColumnFile(path, row_shape, dtype, resume=resume)
        return self._columns[name]

    def drop(self, name: str) -> None:
        """Do without a column after all; its file stays for as long as a killed run is gone on from."""
        column = self._columns.pop(name)
        column.close()
        self._dropped.append(column.path)

    def sync(self, state: Mapping[str, Any]) -> None:
        """Sync all columns and note how far they are, and `state`."""
        for column in self._columns.values():
            column.sync()
        reached = {name: [column.rows, column.crc] for name, column in self._columns.items()}
        self.write_journal({**state, "columns": reached})

    def finish(self, body: Mapping[str, Any]) -> None:
        """Finish all columns, write the manifest and move everything to the target."""
        columns = [{"name": name, **column.finish()} for name, column in self._columns.items()]
        body = {**body, "columns": columns, "rlds2buf": __version__}
        # Named for what is in it, so that equal buffers are equal files, and a reader that has just read
        # a manifest which is being replaced does not find other columns under the name it knows.
        name = f"data-{self._digest(body)}"
        manifest = {**body, "data": name}
        try:
            self.forget_journal()
            for path in self._dropped:
                path.unlink(missing_ok=True)
            sync_folder(self.data)
            if not os.path.lexists(self.target):
                os.rename(self.data, self.folder / name)
                write_manifest(self.folder, manifest)
                self.publish()
                return
            self.require_replaceable()
            old = [folder for folder in self.target.iterdir() if _is_data(folder) and folder.name != name]
            if name != _data_of(self.target):
                # Not in use, so a killed run left it, perhaps half removed.
                shutil.rmtree(self.target / name, ignore_errors=True)
                os.rename(self.data, self.target / name)
            write_manifest(self.target, manifest)
            sync_folder(self.target)
        except OSError as cause:
            raise SinkError(f"{self.target}: {cause.strerror or cause}") from cause
        for folder in old:
            shutil.rmtree(folder, ignore_errors=True)
        self.close()

    def close(self, *, keep: bool = False) -> None:
        """Let go of the files; without `keep` remove what is unfinished.  Idempotent."""
        for column in self._columns.values():
            column.close()
        self._columns.clear()
        super().close(keep=keep)

    def __enter__(self) -> SnapshotFolder:
        return self

    def _digest(self, body: Mapping[str, Any]) -> str:
        """Of all that is in the buffer, those of its parts included (a multi-agent buffer's policies)."""
        digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode())
        for part in sorted(self.data.rglob("manifest.json")):
            digest.update(part.read_bytes())
        return digest.hexdigest()[:12]


def _is_data(folder: Path) -> bool:
    """Whether a folder has a name that this package gives to columns; others are not ours to remove."""
    return bool(_DATA.fullmatch(folder.name)) and folder.is_dir() and not folder.is_symlink()


def _data_of(folder: Path) -> str | None:
    """The data folder that a saved buffer's manifest names; None if that can't be read."""
    try:
        return str(read_manifest(folder)["data"])
    except (SnapshotError, KeyError):
        return None
