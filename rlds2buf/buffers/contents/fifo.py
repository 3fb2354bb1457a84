"""What a buffer holds that lets the oldest go first, and how rows come in and leave."""

from __future__ import annotations

import numpy as np

from rlds2buf.buffers.contents.contents import Contents
from rlds2buf.buffers.rows.block import Block
from rlds2buf.buffers.rows.row_store import Allocator, RowStore, in_memory
from rlds2buf.buffers.select.removers import Fifo
from rlds2buf.buffers.select.samplers import Sampler, item_slots
from rlds2buf.core.row_flags import BREAK, CODE, CONTINUE, FINAL_ROW

__all__ = ["FifoContents"]


class FifoContents(Contents):
    """A ring of rows, from which the oldest leave, and the chains of explicit transitions."""

    def __init__(self, store: RowStore, remover: Fifo, sampler: Sampler) -> None:
        super().__init__(store, remover, sampler)
        self.fifo = remover

    def add(self, block: Block, priorities: np.ndarray | None = None) -> np.ndarray:
        """Make room and store a block; returns the keys ``uint64`` of its items.

        Several episodes are stored at once, and all is as if they had come one after the other, the places
        in memory included: where the slots have to become more for one of them, those before it go in first.
        """
        store, rest = self.store, block
        if self.frozen:
            self.relay(max(self.fifo.limit if self.fifo.unit == "rows" else 0, store.num_rows), in_memory)
        first = store.newest
        rows, gone = self._make_room(rest)
        while rows < len(rest.flags):
            piece, rest = rest.rows(0, rows), rest.rows(rows, len(rest.flags))
            self._store(piece, gone, None if priorities is None else priorities[: piece.items])
            priorities = None if priorities is None else priorities[piece.items :]
            rows, gone = self._make_room(rest)
        self._store(rest, gone, priorities)
        if block.place is None and block.ends is None:
            return np.arange(first, first + block.items, dtype=np.uint64)
        return (first + block.starts).astype(np.uint64)

    def _make_room(self, block: Block) -> tuple[int, int]:
        """Have slots for a block's first episodes: how many rows those are, and how many rows leave for them.

        Of the latter, the rows held are the first ones, and then those of the block.
        """
        store, leaving = self.store, self.fifo.leaving(self.store, self.sampler.count, block)
        if block.ends is None:
            rows, gone = len(block.flags), int(leaving[0])
            needed = store.num_rows + rows - gone
            return rows, gone if needed <= store.slots else gone - self._grow(rows, gone, needed)
        edges = block.edges
        held = store.num_rows + edges - leaving  # once each episode is in
        gone = 0
        if held[0] > store.slots:
            gone = self._grow(int(edges[0]), int(leaving[0]), int(held[0]))
        few = held > store.slots
        last = int(np.argmax(few)) - 1 if few.any() else len(edges) - 1
        return int(edges[last]), int(leaving[last]) - gone

    def _grow(self, rows: int, gone: int, needed: int) -> int:
        """Have `needed` slots for so many rows, at least twice as many as now; how many of the rows held left."""
        store = self.store
        store.expect(rows)
        gone = min(gone, store.num_rows)
        self.evict(gone)
        self.relay(max(2 * store.slots, needed))
        return gone

    def _store(self, block: Block, gone: int, priorities: np.ndarray | None) -> None:
        """Store a block that there is room for once so many rows have left, of which its own first ones may be some."""
        store, whole = self.store, block
        skipped = max(0, gone - store.num_rows)
        if skipped:
            block = block.rows(skipped, len(block.flags))
        store.expect(len(block.flags))
        if gone:
            self.evict(gone - skipped)
        if skipped:
            self._skip(skipped, whole.items - block.items, priorities)
        first = store.write(block.columns, block.flags, own=block.own, source=block.source)
        if block.place is not None:
            store.put("items", first, block.place)
        self.fifo.added(whole)
        if block.place is None:
            self._join(first, block)
        if block.items:
            if priorities is not None:
                priorities = priorities[-block.items :]
            self.sampler.added(self._slots(first, block), priorities)
        self.added += whole.items

    def _skip(self, rows: int, items: int, priorities: np.ndarray | None) -> None:
        """So many rows came and left at once; there are no others."""
        store = self.store
        store.newest += rows
        store.oldest = store.newest
        self.sampler.evicted(np.zeros(0, np.int64), int(store.slot_of(store.oldest)))
        if priorities is not None:
            self.sampler.passed(priorities[:items])
        if self.hits is not None:
            self.hits.left(np.full(items, -1))
        self.evicted += items

    def evict(self, rows: int) -> None:
        """Drop the oldest rows."""
        if rows:
            gone = self.store.evict(rows)
            self.sampler.evicted(gone, int(self.store.slot_of(self.store.oldest)))
            if self.hits is not None:
                self.hits.left(gone)
            self.evicted += len(gone)

    def relay(self, slots: int, allocate: Allocator | None = None) -> None:
        """Move everything into that many slots."""
        before = item_slots(self.store)
        self.store.relay(slots, allocate=allocate)
        self.sampler.moved(self.store, before)
        if self.hits is not None:
            self.hits.moved(before, item_slots(self.store), slots)

    def resize(self, capacity: int) -> None:
        """Take a new capacity, keeping the newest rows that fit."""
        store, remover = self.store, self.fifo
        slots = capacity if remover.unit == "rows" else max(capacity, store.num_rows)
        store.require_room(slots)
        self.evict(remover.shrink(capacity, store, self.sampler.count))
        slots = capacity if remover.unit == "rows" else max(capacity, store.num_rows)
        self.relay(slots, in_memory if self.frozen else None)

    def clear(self) -> None:
        """Drop all rows."""
        self.evict(self.store.num_rows)
        self.fifo.clear()
        self.forget_open(self.waiting)
        self.sampler.reset(self.store)

    def refuse_resize(self, capacity: int) -> None:
        """Any capacity will do."""

    def reseed(self, seed: np.random.SeedSequence) -> None:
        """Nothing here is chosen at random."""

    def keys_of(self, slots: np.ndarray) -> np.ndarray:
        """Keys ``uint64`` of rows in ``slots int64``."""
        return self.store.key_of(slots)

    def slots_of(self, keys: np.ndarray) -> np.ndarray:
        """Slots ``int64`` of ``uint64`` keys that are held."""
        return np.asarray(self.store.slot_of(keys.astype(np.int64)))

    def check_valid(self) -> None:
        """Assert that all agree; for tests."""
        store, count, remover = self.store, self.sampler.count, self.fifo
        assert 0 <= store.num_rows <= store.slots
        assert count == len(item_slots(store))
        self.sampler.check_valid(store)
        assert store.num_own <= store.num_rows
        held = {"rows": store.num_rows, "episodes": len(remover.lengths)}.get(remover.unit, count)
        if store.items is not None and remover.unit == "transitions":
            held = self.num_transitions
        assert held <= remover.limit

    def holds(self, keys: np.ndarray) -> np.ndarray:
        """Which ``uint64`` keys are of transitions held."""
        store = self.store
        inside = (keys >= np.uint64(store.oldest)) & (keys < np.uint64(store.newest))
        slots = store.slot_of(keys[inside].astype(np.int64))
        inside[inside] = (store.flags[slots] & CODE) != FINAL_ROW
        return inside

    def _slots(self, first: int, block: Block) -> np.ndarray:
        """``[items] int64``: where the items of a block lie that was written from key `first` on."""
        if block.place is None and block.ends is None:
            return self.store.slots_from(first, block.items)
        return self.store.slots_at(first, block.starts)

    def _join(self, first: int, block: Block) -> None:
        """Say what follows what, for transitions as items."""
        if block.begins is not None:
            self.forget_open(block.begins)
        elif len(block.flags) and block.consecutive:
            self._chain(first, block)

    def _chain(self, first: int, block: Block) -> None:
        """Say for each new explicit transition, and the ones they continue, what follows."""
        store = self.store
        count = len(block.flags)
        if isinstance(block.source, int):
            # Of one source, each is followed by the next row; only the borders need a word.
            self._continue(block.source, first, block, 0)
            if int(block.flags[-1]) & CODE == CONTINUE:
                self._leave_open(block.source, first + count - 1, block, count - 1)
            return
        goes_on = (block.flags & np.uint8(CODE | BREAK)) == CONTINUE
        keys = np.arange(first, first + count)
        store.flags[store.slot_of(keys[goes_on])] |= np.uint8(BREAK)  # until its successor comes
        for source in np.unique(block.source):
            rows = np.flatnonzero(block.source == source)
            members, open_members = keys[rows], goes_on[rows]
            self._continue(int(source), int(members[0]), block, int(rows[0]))
            store.link(members[:-1][open_members[:-1]], members[1:][open_members[:-1]])
            if open_members[-1]:
                self._leave_open(int(source), int(members[-1]), block, int(rows[-1]))

    def _continue(self, source: int, key: int, block: Block, row: int) -> None:
        """The source's newest transition, if it is still held and goes on with this row, is followed by it."""
        previous = self._previous(source, block, row)
        if previous is None or previous < self.store.oldest:
            return
        if key == previous + 1:
            slot = self.store.slot_of(previous)
            self.store.changing(slice(slot, slot + 1))
            self.store.flags[slot] = int(self.store.flags[slot]) & ~BREAK
        else:
            self.store.link(np.array([previous]), np.array([key]))

    def _leave_open(self, source: int, key: int, block: Block, row: int) -> None:
        """The source's newest transition goes on, and its successor is not here yet."""
        self._wait(source, key, block, row)
        slot = self.store.slot_of(key)
        self.store.flags[slot] = int(self.store.flags[slot]) | BREAK
