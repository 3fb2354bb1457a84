"""Rows of zeros between the rows of episodes: padding that items may cover."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["spaced"]


def spaced(
    columns: Sequence[np.ndarray], lengths: np.ndarray, *, before: int = 0, behind: np.ndarray | int = 0
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """The rows of E episodes with rows of zeros (of byte strings: empty ones) around each.

    Args:
        columns: arrays ``[R, ...]``.
        lengths: ``[E] int64``, the rows of each episode; together R.
        before: how many rows of zeros come before each.
        behind: how many come behind: a number, or ``[E] int64``.

    Returns:
        The columns ``[S, ...]``, ``[E+1] int64`` where each episode begins with its zeros, then S, and ``[R] int64``
        where each row is now.

    >>> columns, edges, place = spaced([np.array([1, 2, 3])], np.array([2, 1]), behind=np.array([0, 2]))
    >>> columns[0].tolist(), edges.tolist(), place.tolist()
    ([1, 2, 3, 0, 0], [0, 2, 5], [0, 1, 2])
    """
    edges = np.append(0, np.cumsum(lengths + before + behind))
    starts = np.cumsum(lengths) - lengths
    place = np.arange(int(lengths.sum())) + np.repeat(edges[:-1] + before - starts, lengths)
    if len(place) == edges[-1]:
        return list(columns), edges, place
    is_zero = np.ones(int(edges[-1]), np.bool_)
    is_zero[place] = False
    out = []
    for column in columns:
        longer = np.zeros((len(is_zero), *column.shape[1:]), column.dtype)
        if column.dtype == object:
            longer[is_zero] = b""
        longer[place] = column
        out.append(longer)
    return out, edges, place
