"""Frames of a TFRecord file: where they are in a stretch of it, as far as their lengths are sound.

A frame is a length of eight bytes, a checksum of that, a record and a checksum of the record: see
:mod:`rlds2buf.codecs.tfrecord.frames`.
"""

from __future__ import annotations

import struct

import numpy as np

from rlds2buf.kernels.compiled import compiled

__all__ = ["find_frames", "mask"]

_LENGTH_BYTES, _HEADER, _AROUND = 8, 12, 16


def mask(crc: np.ndarray) -> np.ndarray:
    """``[n] uint32``: checksums rotated and shifted by a constant, as TFRecord stores them."""
    return (crc >> np.uint32(15) | crc << np.uint32(17)) + np.uint32(0xA282EAD8)


def find_frames_numpy(data: np.ndarray, most: int, changes: np.ndarray, edges: np.ndarray, stored: np.ndarray) -> int:
    """:func:`find_frames`."""
    places = [0]
    at, last, length_at = 0, len(data) - _AROUND, struct.Struct("<Q").unpack_from
    while at <= last and len(places) <= most:
        at += length_at(data.data, at)[0] + _AROUND
        if at > len(data):
            break
        places.append(at)
    found = np.array(places)
    lengths = data[found[:-1] + np.arange(_LENGTH_BYTES)[:, None]]
    crcs = np.bitwise_xor.reduce(changes[np.arange(_LENGTH_BYTES)[:, None], lengths], axis=0)
    sound = mask(crcs) == _words(data, found[:-1] + _LENGTH_BYTES)
    count = len(sound) if sound.all() else int(sound.argmin())
    edges[: count + 1] = found[: count + 1]
    stored[:count] = _words(data, found[1 : count + 1] - 4)
    return count


def _words(data: np.ndarray, places: np.ndarray) -> np.ndarray:
    """``[n] uint32``: the four bytes at each place as a number."""
    return np.ascontiguousarray(data[places[:, None] + np.arange(4)]).view("<u4")[:, 0]


@compiled
def _word(data, at):  # type: ignore[no-untyped-def]
    """The four bytes there as a number."""
    return (
        np.int64(data[at]) | np.int64(data[at + 1]) << 8 | np.int64(data[at + 2]) << 16 | np.int64(data[at + 3]) << 24
    )


@compiled(twin=find_frames_numpy)
def find_frames(data, most, changes, edges, stored):  # type: ignore[no-untyped-def]
    """Find whole frames, the first of which begins the data, up to one whose length is not as its checksum says.

    Args:
        data: ``uint8``.
        most: how many at most.
        changes: ``[8, 256] uint32``: what each byte of a length makes of its CRC32C; the exclusive or of all counts.
        edges: ``[n + 1] int64``, filled with where each frame begins, and where the last one ends.
        stored: ``[n] uint32``, filled with the checksums of the records, as they are stored.

    Returns:
        How many there are.
    """
    count, at = 0, 0
    edges[0] = 0
    while count < most and at + _AROUND <= data.shape[0]:
        length = _word(data, at) | _word(data, at + 4) << 32
        if length < 0 or length > data.shape[0] - at - _AROUND:
            break
        crc = np.int64(0)
        for i in range(_LENGTH_BYTES):
            crc ^= np.int64(changes[i, data[at + i]])
        crc = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        if crc != _word(data, at + _LENGTH_BYTES):
            break
        at += length + _AROUND
        stored[count] = _word(data, at - 4)
        count += 1
        edges[count] = at
    return count
