"""The sizes that pictures are read in: what readers are asked for, frames made smaller or larger."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlds2buf.codecs.images.pillow import import_pillow
from rlds2buf.core.arguments import choice

__all__ = ["check_images", "read_size", "resize_frames", "stack_frames"]

_IMAGES = ("decoded", "encoded")


def check_images(images: str | None, resize: Any = None) -> tuple[int, int] | None:
    """The size (height, width) that pixels are to have, or None, of a reader's options `images` and `resize`.

    Raises:
        ValueError: no such choice of images, no such size, or a size for pictures that stay encoded.

    >>> check_images("decoded", 128), check_images(None)
    ((128, 128), None)
    """
    if images is not None:
        choice("images", images, _IMAGES)
    if images == "encoded" and resize is not None:
        raise ValueError("pictures that are kept encoded can't be resized: their files stay as they are")
    return None if resize is None else read_size(resize)


def read_size(size: Any) -> tuple[int, int]:
    """``(height, width)`` of what people write: 128 for a square, or both.

    Raises:
        ValueError: it is neither a whole number from 1 to 65536, nor two of them.

    >>> read_size(128), read_size((96, 128))
    ((128, 128), (96, 128))
    """
    both = (size, size) if isinstance(size, int | np.integer) else size
    try:
        height, width = both
        if int(height) == height and int(width) == width and 1 <= min(height, width) and max(height, width) <= 1 << 16:
            return int(height), int(width)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"a size is one whole number from 1 to 65536, or (height, width) of such, got {size!r}")


def resize_frames(frames: np.ndarray, size: Any, *, out: np.ndarray | None = None) -> np.ndarray:
    """Resize pictures by the triangle filter ("bilinear"), antialiased: Pillow's ``BILINEAR``.

    A pixel of the result is the mean of those it covers, weighted by a triangle as wide as two pixels
    of the result (of the source, when enlarging), across and then down, so no pixel is left out
    when shrinking.  Every channel is treated by itself.  Pictures that have the size already come
    back as they are, in an array of their own.

    Args:
        frames: ``[..., H, W, C]``, or an object array of such.  uint8 is computed in Pillow's fixed
            point; float32 and uint16 as float32, uint16 rounded to the nearest.
        size: one number for a square, or (height, width).
        out: ``[..., height, width, C]`` to put them into; else a new one is made.

    Returns:
        ``[..., height, width, C]`` of the same dtype.

    Raises:
        ValueError: no such size, or frames of another dtype, or without pixels.

    >>> resize_frames(np.arange(4, dtype=np.uint8).reshape(2, 2, 1), 1).ravel()
    array([2], dtype=uint8)
    """
    height, width = read_size(size)
    if frames.dtype == object:
        return _filled(out, stack_frames([resize_frames(frame, (height, width)) for frame in frames]))
    if frames.dtype not in (np.uint8, np.uint16, np.float32) or frames.ndim < 3:
        raise ValueError(f"only frames [..., H, W, C] of uint8, uint16 and float32 can be resized, got {frames.dtype}")
    if frames.shape[-3:-1] == (height, width):
        return _filled(out, frames.copy() if out is None else frames)
    if 0 in frames.shape[-3:]:
        raise ValueError(f"frames of shape {list(frames.shape[-3:])} have no pixels to resize")
    shape = (*frames.shape[:-3], height, width, frames.shape[-1])
    if out is None:
        out = np.empty(shape, frames.dtype)
    elif out.shape != shape or out.dtype != frames.dtype:
        raise ValueError(f"out is {out.dtype}{list(out.shape)}, not {frames.dtype}{list(shape)}")
    count = math.prod(frames.shape[:-3])
    targets = out.reshape(count, *shape[-3:]) if out.flags.c_contiguous else np.empty((count, *shape[-3:]), out.dtype)
    for frame, target in zip(frames.reshape(count, *frames.shape[-3:]), targets, strict=True):
        _resize(frame, target)
    if not out.flags.c_contiguous:
        out[...] = targets.reshape(shape)
    return out


def stack_frames(frames: Sequence[np.ndarray]) -> np.ndarray:
    """``[N, height, width, channels]``, or ``[N] object`` where the shapes differ."""
    if frames and all(frame.shape == frames[0].shape for frame in frames):
        return np.stack(frames)
    column = np.empty(len(frames), object)
    for i, frame in enumerate(frames):
        column[i] = frame
    return column


def _filled(out: np.ndarray | None, frames: np.ndarray) -> np.ndarray:
    if out is None:
        return frames
    out[...] = frames
    return out


def _resize(frame: np.ndarray, out: np.ndarray) -> None:
    """One picture ``[H, W, C]`` into ``[height, width, C]``."""
    if frame.dtype == np.uint8 and frame.shape[2] == 3:
        out[...] = _pillow(frame, "RGB", out.shape)
        return
    for channel in range(frame.shape[2]):
        plane = frame[..., channel]
        if frame.dtype == np.uint8:
            out[..., channel] = _pillow(plane, "L", out.shape)
        else:
            values = _pillow(plane.astype(np.float32), "F", out.shape)
            out[..., channel] = values if frame.dtype == np.float32 else np.rint(values)


def _pillow(pixels: np.ndarray, mode: str, shape: tuple[int, ...]) -> np.ndarray:
    pillow = import_pillow()
    image = pillow.frombytes(mode, pixels.shape[1::-1], np.ascontiguousarray(pixels).tobytes())
    return np.asarray(image.resize((shape[1], shape[0]), pillow.Resampling.BILINEAR))
