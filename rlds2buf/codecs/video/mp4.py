"""The tables of an MP4 file (ISO/IEC 14496-12): time, place and size of every frame, without touching the frames.

Only files laid out as encoders of datasets do it are read: one table of samples per track, at most one plain edit.
Others (fragments, cuts by edit lists, references to other files) are left to PyAV.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

import numpy as np

from rlds2buf.errors import SourceFormatError

__all__ = ["Mp4Track", "read_mp4"]

_MOST_BYTES: Final = 1 << 30
"""Of all tables: some 30 million frames."""
_MOST_ALIKE: Final = 1 << 24
"""Frames of one size, whose table takes no room in the file."""


@dataclass(frozen=True, slots=True, eq=False)
class Mp4Track:
    """The video track of a file, its samples in the order of decoding.

    Attributes:
        timescale: units of time per second.
        dts, pts: ``[N] int64``: when each is decoded and shown, in these units; the edit is taken into account.
        sizes, offsets: ``[N] int64``: bytes, and where in the file they begin.
        is_key: ``[N] bool``.
        duration: of the last frame shown, in units.
        description: the box ``stsd``: codec, size and the codec's own settings.
        has_audio: whether a track of sound is there as well.
    """

    timescale: int
    dts: np.ndarray
    pts: np.ndarray
    sizes: np.ndarray
    offsets: np.ndarray
    is_key: np.ndarray
    duration: int
    description: bytes
    has_audio: bool


class _Unusual(Exception):
    """Laid out so that PyAV had better read it."""


def read_mp4(path: str) -> Mp4Track | None:
    """The first video track of an MP4 file; None for what is no MP4 file laid out as usual.

    Raises:
        SourceFormatError: an MP4 file that is cut short.
    """
    with open(path, "rb") as file:
        try:
            tables = _movie(file, path)
            return None if tables is None else _track(tables)
        except SourceFormatError:
            raise
        except (_Unusual, struct.error, KeyError, IndexError, ValueError):
            return None


def _movie(file: BinaryIO, path: str) -> bytes | None:
    """The content of the box ``moov``; None if this is no MP4 file."""
    size = file.seek(0, 2)
    at = 0
    while at + 8 <= size:
        file.seek(at)
        head = file.read(16)
        length, kind = struct.unpack(">I4s", head[:8])
        begin = at + 8
        if length == 1:
            (length,) = struct.unpack(">Q", head[8:])
            begin += 8
        elif length == 0:
            length = size - at
        if at == 0 and kind != b"ftyp":
            return None
        if kind == b"moov":
            if length > _MOST_BYTES:
                raise _Unusual
            file.seek(begin)
            content = file.read(at + length - begin)
            if len(content) < at + length - begin:
                break
            return content
        if length < 8:
            raise _Unusual
        at += length
    raise SourceFormatError(f"{path}: cut short: the table of frames, which MP4 files mostly end with, is not there")


def _boxes(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Kind and content of the boxes in a box."""
    at = 0
    while at + 8 <= len(content):
        length, kind = struct.unpack_from(">I4s", content, at)
        begin = at + 8
        if length == 1:
            (length,) = struct.unpack_from(">Q", content, begin)
            begin += 8
        elif length == 0:
            length = len(content) - at
        if at + length < begin or at + length > len(content):
            raise _Unusual
        yield kind, content[begin : at + length]
        at += length


def _track(movie: bytes) -> Mp4Track | None:
    top = list(_boxes(movie))
    if any(kind == b"mvex" for kind, _ in top):
        raise _Unusual
    media_of = [(dict(_boxes(content)), content) for kind, content in top if kind == b"trak"]
    kinds = [dict(_boxes(track[b"mdia"]))[b"hdlr"][8:12] for track, _ in media_of]
    if b"vide" not in kinds:
        return None
    track = media_of[kinds.index(b"vide")][0]
    movie_timescale = _times(dict(top)[b"mvhd"])[0]
    return _samples(track, movie_timescale, b"soun" in kinds)


def _samples(track: dict[bytes, bytes], movie_timescale: int, has_audio: bool) -> Mp4Track:
    media = dict(_boxes(track[b"mdia"]))
    information = dict(_boxes(media[b"minf"]))
    _check_is_inside(information[b"dinf"])
    tables = dict(_boxes(information[b"stbl"]))
    timescale = _times(media[b"mdhd"])[0]
    sizes = _sizes(tables[b"stsz"])
    count = len(sizes)
    dts, total = _decode_times(tables[b"stts"], count)
    shifts = _shifts(tables[b"ctts"], count) if b"ctts" in tables else 0
    is_key = np.ones(count, bool)
    if b"stss" in tables:
        is_key = np.zeros(count, bool)
        is_key[_table(tables[b"stss"], 1)[:, 0] - 1] = True
    offsets = _offsets(tables, sizes)
    pts = dts + shifts
    last = int(np.argmax(pts)) if count else 0
    duration = int((dts[last + 1] if last + 1 < count else total) - dts[last]) if count else 0
    end = int(pts[last]) + duration if count else 0
    start = _edit(track, timescale, movie_timescale, int(pts.min()) if count else 0, end)
    description = tables[b"stsd"]
    return Mp4Track(timescale, dts - start, pts - start, sizes, offsets, is_key, duration, description, has_audio)


