"""The row that an episode's last observation adds, in the columns that have nothing for it."""

from __future__ import annotations

import numpy as np

__all__ = ["padded"]


def padded(column: np.ndarray, rows: int) -> np.ndarray:
    """``[n, ...]`` with zeros behind it, in a column of objects empty byte strings, up to so many rows.

    >>> padded(np.array([1, 2]), 3)
    array([1, 2, 0])
    """
    if len(column) == rows:
        return column
    out = np.zeros((rows, *column.shape[1:]), column.dtype)
    out[: len(column)] = column
    if out.dtype == object:
        out[len(column) :] = b""
    return out
