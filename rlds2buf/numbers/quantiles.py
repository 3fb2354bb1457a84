"""Exact quantiles: what ``numpy.quantile`` gives of all values (linear), without holding or sorting all of them.

A quantile lies between two neighbours of the sorted values, so a few *order statistics* (the value of a rank) are all
that is needed of a column.  They are found by radix selection: numbers become unsigned integers of the same order
(the bits of a float with its sign turned), a histogram of their leading 16 bits tells in which bucket each rank
lies, and only what lies in those buckets is looked at again.  Memory is bounded, whatever the values are, and a
column in a file is read once for each 16 bits at the most.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import numpy as np

__all__ = ["LEVELS", "LEVEL_NAMES", "order_statistics", "places", "quantiles_of_sorted", "weighted"]

LEVELS: Final = (0.01, 0.1, 0.5, 0.9, 0.99)
LEVEL_NAMES: Final = ("q01", "q10", "q50", "q90", "q99")
"""The quantiles that are told of every field, and what they are called."""

_DIGIT = 16
_FEW = 1 << 16
"""So many values are looked through as they are; of more, histograms are taken."""
_HELD_BYTES = 1 << 26
"""Values of one bucket that are copied out, to be looked at again; of more they are filtered on each pass."""

Blocks = Callable[[], Iterable[np.ndarray]]
"""Gives the values of a column ``[n]`` in pieces, as often as it is called."""


def places(count: int, levels: Sequence[float] = LEVELS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which ranks of `count` sorted values a quantile lies between, and how far it is from the lower one.

    Returns:
        Lower and upper rank, ``[q] int64``, and the weight of the upper one, ``[q] float64``.

    >>> [found.tolist() for found in places(4, [0.5, 1.0])]
    [[1, 3], [2, 3], [0.5, 0.0]]
    """
    virtual = (count - 1) * np.asarray(levels, np.float64)
    below = np.floor(virtual).astype(np.int64)
    return below, np.minimum(below + 1, count - 1), virtual - below


