"""Parts of pictures, pixel by pixel."""

from __future__ import annotations

import numpy as np

__all__ = ["crop"]


def crop(frame: np.ndarray, top: int, left: int, rows: int, columns: int) -> np.ndarray:
    """``[rows, columns, ...]`` of a picture ``[height, width, ...]`` from there on; beyond it, the nearest pixel."""
    height, width = frame.shape[:2]
    out = np.empty((rows, columns, *frame.shape[2:]), frame.dtype)
    for row in range(rows):
        for column in range(columns):
            out[row, column] = frame[min(max(top + row, 0), height - 1), min(max(left + column, 0), width - 1)]
    return out
