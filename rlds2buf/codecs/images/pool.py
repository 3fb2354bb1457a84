"""Threads that decode pictures while somebody else does something with the ones before."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from rlds2buf.codecs.cores import cores
from rlds2buf.codecs.images.decode import DamagedImage, decode_frames
from rlds2buf.codecs.images.pixel_memory import PixelMemory
from rlds2buf.codecs.images.resize import stack_frames
from rlds2buf.codecs.images.stored_image import StoredImage
from rlds2buf.errors import SourceError

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
        name: of the threads, as a debugger shows it.

    Raises:
        ValueError: the number is below 1.

    >>> with DecodePool(2) as pool:
    ...     pool.submit([], StoredImage((8, 8, 3), np.dtype("u1"))).result().shape
    (0, 8, 8, 3)
    """

    def __init__(self, threads: int | None = None, name: str = "rlds2buf-images") -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"image_threads must be at least 1, got {threads}")
        self.threads = min(cores() if threads is None else threads, _MOST_THREADS)
        self._threads: list[threading.Thread] = []
        self._name = name
        self._process = os.getpid()
        self._memory = PixelMemory(_IDLE_BYTES)
        self._queue: deque[_Job] = deque()
        # Guards the queue; told of new work, of work done, and of the end.
        self._news = threading.Condition()
        self._is_closed = False

    def submit(self, files: Sequence[bytes], image: StoredImage) -> PendingFrames:
        """Begin to decode a column of files; returns at once."""
        pending = PendingFrames(files, image, self)
        if self.threads > 1 and files and self.is_usable:
            while len(self._threads) < self.threads - 1:
                thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._threads.append(thread)
                thread.start()
            jobs = pending.start()
            with self._news:
                self._queue.extend(jobs)
                self._news.notify(len(jobs))
        return pending

    @property
    def is_usable(self) -> bool:
        """Whether it is open, and this the process that it works in; no lock may be touched in another."""
        return os.getpid() == self._process and not self._is_closed

    def wait(self, job: _Job) -> None:
        """Until a piece of work is done; others, the oldest first, are done here meanwhile.

        Raises:
            SourceError: it took more than ten minutes.
        """
        while not job.is_done:
            with self._news:
                other = self._queue.popleft() if self._queue else None
                if other is None and not self._news.wait_for(lambda: job.is_done, _TIMEOUT_S):
                    raise SourceError(f"decoding a few pictures took more than {_TIMEOUT_S:.0f} s")
            if other is not None:
                other.run()

    def _work(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._queue or self._is_closed, _TIMEOUT_S)
                if self._is_closed:
                    return
                if not self._queue:
                    continue
                job = self._queue.popleft()
            job.run()
            with self._news:
                self._news.notify_all()
            del job

    def room(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Memory for pixels, perhaps that of others which nobody holds any more."""
        return self._memory.empty(shape, dtype)

    def close(self) -> None:
        """Drop the work that has not begun and wait for the rest; idempotent."""
        if not self.is_usable:
            return
        with self._news:
            self._is_closed = True
            self._queue.clear()
            self._news.notify_all()
        for thread in self._threads:
            thread.join(_TIMEOUT_S)

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

    def __init__(self, files: Sequence[bytes], image: StoredImage, pool: DecodePool | None = None) -> None:
        self._files = files
        self._image = image
        self._pool = pool
        self._out: np.ndarray | None = None
        self._jobs: list[_Job] = []
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
        if not (self._jobs and self._pool is not None and self._pool.is_usable):
            self._out = self._allocated()
            self._jobs = self._cut()
            for job in self._jobs:
                job.run()
        else:
            for job in self._jobs:
                self._pool.wait(job)
        frames = [frame for job in self._jobs for frame in job.found()]
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


class _Job:
    """Some of a column's files, of which `first` is the number of the first one."""

    def __init__(self, files: Sequence[bytes], image: StoredImage, out: np.ndarray | None, first: int) -> None:
        self._files = files
        self._image = image
        self._out = out
        self._first = first
        self._frames: list[np.ndarray] = []
        self._error: Exception | None = None
        self.is_done = False

    def run(self) -> None:
        """Decode; what goes wrong is for whoever asks what was found."""
        try:
            frames = decode_frames(self._files, self._image, self._out)
            self._frames = frames if self._out is None else []
        except DamagedImage as error:
            error.frame += self._first
            self._error = error
        except Exception as error:  # a thread has nobody to tell
            self._error = error
        self.is_done = True

    def found(self) -> list[np.ndarray]:
        """The frames; none of them if they were put where they belong."""
        if self._error is not None:
            raise self._error
        return self._frames


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


def _nbytes(files: Sequence[bytes], image: StoredImage) -> int:
    shape = image.out_shape
    if None in shape:
        return 16 * sum(map(len, files))
    height, width, channels = shape
    return len(files) * height * width * channels * image.dtype.itemsize  # type: ignore[operator]