def _check_is_inside(information: bytes) -> None:
    """Whether the frames are in this file, and not in one that it refers to."""
    references = dict(_boxes(information))[b"dref"]
    for _, content in _boxes(references[8:]):
        if not content[3] & 1:
            raise _Unusual


def _times(header: bytes) -> tuple[int, int]:
    """Timescale and duration, of ``mvhd`` or ``mdhd``."""
    if header[0] == 1:
        return struct.unpack_from(">IQ", header, 20)
    return struct.unpack_from(">II", header, 12)


def _table(content: bytes, columns: int, dtype: str = ">u4") -> np.ndarray:
    """The rows of a table that begins with their number, ``[n, columns] int64``."""
    (count,) = struct.unpack_from(">I", content, 4)
    return np.frombuffer(content, dtype, count * columns, 8).reshape(count, columns).astype(np.int64)


def _sizes(content: bytes) -> np.ndarray:
    (same, count) = struct.unpack_from(">II", content, 4)
    if same:
        if count > _MOST_ALIKE:
            raise _Unusual
        return np.full(count, same, np.int64)
    return np.frombuffer(content, ">u4", count, 12).astype(np.int64)


def _spread(table: np.ndarray, count: int) -> np.ndarray:
    """A table of (how many, value), one value per sample."""
    if table[:, 0].sum() != count:
        raise _Unusual
    return np.repeat(table[:, 1], table[:, 0])


def _decode_times(content: bytes, count: int) -> tuple[np.ndarray, int]:
    """``[N]`` and the end of the last."""
    times = np.concatenate([[0], np.cumsum(_spread(_table(content, 2), count))])
    return times[:-1], int(times[-1])


def _shifts(content: bytes, count: int) -> np.ndarray:
    """From decoding to showing.  Version 0 says unsigned, and is read as signed by everybody, since some write so."""
    return _spread(_table(content, 2, ">i4"), count)


def _offsets(tables: dict[bytes, bytes], sizes: np.ndarray) -> np.ndarray:
    """Where each sample begins: they lie without gaps in chunks, whose places and numbers of samples are told."""
    if b"co64" in tables:
        chunks = _table(tables[b"co64"], 1, ">u8")[:, 0]
    else:
        chunks = _table(tables[b"stco"], 1)[:, 0]
    rows = _table(tables[b"stsc"], 3)
    if not len(sizes):
        return np.empty(0, np.int64)
    first_chunks = rows[:, 0]
    if (rows[:, 2] != 1).any():  # several descriptions of codecs
        raise _Unusual
    if first_chunks[0] != 1 or first_chunks[-1] > len(chunks) or (np.diff(first_chunks) < 1).any():
        raise _Unusual
    per_chunk = np.repeat(rows[:, 1], np.diff(first_chunks, append=len(chunks) + 1))
    if per_chunk.sum() != len(sizes):
        raise _Unusual
    before = np.cumsum(sizes) - sizes
    firsts = np.cumsum(per_chunk) - per_chunk
    filled = per_chunk > 0
    chunks, firsts, per_chunk = chunks[filled], firsts[filled], per_chunk[filled]
    return np.repeat(chunks - before[firsts], per_chunk) + before


def _edit(track: dict[bytes, bytes], timescale: int, movie_timescale: int, first: int, end: int) -> int:
    """What the edit list takes from the times, in units of the media; only edits that hide no frame are usual."""
    if b"edts" not in track:
        return 0
    edits = dict(_boxes(track[b"edts"])).get(b"elst")
    if edits is None:
        return 0
    (count,) = struct.unpack_from(">I", edits, 4)
    if count == 0:
        return 0
    if count > 1:
        raise _Unusual
    length, start, rate, fraction = struct.unpack_from(">Qqhh" if edits[0] == 1 else ">Iihh", edits, 8)
    shown = length * timescale / movie_timescale
    tolerance = timescale / movie_timescale + 1
    if (rate, fraction) != (1, 0) or not 0 <= start <= first or (length and start + shown + tolerance < end):
        raise _Unusual
    return start
