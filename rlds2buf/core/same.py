"""Whether two episodes are the same, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds2buf.core.episode import Episode
from rlds2buf.errors import EpisodeError

__all__ = ["is_same"]


def is_same(one: Episode | EpisodeError, other: Episode) -> bool:
    """Whether both are one and the same, down to types and bits.

    >>> is_same(Episode(reward=np.ones(2)), Episode(reward=np.ones(2))), is_same(
    ...     Episode(reward=np.ones(2)), Episode(reward=np.ones(2, int)))
    (True, False)
    """
    if not isinstance(one, Episode) or one.derived != other.derived:
        return False
    columns, others = ([*episode.flatten(), ((), episode.metadata)] for episode in (one, other))
    return len(columns) == len(others) and all(
        path == path_ and _same_value(column, column_)
        for (path, column), (path_, column_) in zip(columns, others, strict=True)
    )


def _same_value(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(_same_value(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        if one.dtype != object:
            return bool(one.tobytes() == other.tobytes())
        one, other = one.reshape(-1).tolist(), other.reshape(-1).tolist()
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same_value, one, other))
    return bool(one == other or (one != one and other != other))
