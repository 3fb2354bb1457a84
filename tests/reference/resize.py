"""Resizing by the triangle filter, pixel by pixel."""

from __future__ import annotations

import numpy as np


def weights(length: int, new_length: int) -> np.ndarray:
    """``[new_length, length] float64``: what each old pixel gives to each new one; rows add up to 1."""
    scale = length / new_length
    reach = max(scale, 1.0)
    out = np.zeros((new_length, length))
    for i in range(new_length):
        center = (i + 0.5) * scale
        for j in range(length):
            out[i, j] = max(0.0, 1 - abs(j + 0.5 - center) / reach)
        out[i] /= out[i].sum()
    return out


def triangle(frame: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """``[H, W, C]`` to ``[height, width, C] float64``, not rounded."""
    height, width, channels = frame.shape
    down, across = weights(height, size[0]), weights(width, size[1])
    out = np.zeros((*size, channels))
    for channel in range(channels):
        out[..., channel] = down @ frame[..., channel].astype(np.float64) @ across.T
    return out
