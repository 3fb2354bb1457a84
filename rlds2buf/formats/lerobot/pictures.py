"""The pictures of a LeRobot dataset: files in columns, frames in videos."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from rlds2buf.codecs.images.claims import check_pixels
from rlds2buf.codecs.images.pool import DecodePool, PendingFrames
from rlds2buf.codecs.images.resize import resize_frames
from rlds2buf.codecs.images.stored_image import StoredImage
from rlds2buf.codecs.video.decode import decode_into
from rlds2buf.codecs.video.frame_names import FrameRun, frame_names
from rlds2buf.codecs.video.probe import probe
from rlds2buf.core.budget import Budget, Tally
from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import SourceFormatError
from rlds2buf.formats.lerobot.columns import Unreadable
from rlds2buf.formats.lerobot.index import Footage

__all__ = ["VideoFrames", "begin_files", "names_of_frames", "numbers_of_frames", "pixels_of"]

_USUAL: Final = 1000
"""So many bytes of pixels to one of its video are usual; of a picture that never changes there are more."""

_FRAMES: Final = 64
"""Of other sizes that are held before they are resized."""


def begin_files(
    pool: DecodePool, files: np.ndarray, pixels: FieldSpec, size: tuple[int, int] | None, budget: Budget
) -> PendingFrames:
    """Begin to decode a column of PNG and JPEG files.

    Raises:
        LimitExceeded: their pixels take more than is allowed.
    """
    image = StoredImage(pixels.shape, pixels.dtype, size=size)
    listed = files.tolist()
    check_pixels(listed, image, Tally(budget))
    return pool.submit(listed, image)


def numbers_of_frames(path: Path, start: float, timestamps: np.ndarray, tolerance: float) -> np.ndarray:
    """``[T] int64``: the number of each row's frame in a video, which is the nearest to where it should be shown.

    Args:
        path: the video.
        start: seconds in it at which the episode begins.
        timestamps: ``[T]`` seconds since then.
        tolerance: seconds that a frame may be off.

    Raises:
        SourceNotFound, SourceFormatError, MissingDependency: as :func:`~rlds2buf.codecs.video.probe.probe`.
        Unreadable: a row has no frame.
    """
    shown = probe(path).timestamps
    wanted = start + np.asarray(timestamps, np.float64)
    if not len(shown):
        raise Unreadable(f"{path}: has no frames", 0)
    behind = np.clip(np.searchsorted(shown, wanted), 1, max(1, len(shown) - 1))
    before = behind - 1
    behind = np.minimum(behind, len(shown) - 1)
    numbers = np.where(wanted - shown[before] <= shown[behind] - wanted, before, behind)
    off = np.abs(shown[numbers] - wanted) > tolerance
    if off.any():
        row = int(np.argmax(off))
        raise Unreadable(
            f"{path}: no frame is shown at {wanted[row]:.4f} s; its {len(shown)} frames end at {shown[-1]:.4f} s", row
        )
    return numbers


def runs_of_frames(path: Path, numbers: np.ndarray, row: int) -> Iterator[FrameRun]:
    """The same as runs of consecutive frames, whose first goes to `row`."""
    starts = np.flatnonzero(np.diff(numbers, prepend=-2) != 1)
    counts = np.diff(starts, append=len(numbers))
    for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
        yield FrameRun(os.fspath(path), int(numbers[start]), count, row + start)


def names_of_frames(path: Path, numbers: np.ndarray) -> np.ndarray:
    """``[T] object``: the same as names (:mod:`~rlds2buf.codecs.video.frame_names`)."""
    parts = [frame_names(run.path, run.first, run.count) for run in runs_of_frames(path, numbers, 0)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


class VideoFrames:
    """``[count, height, width, C]``: frames of videos, each at its row, being decoded or yet to be.

    Args:
        requests: which, in the order of the rows, without gaps.
        count: how many rows.
        pixels: what a frame is.
        size: what it is resized to, or None.
        room: makes an array.
        threads: as of :func:`~rlds2buf.codecs.video.decode.decode_into`.
        turns: they are decoded in a thread from now on, when it is their turn; None: when somebody asks for them.
    """

    def __init__(
        self,
        requests: list[FrameRun],
        count: int,
        pixels: FieldSpec,
        size: tuple[int, int] | None,
        room: Callable[[tuple[int, ...], np.dtype], np.ndarray],
        threads: int | None,
        turns: threading.Semaphore | None,
    ) -> None:
        self._requests, self._count, self._size, self._threads = requests, count, size, threads
        self._shape = tuple(n or 0 for n in pixels.shape)
        self._out = room((count, *(size or self._shape[:2]), self._shape[2]), pixels.dtype)
        self._is_decoded = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        if turns is not None:
            self._thread = threading.Thread(target=self._decode_ahead, args=(turns,), name="rlds2buf-video-ahead")
            self._thread.start()

    def wait(self) -> None:
        """Until nobody is at work on them."""
        if self._thread is not None:
            self._thread.join()

    def result(self) -> np.ndarray:
        """The frames.

        Raises:
            SourceNotFound, SourceFormatError, MissingDependency: as of ``decode_into``.
        """
        self.wait()
        if self._error is not None:
            raise self._error
        if not self._is_decoded:  # nobody has begun, or in the process that this one was forked from
            self._decode()
        return self._out

    def _decode_ahead(self, turns: threading.Semaphore) -> None:
        try:
            with turns:
                self._decode()
        except BaseException as error:
            self._error = error

    def _decode(self) -> None:
        out, size = self._out, self._size
        if size is None:
            decode_into(out, self._requests, self._threads)
        else:
            held = np.empty((min(_FRAMES, self._count), *self._shape), out.dtype)
            for first in range(0, self._count, _FRAMES):
                stop = min(first + _FRAMES, self._count)
                decode_into(held, list(_window(self._requests, first, stop)), self._threads)
                resize_frames(held[: stop - first], size, out=out[first:stop])
        self._is_decoded = True


def _window(requests: list[FrameRun], first: int, stop: int) -> Iterator[FrameRun]:
    """What of the runs goes to rows `first` up to (not with) `stop`, counted from there."""
    for run in requests:
        low, high = max(first, run.start_row), min(stop, run.start_row + run.count)
        if low < high:
            yield FrameRun(run.path, run.first + low - run.start_row, high - low, low - first)


def check_frames(footage: Footage, files: set[int], count: int, pixels: FieldSpec, budget: Budget) -> None:
    """Refuse frames that take far more memory than their videos and than is allowed.

    Raises:
        LimitExceeded: they do.
    """
    size = count * pixels.row_bytes
    if size > budget.max_bytes:
        stored = sum(footage.files[number].stat().st_size for number in files)
        if size > _USUAL * stored:
            budget.check_bytes(size, f"{footage.files[min(files)]}: {count} frames")


def pixels_of(pending: PendingFrames, pixels: FieldSpec) -> np.ndarray:
    """What was begun, of one shape.

    Raises:
        DamagedImage: says which picture is damaged, or of another size.
        SourceFormatError: their sizes differ.
    """
    found: Any = pending.result()
    if found.dtype == object and None not in pixels.shape:
        raise SourceFormatError(f"its pictures differ in size, where info.json says {list(pixels.shape)}")
    return np.asarray(found)
