"""The tables of an MP4 file with one video track, written (ISO/IEC 14496-12); :mod:`.mp4` reads them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import numpy as np

__all__ = ["FILE_HEAD", "data_head", "movie"]

_MATRIX: Final = struct.pack(">9I", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
"""Pictures as they are, not turned."""
_LANGUAGE: Final = 0x55C4  # "und"


def _box(kind: bytes, *contents: bytes) -> bytes:
    content = b"".join(contents)
    return struct.pack(">I4s", 8 + len(content), kind) + content


def _full_box(kind: bytes, version: int, flags: int, *contents: bytes) -> bytes:
    return _box(kind, struct.pack(">I", version << 24 | flags), *contents)


FILE_HEAD: Final = _box(b"ftyp", b"isom", struct.pack(">I", 512), b"isomiso2mp41")
"""What a file begins with."""


def data_head(size: int) -> bytes:
    """What stands before `size` bytes of packets."""
    if size + 8 < 1 << 32:
        return struct.pack(">I4s", 8 + size, b"mdat")
    return struct.pack(">I4sQ", 1, b"mdat", 16 + size)


def movie(
    description: bytes,
    timescale: int,
    tick: int,
    shown: np.ndarray,
    sizes: np.ndarray,
    is_key: np.ndarray,
    chunks: Sequence[tuple[int, int]],
) -> bytes:
    """The box ``moov`` of N frames, each shown for `tick`.

    Args:
        description: the content of ``stsd``.
        timescale: units of time per second.
        tick: units per frame.
        shown: ``[N] int64``: for each packet, in the order of decoding, the number of its frame in the order of
            presentation: a permutation.
        sizes: ``[N] int64``: bytes.
        is_key: ``[N] bool``.
        chunks: for packets that lie without gaps: where in the file, and how many packets.
    """
    count = len(shown)
    length = count * tick
    # Packets are decoded a tick apart; the first is shown so much later that none is shown before it is decoded.
    delay = max(0, int((np.arange(count) - shown).max(initial=0)))
    waits = (shown - np.arange(count) + delay) * tick
    (width, height) = struct.unpack_from(">HH", description, 40)
    tables = [
        _box(b"stsd", description),
        _full_box(b"stts", 0, 0, _table(np.array([[count, tick]]))),
        _full_box(b"stsc", 0, 0, _table(_chunk_sizes(chunks))),
        _full_box(b"stsz", 0, 0, struct.pack(">II", 0, count), sizes.astype(">u4").tobytes()),
        _full_box(b"co64", 0, 0, _table(np.array([[at] for at, _ in chunks]), ">u8")),
    ]
    if not is_key.all():
        tables.append(_full_box(b"stss", 0, 0, _table(np.flatnonzero(is_key)[:, None] + 1)))
    if waits.any():
        tables.append(_full_box(b"ctts", 0, 0, _table(_repeats(waits))))
    media = _box(
        b"mdia",
        _full_box(b"mdhd", 1, 0, struct.pack(">QQIQHH", 0, 0, timescale, length, _LANGUAGE, 0)),
        _full_box(b"hdlr", 0, 0, struct.pack(">I4s12x", 0, b"vide"), b"VideoHandler\0"),
        _box(
            b"minf",
            _full_box(b"vmhd", 0, 1, bytes(8)),
            _box(b"dinf", _full_box(b"dref", 0, 0, struct.pack(">I", 1), _full_box(b"url ", 0, 1))),
            _box(b"stbl", *tables),
        ),
    )
    edit = _full_box(b"elst", 1, 0, struct.pack(">IQqhh", 1, length, delay * tick, 1, 0))
    track_head = struct.pack(">QQIIQ8xhhHH", 0, 0, 1, 0, length, 0, 0, 0, 0)
    track = _box(
        b"trak",
        _full_box(b"tkhd", 1, 3, track_head, _MATRIX, struct.pack(">II", width << 16, height << 16)),
        _box(b"edts", edit),
        media,
    )
    head = struct.pack(">QQIQIH10x", 0, 0, timescale, length, 1 << 16, 1 << 8)
    return _box(b"moov", _full_box(b"mvhd", 1, 0, head, _MATRIX, bytes(24), struct.pack(">I", 2)), track)


def _table(rows: np.ndarray, dtype: str = ">u4") -> bytes:
    """A table that begins with the number of its rows."""
    return struct.pack(">I", len(rows)) + rows.astype(dtype).tobytes()


def _repeats(values: np.ndarray) -> np.ndarray:
    """``[n, 2]``: how many, and the value."""
    starts = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    return np.stack([np.diff(starts, append=len(values)), values[starts]], 1)


def _chunk_sizes(chunks: Sequence[tuple[int, int]]) -> np.ndarray:
    """``[n, 3]``: from which chunk on, numbered from 1, how many packets each holds, of which description."""
    counts = np.array([count for _, count in chunks])
    starts = np.flatnonzero(np.concatenate([[True], counts[1:] != counts[:-1]]))
    return np.stack([starts + 1, counts[starts], np.ones_like(starts)], 1)
