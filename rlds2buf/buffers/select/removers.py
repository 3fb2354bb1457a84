"""Which rows leave when new ones come."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from rlds2buf.buffers.rows.block import Block
from rlds2buf.buffers.rows.row_store import RowStore
from rlds2buf.core.entries import Entries
from rlds2buf.core.row_flags import CODE, FINAL_ROW
from rlds2buf.errors import EpisodeError

__all__ = ["UNITS", "Fifo", "Remover", "Reservoir", "WholeFifo"]

UNITS = ("rows", "transitions", "episodes", "items")
"""What a capacity may count: stored rows, transitions, whole episodes, or items, whatever one is."""


class Remover(Protocol):
    """What a buffer needs of what decides who leaves.

    Attributes:
        limit: the capacity.
        unit: what it counts.
        lengths: rows of each whole episode held, oldest first, where those leave at once.
    """

    limit: int
    unit: str
    lengths: deque[int]

    def refuse(self, block: Block) -> None: ...
    def state(self) -> dict[str, Any]: ...
    def restored(self, store: RowStore, state: Mapping[str, Any]) -> None: ...


class Fifo:
    """The oldest leave first, and the bound is never exceeded.

    Args:
        limit: the capacity.
        unit: what it counts. In ``"rows"`` and ``"transitions"`` (here also called ``"items"``) an
            episode leaves row by row; in ``"episodes"`` at once.
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
        size = {"rows": len(block.flags), "episodes": 1}.get(self.unit, block.items)
        if size > self.limit:
            what = f"the episode has {size} {self.unit}, more than the capacity of {self.limit}"
            raise EpisodeError(what, source=block.origin, episode=block.index, rule="longer-than-capacity")

    def fitting(self, block: Block) -> Block:
        """What of a block can be held at all: of more explicit transitions than that, the newest."""
        return block if block.own is None or len(block.flags) <= self.limit else block.tail(self.limit)

    def excess(self, store: RowStore, items: int, block: Block) -> int:
        """How many of the oldest rows must leave so that a block fits beside the `items` held."""
        if self.unit == "rows":
            return max(0, store.num_rows + len(block.flags) - self.limit)
        if self.unit != "episodes":
            return _rows_of_items(store, max(0, items + block.items - self.limit))
        surplus = len(self.lengths) + 1 - self.limit
        return sum(self.lengths.popleft() for _ in range(surplus)) if surplus > 0 else 0

    def added(self, block: Block) -> None:
        """Note a block that was stored."""
        if self.unit == "episodes":
            self.lengths.append(len(block.flags))

    def shrink(self, limit: int, store: RowStore, items: int) -> int:
        """Take a new limit; returns how many of the oldest rows must leave."""
        if limit < 0:
            raise ValueError(f"capacity must not be negative, got {limit}")
        self.limit = limit
        if self.unit == "rows":
            return max(0, store.num_rows - limit)
        if self.unit != "episodes":
            return store.num_rows if limit == 0 else _rows_of_items(store, max(0, items - limit))
        return sum(self.lengths.popleft() for _ in range(max(0, len(self.lengths) - limit)))

    def clear(self) -> None:
        """Forget all episodes."""
        self.lengths.clear()

    def restored(self, store: RowStore, state: Mapping[str, Any]) -> None:
        """Take back :meth:`state`, the store being filled already."""

    def state(self) -> dict[str, Any]:
        """What is saved beside limit, unit and lengths, as plain JSON values: nothing."""
        return {}


