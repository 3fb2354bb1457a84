"""A file that another thread writes, so that the next block is made while the disk is busy."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotInTime
from pathlib import Path
from typing import Final

from rlds2buf.errors import SinkError, WriteTimeout

__all__ = ["BackgroundFile"]

Buffer = bytes | bytearray | memoryview

_BLOCK: Final = 1 << 20
_MOST_WAITING: Final = 1 << 23
_SYNC_EVERY: Final = 1 << 24
_SECONDS: Final = 600.0


class BackgroundFile:
    """Append-only; the next piece is made while this one is written.

    About 8 MiB wait in memory, or the last piece if that is larger.  What was written goes to the disk all along,
    so that the last sync has little left to do.

    Args:
        path: the file.
        mode: ``"wb"``, a new one; ``"ab"``, at the end of what is there.

    Raises:
        SinkError: here, or at a later call, if it can't be written; WriteTimeout if that takes ten
            minutes.

    >>> import tempfile
    >>> file = BackgroundFile(Path(tempfile.mkdtemp()) / "a", "wb")
    >>> for text in (b"one", b"two"):
    ...     file.write(text)
    >>> file.close()
    >>> file.path.read_bytes()
    b'onetwo'
    """

    def __init__(self, path: Path, mode: str) -> None:
        self.path = path
        try:
            self._file = open(path, mode, buffering=0)
        except OSError as cause:
            raise self._error(cause) from cause
        self._small = bytearray()  # together they make a piece that is worth another thread's while
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rlds2buf-write")
        self._under_way: deque[tuple[Future[None], int]] = deque()
        self._under_way_bytes = self._unsynced = 0

    def write(self, data: Buffer) -> None:
        """Append `data`, which nobody changes any more; waits while too much is under way."""
        if len(data) < _BLOCK:
            self._small += data
            if len(self._small) >= _BLOCK:
                self._hand_over_small()
        else:
            self._hand_over_small()
            self._hand_over(data)
        while self._under_way_bytes > _MOST_WAITING and len(self._under_way) > 1:
            self._wait_for_one()

    def flush(self) -> None:
        """Wait until everything is written."""
        self._hand_over_small()
        while self._under_way:
            self._wait_for_one()

    def sync(self) -> None:
        """Wait until everything is on the disk."""
        self.flush()
        try:
            os.fsync(self._file.fileno())
        except OSError as cause:
            raise self._error(cause) from cause

    def close(self) -> None:
        """Write what is left, and let go."""
        try:
            self.flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go without caring for what is left; idempotent."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._under_way.clear()
        with contextlib.suppress(OSError):
            self._file.close()

    def _hand_over_small(self) -> None:
        if self._small:
            self._hand_over(self._small)
            self._small = bytearray()

    def _hand_over(self, data: Buffer) -> None:
        self._under_way.append((self._thread.submit(self._write, data), len(data)))
        self._under_way_bytes += len(data)

    def _wait_for_one(self) -> None:
        future, size = self._under_way[0]
        try:
            future.result(timeout=_SECONDS)
        except NotInTime as cause:
            raise WriteTimeout(f"{self.path}: a block was not written within {_SECONDS:.0f} s") from cause
        except OSError as cause:
            raise self._error(cause) from cause
        self._under_way.popleft()
        self._under_way_bytes -= size

    def _write(self, data: Buffer) -> None:
        at = 0
        with memoryview(data) as whole:
            while at < len(whole):
                at += self._file.write(whole[at:])
        self._unsynced += at
        if self._unsynced >= _SYNC_EVERY:
            os.fdatasync(self._file.fileno())
            self._unsynced = 0

    def _error(self, cause: OSError) -> SinkError:
        return SinkError(f"{self.path}: {cause.strerror or cause}")
