"""Threads that decode pictures while somebody else does something with the ones before."""

from __future__ import annotations

import dataclasses
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from types import TracebackType
from typing import Any

import numpy as np

from rlds2buf.errors import SourceError
from rlds2buf.wire.features import Image
from rlds2buf.wire.images import DamagedImage, decode_frames
from rlds2buf.wire.pixel_memory import PixelMemory
from rlds2buf.wire.resize import stack_frames

__all__ = ["DecodePool", "PendingFrames"]

_JOB_BYTES = 1 << 16
"""About how many bytes of files are one thread's next piece of work: some milliseconds."""

_IDLE_BYTES = 1 << 25
_TIMEOUT_S = 600.0
_MOST_THREADS = 32


class DecodePool:
    """A few threads, made when the first pictures come; a context manager.

    Whoever waits for pictures decodes meanwhile what nobody has begun with, and counts as one of the
    threads.  So with one thread (or on a machine with one core) there is no other; nor is there in a
    process forked off while the pool was at work.

    Args:
        threads: how many; None: one for each core that this process may use.

    Raises:
        ValueError: the number is below 1.

    >>> with DecodePool(2) as pool:
    ...     pool.submit([], Image((8, 8, 3), np.dtype("u1"))).result().shape
    (0, 8, 8, 3)
    """

    def __init__(self, threads: int | None = None) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"image_threads must be at least 1, got {threads}")
        self.threads = min(_cores() if threads is None else threads, _MOST_THREADS)
        self._executor: ThreadPoolExecutor | None = None
        self._process = os.getpid()
        self._memory = PixelMemory(_IDLE_BYTES)
        self._queue: deque[_Job] = deque()

    def submit(self, files: Sequence[bytes], image: Image) -> PendingFrames:
        """Begin to decode a column of files; returns at once."""
        pending = PendingFrames(files, image, self)
        if self.threads > 1 and files and os.getpid() == self._process:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self.threads - 1, "rlds2buf-images")
            for job in pending.start():
                job.future = self._executor.submit(job.run)
                self._queue.append(job)
        return pending

    def help(self) -> bool:
        """Do the oldest piece of work that nobody has begun with; False if there is none."""
        while self._queue:
            job = self._queue.popleft()
            if job.future is not None and job.future.cancel():
                job.found = job.run()
                return True
        return False

    def tidy(self) -> None:
        """Forget the oldest pieces of work that are done."""
        while self._queue and (self._queue[0].future is None or self._queue[0].future.done()):
            self._queue.popleft()

    def room(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Memory for pixels, perhaps that of others which nobody holds any more."""
        return self._memory.empty(shape, dtype)

    def close(self) -> None:
        """Drop the work that has not begun and wait for the rest; idempotent."""
        if self._executor is not None and os.getpid() == self._process:
            self._executor.shutdown(wait=True, cancel_futures=True)
        self._executor = None

    def __enter__(self) -> DecodePool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class PendingFrames:
    """A column of pictures, being decoded or yet to be.

    Args:
        files: JPEG and PNG files.
        image: what they should be.
        pool: who may decode them; None: whoever asks for the result.

    Attributes:
        nbytes: about how many bytes the pixels take.
    """

    def __init__(self, files: Sequence[bytes], image: Image, pool: DecodePool | None = None) -> None:
        self._files = files
        self._image = image
        self._pool = pool
        self._out: np.ndarray | None = None
        self._jobs: list[_Job] = []
        self._process = os.getpid()
        self.nbytes = _nbytes(files, image)

    def start(self) -> list[_Job]:
        """The work in pieces; the pixels go to where they belong at once, if their shape is known."""
        try:
            self._out = self._allocated()
        except DamagedImage:
            return []  # said by result(), whose turn it is to say so
        self._jobs = self._cut()
        return self._jobs

    def result(self) -> np.ndarray:
        """``[N, height, width, channels]``, or ``[N] object`` where the shapes differ.

        Raises:
            DamagedImage: says which is the first one damaged.
            SourceError: it took more than ten minutes.
        """
        if self._pool is not None and self._jobs and os.getpid() == self._process:
            found = [job.gathered(self._pool) for job in self._jobs]
            self._pool.tidy()
        else:
            self._out = self._allocated()
            found = [job.run() for job in self._cut()]
        frames: list[np.ndarray] = []
        for part in found:
            if isinstance(part, DamagedImage):
                raise part
            frames += part
        if self._out is not None:
            return self._out
        return stack_frames(frames) if frames else np.empty((0, *self._empty_shape()), self._image.dtype)

    def _cut(self) -> list[_Job]:
        out = self._out
        return [
            _Job(self._files[start:stop], self._image, None if out is None else out[start:stop], start)
            for start, stop in _pieces(self._files)
        ]

    def _allocated(self) -> np.ndarray | None:
        """Room for all pixels, if their shape is known beforehand."""
        if None in self._image.out_shape or not self._files:
            return None
        shape: Any = (len(self._files), *self._image.out_shape)
        try:
            return (
                np.empty(shape, self._image.dtype) if self._pool is None else self._pool.room(shape, self._image.dtype)
            )
        except (MemoryError, ValueError) as cause:
            raise DamagedImage(f"no memory for pictures {list(shape)} {self._image.dtype}", 0) from cause

    def _empty_shape(self) -> tuple[int, ...]:
        return tuple(0 if n is None else n for n in self._image.out_shape)


_Found = list[np.ndarray] | DamagedImage


@dataclasses.dataclass
class _Job:
    """Some of a column's files.

    Attributes:
        first: the number of the first file.
        future: of the thread that has been asked to do it.
        found: what came of it, if the thread that waits for it was quicker.
    """

    files: Sequence[bytes]
    image: Image
    out: np.ndarray | None
    first: int
    future: Future[_Found] | None = None
    found: _Found | None = None

    def run(self) -> _Found:
        """The frames, none of them if they are in `out`; or what is wrong, for whoever comes to it."""
        try:
            frames = decode_frames(self.files, self.image, self.out)
        except DamagedImage as error:
            error.frame += self.first
            return error
        return frames if self.out is None else []

    def gathered(self, pool: DecodePool) -> _Found:
        """What comes of it; others are done while it is not ready."""
        assert self.future is not None, "gathered before it was handed out"
        while self.found is None and not self.future.done() and pool.help():
            pass
        if self.found is not None:
            return self.found
        if self.future.cancel():  # the pool was closed
            return self.run()
        try:
            return self.future.result(_TIMEOUT_S)
        except FutureTimeout as cause:
            raise SourceError(f"decoding a few pictures took more than {_TIMEOUT_S:.0f} s") from cause


def _pieces(files: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Where to cut the files, so that each piece is about as much work."""
    start = size = 0
    for stop, file in enumerate(files, 1):
        size += len(file)
        if size >= _JOB_BYTES:
            yield start, stop
            start, size = stop, 0
    if start < len(files):
        yield start, len(files)


def _nbytes(files: Sequence[bytes], image: Image) -> int:
    shape = image.out_shape
    if None in shape:
        return 16 * sum(map(len, files))
    height, width, channels = shape
    return len(files) * height * width * channels * image.dtype.itemsize  # type: ignore[operator]


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
