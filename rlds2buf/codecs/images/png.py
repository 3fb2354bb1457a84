"""Pixels into PNG files: lossless, with zlib and numpy alone.

Source: PNG Specification (Third Edition), https://www.w3.org/TR/png-3/
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

import numpy as np

__all__ = ["encode_png"]

_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_COLOUR_TYPES: Final = {1: 0, 2: 4, 3: 2, 4: 6}
_SUB: Final = 1
# Twice the speed of zlib's own choice, files about a tenth larger.
_LEVEL: Final = 3


def encode_png(pixels: np.ndarray) -> bytes:
    """One frame as a PNG file.

    Args:
        pixels: ``[height, width, channels]`` uint8 or uint16, 1 to 4 channels (gray, gray and alpha,
            RGB, RGBA), at least one pixel.

    Raises:
        ValueError: it is no such array.

    >>> encode_png(np.zeros((2, 2, 3), np.uint8))[:8]
    b'\\x89PNG\\r\\n\\x1a\\n'
    """
    if pixels.ndim != 3 or pixels.shape[2] not in _COLOUR_TYPES or pixels.dtype not in (np.uint8, np.uint16):
        raise ValueError(f"a picture is uint8 or uint16 [height, width, 1 to 4], got {pixels.dtype}{pixels.shape}")
    height, width, channels = pixels.shape
    if not height or not width:
        raise ValueError("a PNG file holds at least one pixel")
    depth = pixels.dtype.itemsize
    rows = np.ascontiguousarray(pixels, f">u{depth}").reshape(height, width * channels).view(np.uint8)
    pixel = channels * depth
    filtered = np.empty((height, rows.shape[1] + 1), np.uint8)
    filtered[:, 0] = _SUB
    filtered[:, 1 : 1 + pixel] = rows[:, :pixel]
    np.subtract(rows[:, pixel:], rows[:, :-pixel], out=filtered[:, 1 + pixel :])
    header = struct.pack(">IIBBBBB", width, height, 8 * depth, _COLOUR_TYPES[channels], 0, 0, 0)
    data = zlib.compress(filtered.data, _LEVEL)
    return b"".join((_SIGNATURE, _chunk(b"IHDR", header), _chunk(b"IDAT", data), _chunk(b"IEND", b"")))


def _chunk(name: bytes, data: bytes) -> bytes:
    return b"".join((struct.pack(">I", len(data)), name, data, struct.pack(">I", zlib.crc32(data, zlib.crc32(name)))))
