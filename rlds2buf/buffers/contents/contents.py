"""What a buffer holds, whatever leaves first."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rlds2buf.buffers.contents.draw_counts import Hits
from rlds2buf.buffers.rows.block import Block
from rlds2buf.buffers.rows.row_store import Allocator, RowStore
from rlds2buf.buffers.rows.step_ids import Mark, checked_marks
from rlds2buf.buffers.select.removers import Remover
from rlds2buf.buffers.select.samplers import Sampler

__all__ = ["Contents"]


class Contents(abc.ABC):
    """Storage, remover and sampler kept in step, and what is known of transitions that go on.

    Attributes:
        store, remover, sampler: the three.
        waiting: source id to the key of its newest transition, while that goes on.
        marks: source id to what that transition says of its episode, where it says something.
        ended: source id of an environment that resets itself at its next step, to the key of its newest transition.
        added, evicted: items so far.
        hits: how often items were sampled, where that is counted.
    """

    def __init__(self, store: RowStore, remover: Remover, sampler: Sampler) -> None:
        self.store = store
        self.remover = remover
        self.sampler = sampler
        self.waiting: dict[int, int] = {}
        self.marks: dict[int, Mark] = {}
        self.ended: dict[int, int] = {}
        self.added = self.evicted = 0
        self.hits: Hits | None = None

    @property
    def frozen(self) -> bool:
        """Whether the columns are a saved buffer's files, which must not change."""
        return not self.store.flags.flags.writeable

    @property
    def num_rows(self) -> int:
        """Rows held."""
        return self.store.num_rows

    @property
    def nbytes(self) -> int:
        """Bytes of rows, sampler and counters, allocated ones that hold nothing included."""
        return self.store.nbytes + self.sampler.nbytes + (0 if self.hits is None else self.hits.nbytes)

    @property
    def num_transitions(self) -> int:
        """Transitions held, whatever an item is."""
        items = self.store.items
        if items is None:
            return self.sampler.count
        return int(np.maximum(items[self.store.slots_from(self.store.oldest, self.store.num_rows)], 0).sum())

    @property
    def longest(self) -> int:
        """Transitions of the longest item held; 1 where each is an item."""
        store = self.store
        if store.items is None:
            return 1
        spans = store.spans(store.oldest, store.num_rows)
        return max((int(store.items[slots].max(initial=1)) for slots, _ in spans), default=1)

    @abc.abstractmethod
    def add(self, block: Block, priorities: np.ndarray | None = None) -> np.ndarray:
        """Make room and store a block; returns the keys ``uint64`` of its items."""

    @abc.abstractmethod
    def relay(self, slots: int, allocate: Allocator | None = None) -> None:
        """Move everything into that many slots."""

    @abc.abstractmethod
    def resize(self, capacity: int) -> None:
        """Take a new capacity, letting go of what does not fit."""

    @abc.abstractmethod
    def clear(self) -> None:
        """Drop all rows."""

    @abc.abstractmethod
    def holds(self, keys: np.ndarray) -> np.ndarray:
        """Which ``uint64`` keys are of transitions held."""

    @abc.abstractmethod
    def keys_of(self, slots: np.ndarray) -> np.ndarray:
        """Keys ``uint64`` of rows in ``slots int64``."""

    @abc.abstractmethod
    def slots_of(self, keys: np.ndarray) -> np.ndarray:
        """Slots ``int64`` of ``uint64`` keys that are held."""

    @abc.abstractmethod
    def check_valid(self) -> None:
        """Assert that all agree; for tests."""

    @abc.abstractmethod
    def refuse_resize(self, capacity: int) -> None:
        """Raise if :meth:`resize` would."""

    def items_of(self, slots: np.ndarray) -> np.ndarray:
        """Slots of the items that rows in ``slots int64`` belong to."""
        if self.store.items is None:
            return slots
        return (slots + np.minimum(self.store.items[slots], 0)) % self.store.slots

    @abc.abstractmethod
    def reseed(self, seed: np.random.SeedSequence) -> None:
        """Make choices of other numbers from now on, where any are made."""

    def restored(self, state: Mapping[str, Any]) -> None:
        """The store was filled with a saved one's rows; `state` is what :meth:`state` gave then."""
        self.remover.restored(self.store, state)
        self.marks = checked_marks(state.get("marks", {}))
        self.ended = {int(source): int(key) for source, key in dict(state.get("ended", {})).items()}
        if self.hits is not None:
            self.hits = Hits(self.store.slots)

    def state(self) -> dict[str, Any]:
        """What neither columns nor counts say, as plain JSON values."""
        marks = {"marks": {str(source): dict(mark) for source, mark in self.marks.items()}} if self.marks else {}
        ended = {"ended": {str(source): key for source, key in self.ended.items()}} if self.ended else {}
        return {**self.remover.state(), **marks, **ended}

    def forget_open(self, sources: Iterable[int]) -> None:
        """What comes of these sources follows nothing that is there."""
        for source in list(sources) if self.waiting else ():
            self.waiting.pop(source, None)
            self.marks.pop(source, None)

    def _previous(self, source: int, block: Block, row: int) -> int | None:
        """The key of the source's newest transition, if that goes on with this row; nothing waits any more."""
        key = self.waiting.pop(source, None)
        mark = self.marks.pop(source, None) if self.marks else None
        return key if block.ids is None or block.ids.follows(row, mark) else None

    def _wait(self, source: int, key: int, block: Block, row: int) -> None:
        """The transition of this row goes on, and what follows it is to come."""
        self.waiting[source] = key
        if block.ids is not None:
            self.marks[source] = block.ids.at(row)
