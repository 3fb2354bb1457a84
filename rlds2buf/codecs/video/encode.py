"""Pixels into an MP4 file, with LeRobot's settings unless told otherwise.

Frames are turned into the encoder's colours where they are added, and encoded by a thread of their own: whoever adds
makes the next ones meanwhile.  The bytes depend on frames, settings and the versions of the encoders, and on nothing
else: neither on how many frames are added at a time nor on the machine's cores, since the number of an encoder's
threads, which changes what some encoders write, is fixed.

Colours: as LeRobot writes them, ``yuv420p`` of BT.601 in the limited range, without saying so in the file.
"""

from __future__ import annotations

import os
import queue
import threading
from fractions import Fraction
from types import TracebackType
from typing import Any, Final

import numpy as np

from rlds2buf.codecs.cores import cores
from rlds2buf.codecs.video.opening import load_av
from rlds2buf.codecs.video.pixels import reformatter
from rlds2buf.codecs.video.probe import VideoFacts, probe
from rlds2buf.errors import SinkError

__all__ = ["CODECS", "VideoEncoder", "why_not_encodable"]

CODECS: Final = {
    "libsvtav1": "libsvtav1",
    "av1": "libsvtav1",
    "h264": "libx264",
    "libx264": "libx264",
    "hevc": "libx265",
    "libx265": "libx265",
}
"""What is taken as a codec, and the encoder that it means."""

_PRESET: Final = {"libsvtav1": "12"}
_REORDERS: Final = {"libx265": 2, "libsvtav1": 0}
"""By how many frames at most an encoder's packets are out of order, if its word on when they are decoded isn't taken:
libx265 has none for videos of one or two frames, and gives what is in its memory; libsvtav1's packets are in order, and
now and then, where several encoders are at work, one of them had a time that no file takes."""
_THREADS: Final = 4
"""Of an encoder whose bytes depend on it (libx264, libx265), and the most that others get."""

_AHEAD: Final = 1 << 24
"""Bytes of frames that may wait for the encoder."""


def why_not_encodable(height: int, width: int, codec: str = "libsvtav1") -> str | None:
    """Why pictures of a size can't become a video; None if they can.

    >>> why_not_encodable(480, 640) is None
    True
    >>> why_not_encodable(35, 640)
    '35 x 640 pixels: the sides of a video must be even'
    """
    if height % 2 or width % 2:
        return f"{height} x {width} pixels: the sides of a video must be even"
    if min(height, width) < 64 and CODECS.get(codec) == "libsvtav1":
        return f"{height} x {width} pixels: AV1 is not encoded below 64 x 64"
    if min(height, width) < 16:
        return f"{height} x {width} pixels: too small for a video"
    if max(height, width) > 8192:
        return f"{height} x {width} pixels: too large for a video"
    return None


