"""Where the frames of a video file are: times, keyframes, places, without decoding a picture."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from rlds2buf.codecs.video.mp4 import Mp4Track, read_mp4
from rlds2buf.codecs.video.opening import open_video, size_of_video
from rlds2buf.errors import SourceFormatError

__all__ = ["FrameIndex", "frame_index"]


@dataclass(frozen=True, slots=True, eq=False)
class FrameIndex:
    """The frames of one file, in the order in which they are shown.

    Attributes:
        time_base: seconds per unit of `pts` and `dts`.
        pts: ``[N] int64``, ascending: when each is shown.
        dts: ``[N] int64``: when each is decoded, by which a file is sought.
        is_key: ``[N] bool``: whether decoding can begin with it.
        place: ``[N] int64``: its place in the order of decoding, which differs where there are B-frames.
        track: of an MP4 file that is laid out as usual: its tables; else None.
    """

    time_base: Fraction
    pts: np.ndarray
    dts: np.ndarray
    is_key: np.ndarray
    place: np.ndarray
    track: Mp4Track | None

    def __len__(self) -> int:
        return len(self.pts)

    @property
    def timestamps(self) -> np.ndarray:
        """``[N] float64``: when each frame is shown, in seconds."""
        return self.pts * float(self.time_base)


def frame_index(path: str) -> FrameIndex:
    """The index of a file, kept for as long as the file does not change.

    Raises:
        SourceNotFound: nothing is there.
        SourceFormatError: no video, one without a stream of pictures, or one that is cut short.
        MissingDependency: PyAV is not installed (MP4 files laid out as usual don't need it).
    """
    size = size_of_video(path)
    return _index(path, size, os.stat(path).st_mtime_ns)


@functools.lru_cache(maxsize=32)
def _index(path: str, size: int, changed_ns: int) -> FrameIndex:
    track = read_mp4(path)
    if track is None:
        return _demuxed(path)
    ends = track.offsets + track.sizes
    if len(ends) and ends.max() > size:
        first = int(np.flatnonzero(ends > size)[0])
        raise SourceFormatError(f"{path}: cut short: it tells of {len(ends)} frames, and ends within number {first}")
    return _sorted(Fraction(1, track.timescale), track.pts, track.dts, track.is_key, track)


def _demuxed(path: str) -> FrameIndex:
    """By reading all packets."""
    with open_video(path) as (container, stream):
        found = [
            (packet.pts, packet.pts if packet.dts is None else packet.dts, packet.is_keyframe)
            for packet in container.demux(stream)
            if packet.size and not packet.is_discard
        ]
        time_base = stream.time_base
    if any(pts is None for pts, _, _ in found):
        raise SourceFormatError(f"{path}: its frames don't tell when they are shown; FFmpeg makes an MP4 file of it")
    table = np.array(found, np.int64).reshape(len(found), 3)
    return _sorted(time_base, table[:, 0], table[:, 1], table[:, 2].astype(bool), None)


def _sorted(
    time_base: Fraction, pts: np.ndarray, dts: np.ndarray, is_key: np.ndarray, track: Mp4Track | None
) -> FrameIndex:
    place = np.argsort(pts, kind="stable")
    return FrameIndex(time_base, pts[place], dts[place], is_key[place], place, track)
