"""Buffers on disk: a folder with one ``.npy`` per column and a manifest, opened by memory-mapping.

::

    hopper-buffer/
      manifest.json          format, version, spec, counts, checksums, provenance; written last
      data-1f3a9c.../        the columns, rows oldest first
        000-action.npy  001-observation.npy  ...  flags, starts

A new buffer is written to ``.NAME.partial`` beside the target and renamed when whole.  Over an
existing one, the new columns move in beside the old ones and the manifest is replaced in one step,
so that at any moment the folder holds one whole buffer.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

import rlds2buf
from rlds2buf.buffers.column_file import ColumnFile, checksum, open_column
from rlds2buf.buffers.incoming import Intake
from rlds2buf.buffers.live import LiveFolder
from rlds2buf.buffers.manifest import is_buffer, read_manifest, replace_text, sync_folder, write_manifest
from rlds2buf.buffers.state import describe, restore
from rlds2buf.buffers.storage import RowStore
from rlds2buf.core.episode import Episode
from rlds2buf.core.fields import FINAL_ROW
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import SinkError, SnapshotCorrupt, SnapshotError, SnapshotExists
from rlds2buf.kernels.chain import CODE

if TYPE_CHECKING:
    from rlds2buf.buffers.buffer import Buffer

__all__ = ["SnapshotWriter", "load_buffer", "save_buffer"]

_VERIFY_BELOW = 1 << 28
_MAX_ROWS = 1 << 32


def load_buffer(
    path: str | os.PathLike[str],
    *,
    seed: int | None = None,
    verify: bool | None = None,
    writable: bool = False,
    **functions: Any,
) -> Buffer:
    """Open a saved buffer; of one for several agents a :class:`~rlds2buf.buffers.multi_agent.MultiAgentBuffer`.

    The columns are memory-mapped, so this takes milliseconds whatever the size.  Sampling reads
    the files; the first ``add`` copies the rows into memory, and the files never change.

    Args:
        path: the folder.
        seed: start the draws anew instead of going on where the saved buffer was.
        verify: compare every column's checksum; None does it below 256 MiB. (Files of a
            directory-backed buffer have none.)
        writable: go on with the files in place, as a directory-backed buffer.
        functions: what can't be saved, for kinds that need it (``reward_fn``, ``done_fn``, ``policy_mapping``).

    Raises:
        SourceNotFound: there is no such folder.
        SnapshotCorrupt: it is incomplete or damaged.
        SnapshotTooNew: a newer rlds2buf wrote it.
    """
    from rlds2buf.buffers.make import empty_like

    folder = Path(path)
    manifest = read_manifest(folder)
    if manifest.get("kind") == "multi_agent" and not writable:
        from rlds2buf.buffers.multi_agent_state import load

        return cast("Buffer", load(folder, manifest, seed=seed, verify=verify, **functions))
    try:
        data = folder / manifest["data"]
        entries = {
            entry["name"]: (data / entry["file"], tuple(entry["shape"]), entry["dtype"], entry["crc32c"])
            for entry in manifest["columns"]
        }
        spec = StepSpec.from_json(manifest["spec"])
        options = dict(manifest["options"])
        kind = manifest["kind"]
    except (KeyError, TypeError, ValueError) as cause:
        raise SnapshotCorrupt(f"{folder}: the manifest lacks {cause}") from cause
    if not manifest.get("clean", True):
        raise SnapshotCorrupt(f"{folder}: its files were changed after it was last saved")
    arrays = {
        name: open_column(file, shape, dtype, writable=writable) for name, (file, shape, dtype, _) in entries.items()
    }
    if verify or (verify is None and sum(array.nbytes for array in arrays.values()) < _VERIFY_BELOW):
        for name, (file, _, _, crc) in entries.items():
            if crc is not None and checksum(arrays[name]) != crc:
                raise SnapshotCorrupt(f"{file}: its checksum does not match, it was changed or damaged")
    buffer = empty_like(kind, spec, {**options, **functions}, seed=seed)
    restore(buffer, {**manifest, "rng": None} if seed is not None else manifest, arrays)
    buffer.provenance = manifest.get("provenance", {})
    if writable:
        buffer._home = LiveFolder(folder, existing=True)
        buffer._store.allocate = buffer._home.allocate
    return buffer


def save_buffer(buffer: Buffer, path: Path, *, overwrite: bool = False) -> None:
    """Write a whole buffer; ``Buffer.save`` calls it."""
    with _Folder(path, overwrite=overwrite) as folder:
        parts = buffer._store.in_order()
        parts.update((f"sampler/{n}", [array]) for n, array in buffer._sampler.arrays(buffer._store).items())
        for name, blocks in parts.items():
            column = folder.column(name, blocks[0].shape[1:], blocks[0].dtype)
            for block in blocks:
                column.append(block)
        folder.publish({**describe(buffer), "provenance": _provenance(buffer.provenance)})


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
        self._provenance = _provenance(provenance)
        self._folder = _Folder(Path(path), overwrite=overwrite, keep=resume)
        self._intake = Intake(spec)
        self._encoder = RowStore(spec, 0)  # for the fields' order and the vocabularies
        self._rows = self._items = 0
        journal = self._folder.journal() if resume else None
        try:
            self._open(journal)
        except BaseException:
            self._folder.close(keep=resume)  # a mistaken resume must not destroy what is there
            raise

    def write(self, episode: Episode) -> int:
        """Append an episode; returns how many transitions it has.

        Raises:
            SpecMismatch: it doesn't fit the spec; nothing was written.
        """
        block = self._intake.episode(episode)
        rows = len(block.flags)
        if self._rows + rows > _MAX_ROWS:
            raise SinkError(f"{self._folder.target}: a saved buffer holds at most {_MAX_ROWS} rows")
        coded = self._encoder._encode(block.columns, range(len(block.columns)))
        for column, data in zip(self._columns, coded, strict=True):
            column.append(data)
        self._flags.append(block.flags)
        self._starts.append(np.flatnonzero((block.flags & CODE) != FINAL_ROW) + self._rows)
        self._rows += rows
        self._items += block.items
        self.episodes += 1
        return block.items

    def checkpoint(self) -> None:
        """Make what is written so far something that a later writer can go on from."""
        self._folder.write_journal(
            {
                "provenance": self._provenance,
                "spec": self.spec.to_json(),
                "episodes": self.episodes,
                "rows": self._rows,
                "items": self._items,
                "strings": self._strings(),
                "notes": self.notes,
            }
        )

    def commit(self) -> None:
        """Finish the files and put the buffer into its place."""
        self._folder.publish(
            {
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
                "strings": self._strings(),
                "provenance": self._provenance,
            }
        )

    def abort(self, *, keep: bool = False) -> None:
        """Give up: leave nothing, or with `keep` what :meth:`checkpoint` saved for resuming."""
        self._folder.close(keep=keep)

    def _open(self, journal: dict[str, Any] | None) -> None:
        if journal is not None:
            if journal["provenance"] != self._provenance or journal["spec"] != self.spec.to_json():
                raise SnapshotError(
                    f"{self._folder.target}: the interrupted run had another source or other options; "
                    "start over without resuming"
                )
            self.episodes, self._rows, self._items = journal["episodes"], journal["rows"], journal["items"]
            self.notes = journal["notes"]
            for i, vocabulary in self._encoder.vocabularies.items():
                strings = journal["strings"][self._encoder.names[i]]
                vocabulary.__init__(text.encode("latin-1") for text in strings)  # type: ignore[misc]
        self._columns = [
            self._folder.column(name, array.shape[1:], array.dtype)
            for name, array in self._encoder.arrays().items()
            if name != "flags"
        ]
        self._flags = self._folder.column("flags", (), np.dtype(np.uint8))
        self._starts = self._folder.column("sampler/starts", (), np.dtype(np.uint32))

    def _strings(self) -> dict[str, list[str]]:
        store = self._encoder
        return {
            store.names[i]: [text.decode("latin-1") for text in vocabulary.strings]
            for i, vocabulary in store.vocabularies.items()
        }


class _Folder:
    """A buffer's folder in the making: ``.NAME.partial`` beside the target, locked by this process."""

    def __init__(self, target: Path, *, overwrite: bool, keep: bool = False) -> None:
        self.target = target
        self.partial = target.parent / f".{target.name}.partial"
        self._columns: dict[str, ColumnFile] = {}
        self._journal: dict[str, Any] | None = None
        self._lock = -1
        if os.path.lexists(target):
            if not overwrite:
                raise SnapshotExists(f"{target}: is there already; choose another name or overwrite it")
            if not is_buffer(target):
                raise SnapshotExists(f"{target}: is not a saved buffer, so it is not overwritten")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            self.partial.mkdir(exist_ok=True)
            self._lock = os.open(self.partial / "lock", os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as cause:
            os.close(self._lock)
            raise SnapshotExists(f"{target}: another process is writing it") from cause
        except OSError as cause:
            raise SinkError(f"{self.partial}: {cause.strerror or cause}") from cause
        self._journal = self._read_journal() if keep else None
        if self._journal is None:
            for child in self.partial.iterdir():
                if child.name != "lock":
                    shutil.rmtree(child) if child.is_dir() else child.unlink()
        self.data = self._journal["data"] if self._journal else f"data-{uuid.uuid4().hex[:12]}"
        try:
            (self.partial / self.data).mkdir(exist_ok=True)
        except OSError as cause:
            raise SinkError(f"{self.partial}: {cause.strerror or cause}") from cause

    def journal(self) -> dict[str, Any] | None:
        """What an interrupted writer left, or None."""
        return self._journal

    def column(self, name: str, row_shape: tuple[int, ...], dtype: np.dtype) -> ColumnFile:
        """A new column, or the continuation of an interrupted one."""
        plain = re.sub(r"[^\w.-]+", ".", name)
        path = self.partial / self.data / f"{len(self._columns):03d}-{plain}.npy"
        resume = tuple(self._journal["columns"][name]) if self._journal else None
        self._columns[name] = ColumnFile(path, row_shape, dtype, resume=resume)
        return self._columns[name]

    def write_journal(self, state: dict[str, Any]) -> None:
        """Sync all columns and note how far they are."""
        for column in self._columns.values():
            column.sync()
        reached = {name: [column.rows, column.crc] for name, column in self._columns.items()}
        replace_text(self.partial / "journal.json", json.dumps({**state, "data": self.data, "columns": reached}))

    def publish(self, body: dict[str, Any]) -> None:
        """Finish all columns, write the manifest and move everything to the target."""
        columns = [{"name": name, **column.finish()} for name, column in self._columns.items()]
        manifest = {**body, "data": self.data, "columns": columns, "rlds2buf": rlds2buf.__version__}
        old: list[Path] = []
        try:
            (self.partial / "journal.json").unlink(missing_ok=True)
            sync_folder(self.partial / self.data)
            if self.target.exists():
                old = list(self.target.glob("data-*"))
                os.rename(self.partial / self.data, self.target / self.data)
                write_manifest(self.target, manifest)
            else:
                write_manifest(self.partial, manifest)
                (self.partial / "lock").unlink()
                os.rename(self.partial, self.target)
            sync_folder(self.target.parent)
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
        if self._lock >= 0:
            if not keep:
                shutil.rmtree(self.partial, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> _Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_journal(self) -> dict[str, Any] | None:
        try:
            state: dict[str, Any] = json.loads((self.partial / "journal.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as cause:
            raise SnapshotCorrupt(f"{self.partial}: the journal can't be read ({cause}); start over") from cause
        return state


def _provenance(values: Mapping[str, Any] | None) -> dict[str, Any]:
    """As it will be read back, so that two runs can be compared."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(values or {})))
    return plain
