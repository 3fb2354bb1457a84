"""What a video file is: codec, size, rate, frames, keyframes; nothing is decoded."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from rlds2buf.codecs.video.frame_index import FrameIndex, frame_index
from rlds2buf.codecs.video.opening import open_video, size_of_video
from rlds2buf.codecs.video.pixels import DEPTH

__all__ = ["VideoFacts", "probe"]


@dataclass(frozen=True, slots=True, eq=False)
class VideoFacts:
    """What there is to know of a video file.

    Attributes:
        codec: as LeRobot and FFmpeg name it: ``"av1"``, ``"h264"``, ``"hevc"``, ``"mpeg4"``.
        pix_fmt: FFmpeg's name of the format of pixels, for example ``"yuv420p"``.
        width, height: in pixels.
        fps: frames per second; of a file with one frame 0, if the file does not tell it.
        frames: how many.
        keyframes: ``[K] int64``: the numbers of the frames with which decoding can begin.
        timestamps: ``[frames] float64``: when each is shown, in seconds.
        duration: seconds, up to the end of the last frame.
        has_audio: whether there is sound as well.
        is_depth: whether it is a depth map: one channel of 9 to 16 bits.
    """

    codec: str
    pix_fmt: str
    width: int
    height: int
    fps: Fraction
    frames: int
    keyframes: np.ndarray
    timestamps: np.ndarray
    duration: float
    has_audio: bool
    is_depth: bool

    @property
    def largest_offset(self) -> float:
        """By how many seconds a frame is farthest from number / fps."""
        if not self.frames or not self.fps:
            return 0.0
        return float(np.abs(self.timestamps - np.arange(self.frames) / float(self.fps)).max())


def probe(path: str | os.PathLike[str]) -> VideoFacts:
    """What a video file is, without decoding it; kept for as long as the file does not change.

    Raises:
        SourceNotFound: nothing is there.
        SourceFormatError: no video, one without a stream of pictures, one that is cut short, a Git LFS pointer.
        MissingDependency: PyAV is not installed.
    """
    name = os.fspath(path)
    size = size_of_video(name)
    return _probe(name, size, os.stat(name).st_mtime_ns)


@functools.lru_cache(maxsize=128)
def _probe(path: str, size: int, changed_ns: int) -> VideoFacts:
    index = frame_index(path)
    with open_video(path) as (container, stream):
        context = stream.codec_context
        told = stream.average_rate or stream.guessed_rate
        return VideoFacts(
            codec=context.codec.canonical_name,
            pix_fmt=context.pix_fmt or "",
            width=context.width,
            height=context.height,
            fps=_rate(index, Fraction(told) if told else Fraction(0)),
            frames=len(index),
            keyframes=np.flatnonzero(index.is_key),
            timestamps=index.timestamps,
            duration=_duration(index, stream),
            has_audio=bool(container.streams.audio),
            is_depth=(context.pix_fmt or "").startswith(DEPTH),
        )


def _rate(index: FrameIndex, told: Fraction) -> Fraction:
    """Frames per second by the times of the frames; a whole number wherever one fits."""
    if len(index) < 2 or index.pts[-1] == index.pts[0]:
        return told
    exact = Fraction(len(index) - 1) / (int(index.pts[-1] - index.pts[0]) * index.time_base)
    ticks = index.pts - index.pts[0]
    for rate in (Fraction(round(exact)), told):
        # A time base that the rate does not divide rounds every time, by less than a unit.
        if rate and np.abs(ticks - np.arange(len(index)) / float(rate * index.time_base)).max() <= 1:
            return rate
    return exact.limit_denominator(100_000)


def _duration(index: FrameIndex, stream: Any) -> float:
    if not len(index):
        return 0.0
    if index.track is not None:
        return float((int(index.pts[-1]) + index.track.duration) * index.time_base)
    return float(stream.duration * stream.time_base) if stream.duration else float(index.timestamps[-1])