class VideoEncoder:
    """Encodes frames into a new file; a context manager, which removes the file if it is left by an error.

    Args:
        path: of the file (``.mp4``); it must not exist yet.
        width, height: in pixels; see :func:`why_not_encodable`.
        fps: frames per second.
        codec: of :data:`CODECS`.
        crf: the quality that is to be kept: the lower, the better and larger.
        g: frames from keyframe to keyframe.
        preset: of the encoder: slower ones compress better; None: 12 for AV1, the encoder's own for others.
        pix_fmt: the format of pixels in the file.
        threads: of the encoder; None: 4 (of AV1, whose bytes don't depend on it, at most one per core).

    Raises:
        ValueError: the size can't be encoded, or an argument is of no use.
        MissingDependency: PyAV is not installed.
        SinkError: the file exists or can't be written, or this PyAV lacks the encoder.

    ::

        with VideoEncoder("a.mp4", 640, 480, 30) as video:
            video.add(frames)
            facts = video.close()
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        width: int,
        height: int,
        fps: int | Fraction,
        *,
        codec: str = "libsvtav1",
        crf: int | None = 30,
        g: int | None = 2,
        preset: int | str | None = None,
        pix_fmt: str = "yuv420p",
        threads: int | None = None,
    ) -> None:
        self.path = os.fspath(path)
        self._check(width, height, Fraction(fps), codec, threads)
        self._av = load_av()
        self._shape = (height, width, 3)
        self._pix_fmt = pix_fmt
        self._time_base = 1 / Fraction(fps)
        self._frames = self._packets = 0
        self._reorders = _REORDERS.get(CODECS[codec])
        self._convert, self._convert_options = reformatter()
        self._error: BaseException | None = None
        self._facts: VideoFacts | None = None
        self._is_over = False
        self._container: Any = None
        self._created = False
        options = _options(CODECS[codec], crf, g, preset, threads)
        try:
            self._open(CODECS[codec], Fraction(fps), options, threads or _THREADS)
        except BaseException:
            self._remove()
            raise
        frame_bytes = width * height * 3 // 2
        self._queue: queue.Queue[Any] = queue.Queue(max(2, min(256, _AHEAD // frame_bytes)))
        self._thread = threading.Thread(target=self._encode, name="rlds2buf-encoder", daemon=True)
        self._thread.start()

    def add(self, frames: np.ndarray) -> None:
        """Frames behind those before; the array may be changed as soon as this returns.

        Args:
            frames: ``[n, height, width, 3] uint8``, or ``[n, height, width, 1]``: gray.

        Raises:
            ValueError: they are of another shape or dtype, or the video is closed.
            SinkError: frames added earlier could not be encoded or written.
        """
        if self._is_over:
            raise ValueError(f"{self.path}: the video is closed, and takes no more frames")
        if frames.dtype != np.uint8 or frames.shape[1:] not in (self._shape, (*self._shape[:2], 1)):
            raise ValueError(
                f"{self.path}: its frames are uint8{[*self._shape]}, not {frames.dtype}{[*frames.shape[1:]]}"
            )
        form = "rgb24" if frames.shape[-1] == 3 else "gray"
        for pixels in frames if form == "rgb24" else frames[..., 0]:
            if self._error is not None:
                self.close()
            self._put(pixels, form)

    def end(self) -> None:
        """No more frames come; returns at once, while the encoder goes on with what it has."""
        if not self._is_over:
            self._is_over = True
            self._queue.put(None)

    def close(self) -> VideoFacts:
        """Encode what is left, end the file, and say what it is; idempotent.

        Raises:
            SinkError: frames could not be encoded or written, or there are none.  The file is removed.
        """
        self.end()
        self._thread.join()
        if self._error is None and not self._frames:
            self._error = SinkError(f"{self.path}: a video without frames")
        if self._error is not None:
            self._remove()
            raise self._error
        if self._facts is None:
            self._facts = probe(self.path)
        return self._facts

    def abort(self) -> None:
        """Give up: stop and remove the file; idempotent, and without effect on one that is closed."""
        if self._facts is not None:
            return
        self._error = self._error or SinkError(f"{self.path}: given up")
        self.end()
        self._thread.join()
        self._remove()

    def __enter__(self) -> VideoEncoder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _check(self, width: int, height: int, fps: Fraction, codec: str, threads: int | None) -> None:
        if codec not in CODECS:
            raise ValueError(f"a video's codec is one of {', '.join(CODECS)}, not {codec!r}")
        if fps <= 0:
            raise ValueError(f"frames per second must be more than 0, got {fps}")
        if threads is not None and threads < 1:
            raise ValueError(f"threads must be at least 1, got {threads}")
        why = why_not_encodable(height, width, codec)
        if why is not None:
            raise ValueError(f"{self.path}: {why}")

    def _open(self, encoder: str, fps: Fraction, options: dict[str, str], threads: int) -> None:
        if encoder == "libsvtav1":
            os.environ.setdefault("SVT_LOG", "1")  # it tells all settings of each video otherwise
        try:
            open(self.path, "xb").close()
            self._created = True
            self._container = self._av.open(self.path, "w", format="mp4")
            stream = self._container.add_stream(encoder, fps, options=options)
            height, width, _ = self._shape
            stream.width, stream.height, stream.pix_fmt = width, height, self._pix_fmt
            stream.codec_context.thread_count = threads
            stream.codec_context.thread_type = "FRAME"
            stream.codec_context.open()
        except FileExistsError as cause:
            raise SinkError(f"{self.path}: is already there") from cause
        except (OSError, ValueError) as cause:  # PyAV's errors are these too
            raise SinkError(f"{self.path}: a video of {encoder} can't be begun ({_text(cause)})") from cause
        self._stream = stream

    def _put(self, pixels: np.ndarray, form: str) -> None:
        """One picture, in the encoder's colours, behind the others."""
        if form == self._pix_fmt:
            frame = self._av.VideoFrame.from_ndarray(pixels, format=form)  # with pixels of its own
        else:
            frame = self._av.VideoFrame.from_numpy_buffer(np.ascontiguousarray(pixels), format=form)
            frame = self._convert.reformat(frame, format=self._pix_fmt, **self._convert_options)
        frame.pts, frame.time_base = self._frames, self._time_base
        self._queue.put(frame)
        self._frames += 1

    def _encode(self) -> None:
        """The thread: frames into packets into the file, until told that there are no more."""
        is_over = False
        while not is_over:
            frame = self._queue.get()
            is_over = frame is None
            if self._error is not None:
                continue  # until nobody waits for room any more
            try:
                self._mux(self._stream.encode(frame))
                if is_over:
                    self._container.close()
            except Exception as cause:
                self._error = SinkError(f"{self.path}: the video could not be written ({_text(cause)})")
                self._error.__cause__ = cause

    def _mux(self, packets: list[Any]) -> None:
        for packet in packets:
            if self._reorders is not None:
                packet.dts = round((self._packets - self._reorders) * self._time_base / packet.time_base)
                if not self._reorders:
                    packet.pts = packet.dts
            self._packets += 1
            self._container.mux(packet)

    def _remove(self) -> None:
        if self._container is not None:
            try:
                self._container.close()
            except Exception:  # it says again what is known by now
                pass
            self._container = None
        if self._created:
            self._created = False
            os.unlink(self.path)


def _options(
    encoder: str, crf: int | None, g: int | None, preset: int | str | None, threads: int | None
) -> dict[str, str]:
    told = {"crf": crf, "g": g, "preset": _PRESET.get(encoder) if preset is None else preset}
    options = {name: str(value) for name, value in told.items() if value is not None}
    if encoder == "libsvtav1":
        options["svtav1-params"] = f"lp={min(threads or min(_THREADS, cores()), 6)}"
    elif encoder == "libx265":
        # Closed groups of pictures, so that it can be cut and sought at any keyframe.
        options["x265-params"] = f"pools={threads or _THREADS}:frame-threads=2:open-gop=0:log-level=none"
    return options


def _text(error: BaseException) -> str:
    return str(getattr(error, "strerror", None) or error)
