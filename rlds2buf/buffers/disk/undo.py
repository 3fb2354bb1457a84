"""The way back to the last saved state of a buffer whose files are written in place.

Before rows that a saved state needs change for the first time after it, all columns of theirs are
appended to a file beside them::

    undo-1f3a9c...     (start, stop) as two int64, then rows start to stop of each column; and so on

A process that is killed loses nothing that it gave the system to write, so putting those rows back
gives the saved state again, however far the change had come; a record that was cut short is of rows
that had not changed yet.  When the power fails, what was given may be lost: then the folder is
refused, as it is without such a file.
"""

from __future__ import annotations

import errno
import logging
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.buffers.disk.manifest import inside, read_manifest, write_manifest
from rlds2buf.buffers.rows.columns import TABLES
from rlds2buf.errors import SinkError, SnapshotCorrupt
from rlds2buf.files.column_file import open_column
from rlds2buf.files.folder_lock import FolderLock, writer_of

__all__ = ["Undo", "UndoReader", "settled"]

_CHUNK_BYTES, _RECORD_BYTES = 1 << 16, 1 << 22
_HEADER = np.dtype(np.int64).itemsize * 2

_log = logging.getLogger(__name__)


class Undo:
    """What rows were when the buffer was saved.

    Args:
        folder: of the buffer.
        columns: those of the saved state, by name, ``[slots, ...]`` each.
        held: the slots whose rows belong to that state.
    """

    def __init__(self, folder: Path, columns: Mapping[str, np.ndarray], held: Iterable[slice]) -> None:
        self.path = folder / f"undo-{uuid.uuid4().hex[:12]}"
        self.columns = dict(columns)
        self._arrays = {id(column) for column in columns.values()}
        self._flat = [_rows_of_bytes(column) for column in columns.values()]
        self._slots = len(self._flat[0]) if self._flat else 0
        width = max(1, sum(column.shape[1] for column in self._flat))
        self._rows = max(1, _CHUNK_BYTES // width)
        self._most = max(1, _RECORD_BYTES // width // self._rows)  # chunks of a record
        self._safe = np.ones(-(-self._slots // self._rows), np.bool_)
        for span in held:
            if span.stop > span.start:
                self._safe[span.start // self._rows : (span.stop - 1) // self._rows + 1] = False
        self._file = -1
        self._end = 0

    def begin(self) -> dict[str, Any]:
        """Make the file; returns what the manifest says of it, as plain JSON values.

        Raises:
            SinkError: it can't be made.
        """
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except OSError as cause:
            raise SinkError(f"{self.path}: {cause.strerror or cause}") from cause
        return {"file": self.path.name, "columns": list(self.columns), "boot": _boot()}

    def covers(self, column: Any) -> bool:
        """Whether an array is one of the saved state's."""
        return id(column) in self._arrays

    def protect(self, slots: slice | np.ndarray) -> None:
        """Keep what rows in these slots were, unless that is kept already.

        Raises:
            SinkError: it can't be written; then the rows must not change.
        """
        if isinstance(slots, slice):
            first, last = slots.start // self._rows, (slots.stop - 1) // self._rows + 1
            chunks = np.flatnonzero(~self._safe[first:last]) + first
        else:
            chunks = np.unique(slots // self._rows)
            chunks = chunks[~self._safe[chunks]]
        for run in _runs(chunks, self._most):
            self._keep(run.start * self._rows, min(run.stop * self._rows, self._slots))
            self._safe[run] = True

    def end(self) -> None:
        """Another state was saved: this one's is of no use any more."""
        self.close()
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the file, which stays.  Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _keep(self, start: int, stop: int) -> None:
        parts = [np.array([start, stop], np.int64), *(column[start:stop] for column in self._flat)]
        parts = [part for part in parts if part.size]
        size, at = sum(part.nbytes for part in parts), self._end
        try:
            for i in range(0, len(parts), 512):  # as many as one call takes
                group: Any = parts[i : i + 512]
                written = os.pwritev(self._file, group, at)
                if written < sum(part.nbytes for part in group):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                at += written
        except OSError as cause:
            os.ftruncate(self._file, self._end)
            raise SinkError(f"{self.path}: {cause.strerror or cause}") from cause
        self._end += size

    def __del__(self) -> None:
        self.close()


def settled(folder: Path, manifest: dict[str, Any], *, locked: bool = False) -> dict[str, Any]:
    """A buffer's manifest, its files being put back first if a process was killed while it changed them.

    Args:
        folder: of the buffer.
        manifest: as it was read.
        locked: whether the caller holds the folder's lock.

    Raises:
        SnapshotCorrupt: a process is changing the files, or there is no way back.
        SinkError: they can't be written.
    """
    if manifest.get("clean", True):
        return manifest
    says = f"{folder}: its files were changed after it was last saved"
    if locked:
        return _roll_back(folder, manifest, says)
    who = writer_of(folder)
    if who is not None:
        raise SnapshotCorrupt(f"{says}, by {who}, which has them open; its save() makes them whole")
    if "undo" not in manifest:
        return _roll_back(folder, manifest, says)  # which says why it can't
    lock = FolderLock(folder)
    try:
        return settled(folder, read_manifest(folder), locked=True)
    finally:
        lock.release()


def _roll_back(folder: Path, manifest: Mapping[str, Any], says: str) -> dict[str, Any]:
    """Put the files back; a process may be killed in here too, and the next one does it again."""
    undo = manifest.get("undo")
    if not isinstance(undo, Mapping):
        raise SnapshotCorrupt(f"{says}, and there is no way back (durability='none', or an older rlds2buf)")
    if not _boot() or undo.get("boot") != _boot():
        raise SnapshotCorrupt(f"{says}, and the machine was started anew since, or is another one")
    try:
        name = str(undo["file"])
        if Path(name).name != name:
            raise ValueError(f"{name} is no name of a file")
        entries = {entry["name"]: entry for entry in manifest["columns"]}
        data = manifest["data"]
        columns = {column: _column(folder, data, entries[column]) for column in undo["columns"]}
        _put_back(folder / name, [_rows_of_bytes(column) for column in columns.values()])
        _let_go(manifest, columns)
        for column in columns.values():
            column.flush()
    except (LookupError, TypeError, ValueError, AttributeError) as cause:
        raise SnapshotCorrupt(f"{says}, and {undo!r} does not lead back: {cause!r}") from cause
    except OSError as cause:
        raise SinkError(f"{folder}: can't be put back as it was last saved: {cause.strerror or cause}") from cause
    clean = {key: value for key, value in manifest.items() if key != "undo"} | {"clean": True}
    write_manifest(folder, clean)
    (folder / name).unlink(missing_ok=True)
    _log.warning("%s: a process that is gone changed and did not save it; put back as it was last saved", folder)
    return clean


def _column(folder: Path, data: str, entry: Mapping[str, Any]) -> Any:
    return open_column(inside(folder, data, entry["file"]), tuple(entry["shape"]), entry["dtype"], writable=True)


def _put_back(path: Path, columns: list[np.ndarray]) -> None:
    """Write what the records of a file say."""
    with open(path, "rb") as file:
        _put_records_back(file.fileno(), 0, columns)


def _put_records_back(file: int, at: int, columns: list[np.ndarray]) -> int:
    """Write what the records of an open file say, from this place on; returns where the last whole one ends."""
    width = sum(column.shape[1] for column in columns)
    slots = len(columns[0]) if columns else 0
    size = os.fstat(file).st_size
    while at + _HEADER <= size:
        start, stop = np.frombuffer(os.pread(file, _HEADER, at), np.int64).tolist()
        if not 0 <= start < stop <= slots:
            raise ValueError(f"rows {start} to {stop} of {slots}")
        if at + _HEADER + width * (stop - start) > size:
            break  # cut short, or not yet written: these rows had not changed
        at += _HEADER
        for column in columns:
            part = os.pread(file, column.shape[1] * (stop - start), at)
            column[start:stop] = np.frombuffer(part, np.uint8).reshape(stop - start, -1)
            at += len(part)
    return at


class UndoReader:
    """What rows were when the buffer was saved, as its writer goes on keeping it, for those who read along.

    Args:
        folder: of the buffer.
        told: what its manifest says of the file.
        columns: the saved state's, by name, of the reader's own pages.

    Raises:
        SnapshotCorrupt: the file is gone, or not what is said of it.
    """

    def __init__(self, folder: Path, told: Any, columns: Mapping[str, np.ndarray]) -> None:
        self._file, self._at = -1, 0
        self._says = f"{folder}: what its writer keeps of rows that it changes can't be read"
        try:
            name = str(told["file"])
            if Path(name).name != name:
                raise ValueError(f"{name} is no name of a file")
            self._columns = [_rows_of_bytes(columns[column]) for column in told["columns"]]
            self._file = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC)
        except (LookupError, TypeError, ValueError, OSError) as cause:
            raise SnapshotCorrupt(f"{self._says}: {cause!r}") from cause

    def put_back(self) -> bool:
        """Put into the columns what was kept since the last time; whether there was anything.

        Raises:
            SnapshotCorrupt: the file is damaged.
        """
        before = self._at
        try:
            self._at = _put_records_back(self._file, before, self._columns)
        except (ValueError, OSError) as cause:
            raise SnapshotCorrupt(f"{self._says}: {cause!r}") from cause
        return self._at > before

    def close(self) -> None:
        """Let go of the file.  Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        self.close()


def _let_go(manifest: Mapping[str, Any], columns: Mapping[str, np.ndarray]) -> None:
    """Empty rows that the saved state does not hold, where they may lead to what was written after it.

    That is to byte strings, to words of a vocabulary, and to other rows.
    """
    words = {*manifest["strings"], *_tables(manifest)}
    leading = {"flags", "items", *words, *(f"next_{name}" for name in words)}
    leading.update(f"{name}/places" for name in manifest.get("segments") or {})
    base, oldest, newest = (int(manifest[name]) for name in ("base", "oldest", "newest"))
    for column in (columns[name] for name in sorted(leading) if name in columns):
        slots = len(column)
        first, count = (newest - base) % slots, slots - (newest - oldest)
        for start, stop in ((first, min(first + count, slots)), (0, max(first + count - slots, 0))):
            for at in range(start, stop, 1 << 16):
                piece = column[at : min(at + (1 << 16), stop)]
                if piece.any():  # a hole in the file stays one
                    piece[...] = 0


def _tables(manifest: Mapping[str, Any]) -> Iterator[str]:
    """The columns of strings whose words are in files of their own."""
    for entry in manifest["columns"]:
        if str(entry["name"]).startswith(TABLES):
            yield str(entry["name"])[len(TABLES) :].rpartition("/")[0]


def _rows_of_bytes(column: np.ndarray) -> np.ndarray:
    """``[slots, bytes] uint8``, the same memory."""
    return np.asarray(column).reshape(len(column), -1).view(np.uint8)


def _runs(numbers: np.ndarray, most: int) -> Iterator[slice]:
    """Neighbouring numbers together, at most so many."""
    numbers = numbers.tolist()
    start = 0
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[i - 1] + 1 or i - start >= most:
            yield slice(numbers[start], numbers[i - 1] + 1)
            start = i


def _boot() -> str:
    """What is another one when the machine was started anew; empty where that is not known."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
