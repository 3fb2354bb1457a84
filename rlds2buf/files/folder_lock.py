"""One writer of a folder at a time, and who that is."""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import json
import logging
import os
import platform
import weakref
from pathlib import Path

from rlds2buf.errors import SinkError, SnapshotExists

__all__ = ["FolderLock", "writer_of"]

_NAME = "writer.lock"
_MARK = "rlds2buf-writer"
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)

_log = logging.getLogger(__name__)


class FolderLock:
    """Held by a process that writes a folder, until :meth:`release` or the process's end, whatever ends it.

    The system keeps the lock (``flock``), so a killed process leaves none behind; the file only says
    who holds it.  A forked child does not hold its parent's.

    Args:
        folder: which exists.

    Raises:
        SnapshotExists: another process writes it; the message says which.
        SinkError: the lock's file can't be made.

    >>> import tempfile
    >>> lock = FolderLock(Path(tempfile.mkdtemp()))
    >>> lock.is_held
    True
    """

    def __init__(self, folder: Path) -> None:
        path = folder / _NAME
        self._file = -1
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            _lock(self._file, folder)
        except OSError as cause:
            self.release()
            raise SinkError(f"{path}: {cause.strerror or cause}") from cause
        except SnapshotExists:
            self.release()
            raise
        with contextlib.suppress(OSError, ValueError):  # a name is of use, and no more
            found = os.pread(self._file, 1 << 12, 0)
            if not found or _MARK in json.loads(found):
                os.ftruncate(self._file, 0)
                os.pwrite(self._file, _name().encode(), 0)
        _held.add(self)

    @property
    def is_held(self) -> bool:
        """Whether it is this process's."""
        return self._file >= 0

    def release(self) -> None:
        """Let another process have it.  Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        self.release()


_held: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _let_go() -> None:
    """In a child: the locks are the parent's, and closing a copy takes nothing from it."""
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_let_go)


def writer_of(folder: Path) -> str | None:
    """Who writes a folder, in words; None if nobody does."""
    try:
        file = os.open(folder / _NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder(file)
    except OSError:
        return None
    finally:
        os.close(file)
    return None


def _lock(file: int, folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as cause:
        raise SnapshotExists(f"{folder}: {_holder(file)} is writing it, and only one can") from cause
    except OSError as cause:
        if cause.errno not in _NO_LOCKS:
            raise
        _log.warning("%s: this file system knows no locks; see to it that no other process writes here", folder)


def _name() -> str:
    since = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    return json.dumps({_MARK: 1, "pid": os.getpid(), "host": platform.node(), "since": since}) + "\n"


def _holder(file: int) -> str:
    try:
        found = json.loads(os.pread(file, 1 << 12, 0))
        return f"process {int(found['pid'])} on {found['host']!s:.100} (since {found['since']!s:.40})"
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return "another process"
