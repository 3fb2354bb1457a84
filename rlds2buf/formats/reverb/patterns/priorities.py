"""Priorities of a push's items: constant, from a field, or by a function."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.episode_batch import EpisodeBatch
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


def priorities_of(
    priority: Priority, batch: EpisodeBatch, laid: Laid, wanted: np.ndarray | None = None
) -> tuple[np.ndarray, tuple[int, EpisodeError] | None]:
    """The priorities ``[I] float64`` of all items, and the first episode that has others than priorities, and why.

    Args:
        priority: as a sink is given it.
        batch, laid: the episodes.
        wanted: ``[E] bool``, the episodes whose items are asked for; those of others are 0.

    Raises:
        ValueError: the function's answer has another shape.
    """
    if isinstance(priority, int | float):
        return np.full(len(laid.numbers), float(priority)), None
    of = laid.of
    asked = np.ones(len(batch), np.bool_) if wanted is None else wanted
    told: dict[str, Any] = {"path": priority, "rule": "priority"} if isinstance(priority, str) else {"rule": "priority"}
    if isinstance(priority, str):
        column = dict((nest.path_name(path), column) for path, column in batch.rows.flatten()).get(priority)
        if column is None or column.ndim != 1 or column.dtype.kind not in "biuf":
            first = int(np.argmax(asked))
            fault = _fault("a priority needs a field of one number per step", batch, first, **told)
            return np.zeros(len(of)), (first, fault) if asked.any() else None
        values = column[batch.starts[of] + laid.rows].astype(np.float64)
        values[~asked[of]] = 0
    else:
        values = np.zeros(len(of), np.float64)
        edges = laid.first_items().tolist()
        for i in np.flatnonzero(asked).tolist():
            found = np.asarray(priority(laid.items(slice(edges[i], edges[i + 1]))), np.float64)
            count = edges[i + 1] - edges[i]
            if found.shape not in ((), (count,)):
                raise ValueError(f"the priority function gave shape {found.shape} for {count} items")
            values[edges[i] : edges[i + 1]] = found
            if not _are_priorities(found).all():
                break
    bad = np.flatnonzero(~_are_priorities(values))
    if not len(bad):
        return values, None
    # Reverb's own table worker dies of one, and the server with it.
    item = int(bad[0])
    message = f"a priority of {values[item]}: it must be finite and not negative"
    return values, (int(of[item]), _fault(message, batch, int(of[item]), step=int(laid.rows[item]), **told))


def _are_priorities(values: np.ndarray) -> np.ndarray:
    return np.isfinite(values) & (values >= 0)


def _fault(message: str, batch: EpisodeBatch, position: int, **told: Any) -> EpisodeError:
    index = None if batch.index is None else int(batch.index[position])
    return EpisodeError(message, source=batch.each_source()[position], episode=index, **told)
