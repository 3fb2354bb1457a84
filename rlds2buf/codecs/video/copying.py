"""Runs of frames from MP4 files into a new one, without decoding them: their packets are copied as they are.

That is possible for a run that begins with a keyframe after which nothing refers to what was before, and whose
packets lie together in the order of decoding: whole episodes of their own files, and episodes in files of many that
were encoded one by one, as LeRobot does.  A run may end anywhere.  In the new file frame i is shown at i / fps.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from rlds2buf.codecs.video.frame_index import frame_index
from rlds2buf.codecs.video.frame_names import FrameRun
from rlds2buf.codecs.video.mp4 import Mp4Track
from rlds2buf.codecs.video.mp4_tables import FILE_HEAD, data_head, movie
from rlds2buf.codecs.video.probe import VideoFacts, probe
from rlds2buf.errors import SinkError, SourceFormatError
from rlds2buf.files.copy_range import copy_range

__all__ = ["copy_kind", "copy_runs", "is_copyable", "packet_bytes", "why_not_copyable"]

_ENTRY: Final = 8
"""Where in ``stsd`` the first description begins: behind version, flags and their number."""
_SETTINGS: Final = 86
"""Where in a description of video the codec's own boxes begin."""

_UNIT_KIND: Final = {b"avc1": b"avcC", b"avc3": b"avcC", b"hvc1": b"hvcC", b"hev1": b"hvcC"}
"""Codecs whose keyframes may refer to what was before, and the box that tells how their packets are cut."""


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """The packets of a run that is copyable, ``[n]``, in the order of decoding.

    Attributes:
        kind: the description of the codec, without what is of a whole file only.
        shown: each packet's frame, counted from the first of the run.
    """

    path: str
    kind: bytes
    shown: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    is_key: np.ndarray

    def __len__(self) -> int:
        return len(self.shown)


class _NotCopyable(ValueError):
    """The message says why."""


def why_not_copyable(run: FrameRun) -> str | None:
    """Why the packets of a run can't be copied; None if they can.

    Raises:
        SourceNotFound, SourceFormatError: the file is not there, no video, damaged, or has fewer frames.
    """
    try:
        _part(run)
    except _NotCopyable as why:
        return str(why)
    return None


def is_copyable(run: FrameRun) -> bool:
    """Whether the packets of a run can be copied: :func:`why_not_copyable` has no reason.

    Raises:
        SourceNotFound, SourceFormatError: the file is not there, no video, damaged, or has fewer frames.
    """
    return why_not_copyable(run) is None


def copy_kind(run: FrameRun) -> bytes:
    """Codec, size and the codec's settings of a run that is copyable: what runs in one file must share.

    Raises:
        ValueError: it is not copyable.
    """
    return _part(run).kind


def packet_bytes(run: FrameRun) -> int:
    """How many bytes the packets of a run that is copyable take.

    Raises:
        ValueError: it is not copyable.
    """
    return int(_part(run).sizes.sum())


def copy_runs(runs: Sequence[FrameRun], path: str | os.PathLike[str], fps: int | Fraction | None = None) -> VideoFacts:
    """Copy runs of frames, one behind the other, into a new MP4 file.

    The bytes of the file depend on those of the packets only.  Sound is left out.

    Args:
        runs: copyable (:func:`why_not_copyable`) and of one kind (:func:`copy_kind`).
        path: of the new file; it must not exist yet.
        fps: frames per second of the new file; None: of the first run's file.

    Raises:
        ValueError: there are no runs, one can't be copied, or they are of two kinds.
        SourceNotFound, SourceFormatError: a file is not there, no video, damaged, or has fewer frames.
        SinkError: the file exists or can't be written; nothing is left of it.
        MissingDependency: PyAV is not installed.
    """
    name = os.fspath(path)
    parts = _parts(runs, name)
    rate = probe(runs[0].path).fps if fps is None else Fraction(fps)
    if rate <= 0:
        raise ValueError(f"{name}: frames per second must be more than 0, got {rate}")
    with _new_file(name) as target:
        _write(target, parts, rate)
    return probe(name)


def _parts(runs: Sequence[FrameRun], name: str) -> list[_Part]:
    if not runs:
        raise ValueError(f"{name}: no frames to copy")
    parts = []
    for run in runs:
        try:
            parts.append(_part(run))
        except _NotCopyable as why:
            raise ValueError(f"{run.path}: packets can't be copied: {why}") from None
        if parts[-1].kind != parts[0].kind:
            raise ValueError(f"{run.path}: encoded otherwise than {runs[0].path}; one file can't hold both")
    return parts


def _part(run: FrameRun) -> _Part:
    """Raises: _NotCopyable."""
    index = frame_index(run.path)
    if run.stop > len(index):
        raise SourceFormatError(f"{run.path}: frame {run.stop - 1} is asked for, and it has {len(index)} frames")
    track = index.track
    if track is None:
        raise _NotCopyable("not an MP4 file with plain tables")
    if not run.count:
        raise _NotCopyable("no frames")
    if not index.is_key[run.first]:
        raise _NotCopyable(f"frame {run.first} is no keyframe")
    places = index.place[run.first : run.stop]
    first = int(places[0])
    if first != places.min() or places.max() - first + 1 != run.count:
        raise _NotCopyable(f"frames {run.first} to {run.stop - 1} are decoded together with others (B-frames)")
    try:
        kind = _without_rate(track.description)
        is_fresh = _starts_afresh(run.path, track, first)
    except (struct.error, KeyError, IndexError, ValueError):
        raise _NotCopyable("a description of the codec that is not understood") from None
    if not is_fresh:
        raise _NotCopyable(f"frames behind number {run.first} may refer to some before it (an open group of pictures)")
    shown = np.empty(run.count, np.int64)
    shown[places - first] = np.arange(run.count)
    packets = slice(first, first + run.count)
    return _Part(run.path, kind, shown, track.offsets[packets], track.sizes[packets], track.is_key[packets])


