"""Which rows leave when new ones come."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds2buf.buffers.storage import RowStore
from rlds2buf.core.fields import FINAL_ROW
from rlds2buf.errors import EpisodeError
from rlds2buf.kernels.chain import CODE

if TYPE_CHECKING:
    from rlds2buf.buffers.incoming import Block

__all__ = ["UNITS", "Fifo"]

UNITS = ("rows", "transitions", "episodes")
"""What a capacity may count: stored rows, transitions that can be sampled, or whole episodes."""


class Fifo:
    """The oldest leave first, and the bound is never exceeded.

    Args:
        limit: the capacity.
        unit: what it counts. In ``"rows"`` and ``"transitions"`` an episode leaves row by row; in
            ``"episodes"`` at once.
    """

    def __init__(self, limit: int, unit: str = "rows") -> None:
        if unit not in UNITS:
            raise ValueError(f"capacity_unit must be one of {', '.join(UNITS)}, got {unit!r}")
        if limit < 0:
            raise ValueError(f"capacity must not be negative, got {limit}")
        self.limit = limit
        self.unit = unit
        self.lengths: deque[int] = deque()

    def refuse(self, block: Block) -> None:
        """Raise if a block can't fit however much leaves; of single transitions the newest always fit.

        Raises:
            EpisodeError: an episode is longer than the capacity, or the capacity counts episodes and
                this is none.
        """
        if block.own is not None:
            if self.unit == "episodes":
                raise EpisodeError("single transitions can't go into a buffer that counts episodes", rule="no-episode")
            return
        size = {"rows": len(block.flags), "transitions": block.items, "episodes": 1}[self.unit]
        if size > self.limit:
            what = f"the episode has {size} {self.unit}, more than the capacity of {self.limit}"
            raise EpisodeError(what, source=block.origin, episode=block.index, rule="longer-than-capacity")

    def excess(self, store: RowStore, items: int, *, rows: int, more_items: int) -> int:
        """How many of the oldest rows must leave so that `rows` more, holding `more_items`, fit."""
        if self.unit == "rows":
            return max(0, store.num_rows + rows - self.limit)
        if self.unit == "transitions":
            return _rows_of_items(store, max(0, items + more_items - self.limit))
        surplus = len(self.lengths) + 1 - self.limit
        return sum(self.lengths.popleft() for _ in range(surplus)) if surplus > 0 else 0

    def added_episode(self, rows: int) -> None:
        """Note an episode of that many rows."""
        if self.unit == "episodes":
            self.lengths.append(rows)

    def shrink(self, limit: int, store: RowStore, items: int) -> int:
        """Take a new limit; returns how many of the oldest rows must leave."""
        if limit < 0:
            raise ValueError(f"capacity must not be negative, got {limit}")
        self.limit = limit
        if self.unit == "rows":
            return max(0, store.num_rows - limit)
        if self.unit == "transitions":
            return store.num_rows if limit == 0 else _rows_of_items(store, max(0, items - limit))
        return sum(self.lengths.popleft() for _ in range(max(0, len(self.lengths) - limit)))

    def clear(self) -> None:
        """Forget all episodes."""
        self.lengths.clear()

    def state(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"limit": self.limit, "unit": self.unit, "lengths": list(self.lengths)}


def _rows_of_items(store: RowStore, items: int) -> int:
    """How many of the oldest rows hold the `items` oldest transitions, final rows behind them included."""
    if items <= 0:
        return 0
    codes = np.concatenate([store.flags[slots] & CODE for slots, _ in store.spans(store.oldest, store.num_rows)])
    starts = np.flatnonzero(codes != FINAL_ROW)
    if items >= len(starts):
        return len(codes)
    # Rows between the last one to leave and the next transition are final rows of what left.
    return int(starts[items])
