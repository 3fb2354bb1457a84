"""Parts of pictures, each from its own place."""

from __future__ import annotations

import numpy as np

from rlds2buf.kernels.compiled import compiled
from rlds2buf.kernels.memory import copy_bytes

__all__ = ["crop_frames"]


def crop_frames_numpy(frames: np.ndarray, pixel: int, tops: np.ndarray, lefts: np.ndarray, out: np.ndarray) -> None:
    """:func:`crop_frames`."""
    (count, height, width), (_, rows, columns) = frames.shape, out.shape
    width, columns = width // pixel, columns // pixel
    y = np.clip(tops[:, None] + np.arange(rows), 0, height - 1)
    x = np.clip(lefts[:, None] + np.arange(columns), 0, width - 1)
    pixels = frames.reshape(count, height, width, pixel)
    out[:] = pixels[np.arange(count)[:, None, None], y[:, :, None], x[:, None, :]].reshape(out.shape)


@compiled(twin=crop_frames_numpy)
def crop_frames(frames, pixel, tops, lefts, out):  # type: ignore[no-untyped-def]
    """Copy a rectangle of each picture; beyond its edges, its outermost pixels go on.

    Args:
        frames: ``[N, height, width * pixel] uint8``, contiguous.
        pixel: bytes of one pixel.
        tops, lefts: ``[N] int64``, where each rectangle begins, in pixels; may lie outside.
        out: ``[N, rows, columns * pixel] uint8``, contiguous, filled.
    """
    height, width = frames.shape[1], frames.shape[2] // pixel
    rows, columns = out.shape[1], out.shape[2] // pixel
    source, target = frames.ctypes.data, out.ctypes.data
    for i in range(frames.shape[0]):
        left = lefts[i]
        first = min(max(-left, 0), columns)  # before this column, and from `last` on, the edge goes on
        last = max(min(width - left, columns), first)
        for row in range(rows):
            y = min(max(tops[i] + row, 0), height - 1)
            line = source + (i * height + y) * width * pixel
            place = target + (i * rows + row) * columns * pixel
            for column in range(first):
                copy_bytes(place + column * pixel, line, pixel)
            copy_bytes(place + first * pixel, line + (left + first) * pixel, (last - first) * pixel)
            for column in range(last, columns):
                copy_bytes(place + column * pixel, line + (width - 1) * pixel, pixel)
