"""JPEG into pixels with simplejpeg, where it is installed: the same pixels, several times quicker.

It is libjpeg-turbo as TensorFlow uses it, so its pixels are TensorFlow's if it is told to use the
fast inverse DCT and smooth upsampling.  That holds for the build that is installed only if it is
tried; so before its first use it decodes a few small pictures beside Pillow, and is left alone if
one byte differs.  What it refuses, even for a warning, is given to Pillow, whose word counts.
"""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from rlds2buf.codecs.images.pillow import has_too_many_scans, pillow_frames, size_fault
from rlds2buf.codecs.images.stored_image import StoredImage

__all__ = ["TurboDecoder", "turbo_decoder"]

_COLORS: Final[dict[int | None, str]] = {1: "GRAY", 3: "RGB"}
_HEAD: Final = 1 << 10
"""How far into a file the size is looked for, where that spares a call."""

_QUICK: Final = 1 << 31
"""Bytes times pixels: below this, a file can't keep a decoder busy for long, however many scans it has."""


class TurboDecoder:
    """Decodes JPEG files.

    Args:
        simplejpeg: the module.
    """

    def __init__(self, simplejpeg: Any) -> None:
        self._header = simplejpeg.decode_jpeg_header
        self._decode = simplejpeg.decode_jpeg

    def frames(
        self, files: Sequence[bytes], image: StoredImage, out: np.ndarray | None = None
    ) -> list[np.ndarray | None]:
        """The pixels ``[height, width, channels] uint8`` of each file, or None where Pillow should have a look.

        Args:
            files: anything; None comes of what is no JPEG.
            image: the shape that they should have.
            out: where to put them, ``[len(files), *image.shape]``.
        """
        if image.shape[2] not in _COLORS:
            return [None] * len(files)
        frames: list[np.ndarray | None] = []
        usual = _usual_header(image) if out is not None else None
        pixels = 1 if usual is None else math.prod(image.shape[:2])  # type: ignore[arg-type]
        before, frame = b"", None
        for i, file in enumerate(files):
            target = None if out is None else out[i]
            if file != before or frame is None:
                if usual is not None and len(file) * pixels <= _QUICK and file.find(usual, 0, _HEAD) > 0:
                    frame = self._decoded(file, "RGB", target)
                else:
                    frame = self._frame(file, image, target)
            elif target is None:
                frame = frame.copy()
            else:  # a camera that is not there, or shows nothing new
                target[...] = frame
                frame = target
            frames.append(frame)
            before = file
        return frames

    def _frame(self, file: bytes, image: StoredImage, out: np.ndarray | None) -> np.ndarray | None:
        if not file.startswith(b"\xff\xd8"):
            return None
        channels = image.shape[2]
        try:
            height, width, space, sampling = self._header(file)
        except (ValueError, RuntimeError):
            return None
        if not _is_known(space, sampling, channels) or size_fault(height, width, image) is not None:
            return None
        if len(file) * height * width > _QUICK and has_too_many_scans(file):
            return None
        return self._decoded(file, _COLORS[channels], out)

    def _decoded(self, file: bytes, colors: str, out: np.ndarray | None) -> np.ndarray | None:
        try:
            pixels: np.ndarray = self._decode(file, colors, fastdct=True, buffer=out)
        except (ValueError, RuntimeError, MemoryError):
            return None
        if out is None:
            return pixels
        return out if pixels.shape == out.shape else None


def _usual_header(image: StoredImage) -> bytes | None:
    """How the header (SOF0) of a baseline JPEG of that size and three components begins: what nearly all are."""
    height, width, channels = image.shape
    if channels != 3 or height is None or width is None or max(height, width) >= 1 << 16:
        return None
    return b"\xff\xc0\x00\x11\x08" + height.to_bytes(2, "big") + width.to_bytes(2, "big") + b"\x03"


def _is_known(space: str, sampling: str, channels: int | None) -> bool:
    """Whether it is of a kind that has been compared: not CMYK, nor gray made of RGB inside."""
    return sampling != "unknown" and (space in ("YCbCr", "Gray") or (space == "RGB" and channels == 3))


@functools.cache
def turbo_decoder() -> TurboDecoder | None:
    """simplejpeg's, or None if it is not installed or makes other pixels."""
    try:
        import simplejpeg
    except ImportError:
        return None
    decoder = TurboDecoder(simplejpeg)
    return decoder if _agrees(decoder) else None


def _agrees(decoder: TurboDecoder) -> bool:
    for sampling in ("4:4:4", "4:2:2", "4:2:0", None):
        file, image = _sample(sampling)
        (expected,) = pillow_frames([file], image)
        (found,) = decoder.frames([file], image)
        if found is None or not np.array_equal(found, expected):
            return False
    return True


def _sample(sampling: str | None) -> tuple[bytes, StoredImage]:
    """A noisy picture of odd size, so that rounding and borders show; in gray without `sampling`."""
    from PIL import Image as PillowImage

    height, width, channels = 35, 37, 3 if sampling else 1
    noise = np.arange(height * width * channels, dtype=np.uint32) * np.uint32(2654435761)
    pixels = (noise >> np.uint32(24)).astype(np.uint8).reshape(height, width, channels)
    file = io.BytesIO()
    options = {"subsampling": sampling} if sampling else {}
    PillowImage.fromarray(pixels if sampling else pixels[..., 0]).save(file, "JPEG", quality=80, **options)
    return file.getvalue(), StoredImage((height, width, channels), np.dtype(np.uint8))
