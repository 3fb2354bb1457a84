"""Which rows leave when new ones come."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
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
        longest = len(block.flags) if block.ends is None else int(_rows(block).max())
        size = {"rows": longest, "episodes": 1}.get(self.unit, longest - 1)
        if size > self.limit:
            what = f"the episode has {size} {self.unit}, more than the capacity of {self.limit}"
            raise EpisodeError(what, source=block.origin, episode=block.index, rule="longer-than-capacity")

    def leaving(self, store: RowStore, items: int, block: Block) -> Sequence[int] | np.ndarray:
        """How many of the oldest rows must leave so that a block fits beside the `items` held.

        Returns:
            ``[E]`` integers: by each of the block's episodes how many have left when it is in, ascending; the rows of
            the block count on from those held: some of the first ones may leave before the last ones come.
        """
        if self.unit == "rows":
            rows: Any = len(block.flags) if block.ends is None else block.edges
            return _above(store.num_rows + rows - self.limit)
        if self.unit == "episodes":
            count = _above(len(self.lengths) + 1 + np.arange(len(block.edges)) - self.limit)
            lengths = itertools.islice(itertools.chain(self.lengths, _rows(block).tolist()), int(count[-1]))
            return np.append(0, np.cumsum(np.fromiter(lengths, np.int64)))[count]
        new: Any = block.items if block.ends is None else np.searchsorted(block.starts, block.edges)
        count = _above(items + new - self.limit)
        most = int(count[-1])
        if not most:
            return count
        starts = _first_items(store, most + 1)
        if most >= len(starts):
            starts = np.concatenate([starts, store.num_rows + block.starts, [store.num_rows + len(block.flags)]])
        return starts[list(count)] if len(count) == 1 else np.where(count, starts[count], 0)

    def added(self, block: Block) -> None:
        """Note a block that was stored, and that the oldest left."""
        if self.unit == "episodes":
            self.lengths.extend(_rows(block).tolist())
            for _ in range(len(self.lengths) - self.limit):
                self.lengths.popleft()

    def shrink(self, limit: int, store: RowStore, items: int) -> int:
        """Take a new limit; returns how many of the oldest rows must leave."""
        if limit < 0:
            raise ValueError(f"capacity must not be negative, got {limit}")
        self.limit = limit
        if self.unit == "rows":
            return max(0, store.num_rows - limit)
        if self.unit != "episodes":
            starts = _first_items(store, items - limit + 1) if 0 < limit < items else None
            return store.num_rows if limit == 0 else 0 if starts is None else int(starts[items - limit])
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
        largest = int(self._costs(block)[1].max(initial=0))
        if largest > self.limit:
            what = f"an item has {largest} {self.unit}, more than the capacity of {self.limit}"
            raise EpisodeError(what, source=block.origin, episode=block.index, rule="longer-than-capacity")

    def leaving(self, store: RowStore, items: int, block: Block) -> Sequence[int] | np.ndarray:
        """As :meth:`Fifo.leaving`; of one episode's items, too, the first ones may leave."""
        rows, costs = self._costs(block)
        if block.ends is None:
            return (self._least(rows, costs, self._used + int(costs.sum()) - self.limit),)
        used = self._used + np.append(0, np.cumsum(costs))[np.searchsorted(block.starts, block.edges)]
        surplus = np.maximum(used - self.limit, 0)
        held, gone = [], 0
        for count, cost in self._held:
            if gone >= surplus[-1]:
                break
            held.append((count, cost))
            gone += cost
        first = np.array(held, np.int64).reshape(-1, 2).T
        steps, spent = (np.append(0, np.cumsum(np.append(*both))) for both in zip(first, (rows, costs), strict=True))
        return steps[np.searchsorted(spent, surplus)]

    def added(self, block: Block) -> None:
        """Note a block that was stored, and that the oldest left."""
        rows, costs = self._costs(block)
        self._held.extend(zip(rows.tolist(), costs.tolist(), strict=True))
        self._used += int(costs.sum())
        self._leave(self.limit)

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

    def _costs(self, block: Block) -> tuple[np.ndarray, np.ndarray]:
        """``[items]``: rows of each item, final rows included, and how much of the limit it takes."""
        assert block.place is not None
        rows = np.diff(block.starts, append=len(block.flags))
        if self.unit == "rows":
            return rows, rows
        return rows, block.place[block.starts] if self.unit == "transitions" else np.ones(block.items, np.int64)

    def _least(self, rows: np.ndarray, costs: np.ndarray, surplus: int) -> int:
        """How many of the oldest rows take so much of the limit, those held before these."""
        gone = 0
        for count, cost in self._held:
            if surplus <= 0:
                return gone
            gone += count
            surplus -= cost
        own = np.searchsorted(np.append(0, np.cumsum(costs)), max(surplus, 0))
        return gone + int(rows[:own].sum())

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
    """``[E]``: rows of each episode."""
    return np.diff(block.edges, prepend=0)


def _above(values: Any) -> Any:
    """Integers, those below 0 as 0; of a single one a tuple: arrays would be felt at each step that an actor adds."""
    return (max(0, values),) if isinstance(values, int) else np.maximum(values, 0)


def _first_items(store: RowStore, count: int) -> np.ndarray:
    """Where the oldest transitions start, the first `count` of them at least if there are so many: places of rows."""
    rows = 2 * count + 64
    while True:
        rows = min(rows, store.num_rows)
        flags = [store.flags[slots] for slots, _ in store.spans(store.oldest, rows)]
        starts = np.flatnonzero(((flags[0] if len(flags) == 1 else np.concatenate(flags)) & CODE) != FINAL_ROW)
        if len(starts) >= count or rows == store.num_rows:
            return starts
        rows *= 4
