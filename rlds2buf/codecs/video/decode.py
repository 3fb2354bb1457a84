"""Frames of many files into one array, on all cores.

What is asked of a file is split into pieces that begin with a keyframe; each thread takes the next piece, and keeps
the file that it has open for as long as pieces of it come.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rlds2buf.codecs.cores import cores
from rlds2buf.codecs.video.frame_index import FrameIndex, frame_index
from rlds2buf.codecs.video.frame_names import FrameRun
from rlds2buf.codecs.video.opening import load_av, open_video, translated
from rlds2buf.codecs.video.pixels import PixelReader
from rlds2buf.errors import SourceFormatError

__all__ = ["decode_into"]

_PIECE: Final = 32
"""Frames, about: a tenth of a second of work."""

_NEAR: Final = 8
"""Frames that are rather decoded for nothing than jumped over."""


def decode_into(out: np.ndarray, requests: Sequence[FrameRun], threads: int | None = None) -> None:
    """Decode runs of frames, each into its rows.

    Args:
        out: ``[T, height, width, 3] uint8`` for colours, or ``[T, height, width, 1] uint16`` for depth maps
            (their values as they are stored); rows of which nobody speaks stay as they are.
        requests: which frames go where, in any order; frames may be asked for more than once.
        threads: how many; None: one for each core that this process may use.

    Raises:
        SourceNotFound: a file is not there.
        SourceFormatError: it is no video, is damaged, has fewer frames than asked for or another size; the first
            of these in the order of `requests` by file, then of the frames.
        MissingDependency: PyAV is not installed.
        ValueError: `out` is of another form, rows lie beyond it, or `threads` is below 1.
    """
    _check_room(out, requests, threads)
    load_av()
    wanted = cores() if threads is None else threads
    pieces = [piece for path, runs in _by_file(requests).items() for piece in _pieces(path, runs)]
    if pieces:
        _Work(out, pieces, min(wanted, len(pieces)), max(1, wanted // len(pieces))).run()


def _check_room(out: np.ndarray, requests: Sequence[FrameRun], threads: int | None) -> None:
    if out.ndim != 4 or (out.shape[3], out.dtype.str) not in ((3, "|u1"), (1, np.dtype(np.uint16).str)):
        raise ValueError(f"frames go into [T, H, W, 3] uint8 or [T, H, W, 1] uint16, not {out.dtype}{[*out.shape]}")
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    for run in requests:
        if not 0 <= run.start_row <= run.start_row + run.count <= len(out) or run.first < 0:
            raise ValueError(f"{run} does not fit into {len(out)} rows")


def _by_file(requests: Sequence[FrameRun]) -> dict[str, list[FrameRun]]:
    runs: dict[str, list[FrameRun]] = {}
    for run in requests:
        if run.count:
            runs.setdefault(run.path, []).append(run)
    return runs


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """Frames of one file that are decoded in one go.

    Attributes:
        seek: when the keyframe is decoded that it begins with, in the file's units.
        numbers: ``[n] int64``: the frames' numbers, ascending, each once.
        times: when each is shown.
        rows: for each, the rows that it goes to.
    """

    path: str
    seek: int
    numbers: list[int]
    times: list[int]
    rows: list[list[int]]


def _pieces(path: str, runs: Sequence[FrameRun]) -> Iterator[_Piece]:
    index = frame_index(path)
    numbers = np.concatenate([np.arange(run.first, run.stop) for run in runs])
    rows = np.concatenate([np.arange(run.start_row, run.start_row + run.count) for run in runs])
    if numbers.max() >= len(index):
        raise SourceFormatError(f"{path}: frame {numbers.max()} is asked for, and it has {len(index)} frames")
    order = np.argsort(numbers, kind="stable")
    numbers, rows = numbers[order], rows[order]
    keys = np.flatnonzero(index.is_key)
    starts = keys[np.maximum(np.searchsorted(keys, numbers, "right") - 1, 0)] if len(keys) else np.zeros_like(numbers)
    cuts = _cuts(numbers, starts)
    for begin, end in itertools.pairwise(cuts):
        yield _piece(path, index, int(starts[begin]), numbers[begin:end], rows[begin:end])


def _cuts(numbers: np.ndarray, starts: np.ndarray) -> list[int]:
    """Where pieces begin: behind stretches that nobody wants, and where enough has come together."""
    cuts = [0]
    fresh = np.flatnonzero(starts[1:] > starts[:-1]) + 1  # the first frame wanted behind another keyframe
    far = starts[fresh] - numbers[fresh - 1] > _NEAR
    for place, is_far in zip(fresh.tolist(), far.tolist(), strict=True):
        if is_far or place - cuts[-1] >= _PIECE:
            cuts.append(place)
    return [*cuts, len(numbers)]


def _piece(path: str, index: FrameIndex, start: int, numbers: np.ndarray, rows: np.ndarray) -> _Piece:
    unique, firsts = np.unique(numbers, return_index=True)
    groups = [group.tolist() for group in np.split(rows, firsts[1:])]
    return _Piece(path, int(index.dts[start]), unique.tolist(), index.pts[unique].tolist(), groups)


class _Work:
    """Pieces, done by several threads; the first error in their order is what counts."""

    def __init__(self, out: np.ndarray, pieces: Sequence[_Piece], threads: int, codec_threads: int) -> None:
        self._out = out
        self._todo = deque(enumerate(pieces))
        self._threads = threads
        self._codec_threads = codec_threads
        self._errors: dict[int, BaseException] = {}

    def run(self) -> None:
        others = [
            threading.Thread(target=self._decode, name="rlds2buf-video", daemon=True) for _ in range(self._threads - 1)
        ]
        for thread in others:
            thread.start()
        try:
            self._decode()
        finally:
            self._todo.clear()
            for thread in others:
                thread.join()
        if self._errors:
            raise self._errors[min(self._errors)]

    def _decode(self) -> None:
        number = 0
        with _OpenVideo(self._codec_threads) as video:
            while not self._errors:
                try:
                    number, piece = self._todo.popleft()
                except IndexError:
                    return
                try:
                    video.decode(piece, self._out)
                except Exception as error:
                    self._errors[number] = error


class _OpenVideo:
    """One thread's open file."""

    def __init__(self, codec_threads: int) -> None:
        self._codec_threads = codec_threads
        self._path = ""
        self._container: Any = None
        self._stream: Any = None
        self._files = contextlib.ExitStack()
        self._pixels = PixelReader()

    def __enter__(self) -> _OpenVideo:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def decode(self, piece: _Piece, out: np.ndarray) -> None:
        """The frames of a piece into their rows."""
        todo = {time: i for i, time in enumerate(piece.times)}
        with translated(f"{piece.path}, frames {piece.numbers[0]} to {piece.numbers[-1]}"):
            self._open(piece.path)
            # Again from the beginning of a file that can't be sought exactly.
            for start in (piece.seek, 0):
                self._container.seek(start, stream=self._stream, backward=True, any_frame=False)
                self._take(piece, todo, out)
                if not todo:
                    return
        raise SourceFormatError(f"{piece.path}: frame {piece.numbers[min(todo.values())]} is damaged or not there")

    def _take(self, piece: _Piece, todo: dict[int, int], out: np.ndarray) -> None:
        """What is still to be done of a piece, from here on."""
        last = piece.times[-1]
        for frame in self._container.decode(self._stream):
            if frame.pts is None or frame.is_corrupt:
                continue
            i = todo.pop(frame.pts, None)
            if i is not None:
                rows = piece.rows[i]
                try:
                    self._pixels.put(frame, out[rows[0]])
                except SourceFormatError as error:
                    raise error.at(f"{piece.path}: frame {piece.numbers[i]}") from None
                out[rows[1:]] = out[rows[0]]
            if frame.pts >= last:
                return

    def _open(self, path: str) -> None:
        if path == self._path:
            return
        self._files.close()
        self._path = ""
        self._container, self._stream = self._files.enter_context(open_video(path))
        self._stream.codec_context.thread_count = self._codec_threads
        # Not by frames: FFmpeg's threads for frames of HEVC wait for each other for ever in some damaged files.
        self._stream.codec_context.thread_type = "SLICE"
        self._path = path
