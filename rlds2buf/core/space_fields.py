"""The fields that Gymnasium's spaces stand for, whether they come as objects or as JSON."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds2buf.core.spec import FieldSpec

__all__ = ["box", "discrete", "multi_binary", "multi_discrete"]

_MAX_VALUES = 256
"""A Discrete space with more values than this is described by its limits."""


def box(shape: tuple[int, ...], dtype: np.dtype, low: Any, high: Any) -> FieldSpec:
    """A Box's field.

    >>> box((2,), np.dtype("float32"), [-1, -np.inf], 5)
    FieldSpec(float32[2], low=[-1.0, -inf], high=5.0)
    """
    return FieldSpec(shape, dtype, _limit(low, dtype, shape, -np.inf), _limit(high, dtype, shape, np.inf))


def discrete(dtype: np.dtype, start: int, n: int) -> FieldSpec:
    """A Discrete space's field: its set of values, or where they are many its limits."""
    if n <= _MAX_VALUES:
        return FieldSpec((), dtype, values=tuple(range(start, start + n)))
    return FieldSpec((), dtype, start, start + n - 1)


def multi_discrete(dtype: np.dtype, start: Any, counts: Any) -> FieldSpec:
    """A MultiDiscrete space's field: from `start`, ``counts`` values in each element."""
    many = np.asarray(counts, np.int64)
    first = np.asarray(start, np.int64)
    low = _limit(first, dtype, many.shape, -np.inf)
    return FieldSpec(many.shape, dtype, low, _limit(first + many - 1, dtype, many.shape, np.inf))


def multi_binary(shape: tuple[int, ...]) -> FieldSpec:
    """A MultiBinary space's field."""
    return FieldSpec(shape, np.dtype(np.int8), values=(0, 1))


def _limit(values: Any, dtype: np.dtype, shape: tuple[int, ...], nothing: float) -> Any:
    """Limits as FieldSpec has them: one number where all are equal, None where none bounds."""
    given = np.asarray(values)
    if dtype.kind in "iu" and ((given < np.iinfo(dtype).min).any() or (given > np.iinfo(dtype).max).any()):
        raise ValueError(f"{dtype} has no {values}")
    array = given.astype(dtype)
    every = np.broadcast_to(array, shape)  # which may be far more than is given
    if every.size == 0 or (dtype.kind == "f" and (array == nothing).all()):
        return None
    return array.flat[0].item() if (array == array.flat[0]).all() else every.tolist()
