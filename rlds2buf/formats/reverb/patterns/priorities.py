"""Priorities of a push's items: constant, from a field, or by a function."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.episode import Episode
from rlds2buf.errors import EpisodeError
from rlds2buf.formats.reverb.patterns.base import Laid, Pattern

__all__ = ["Priority", "check_priority", "priorities_of"]

Priority = float | str | Callable[[Any], Any]
"""A number; the name of a numeric step field; or a function of all items of an episode."""


def check_priority(priority: Priority, pattern: Pattern) -> None:
    """Raise unless it can give priorities to the pattern's items.

    Raises:
        ValueError: a number that is negative or not finite, or a field for items of several episodes.
    """
    if isinstance(priority, int | float) and not (math.isfinite(priority) and priority >= 0):
        raise ValueError(f"a priority must be finite and not negative, got {priority}")
    if isinstance(priority, str) and pattern.crosses:
        raise ValueError("a field can't give the priority of items that cross episode borders")


def priorities_of(priority: Priority, episode: Episode, laid: Laid) -> np.ndarray:
    """The priorities ``[I] float64`` of an episode's items.

    Raises:
        EpisodeError: the field is not there or not one number per step, or a priority is negative
            or not finite.
        ValueError: the function's answer has another shape.
    """
    count = len(laid.numbers)
    if isinstance(priority, int | float):
        return np.full(count, float(priority))
    where: dict[str, Any] = {"source": episode.source, "episode": episode.index, "rule": "priority"}
    if isinstance(priority, str):
        column = dict((nest.path_name(path), column) for path, column in episode.flatten()).get(priority)
        if column is None or column.ndim != 1 or column.dtype.kind not in "biuf":
            raise EpisodeError("a priority needs a field of one number per step", path=priority, **where)
        values = column[laid.rows].astype(np.float64)
    else:
        values = np.asarray(priority(laid.items()), np.float64)
        if values.shape not in ((), (count,)):
            raise ValueError(f"the priority function gave shape {values.shape} for {count} items")
        values = np.broadcast_to(values, (count,))
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(bad):
        # Reverb's own table worker dies of one, and the server with it.
        raise EpisodeError(
            f"a priority of {values[bad[0]]}: it must be finite and not negative",
            step=int(laid.rows[bad[0]]),
            path=priority if isinstance(priority, str) else None,
            **where,
        )
    return values
