"""A buffer whose columns are files that it writes in place."""

from __future__ import annotations

import errno
import itertools
import os
import re
import uuid
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds2buf.buffers.disk.manifest import inside, read_manifest, write_manifest
from rlds2buf.buffers.disk.undo import Undo
from rlds2buf.buffers.rows.blob_segments import LiveBlobs, Segment
from rlds2buf.buffers.rows.blobs import OBJECT
from rlds2buf.buffers.rows.columns import MemoryColumns, write_tables
from rlds2buf.buffers.rows.row_store import RowStore
from rlds2buf.core import forks
from rlds2buf.errors import ReplayError, SinkError, SnapshotCorrupt, SnapshotExists
from rlds2buf.files.blob_file import SavedBlobs
from rlds2buf.files.column_file import MappedFiles
from rlds2buf.files.folder_lock import FolderLock
from rlds2buf.files.local_path import refuse_address
from rlds2buf.version import __version__

if TYPE_CHECKING:
    from rlds2buf.buffers.engine import Engine  # whose numerics those who only read rows can do without

__all__ = ["DURABILITY", "LiveFolder", "check_durability", "live_blobs"]

DURABILITY = ("save", "none")
"""What is left of a directory-backed buffer whose process is killed: its last saved state, or perhaps nothing."""

_CHUNK_BYTES, _ROOM_BYTES = 1 << 16, 1 << 24
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_durability(durability: str) -> None:
    """Raise ValueError if there is no such durability."""
    if durability not in DURABILITY:
        raise ValueError(f"durability must be 'save' or 'none', got {durability!r}")


_HEX = "[0-9a-f]" * 12
_MADE_HERE = (f"data-{_HEX}/*.npy", f"data-{_HEX}/*.bytes", f"undo-{_HEX}*")
"""Names of the files that are removed when they are no longer used; others in the folder are not ours."""


