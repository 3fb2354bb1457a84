"""Exact quantiles: what ``numpy.quantile`` gives of all values (linear), without holding or sorting all of them.

A quantile lies between two neighbours of the sorted values, so a few *order statistics* (the value of a rank) are all
that is needed of a column.  They are found by radix selection: numbers become unsigned integers of the same order
(the bits of a float with its sign turned), a histogram of their leading 16 bits tells in which bucket each rank
lies, and only what lies in those buckets is looked at again.  Memory is bounded, whatever the values are, and a
column in a file is read once for each 16 bits at the most.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from rlds2buf.kernels.digits import count_digits, pick_digits

__all__ = ["LEVELS", "LEVEL_NAMES", "order_statistics", "places", "quantiles_of_sorted", "weighted"]

LEVELS: Final = (0.01, 0.1, 0.5, 0.9, 0.99)
LEVEL_NAMES: Final = ("q01", "q10", "q50", "q90", "q99")
"""The quantiles that are told of every field, and what they are called."""

_DIGIT = 16
_FEW = 1 << 16
"""So many values are looked through as they are; of more, histograms are taken."""
_HELD_BYTES = 1 << 26
"""Values of one bucket that are copied out, to be looked at again; of more they are filtered on each pass."""
_MANY = 1 << 27
"""Values for which loading machine code pays, where it is not loaded already."""

Blocks = Callable[[], Iterable[np.ndarray]]
"""Gives the values of a column ``[n]`` in pieces, as often as it is called."""


class _Loops(NamedTuple):
    """The loops over values: machine code where that pays, else numpy's."""

    count: Any
    pick: Any


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


def order_statistics(blocks: Blocks, count: int, ranks: Sequence[int] | np.ndarray, others: int = 0) -> np.ndarray:
    """The values of some ranks among all values of a column, had they been sorted.

    Args:
        blocks: the column in pieces, ``[m]`` each, bool, integers or floats of 16 to 64 bits in the machine's order
            of bytes, without NaN.
        count: how many values there are.
        ranks: from 0 (the smallest) to ``count - 1`` (the largest), in any order.
        others: values of other columns that are looked at, too: where there are many, loops are compiled.

    Returns:
        ``[len(ranks)]`` of the column's type; zero is positive.

    >>> order_statistics(lambda: [np.array([3.0, -1.0]), np.array([2.0])], 3, [0, 2]).tolist()
    [-1.0, 3.0]
    """
    dtype = next(iter(blocks())).dtype
    own = np.dtype(f"u{dtype.itemsize}")
    of_few = "numba" not in sys.modules and count + others < _MANY
    loops = _Loops(*(kernel.twin if of_few else kernel for kernel in (count_digits, pick_digits)))
    found = _select(
        lambda: (np.ascontiguousarray(block).view(own) for block in blocks()),
        _turn(dtype, own),
        loops,
        count,
        np.asarray(ranks, np.int64),
        dtype.itemsize * 8,
    )
    values = _values(found.astype(own), dtype)
    return values + values.dtype.type(0) if dtype.kind == "f" else values


def _turn(dtype: np.dtype, own: np.dtype) -> np.ndarray:
    """How the bits of a type are turned so that they are in the order of its values (:mod:`rlds2buf.kernels.digits`).

    NaN are then behind everything, or before it.
    """
    sign, every = 1 << (8 * own.itemsize - 1), (1 << 8 * own.itemsize) - 1
    return np.array({"f": [sign, sign, every], "i": [sign, sign, sign]}.get(dtype.kind, [sign, 0, 0]), own)


def _select(
    blocks: Blocks, turn: np.ndarray, loops: _Loops, count: int, ranks: np.ndarray, undecided: int
) -> np.ndarray:
    """The bits, turned, of the numbers of some ranks, ``uint64``; all are alike but for so many of the lowest bits."""
    digit = min(_DIGIT, undecided)
    low = undecided - digit
    if count <= _FEW:
        every = np.ones(1, np.bool_)
        return _ranked(_picked(blocks, turn, loops, low, every, count), ranks)
    counts = np.zeros(1 << digit, np.int64)
    for block in blocks():
        loops.count(block, turn, low, counts)
    ends = np.cumsum(counts)
    buckets = np.searchsorted(ends, ranks, "right")
    wanted = np.unique(buckets)
    if not low:
        first = np.zeros(1, turn.dtype)
        loops.pick(next(block for block in blocks() if len(block))[:1], turn, 0, np.ones(1, np.bool_), first, 0)
        return (first.astype(np.uint64) >> np.uint64(digit) << np.uint64(digit)) | buckets.astype(np.uint64)
    inside = int(counts[wanted].sum())
    if inside <= _FEW:
        start = np.cumsum(counts[wanted]) - counts[wanted]  # of each bucket among those that are held
        places_held = ranks - (ends - counts)[buckets] + start[np.searchsorted(wanted, buckets)]
        return _ranked(_picked(blocks, turn, loops, low, _marked(wanted, digit), inside), places_held)
    if counts[wanted[0]] == count:  # of a constant, or of values close to one another
        return _select(blocks, turn, loops, count, ranks, low)
    found = np.empty(len(ranks), np.uint64)
    for bucket in wanted.tolist():
        size = int(counts[bucket])
        mine = buckets == bucket
        part = _part(blocks, turn, loops, low, _marked(np.array([bucket]), digit), size)
        found[mine] = _select(part, np.zeros_like(turn), loops, size, ranks[mine] - (ends[bucket] - size), low)
    return found


def _ranked(keys: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Those of some ranks, of few."""
    keys.partition(np.unique(ranks))
    return keys[ranks].astype(np.uint64)


def _marked(buckets: np.ndarray, digit: int) -> np.ndarray:
    """``[2 ** digit] bool``: the buckets."""
    is_wanted = np.zeros(1 << digit, np.bool_)
    is_wanted[buckets] = True
    return is_wanted


def _part(blocks: Blocks, turn: np.ndarray, loops: _Loops, low: int, is_wanted: np.ndarray, size: int) -> Blocks:
    """The numbers of a bucket with their bits turned, held if they are not too many."""

    def pieces() -> Iterator[np.ndarray]:
        for block in blocks():
            out = np.empty(len(block), turn.dtype)
            yield out[: loops.pick(block, turn, low, is_wanted, out, 0)]

    if size * turn.itemsize > _HELD_BYTES:
        return pieces
    held = [_picked(blocks, turn, loops, low, is_wanted, size)]
    return lambda: held


def _picked(blocks: Blocks, turn: np.ndarray, loops: _Loops, low: int, is_wanted: np.ndarray, most: int) -> np.ndarray:
    """The numbers that lie in some buckets, with their bits turned; there are at most so many."""
    out = np.empty(most, turn.dtype)
    count = 0
    for block in blocks():
        count = loops.pick(block, turn, low, is_wanted, out, count)
    return out[:count]


def _values(keys: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The numbers of bits that were turned."""
    sign = keys.dtype.type(1 << (8 * keys.dtype.itemsize - 1))
    if dtype.kind == "f":
        keys = np.where(keys & sign, keys ^ sign, ~keys)
    elif dtype.kind == "i":
        keys = keys ^ sign
    return keys.view(dtype)
