"""What a buffer holds, and how rows come in and leave."""

from __future__ import annotations

import numpy as np

from rlds2buf.buffers.incoming import Block
from rlds2buf.buffers.removers import Fifo
from rlds2buf.buffers.samplers import Sampler, item_slots
from rlds2buf.buffers.storage import Allocator, RowStore, in_memory
from rlds2buf.core.fields import CONTINUE, FINAL_ROW
from rlds2buf.kernels.chain import BREAK, CODE

__all__ = ["Contents"]


class Contents:
    """Storage, remover and sampler kept in step, and the chains of explicit transitions.

    Attributes:
        store, remover, sampler: the three.
        waiting: source id to the key of its newest transition, while that goes on.
        added, evicted: transitions so far.
    """

    def __init__(self, store: RowStore, remover: Fifo, sampler: Sampler) -> None:
        self.store = store
        self.remover = remover
        self.sampler = sampler
        self.waiting: dict[int, int] = {}
        self.added = self.evicted = 0

    @property
    def frozen(self) -> bool:
        """Whether the columns are a saved buffer's files, which must not change."""
        return not self.store.flags.flags.writeable

    def add(self, block: Block, priorities: np.ndarray | None = None) -> np.ndarray:
        """Make room and store a block; returns the keys ``uint64`` of its transitions."""
        store, remover = self.store, self.remover
        whole = rows = len(block.flags)
        if block.own is not None and rows > remover.limit:
            block = block.tail(remover.limit)
            rows = remover.limit
        if self.frozen:
            self.relay(max(remover.limit if remover.unit == "rows" else 0, store.num_rows), in_memory)
        self.evict(remover.excess(store, self.sampler.count, rows=rows, more_items=block.items))
        if store.num_rows + rows > store.slots:
            self.relay(max(2 * store.slots, store.num_rows + rows))
        skipped = whole - rows
        if skipped:
            store.newest += skipped
            store.oldest = store.newest
            self.evicted += skipped
        first = store.write(block.columns, block.flags, own=block.own, source=block.source)
        if block.own is None:
            remover.added_episode(rows)
            self.waiting.pop(int(np.max(block.source)), None)  # an episode starts anew
        elif rows and block.consecutive:
            self._chain(first, block)
        if block.items:
            if priorities is not None:
                priorities = priorities[-block.items :]
            self.sampler.added(store.slots_from(first, block.items), priorities)
        self.added += block.items + skipped
        return np.arange(first - skipped, first + block.items, dtype=np.uint64)

    def evict(self, rows: int) -> None:
        """Drop the oldest rows."""
        if rows:
            gone = self.store.evict(rows)
            self.sampler.evicted(gone)
            self.evicted += len(gone)

    def relay(self, slots: int, allocate: Allocator | None = None) -> None:
        """Move everything into that many slots."""
        before = item_slots(self.store)
        self.store.relay(slots, allocate=allocate)
        self.sampler.moved(self.store, before)

    def resize(self, capacity: int) -> None:
        """Take a new capacity, keeping the newest rows that fit."""
        store, remover = self.store, self.remover
        self.evict(remover.shrink(capacity, store, self.sampler.count))
        slots = capacity if remover.unit == "rows" else max(capacity, store.num_rows)
        self.relay(slots, in_memory if self.frozen else None)

    def clear(self) -> None:
        """Drop all rows."""
        self.evict(self.store.num_rows)
        self.remover.clear()
        self.waiting.clear()
        self.sampler.reset(self.store)

    def holds(self, keys: np.ndarray) -> np.ndarray:
        """Which ``uint64`` keys are of transitions held."""
        store = self.store
        inside = (keys >= np.uint64(store.oldest)) & (keys < np.uint64(store.newest))
        slots = store.slot_of(keys[inside].astype(np.int64))
        inside[inside] = (store.flags[slots] & CODE) != FINAL_ROW
        return inside

    def _chain(self, first: int, block: Block) -> None:
        """Say for each new explicit transition, and the ones they continue, what follows."""
        store = self.store
        count = len(block.flags)
        goes_on = (block.flags & CODE) == CONTINUE
        if isinstance(block.source, int):
            # Of one source, each is followed by the next row; only the borders need a word.
            self._continue(block.source, first)
            if goes_on[-1]:
                self._leave_open(block.source, first + count - 1)
            return
        keys = np.arange(first, first + count)
        store.flags[store.slot_of(keys[goes_on])] |= np.uint8(BREAK)  # until its successor comes
        for source in np.unique(block.source):
            mine = block.source == source
            members, open_members = keys[mine], goes_on[mine]
            self._continue(int(source), int(members[0]))
            store.link(members[:-1][open_members[:-1]], members[1:][open_members[:-1]])
            if open_members[-1]:
                self._leave_open(int(source), int(members[-1]))

    def _continue(self, source: int, key: int) -> None:
        """The source's newest transition, if it is still held and goes on, is followed by this one."""
        previous = self.waiting.pop(source, None)
        if previous is None or previous < self.store.oldest:
            return
        if key == previous + 1:
            slot = self.store.slot_of(previous)
            self.store.flags[slot] &= ~np.uint8(BREAK)
        else:
            self.store.link(np.array([previous]), np.array([key]))

    def _leave_open(self, source: int, key: int) -> None:
        """The source's newest transition goes on, and its successor is not here yet."""
        self.waiting[source] = key
        self.store.flags[self.store.slot_of(key)] |= np.uint8(BREAK)