class LiveFolder:
    """The folder of a directory-backed buffer, which no other process writes meanwhile.

    Columns are memory-mapped files, so the buffer may be larger than memory.  They change as the
    buffer does; :meth:`save` writes the manifest that makes them a saved buffer again.  The first
    change after it marks the manifest, and with `durability` ``"save"`` begins a file of what rows
    were (see buffers/disk/undo.py), by which whoever opens the folder after a kill puts them back.

    Files have holes where no row was written yet; room on the disk is taken before rows go there.

    Args:
        path: the folder; created.
        existing: whether it holds a saved buffer that is to go on.
        durability: ``"save"`` or ``"none"``; of a saved buffer :meth:`take_over` finds it out.

    Raises:
        SnapshotExists: the folder holds something already, or somebody writes it.
        SinkError: it can't be made.
        ValueError: it is an address.
    """

    def __init__(self, path: Path, *, existing: bool = False, durability: str = "save") -> None:
        refuse_address(path)
        self.path = path = path.resolve()
        self._clean = existing
        self._written = 0
        self._data: Path | None = None
        self._undo: Undo | None = None
        self._saved: set[str] = set()
        self._surveyed: np.ndarray | None = None  # the flags of the rows that the next ones are about
        self._ready, self._room = bytearray(), bytearray()
        self._rows = self._room_rows = 1
        self._columns: list[np.memmap] = []
        try:
            path.mkdir(parents=True, exist_ok=True)
            if not existing and any(path.iterdir()):
                raise SnapshotExists(
                    f"{path}: holds something already; load_buffer(writable=True) goes on with a buffer "
                    "that was saved, and what was never saved can only be removed"
                )
        except OSError as cause:
            raise SinkError(f"{path}: {cause.strerror or cause}") from cause
        self._lost = ""
        self._writer = _take_over(self)
        self.durability = durability
        forks.register(self, LiveFolder._forked)

    def allocate(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """A column of zeros (or of empty strings) in a new (sparse) file; an Allocator."""
        if 0 in shape and dtype != OBJECT:
            return np.zeros(shape, dtype)
        if dtype == OBJECT:
            places = self.allocate(f"{name}/places", (*shape, 2), np.dtype(np.int64))
            # Named for the file of places, so that no two columns meet.
            return LiveBlobs(self._file(name, ""), places, home=self)
        self._written += 1
        file = self._file(name, ".npy")
        self._forget_room()
        try:
            return np.lib.format.open_memmap(file, mode="w+", dtype=dtype, shape=shape)
        except OSError as cause:
            raise SinkError(f"{file}: {cause.strerror or cause}") from cause

    def take_over(self, store: RowStore, manifest: Mapping[str, Any]) -> None:
        """Go on with a saved buffer: what was written stays where it is, new byte strings come beside."""
        self.durability = str(manifest.get("durability", "save"))
        self._saved = _files_of(self.path, manifest)
        for name, columns, k in store.blob_places():
            saved, stem = columns[k], self._file(f"taken-{name}", "")
            if isinstance(saved, SavedBlobs):
                places = self.allocate(f"{name}/places", (*saved.shape, 2), np.dtype(np.int64))
                self.make_room(places, len(places))
                places[...] = saved.places()
                columns[k] = LiveBlobs(stem, places, _segments(saved.data), home=self)
                store.layout += 1
            elif isinstance(saved, LiveBlobs):
                saved.stem, saved.home = stem, self

    def touch(self, store: RowStore) -> None:
        """The buffer is about to change: what is on the disk is no longer whole.

        Raises:
            ReplayError: the folder is another buffer's by now.
            SinkError: it can't be written.
        """
        if self._clean:
            self._begin(store)
        if self._lost:
            raise ReplayError(f"{self.path}: {self._lost}")

    def changing(self, store: RowStore, slots: slice | np.ndarray) -> None:
        """Rows in these slots are about to change: take room for them, and keep what the saved state needs.

        Raises:
            SinkError: the disk is full; nothing was changed.
        """
        if self._surveyed is not store.flags:
            self._survey(store)
        ready, rows = self._ready, self._rows
        if type(slots) is slice:
            first, last = slots.start // rows, (slots.stop - 1) // rows
            if first == last and ready[first]:
                return
            runs: Iterable[range] = (range(first, last + 1),) if ready.find(0, first, last + 1) >= 0 else ()
        else:
            chunks = set((slots // rows).tolist())  # type: ignore[union-attr,operator]
            runs = (range(chunk, chunk + 1) for chunk in sorted(chunks) if not ready[chunk])
        for run in runs:
            part = slice(run.start * rows, min(run.stop * rows, store.slots))
            self._take_room(part)
            if self._undo is not None and self._undo.covers(store.flags):
                self._undo.protect(part)
            ready[run.start : run.stop] = b"\1" * len(run)

    def make_room(self, column: Any, rows: int) -> None:
        """Take room on the disk for the first rows of a column.

        Raises:
            SinkError: there is none.
        """
        column = column.places if isinstance(column, LiveBlobs) else column
        if isinstance(column, np.memmap) and rows:
            try:
                _reserve(column, slice(0, rows))
            except OSError as cause:
                raise SinkError(f"{column.filename}: {cause.strerror or cause}") from cause

    def protect(self, column: np.ndarray, slots: np.ndarray) -> None:
        """Rows of one column are about to change."""
        if self._undo is not None and self._undo.covers(column):
            self._undo.protect(slots)

    def remove(self, file: Path) -> None:
        """Remove a file that the buffer does not need any more; one of the saved state goes with the next save."""
        if self.durability == "none" or os.path.realpath(file) not in self._saved:
            file.unlink(missing_ok=True)

    def drop(self, column: Any) -> None:
        """Remove a column that was just made, and not used after all."""
        if isinstance(column, LiveBlobs):
            column.discard()
            column = column.places
        if isinstance(column, np.memmap) and column.filename is not None:
            Path(column.filename).unlink(missing_ok=True)

    def save(self, engine: Engine) -> dict[str, Any]:
        """Flush the columns and write the manifest; files no longer used are removed.

        Raises:
            ReplayError: the folder is another buffer's by now.
            SinkError: it can't be written.
        """
        if self._lost:
            raise ReplayError(f"{self.path}: {self._lost}")
        entries: list[dict[str, Any]] = []
        used: set[str] = set()
        arrays: dict[str, Any] = {
            **engine.store.arrays(),
            **{f"sampler/{name}": array for name, array in engine.sampler.live_arrays().items()},
        }
        tables = MemoryColumns()
        strings = write_tables(engine.store, tables.column)
        arrays.update(tables.arrays())
        segments: dict[str, list[list[Any]]] = {}
        for name, array in list(arrays.items()):
            if isinstance(array, LiveBlobs):
                array.flush()
                segments[name] = [[self._relative(s.path), s.start, s.size, s.offset] for s in array.segments]
                used.update(str(path) for path, *_ in segments[name])
                arrays[f"{name}/places"] = arrays.pop(name).places
        for name, array in arrays.items():
            file = getattr(array, "filename", None)
            if file is None:  # kept in memory (a sampler's, or an empty column): a copy goes beside the others
                copy = self.allocate(name, array.shape, array.dtype)
                if 0 not in array.shape:
                    self.make_room(copy, len(copy))
                    copy[...] = array
                array = copy
                file = getattr(copy, "filename", None)
            if isinstance(array, np.memmap):
                array.flush()
            relative = "" if file is None else self._relative(Path(file))
            used.add(relative)
            shape = list(array.shape)
            entries.append({"name": name, "file": relative, "dtype": array.dtype.str, "shape": shape, "crc32c": None})
        body = {
            **engine.describe(),
            "base": engine.store.base,
            "data": ".",
            "columns": entries,
            "clean": True,
            "provenance": engine.provenance,
            **({"version": 2, "segments": segments} if segments or strings else {}),
            **({} if self.durability == "save" else {"durability": self.durability}),
            "rlds2buf": __version__,
        }
        write_manifest(self.path, body)
        self._clean = True
        self._saved = _files_of(self.path, body)
        self._undo = None
        self._forget_room()
        for file in itertools.chain.from_iterable(map(self.path.glob, _MADE_HERE)):
            if self._relative(file) not in used:
                file.unlink(missing_ok=True)
        return body

    def give_up(self, why: str) -> None:
        """Write nothing any more."""
        self._lost = why
        self._writer.release()

    @property
    def is_clean(self) -> bool:
        """Whether the files are as they were saved last."""
        return self._clean

    @property
    def is_lost(self) -> bool:
        """Whether the folder is another buffer's by now."""
        return bool(self._lost)

    def _begin(self, store: RowStore) -> None:
        """Mark the manifest before the first change, and begin to keep what rows were."""
        if self._lost:
            return
        manifest = read_manifest(self.path)
        mark: dict[str, Any] = {"clean": False}
        undo = None
        if self.durability == "save":
            undo = Undo(self.path, self._saved_columns(store, manifest), (s for s, _ in _held(store)))
            mark["undo"] = undo.begin()
        try:
            write_manifest(self.path, {**manifest, **mark})
        except BaseException:
            if undo is not None:
                undo.path.unlink(missing_ok=True)
            raise
        self._undo, self._clean = undo, False
        self._forget_room()

    def _saved_columns(self, store: RowStore, manifest: Mapping[str, Any]) -> dict[str, np.memmap]:
        """The columns that are written in place in files which the manifest names."""
        files = {str(entry["name"]): str(self.path / manifest["data"] / entry["file"]) for entry in manifest["columns"]}
        found = _mapped(store)
        return {
            name: column
            for name, column in found.items()
            if name in files and os.path.realpath(files[name]) == os.path.realpath(str(column.filename))
        }

    def _survey(self, store: RowStore) -> None:
        """Find out anew which columns there are, and how many rows are looked after together."""
        self._columns = list(_mapped(store).values())
        width = max(1, sum(column.nbytes // len(column) for column in self._columns))
        self._rows = max(1, _CHUNK_BYTES // width)
        self._room_rows = max(self._rows, _ROOM_BYTES // width)
        self._ready = bytearray(store.slots // self._rows + 1)
        self._room = bytearray(store.slots // self._room_rows + 1)
        self._surveyed = store.flags
        store.mapped = MappedFiles(self._columns)

    def _forget_room(self) -> None:
        """The columns changed, or what must be kept of them did."""
        self._surveyed = None

    def _take_room(self, rows: slice) -> None:
        size = self._room_rows
        for number in range(rows.start // size, (rows.stop - 1) // size + 1):
            if not self._room[number]:
                some = slice(max(rows.start, number * size), min(rows.stop, (number + 1) * size))
                self._room[number] = self._reserved(slice(number * size, (number + 1) * size), some)

    def _reserved(self, many: slice, some: slice) -> bool:
        """Reserve many rows, or if there is no room for that only those that are needed; whether it was many."""
        try:
            for column in self._columns:
                _reserve(column, many)
        except OSError:
            for column in self._columns:
                try:
                    _reserve(column, some)
                except OSError as cause:
                    raise SinkError(f"{column.filename}: {cause.strerror or cause}") from cause
            return False
        return True

    def _file(self, name: str, suffix: str) -> Path:
        """A name for a new file."""
        if self._data is None:
            self._data = self.path / f"data-{uuid.uuid4().hex[:12]}"
            try:
                self._data.mkdir()
            except OSError as cause:
                raise SinkError(f"{self._data}: {cause.strerror or cause}") from cause
        plain = re.sub(r"[^\w.-]+", ".", name)
        return self._data / f"{self._written:03d}-{plain}{suffix}"

    def _relative(self, file: Path) -> str:
        return str(file.relative_to(self.path))

    def _forked(self, number: int) -> None:
        self._lost = "its files are written by the process that this one was forked from"
        if self._undo is not None:
            self._undo.close()


_writers: dict[tuple[int, int], weakref.ref[LiveFolder]] = {}


def _take_over(home: LiveFolder) -> FolderLock:
    """The lock of a folder, also from a buffer of this process that has nothing unsaved in it.

    Raises:
        SnapshotExists: another process has it, or such a buffer.
    """
    status = os.stat(home.path)
    key = status.st_dev, status.st_ino
    holder = _writers[key]() if key in _writers else None
    if holder is not None and not holder.is_lost:
        if not holder.is_clean:
            raise SnapshotExists(f"{home.path}: another buffer of this process is writing it; save() that one first")
        holder.give_up("another buffer of this process goes on with it")
    lock = FolderLock(home.path)
    _writers[key] = weakref.ref(home, lambda mine: _writers.pop(key, None) if _writers.get(key) is mine else None)
    return lock


def live_blobs(folder: Path, manifest: Mapping[str, Any], arrays: dict[str, np.ndarray]) -> dict[str, LiveBlobs]:
    """The byte strings that a directory-backed buffer left, taking their places from `arrays`.

    Raises:
        SnapshotCorrupt: files are missing, or do not fit together.
    """
    found = {}
    try:
        for name, listed in (manifest.get("segments") or {}).items():
            # Files of segments get removed, too.
            segments = [
                Segment(inside(folder, file), int(start), int(size), int(at)) for file, start, size, at in listed
            ]
            for segment in segments:
                if segment.path.stat().st_size < segment.offset + segment.size:
                    raise SnapshotCorrupt(f"{segment.path}: the file is shorter than the manifest says")
            found[str(name)] = LiveBlobs(folder / "unnamed", arrays.pop(f"{name}/places"), segments)
    except (LookupError, TypeError, ValueError, AttributeError, OSError) as cause:
        raise SnapshotCorrupt(f"{folder}: its byte strings do not fit together: {cause!r}") from cause
    return found


def _segments(data: np.ndarray) -> list[Segment]:
    """A saved column's file of bytes as a segment."""
    if not isinstance(data, np.memmap) or data.filename is None:
        return []
    return [Segment(Path(data.filename), 0, len(data), data.offset)]


def _files_of(folder: Path, manifest: Mapping[str, Any]) -> set[str]:
    """The files that a saved state needs."""
    data = folder / manifest["data"]
    found = {os.path.normpath(data / entry["file"]) for entry in manifest["columns"]}
    for listed in (manifest.get("segments") or {}).values():
        found.update(os.path.normpath(folder / file) for file, *_ in listed)
    return found


def _mapped(store: RowStore) -> dict[str, np.memmap]:
    """The columns that are files, by the names they are saved under."""
    arrays = {
        f"{name}/places" if isinstance(column, LiveBlobs) else name: getattr(column, "places", column)
        for name, column in store.arrays().items()
    }
    return {name: column for name, column in arrays.items() if isinstance(column, np.memmap)}


def _held(store: RowStore) -> Iterable[tuple[slice, slice]]:
    return store.spans(store.oldest, store.num_rows)


def _reserve(column: np.memmap, rows: slice) -> None:
    """Take room on the disk for rows of a column.

    Raises:
        OSError: there is none.
    """
    size = column.nbytes // len(column)
    start, stop = min(rows.start, len(column)), min(rows.stop, len(column))
    if not hasattr(os, "posix_fallocate") or stop <= start or column.filename is None:
        return
    file = os.open(column.filename, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.posix_fallocate(file, column.offset + start * size, (stop - start) * size)
    except OSError as cause:
        if cause.errno in _NO_ROOM:
            raise
        # Else a file system that can't; then a full disk is met at the write, as a signal.
    finally:
        os.close(file)