class WholeFifo(Fifo):
    """The oldest items of several transitions leave, each whole, and the bound is never exceeded.

    Args:
        limit: the capacity.
        unit: what it counts: ``"rows"``, ``"transitions"`` or ``"items"`` (``"episodes"`` is that too).
    """

    def __init__(self, limit: int, unit: str = "rows") -> None:
        super().__init__(limit, unit)
        self._held: deque[tuple[int, int]] = deque()  # rows of each item, and how much of the limit it takes
        self._used = 0

    def refuse(self, block: Block) -> None:
        """Raise if an item can't fit however much leaves.

        Raises:
            EpisodeError: it is longer than the capacity.
        """
        largest = int(self._costs(block).max(initial=0))
        if largest > self.limit:
            what = f"an item has {largest} {self.unit}, more than the capacity of {self.limit}"
            raise EpisodeError(what, source=block.origin, episode=block.index, rule="longer-than-capacity")

    def fitting(self, block: Block) -> Block:
        """The newest items of a block that can be held together."""
        from_end = np.cumsum(self._costs(block)[::-1])
        count = int(np.searchsorted(from_end, self.limit, side="right"))
        if count == block.items:
            return block
        starts = block.starts
        rows = 0 if count == 0 else len(block.flags) - int(starts[len(starts) - count])
        return dataclasses.replace(block.tail(rows), items=count)

    def excess(self, store: RowStore, items: int, block: Block) -> int:
        """How many of the oldest rows must leave so that a block fits."""
        return self._leave(self.limit - int(self._costs(block).sum()))

    def added(self, block: Block) -> None:
        """Note a block that was stored."""
        costs = self._costs(block)
        self._held.extend(zip(_rows(block).tolist(), costs.tolist(), strict=True))
        self._used += int(costs.sum())

    def shrink(self, limit: int, store: RowStore, items: int) -> int:
        """Take a new limit; returns how many of the oldest rows must leave."""
        if limit < 0:
            raise ValueError(f"capacity must not be negative, got {limit}")
        self.limit = limit
        return self._leave(limit)

    def clear(self) -> None:
        """Forget all items."""
        self._held.clear()
        self._used = 0

    def restored(self, store: RowStore, state: Mapping[str, Any]) -> None:
        """Find the items of a store that was filled."""
        if store.items is None:
            raise KeyError("items")
        self.clear()
        place = store.items[store.slots_from(store.oldest, store.num_rows)]
        starts = np.flatnonzero(place > 0)
        rows = np.diff(starts, append=len(place))
        costs = {"rows": rows, "transitions": place[starts]}.get(self.unit, np.ones_like(rows))
        self._held.extend(zip(rows.tolist(), costs.tolist(), strict=True))
        self._used = int(costs.sum())

    def _costs(self, block: Block) -> np.ndarray:
        """``[items]``: how much of the limit each item takes."""
        assert block.place is not None
        if self.unit == "rows":
            return _rows(block)
        return block.place[block.starts] if self.unit == "transitions" else np.ones(block.items, np.int64)

    def _leave(self, limit: int) -> int:
        rows = 0
        while self._used > limit:
            count, cost = self._held.popleft()
            rows += count
            self._used -= cost
        return rows


class Reservoir:
    """Each of all items ever offered is held with the same chance (Algorithm R of Vitter 1985).

    Item number t (from 1) is taken while there is room, and after that with probability
    ``limit / t``, in place of one that any of those held may be.

    Args:
        limit: the capacity, in items.
        unit: what it is called: ``"items"``, or for single steps also ``"rows"`` or ``"transitions"``.
        seed: of the choices.

    Attributes:
        seen: items offered so far.
    """

    def __init__(self, limit: int, unit: str = "items", *, seed: int | np.random.SeedSequence | None = None) -> None:
        if unit not in UNITS:
            raise ValueError(f"capacity_unit must be one of {', '.join(UNITS)}, got {unit!r}")
        if limit < 0:
            raise ValueError(f"capacity must not be negative, got {limit}")
        self.limit = limit
        self.unit = unit
        self.lengths: deque[int] = deque()
        self.seen = 0
        self._rng = np.random.default_rng(None if seed is None else _apart(seed))

    def refuse(self, block: Block) -> None:
        """Every block can be offered."""

    def places(self, count: int) -> np.ndarray:
        """Offer `count` more items: ``[count] int64`` places in 0 to limit - 1, or -1 for those turned away.

        What had a place before leaves it, also an item offered in the same call.
        """
        number = np.arange(self.seen + 1, self.seen + count + 1)
        self.seen += count
        full = number > self.limit
        places = number - 1
        places[full] = self._rng.integers(0, number[full])
        places[places >= self.limit] = -1
        return places

    def place(self) -> int:
        """The same for one item."""
        self.seen += 1
        place = self.seen - 1 if self.seen <= self.limit else int(self._rng.integers(0, self.seen))
        return place if place < self.limit else -1

    def resize(self, limit: int, count: int) -> np.ndarray:
        """Take a new limit; returns which of the `count` places in use stay, ascending."""
        if limit < 0:
            raise ValueError(f"capacity must not be negative, got {limit}")
        self.limit = limit
        return np.arange(count) if count <= limit else np.sort(self._rng.choice(count, limit, replace=False))

    def reseed(self, seed: np.random.SeedSequence) -> None:
        """Choose from other numbers from now on."""
        self._rng = np.random.default_rng(seed)

    def clear(self) -> None:
        """Begin anew."""
        self.seen = 0

    def restored(self, store: RowStore, state: Mapping[str, Any]) -> None:
        """Take back :meth:`state`."""
        self.seen = Entries(state).integer("seen")
        if state.get("rng") is not None:
            self._rng.bit_generator.state = state["rng"]

    def state(self) -> dict[str, Any]:
        """What is saved beside limit and unit, as plain JSON values."""
        return {"seen": self.seen, "rng": self._rng.bit_generator.state}


def _apart(seed: int | np.random.SeedSequence) -> np.random.SeedSequence:
    """A seed for choices that have nothing to do with what the same seed draws elsewhere."""
    return np.random.SeedSequence(seed.entropy if isinstance(seed, np.random.SeedSequence) else seed, spawn_key=(1,))


def _rows(block: Block) -> np.ndarray:
    """``[items]``: rows of each item, final rows included."""
    return np.diff(block.starts, append=len(block.flags))


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
