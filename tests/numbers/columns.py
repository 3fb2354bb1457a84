"""Columns with what makes statistics go wrong: ties, constants, ends of a type's range, one value."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

__all__ = ["DTYPES", "column", "columns"]

DTYPES = ["bool", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]


def column(dtype: str, shape: tuple[int, ...], how: str, rng: np.random.Generator) -> np.ndarray:
    """Values of a type: ``wide`` (its whole range), ``narrow`` (close together), ``ties`` or ``constant``."""
    kind = np.dtype(dtype)
    if how == "constant":
        return np.full(shape, rng.integers(0, 2) if kind.kind == "b" else 7.25, np.float64).astype(kind)
    if how == "ties" or kind.kind == "b":
        return rng.integers(0, 3, shape).astype(kind)
    if kind.kind == "f":
        if how == "narrow":
            return (1 + rng.random(shape) / 1000).astype(kind)
        scale = 10.0 ** rng.integers(-3, 4, shape)
        return (rng.standard_normal(shape) * scale).astype(kind)
    info = np.iinfo(kind)
    if how == "narrow":
        return (info.max // 2 + rng.integers(0, 50, shape)).astype(kind)
    # Within 53 bits, which a float64 holds: numpy's quantile of larger integers rounds between them.
    low, high = max(int(info.min), -(2**52)), min(int(info.max), 2**52)
    return rng.integers(low, high, shape, endpoint=True).astype(kind)


@st.composite
def columns(draw: st.DrawFn, most: int = 3000) -> np.ndarray:
    """``[n, ...]`` of any type."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = (draw(st.integers(1, most)), *draw(st.sampled_from([(), (1,), (3,), (2, 2), (0,)])))
    how = draw(st.sampled_from(["wide", "narrow", "ties", "constant"]))
    return column(draw(st.sampled_from(DTYPES)), shape, how, rng)
