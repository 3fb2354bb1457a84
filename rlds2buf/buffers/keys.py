"""Keys as callers give them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rlds2buf.errors import UnknownKey

__all__ = ["as_keys"]


def as_keys(values: npt.ArrayLike) -> np.ndarray:
    """Keys ``[B] uint64`` of an integer, or a list or array of them.

    Raises:
        TypeError: they are not integers; a fraction is never rounded to a key.
        UnknownKey: an integer is negative or needs more than 64 bits, so no item ever had that key.

    >>> as_keys([3, 4])
    array([3, 4], dtype=uint64)
    """
    array = np.atleast_1d(np.asarray(values))
    if array.size == 0:
        return np.zeros(array.shape, np.uint64)
    if array.dtype.kind == "u":
        return array.astype(np.uint64, copy=False)
    whole = array.dtype.kind == "i" or all(type(value) is int for value in array.reshape(-1).tolist())
    if not whole:
        raise TypeError(f"keys are integers, as in info.key; got {array.dtype}")
    wrong = (
        [int(value) for value in array[(array < 0) | (array >= 1 << 64)]] if array.dtype == object else array[array < 0]
    )
    if len(wrong):
        raise UnknownKey(f"{len(wrong)} of {array.size} keys are not in the buffer: {', '.join(map(str, wrong[:5]))}")
    return array.astype(np.uint64)