@contextlib.contextmanager
def _new_file(name: str) -> Iterator[int]:
    try:
        target = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    except FileExistsError as cause:
        raise SinkError(f"{name}: is already there") from cause
    except OSError as cause:
        raise SinkError(f"{name}: can't be written ({cause.strerror})") from cause
    is_whole = False
    try:
        yield target
        is_whole = True
    except OSError as cause:
        raise SinkError(f"{name}: can't be written ({cause.strerror})") from cause
    finally:
        os.close(target)
        if not is_whole:
            os.unlink(name)


def _write(target: int, parts: Sequence[_Part], rate: Fraction) -> None:
    sizes = np.concatenate([part.sizes for part in parts])
    head = FILE_HEAD + data_head(int(sizes.sum()))
    _write_all(target, head)
    at, count, shown, chunks = len(head), 0, [], []
    for part in parts:
        shown.append(part.shown + count)
        chunks.append((at, len(part)))
        _copy(part.path, target, part.offsets, part.sizes)
        at += int(part.sizes.sum())
        count += len(part)
    timescale, tick = _times(rate)
    is_key = np.concatenate([part.is_key for part in parts])
    _write_all(target, movie(parts[0].kind, timescale, tick, np.concatenate(shown), sizes, is_key, chunks))


def _copy(path: str, target: int, offsets: np.ndarray, sizes: np.ndarray) -> None:
    """Packets of one file, in as few pieces as they lie in."""
    starts = np.flatnonzero(np.concatenate([[True], offsets[1:] != offsets[:-1] + sizes[:-1]]))
    lengths = np.add.reduceat(sizes, starts)
    with open(path, "rb") as source:
        for start, length in zip(offsets[starts].tolist(), lengths.tolist(), strict=True):
            try:
                copy_range(source.fileno(), target, start, length)
            except EOFError as cause:
                raise SourceFormatError(f"{path}: cut short ({cause})") from cause


def _write_all(target: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(target, left) :]


def _times(rate: Fraction) -> tuple[int, int]:
    """Units of time per second and per frame: as FFmpeg takes them, fine enough for other programs too."""
    timescale, tick = rate.numerator, rate.denominator
    while timescale < 10_000:
        timescale, tick = 2 * timescale, 2 * tick
    return timescale, tick


def _children(description: bytes) -> list[tuple[bytes, bytes]]:
    """Kind and whole bytes of the boxes inside the one description of a codec."""
    count, length, _ = struct.unpack_from(">II4s", description, 4)
    if count != 1 or length != len(description) - _ENTRY:
        raise ValueError("several descriptions")
    found, at = [], _ENTRY + _SETTINGS
    while at < len(description):
        length, kind = struct.unpack_from(">I4s", description, at)
        if length < 8 or at + length > len(description):
            raise ValueError("a box that ends outside")
        found.append((kind, description[at : at + length]))
        at += length
    return found


def _without_rate(description: bytes) -> bytes:
    """Without the bits per second, which are of a whole file and mean nothing to a decoder."""
    boxes = [(kind, box) for kind, box in _children(description) if kind != b"btrt"]
    kept = b"".join(_quiet_stream(box) if kind == b"esds" else box for kind, box in boxes)
    head = description[: _ENTRY + _SETTINGS]
    return head[:_ENTRY] + struct.pack(">I", _SETTINGS + len(kept)) + head[_ENTRY + 4 :] + kept


def _quiet_stream(box: bytes) -> bytes:
    """The box ``esds`` of MPEG-4 (ISO/IEC 14496-1, 7.2.6) without buffer size and bits per second: 0 is unknown."""
    at = 12
    tag, at = _tag(box, at)
    flags = box[at + 2]
    if tag != 3 or flags & 0xE0:  # depends on other streams
        return box
    tag, at = _tag(box, at + 3)
    return box if tag != 4 else box[: at + 2] + bytes(11) + box[at + 13 :]


def _tag(box: bytes, at: int) -> tuple[int, int]:
    """A descriptor's kind, and where it begins behind its length, of which each byte but the last has the top bit."""
    tag, at = box[at], at + 1
    while box[at] & 0x80:
        at += 1
    return tag, at + 1


def _starts_afresh(path: str, track: Mp4Track, place: int) -> bool:
    """Whether no frame from a keyframe on refers to what was before it: a picture of the kind IDR, where there are."""
    codec = track.description[_ENTRY + 4 : _ENTRY + 8]
    if codec not in _UNIT_KIND:
        return True
    settings = dict(_children(track.description))[_UNIT_KIND[codec]]
    is_avc = _UNIT_KIND[codec] == b"avcC"
    width = (settings[8 + (4 if is_avc else 21)] & 3) + 1  # bytes of a unit's length
    with open(path, "rb") as file:
        file.seek(int(track.offsets[place]))
        packet = file.read(int(track.sizes[place]))
    at = 0
    while at + width < len(packet):
        length = int.from_bytes(packet[at : at + width], "big")
        head = packet[at + width]
        kind = head & 31 if is_avc else head >> 1 & 63
        if kind in ((1, 2, 5) if is_avc else range(32)):  # the first that holds a part of the picture
            return kind == 5 if is_avc else kind in (19, 20)
        at += width + length
    return False
