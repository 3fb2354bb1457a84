"""Which stored transitions a batch is made of.  Samplers know slots and nothing of the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from rlds2buf.buffers.rows.row_store import RowStore
from rlds2buf.core.row_flags import CODE, FINAL_ROW
from rlds2buf.errors import ReplayError
from rlds2buf.kernels.ring import draw_uniform

__all__ = ["Draw", "Sampler", "UniformSampler", "item_slots", "transition_slots"]


class Draw(NamedTuple):
    """B drawn items: ``slots [B] int64``, and ``probability``, ``priority``, ``weight`` ``[B] float64``."""

    slots: np.ndarray
    probability: np.ndarray
    priority: np.ndarray
    weight: np.ndarray


def item_slots(store: RowStore) -> np.ndarray:
    """``[items] int64``: slots of all rows that start an item, oldest first."""
    if store.items is None:
        return transition_slots(store)
    spans = (slots for slots, _ in store.spans(store.oldest, store.num_rows))
    return np.concatenate([np.flatnonzero(store.items[slots] > 0) + slots.start for slots in spans]).astype(np.int64)


def transition_slots(store: RowStore) -> np.ndarray:
    """``[transitions] int64``: slots of all rows that start a transition, oldest first."""
    parts = [
        np.flatnonzero((store.flags[slots] & CODE) != FINAL_ROW) + slots.start
        for slots, _ in store.spans(store.oldest, store.num_rows)
    ]
    return np.concatenate(parts).astype(np.int64)


class Sampler(Protocol):
    """What a buffer needs of a sampler.

    Attributes:
        has_priorities: whether items have priorities of their own, which :meth:`update` sets.
        count: items that can be drawn.
    """

    has_priorities: bool
    count: int

    @property
    def nbytes(self) -> int: ...
    def added(self, slots: np.ndarray, priorities: np.ndarray | None = None) -> None: ...
    def passed(self, priorities: np.ndarray) -> None: ...
    def evicted(self, slots: np.ndarray, oldest: int) -> None: ...
    def moved(self, store: RowStore, before: np.ndarray) -> None: ...
    def reset(self, store: RowStore) -> None: ...
    def draw(self, rng: np.random.Generator, size: int, *, replace: bool = True, beta: float | None = None) -> Draw: ...
    def among(
        self, rng: np.random.Generator, size: int, slots: np.ndarray, *, replace: bool, beta: float | None
    ) -> Draw: ...
    def slots_at(self, places: np.ndarray) -> np.ndarray | None: ...
    def update(self, slots: np.ndarray, values: np.ndarray) -> None: ...
    def priority_of(self, slots: np.ndarray) -> np.ndarray: ...
    def weights(self, probability: np.ndarray, beta: float | None) -> np.ndarray | None: ...
    def state(self) -> dict[str, Any]: ...
    def arrays(self, store: RowStore) -> dict[str, np.ndarray]: ...
    def live_arrays(self) -> dict[str, np.ndarray]: ...
    def restore(self, store: RowStore, state: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None: ...
    def check_valid(self, store: RowStore) -> None: ...


class UniformSampler:
    """Every transition with the same chance.

    Slots of rows that start a transition stand in a ring in order of age, so a draw is one look-up
    and never has to be repeated, and eviction moves the ring's head.  It costs 4 bytes per row.

    Attributes:
        count: transitions that can be drawn.
    """

    has_priorities = False

    def __init__(self, slots: int) -> None:
        self.ring = np.zeros(slots, _index_dtype(slots))
        self.head = 0
        self.count = 0

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        return int(self.ring.nbytes)

    def added(self, slots: np.ndarray, priorities: np.ndarray | None = None) -> None:
        """Rows that start transitions came in, newest last; priorities mean nothing here."""
        start = (self.head + self.count) % len(self.ring)
        if len(slots) == 1:
            self.ring[start] = slots[0]
            self.count += 1
            return
        room = min(len(slots), len(self.ring) - start)
        self.ring[start : start + room] = slots[:room]
        self.ring[: len(slots) - room] = slots[room:]
        self.count += len(slots)

    def passed(self, priorities: np.ndarray) -> None:
        """Items came and left at once: nothing is known of them."""

    def evicted(self, slots: np.ndarray, oldest: int) -> None:
        """The oldest rows that start items left; the oldest row now is in slot `oldest`."""
        self.head = (self.head + len(slots)) % len(self.ring) if len(self.ring) else 0
        self.count -= len(slots)

    def moved(self, store: RowStore, before: np.ndarray) -> None:
        """The store's rows moved: its transitions, oldest first, were in slots `before`."""
        slots = item_slots(store)
        self.ring = np.zeros(store.slots, _index_dtype(store.slots))
        self.ring[: len(slots)] = slots
        self.head, self.count = 0, len(slots)

    def reset(self, store: RowStore) -> None:
        """The store was emptied."""
        self.moved(store, np.zeros(0, np.int64))

    def draw(self, rng: np.random.Generator, size: int, *, replace: bool = True, beta: float | None = None) -> Draw:
        """Draw `size` transitions; there is at least one (without replacement: at least `size`)."""
        slots = np.empty(size, np.int64)
        facts = np.empty((3, size))
        if replace:
            draw_uniform(self.ring, self.head, self.count, rng.random(size), slots, facts)
        else:
            slots[:] = self.ring[(self.head + rng.choice(self.count, size, replace=False)) % len(self.ring)]
            facts[0], facts[1:] = 1.0 / self.count, 1.0
        return Draw(slots, facts[0], facts[1], facts[2])

    def among(
        self, rng: np.random.Generator, size: int, slots: np.ndarray, *, replace: bool, beta: float | None
    ) -> Draw:
        """Draw from these transitions only; there are enough."""
        ones = np.ones((2, size))
        return Draw(slots[rng.choice(len(slots), size, replace=replace)], ones[0] / len(slots), ones[0], ones[1])

    def slots_at(self, places: np.ndarray) -> np.ndarray:
        """Slots ``[B] int64`` of the items in these places ``[B] int64``, all of them below `count`.

        An item keeps its place until one leaves.
        """
        if self.head:
            places = self.head + places
            places[places >= len(self.ring)] -= len(self.ring)  # a division takes longer
        return self.ring[places].astype(np.int64)

    def update(self, slots: np.ndarray, values: np.ndarray) -> None:
        """Raise ReplayError: there are no priorities to set."""
        raise ReplayError("this buffer samples uniformly and keeps no priorities")

    def priority_of(self, slots: np.ndarray) -> np.ndarray:
        """``[B] float64``: all are alike."""
        return np.ones(len(slots))

    def weights(self, probability: np.ndarray, beta: float | None) -> np.ndarray | None:
        """None: those of several draws are of one kind already."""
        return None

    def slots(self) -> np.ndarray:
        """``[count] int64``, oldest first."""
        index = (self.head + np.arange(self.count)) % max(len(self.ring), 1)
        return self.ring[index].astype(np.int64)

    def check_valid(self, store: RowStore) -> None:
        """Assert that the ring holds exactly the stored transitions; for tests."""
        assert np.array_equal(self.slots(), item_slots(store))

    def state(self) -> dict[str, Any]:
        """What is neither in the store nor in :meth:`arrays`: nothing."""
        return {}

    def arrays(self, store: RowStore) -> dict[str, np.ndarray]:
        """What is saved beside the rows: their places ``[count]``, counted from the oldest row."""
        first = store.slot_of(store.oldest)
        return {"starts": ((self.slots() - first) % max(store.slots, 1)).astype(np.uint32)}

    def live_arrays(self) -> dict[str, np.ndarray]:
        """What is saved beside rows that stay in their slots: nothing, :meth:`restore` looks at the rows."""
        return {}

    def restore(self, store: RowStore, state: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Take back :meth:`state` and :meth:`arrays` (the oldest row in slot 0) or :meth:`live_arrays`."""
        if "starts" not in arrays:
            return self.moved(store, np.zeros(0, np.int64))
        starts = arrays["starts"]
        if starts.dtype not in (np.uint32, np.int64) or starts.ndim != 1 or len(starts) > store.slots:
            raise ValueError(f"starts is {starts.dtype}{list(starts.shape)}, and there are {store.slots} slots")
        # Rows are gathered by these without another look.
        if len(starts) and not (0 <= int(starts.min()) and int(starts.max()) < store.slots):
            raise ValueError(f"starts lead out of the {store.slots} slots")
        self.ring = starts
        self.head, self.count = 0, len(self.ring)
        if store.flags.flags.writeable:  # rows may come at once, without a move to other slots before
            self.ring = np.zeros(store.slots, _index_dtype(store.slots))
            self.ring[: self.count] = arrays["starts"]


def _index_dtype(slots: int) -> np.dtype:
    return np.dtype(np.uint32 if slots <= 1 << 32 else np.int64)
