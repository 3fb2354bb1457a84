"""A file that another thread writes, so that the next block is made while the disk is busy."""

from __future__ import annotations

import contextlib
import io
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotInTime
from pathlib import Path
from typing import Final

from rlds2buf.errors import SinkError, WriteTimeout

__all__ = ["BackgroundFile"]

_BLOCK: Final = 1 << 20
_MOST_WAITING: Final = 1 << 23
_SYNC_EVERY: Final = 1 << 24
_SECONDS: Final = 600.0


class BackgroundFile:
    """Append-only, by way of blocks of memory that are used again and again.

    About 8 MiB wait in memory.  What was written goes to the disk all along, so that the last sync
    has little left to do.

    Args:
        path: the file.
        mode: ``"wb"``, a new one; ``"ab"``, at the end of what is there.

    Raises:
        SinkError: here, or at a later call, if it can't be written; WriteTimeout if that takes ten
            minutes.

    >>> import tempfile
    >>> file = BackgroundFile(Path(tempfile.mkdtemp()) / "a", "wb")
    >>> for text in (b"one", b"two"):
    ...     _ = file.block.write(text)
    ...     file.advance()
    >>> file.close()
    >>> file.path.read_bytes()
    b'onetwo'
    """

    def __init__(self, path: Path, mode: str) -> None:
        self.path = path
        self.block = io.BytesIO()
        """Where to write; then call :meth:`advance`, for it may be another one after that."""
        try:
            self._file = open(path, mode, buffering=0)
        except OSError as cause:
            raise self._error(cause) from cause
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rlds2buf-write")
        self._under_way: deque[tuple[Future[None], io.BytesIO]] = deque()
        self._under_way_bytes = self._unsynced = 0

    def advance(self) -> None:
        """Hand the block over if it is full; waits while too much is under way."""
        if self.block.tell() < _BLOCK:
            return
        self._hand_over()
        while self._under_way_bytes > _MOST_WAITING:
            self._wait_for_one()
        # Memory that was just used is quicker than fresh one.
        done = len(self._under_way) > 1 and self._under_way[0][0].done()
        self.block = self._wait_for_one() if done else io.BytesIO()

    def flush(self) -> None:
        """Wait until everything is written."""
        self._hand_over()
        while self._under_way:
            self.block = self._wait_for_one()

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

    def _hand_over(self) -> None:
        if self.block.tell():
            self._under_way.append((self._thread.submit(self._write, self.block), self.block))
            self._under_way_bytes += self.block.tell()

    def _wait_for_one(self) -> io.BytesIO:
        """The oldest block, to be used again."""
        future, block = self._under_way[0]
        try:
            future.result(timeout=_SECONDS)
        except NotInTime as cause:
            raise WriteTimeout(f"{self.path}: a block was not written within {_SECONDS:.0f} s") from cause
        except OSError as cause:
            raise self._error(cause) from cause
        self._under_way.popleft()
        self._under_way_bytes -= block.tell()
        block.seek(0)
        return block

    def _write(self, block: io.BytesIO) -> None:
        with block.getbuffer() as whole, whole[: block.tell()] as written:
            at = 0
            while at < len(written):
                at += self._file.write(written[at:])
        self._unsynced += at
        if self._unsynced >= _SYNC_EVERY:
            os.fdatasync(self._file.fileno())
            self._unsynced = 0

    def _error(self, cause: OSError) -> SinkError:
        return SinkError(f"{self.path}: {cause.strerror or cause}")
