"""The numbers of each episode, of a whole block at once: as LeRobot keeps them."""

from __future__ import annotations

import numpy as np

from rlds2buf.numbers.quantiles import LEVEL_NAMES, quantiles_of_sorted

__all__ = ["KEYS", "statistics_by_episode"]

KEYS = ("min", "max", "mean", "std", "count", *LEVEL_NAMES)
"""What is told of each episode, in LeRobot's order."""


def statistics_by_episode(column: np.ndarray, starts: np.ndarray) -> dict[str, np.ndarray]:
    """Minimum, maximum, mean, standard deviation, count and quantiles of each episode, by dimension.

    Episodes of one length are done together; a block of M rows has at most ``sqrt(2 M)`` lengths.  What an episode's
    numbers are depends on its own rows only, not on the block that it came in.

    Args:
        column: ``[M, ...]`` bool, integers or floats: the rows of E episodes.
        starts: ``[E] int64``, each episode's first row, ascending from 0.

    Returns:
        By the names of :data:`KEYS`: ``min`` and ``max`` ``[E, ...]`` of the column's own type; ``mean``, ``std``
        (of the population, ddof 0) and ``q01``, ``q10``, ``q50``, ``q90``, ``q99`` (as ``numpy.quantile``, linear)
        ``[E, ...] float64``; ``count`` ``[E] int64``, its rows.  Where a dimension has NaN, all but the count are NaN.

    >>> found = statistics_by_episode(np.array([[1.0], [3.0], [5.0]]), np.array([0, 2]))
    >>> found["mean"].tolist(), found["std"].tolist(), found["q50"].tolist(), found["count"].tolist()
    ([[2.0], [5.0]], [[1.0], [0.0]], [[2.0], [5.0]], [2, 1])
    """
    starts = np.asarray(starts, np.int64)
    lengths = np.diff(starts, append=len(column))
    shape = (len(starts), *column.shape[1:])
    dtype = column.dtype.newbyteorder("=")
    found = {name: np.empty(shape, dtype if name in ("min", "max") else np.float64) for name in KEYS if name != "count"}
    order = np.argsort(lengths, kind="stable")
    edges = np.flatnonzero(np.diff(lengths[order], prepend=-1, append=-1))
    for first, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        which = order[first:stop]
        length = int(lengths[which[0]])
        for name, values in _of_equal_lengths(_stacked(column, starts[which], length).astype(dtype)).items():
            found[name][which] = values
    return {name: lengths if name == "count" else found[name] for name in KEYS}


def _stacked(column: np.ndarray, starts: np.ndarray, length: int) -> np.ndarray:
    """Episodes of one length, ``[e, ..., length]``."""
    first, count = int(starts[0]), len(starts)
    if int(starts[-1]) - first == (count - 1) * length:  # one behind the other: no gathering
        rows = column[first : first + count * length].reshape(count, length, *column.shape[1:])
    else:
        rows = column[starts[:, None] + np.arange(length)]
    return np.moveaxis(rows, 1, -1)


def _of_equal_lengths(values: np.ndarray) -> dict[str, np.ndarray]:
    """Of episodes ``[e, ..., n]``, whose memory this may use."""
    values = np.sort(np.ascontiguousarray(values), axis=-1)
    found = {"min": values[..., 0], "max": values[..., -1]}
    found.update(zip(LEVEL_NAMES, quantiles_of_sorted(values), strict=True))
    with np.errstate(invalid="ignore", over="ignore"):
        exact = values.astype(np.float64)
        is_one = found["min"] == found["max"]
        found["mean"] = np.where(is_one, exact[..., 0], exact.mean(axis=-1))
        exact -= found["mean"][..., None]
        found["std"] = np.sqrt(np.square(exact, out=exact).mean(axis=-1))
    if values.dtype.kind == "f":
        absent = np.isnan(found["max"])  # NaN are sorted behind everything
        for name in found:
            found[name] = np.where(absent, values.dtype.type(np.nan), found[name])
    return found