def weighted(low: np.ndarray, high: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Between `low` and `high`, float64, as numpy's quantiles round it: from the nearer side."""
    with np.errstate(invalid="ignore", over="ignore"):
        step = high - low
        return np.where(weight >= 0.5, high - step * (1 - weight), low + step * weight)


def quantiles_of_sorted(values: np.ndarray, levels: Sequence[float] = LEVELS) -> np.ndarray:
    """Quantiles of sorted values ``[..., n]`` along the last axis, ``[q, ...] float64``; n is not 0.

    >>> quantiles_of_sorted(np.array([[1, 2, 4], [0, 0, 1]]), [0.5, 0.75]).tolist()
    [[2.0, 0.0], [3.0, 0.5]]
    """
    below, above, weight = places(values.shape[-1], levels)
    low, high = (np.moveaxis(values[..., ranks].astype(np.float64), -1, 0) for ranks in (below, above))
    return weighted(low, high, weight.reshape(-1, *(1,) * (values.ndim - 1)))


def order_statistics(blocks: Blocks, count: int, ranks: Sequence[int] | np.ndarray) -> np.ndarray:
    """The values of some ranks among all values of a column, had they been sorted.

    Args:
        blocks: the column in pieces, ``[m]`` each, bool, integers or floats of 16 to 64 bits in the machine's order
            of bytes, without NaN.
        count: how many values there are.
        ranks: from 0 (the smallest) to ``count - 1`` (the largest), in any order.

    Returns:
        ``[len(ranks)]`` of the column's type; zero is positive.

    >>> order_statistics(lambda: [np.array([3.0, -1.0]), np.array([2.0])], 3, [0, 2]).tolist()
    [-1.0, 3.0]
    """
    dtype = next(iter(blocks())).dtype
    width = dtype.itemsize * 8
    found = _select(lambda: map(_keys, blocks()), count, np.asarray(ranks, np.int64), width)
    values = _values(found.astype(f"u{dtype.itemsize}"), dtype)
    return values + values.dtype.type(0) if dtype.kind == "f" else values


def _kept(blocks: Blocks, count: int) -> Blocks:
    """What gives the same, held in memory if it is of few enough values."""
    if count * 8 > _HELD_BYTES:
        return blocks
    held = list(blocks())
    return lambda: held


def _select(keys: Blocks, count: int, ranks: np.ndarray, undecided: int) -> np.ndarray:
    """The keys of some ranks, ``uint64``; all keys are alike but for so many of their lowest bits."""
    if count <= _FEW:
        return _picked(list(keys()), ranks)
    digit = min(_DIGIT, undecided)
    low = undecided - digit
    histogram = np.zeros(1 << digit, np.int64)
    for block in keys():
        histogram += np.bincount(_bucket(block, low, digit), minlength=len(histogram))
    ends = np.cumsum(histogram)
    buckets = np.searchsorted(ends, ranks, "right")
    wanted = np.unique(buckets)
    if not low:
        prefix = next(iter(block for block in keys() if len(block)))[:1].astype(np.uint64) >> np.uint64(digit)
        return (prefix << np.uint64(digit)) | buckets.astype(np.uint64)
    inside = int(histogram[wanted].sum())
    if inside <= _FEW:
        start = np.cumsum(histogram[wanted]) - histogram[wanted]  # of each bucket among those that are held
        at = np.searchsorted(wanted, buckets)
        return _picked(list(_within(keys, low, digit, wanted)), ranks - (ends - histogram)[buckets] + start[at])
    found = np.empty(len(ranks), np.uint64)
    for bucket in wanted.tolist():
        size = int(histogram[bucket])
        mine = buckets == bucket
        part = _kept(functools.partial(_within, keys, low, digit, np.array([bucket])), size)
        found[mine] = _select(part, size, ranks[mine] - (ends[bucket] - size), low)
    return found


def _picked(parts: list[np.ndarray], ranks: np.ndarray) -> np.ndarray:
    """The keys of some ranks, of few keys."""
    held = np.concatenate(parts)
    held.partition(np.unique(ranks))
    return held[ranks].astype(np.uint64)


def _within(keys: Blocks, low: int, digit: int, buckets: np.ndarray) -> Iterator[np.ndarray]:
    """The keys that lie in some buckets."""
    is_wanted = np.zeros(1 << digit, np.bool_)
    is_wanted[buckets] = True
    for block in keys():
        yield block[is_wanted.take(_bucket(block, low, digit))]


def _bucket(keys: np.ndarray, low: int, digit: int) -> np.ndarray:
    """The bits of each key from `low` on, `digit` of them, as an index."""
    kind = keys.dtype.type
    shifted = keys >> kind(low) if low else keys
    if low + digit < keys.dtype.itemsize * 8:
        shifted = shifted & kind((1 << digit) - 1)
    return shifted.astype(np.intp)


def _keys(values: np.ndarray) -> np.ndarray:
    """Unsigned integers in the order of the values; NaN are behind everything, or before it."""
    size = values.dtype.itemsize
    bits = np.ascontiguousarray(values).view(f"u{size}")
    sign = bits.dtype.type(1 << (8 * size - 1))
    if values.dtype.kind == "f":
        negative = (bits.view(f"i{size}") >> (8 * size - 1)).view(bits.dtype)  # all ones where it is
        return bits ^ (negative | sign)
    return bits ^ sign if values.dtype.kind == "i" else bits


def _values(keys: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The inverse of :func:`_keys`."""
    sign = keys.dtype.type(1 << (8 * keys.dtype.itemsize - 1))
    if dtype.kind == "f":
        keys = np.where(keys & sign, keys ^ sign, ~keys)
    elif dtype.kind == "i":
        keys = keys ^ sign
    return keys.view(dtype)
