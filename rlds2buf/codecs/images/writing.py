"""Pixels into JPEG files, and how often each value is among them, by Pillow."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from rlds2buf.codecs.images.pillow import import_pillow

__all__ = ["encode_jpeg", "histogram"]

_QUALITY = 95


def encode_jpeg(pixels: np.ndarray, quality: int = _QUALITY) -> bytes:
    """One frame as a JPEG file.

    Args:
        pixels: ``[height, width, 3] uint8``.
        quality: 1 to 95.

    >>> encode_jpeg(np.zeros((8, 8, 3), np.uint8))[:2]
    b'\\xff\\xd8'
    """
    file = io.BytesIO()
    _image(pixels).save(file, "JPEG", quality=quality)
    return file.getvalue()


def histogram(pixels: np.ndarray) -> np.ndarray:
    """``[3, 256] int64``: how often each value is in each channel of ``[height, width, 3] uint8``."""
    return np.array(_image(pixels).histogram(), np.int64).reshape(3, 256)


def _image(pixels: np.ndarray) -> Any:
    height, width, _ = pixels.shape
    return import_pillow().frombuffer("RGB", (width, height), np.ascontiguousarray(pixels), "raw", "RGB", 0, 1)
