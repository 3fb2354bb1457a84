"""What a reservoir holds: items that leave at random, so that all there ever were stay equally likely.

Rows lie in one log, in the order of their arrival, each with its key.  An item that leaves is only
marked; when the log is full, the rows of those that are left move up.  A log with a quarter of spare
room does that four times at most until as many items again as it holds were taken in, which happens
ever more rarely.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds2buf.buffers.contents.contents import Contents
from rlds2buf.buffers.rows.block import Block
from rlds2buf.buffers.rows.row_store import Allocator, RowStore, in_memory
from rlds2buf.buffers.select.removers import Reservoir
from rlds2buf.buffers.select.samplers import UniformSampler, item_slots
from rlds2buf.core.entries import Entries
from rlds2buf.core.row_flags import BREAK, CODE, CONTINUE, FINAL_ROW, LINKED, OWN_NEXT
from rlds2buf.errors import ReplayError

__all__ = ["ReservoirContents", "ReservoirSampler", "log_slots"]


def log_slots(capacity: int) -> int:
    """Rows of a log for that many single steps."""
    return capacity + max(capacity // 4, 16)


class ReservoirSampler(UniformSampler):
    """Every item with the same chance; each has a place, in which another one may follow it."""

    def put(self, places: np.ndarray, slots: np.ndarray, count: int) -> None:
        """Items in ``slots [n] int64`` take these ``[n]`` places, after which there are `count` items."""
        if count > len(self.ring):
            ring = np.zeros(max(count, 2 * len(self.ring)), self.ring.dtype)
            ring[: self.count] = self.ring[: self.count]
            self.ring = ring
        self._own()[places] = slots
        self.count = count

    def keep(self, places: np.ndarray) -> None:
        """Only the items in these places stay, in this order."""
        self.ring, self.count = self.ring[places], len(places)

    def renumber(self, slots: np.ndarray) -> None:
        """What was in slot i is in ``slots[i]`` now."""
        self._own()[: self.count] = slots[self.ring[: self.count]]

    def check_valid(self, store: RowStore) -> None:
        """Assert that each held item has one place; for tests."""
        assert self.head == 0
        assert np.array_equal(np.sort(self.slots()), item_slots(store))

    def live_arrays(self) -> dict[str, np.ndarray]:
        """The items' slots in order of their places, for rows that stay where they are."""
        return {"starts": self.ring[: self.count]}

    def _own(self) -> np.ndarray:
        """The ring, in memory: a saved buffer's file stays as it is."""
        if not self.ring.flags.writeable:
            self.ring = self.ring.copy()
        return self.ring


class ReservoirContents(Contents):
    """A log of rows, a :class:`Reservoir` and who has which place.

    Keys count the rows of all that was offered, so that what was turned away has keys too.
    """

    def __init__(self, store: RowStore, remover: Reservoir, sampler: ReservoirSampler) -> None:
        super().__init__(store, remover, sampler)
        self.choice = remover
        self.places = sampler
        store.add_column("keys")
        self.next_key = 0
        self._rows = 0

    @property
    def num_rows(self) -> int:
        """Rows held; the log has others, of items that left."""
        return self._rows

    def add(self, block: Block, priorities: np.ndarray | None = None) -> np.ndarray:
        """Offer a block's items; returns the keys ``uint64`` of all of them, held or not."""
        if self.frozen:
            self.relay(max(log_slots(self.choice.limit), self.store.newest), in_memory)
        if block.begins is not None:
            self.forget_open(block.begins)
        if block.items == 1 and block.place is None:
            return self._add_step(block)
        self._prepare(len(block.flags))
        starts, keys = block.starts, self.next_key + block.starts
        rows = np.diff(starts, append=len(block.flags))
        places = self.choice.places(block.items)
        taken = _last_of_each(places)
        count = min(self.choice.limit, self.choice.seen)
        self._replace(places)
        self._make_room(int(rows[taken].sum()))
        first = self.store.newest
        self._write(block, taken, starts, rows)
        self.places.put(places[taken], first + np.cumsum(rows[taken]) - rows[taken], count)
        if block.place is None and block.items:
            self._chain_taken(block, taken, keys, first)
        self.next_key += len(block.flags)
        self.added += block.items
        self.evicted = self.added - count
        return keys.astype(np.uint64)

    def _add_step(self, block: Block) -> np.ndarray:
        """Offer a single step, as an actor does one after the other."""
        self._prepare(1)
        store, key, place = self.store, self.next_key, self.choice.place()
        self.next_key += 1
        self.added += 1
        source = block.source if isinstance(block.source, int) else int(block.source[0])
        before = self._previous(source, block, 0)
        if place >= 0:
            count = self.places.count
            if place < count:
                self._leave(np.array([self.places.ring[place]], np.int64))
            self._make_room(1)
            slot = store.write(block.columns, block.flags, own=block.own, source=block.source)
            store.put("keys", slot, np.array([key]))
            self._rows += 1
            self.places.put(np.array([place]), np.array([slot]), max(count, place + 1))
            if int(block.flags[0]) & (CODE | BREAK) == CONTINUE:
                store.flags[slot] |= np.uint8(BREAK)  # until its successor comes
                if block.consecutive:
                    self._wait(source, key, block, 0)
            if before is not None and block.consecutive:
                self._follow(before, slot)
        self.evicted = self.added - self.places.count
        return np.array([key], np.uint64)

    def relay(self, slots: int, allocate: Allocator | None = None) -> None:
        """Move the log into that many slots; rows keep their places."""
        before = item_slots(self.store) if self.hits is not None else None
        self.store.relay(slots, allocate=allocate)
        if self.hits is not None and before is not None:
            self.hits.moved(before, before, slots)

    def refuse_resize(self, capacity: int) -> None:
        """Raise if :meth:`resize` would.

        Raises:
            ReplayError: it is larger, and items have left already: no choice of those held would be fair.
        """
        choice, count = self.choice, self.places.count
        if capacity > choice.limit and choice.seen > count:
            raise ReplayError(
                f"a reservoir that has let items go can't grow: it holds {count} of {choice.seen}, "
                "and more of them it can't get back"
            )

    def resize(self, capacity: int) -> None:
        """Take a new capacity: of more items than that, some stay, each as likely.

        Raises:
            ReplayError: as :meth:`refuse_resize` says.
        """
        self.refuse_resize(capacity)
        self.store.require_room(log_slots(capacity))
        choice, count = self.choice, self.places.count
        places = choice.resize(capacity, count)
        if self.frozen:
            self.relay(self.store.slots, in_memory)
        gone = np.setdiff1d(np.arange(count), places)
        self._leave(self.places.ring[gone].astype(np.int64))
        self.places.keep(places)
        self.evicted += len(gone)
        self._compact()
        self.relay(max(log_slots(capacity), self.store.newest))

    def clear(self) -> None:
        """Drop all rows and count from nothing again; keys go on."""
        if self.frozen:
            self.relay(self.store.slots, in_memory)
        self.evicted += self.places.count
        self._leave(self.places.slots())
        self.places.keep(np.zeros(0, np.int64))
        self._compact()
        self.choice.clear()
        self.forget_open(self.waiting)

    def holds(self, keys: np.ndarray) -> np.ndarray:
        """Which ``uint64`` keys are of transitions held."""
        store = self.store
        assert store.keys is not None
        held = store.keys[: store.newest]
        if not len(held):
            return np.zeros(len(keys), np.bool_)
        slots = np.minimum(np.searchsorted(held, keys.astype(np.int64)), len(held) - 1)
        return (held[slots].astype(np.uint64) == keys) & ((store.flags[slots] & CODE) != FINAL_ROW)

    def keys_of(self, slots: np.ndarray) -> np.ndarray:
        """Keys ``uint64`` of rows in ``slots int64``."""
        assert self.store.keys is not None
        return self.store.keys[slots].astype(np.uint64)

    def slots_of(self, keys: np.ndarray) -> np.ndarray:
        """Slots ``int64`` of ``uint64`` keys that are held."""
        assert self.store.keys is not None
        return np.searchsorted(self.store.keys[: self.store.newest], keys.astype(np.int64))

    def state(self) -> dict[str, Any]:
        """What neither columns nor counts say, as plain JSON values."""
        return {**super().state(), "next_key": self.next_key}

    def reseed(self, seed: np.random.SeedSequence) -> None:
        """Choose from other numbers from now on."""
        self.choice.reseed(np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, 1)))

    def restored(self, state: Mapping[str, Any]) -> None:
        """Take back :meth:`state`, the store being filled already."""
        super().restored(state)
        if self.store.keys is None:
            raise KeyError("keys")
        self.next_key = Entries(state).integer("next_key")
        self._rows = int(np.count_nonzero(self._live()))

    def check_valid(self) -> None:
        """Assert that all agree; for tests."""
        store, count = self.store, self.places.count
        assert store.oldest == store.base == 0 <= store.newest <= store.slots
        assert count == min(self.choice.limit, self.choice.seen) == len(item_slots(store))
        self.places.check_valid(store)
        assert store.keys is not None
        assert (np.diff(store.keys[: store.newest]) > 0).all()
        assert self._rows == np.count_nonzero(self._live())
        assert self.added == self.evicted + count

    def _write(self, block: Block, taken: np.ndarray, starts: np.ndarray, rows: np.ndarray) -> None:
        """Put the rows of the items taken behind the log's newest."""
        store, first = self.store, self.store.newest
        index: Any = slice(None)
        if len(taken) < block.items:
            ends = np.cumsum(rows[taken])
            index = np.repeat(starts[taken] - ends + rows[taken], rows[taken]) + np.arange(int(ends[-1:].sum()))
        store.write(
            [column[index] for column in block.columns],
            block.flags[index],
            own=None if block.own is None else [column[index] for column in block.own],
            source=block.source if isinstance(block.source, int) else block.source[index],
        )
        store.put("keys", first, self.next_key + np.arange(len(block.flags))[index])
        if block.place is not None:
            store.put("items", first, block.place[index])
        self._rows += store.newest - first

    def _chain_taken(self, block: Block, taken: np.ndarray, keys: np.ndarray, first: int) -> None:
        """Say for single steps which other held one follows each, if it is held."""
        store, count = self.store, block.items
        slot = np.full(count + 1, -1, np.int64)  # of each transition offered; the last one is nobody's
        slot[taken] = np.arange(first, first + len(taken))
        after = np.full(count, count)
        sources = np.broadcast_to(block.source, (count,))
        order = np.argsort(sources, kind="stable") if count > 1 else np.zeros(count, np.int64)
        same = sources[order[:-1]] == sources[order[1:]]
        after[order[:-1][same]] = order[1:][same]
        goes_on = (block.flags & np.uint8(CODE | BREAK)) == CONTINUE
        heads, tails = order[np.append(True, ~same)], order[np.append(~same, True)]
        for head, tail in zip(heads.tolist(), tails.tolist(), strict=True):
            source = int(sources[head])
            before = self._previous(source, block, head)
            if before is not None and block.consecutive:
                self._follow(before, int(slot[head]))
            if goes_on[tail] and block.consecutive and slot[tail] >= 0:
                self._wait(source, int(keys[tail]), block, tail)
        mine, following = slot[taken], slot[after[taken]]
        alone = goes_on[taken] & (following < 0)
        store.flags[mine[alone]] |= np.uint8(BREAK)
        apart = goes_on[taken] & (following >= 0) & (following != mine + 1)
        if apart.any():
            self._link(mine[apart], following[apart])

    def _follow(self, key: int, slot: int) -> None:
        """The transition with this key, if it is still held, is followed by the one in this slot, if it is held."""
        wanted = np.array([key], np.uint64)
        if slot < 0 or not self.holds(wanted)[0]:
            return
        mine = self.slots_of(wanted)
        self.store.changing(mine)
        self.store.flags[mine] &= ~np.uint8(BREAK)
        if slot != mine[0] + 1:
            self._link(mine, np.array([slot]))

    def _link(self, slots: np.ndarray, following: np.ndarray) -> None:
        store = self.store
        if store.links is None:
            store.add_column("links")
            assert store.links is not None
        store.links[slots] = following
        store.flags[slots] |= np.uint8(LINKED)

    def _replace(self, places: np.ndarray) -> None:
        """Items are offered for these ``[n]`` places, one after the other: who has one leaves."""
        offered = places[places >= 0]
        if len(offered) < 2:
            return self._leave(self.places.ring[offered[offered < self.places.count]].astype(np.int64))
        wanted, first = np.unique(offered, return_index=True)
        taken = wanted < self.places.count
        slots = self.places.ring[wanted[taken]].astype(np.int64)
        if self.hits is not None:
            left = np.full(len(offered), -1)  # others came in this call, and leave at once
            left[first[taken]] = slots
            self.hits.left(np.delete(left, first[~taken]))
        return self._remove(slots)

    def _leave(self, slots: np.ndarray) -> None:
        """The items that start in these slots leave."""
        if self.hits is not None:
            self.hits.left(slots)
        self._remove(slots)

    def _remove(self, slots: np.ndarray) -> None:
        """Mark the items that start in these slots as gone."""
        store = self.store
        store.changing(slots)
        if store.items is not None and len(slots):
            lengths = store.items[slots] + ((store.flags[slots] & np.uint8(OWN_NEXT)) == 0)
            ends = np.cumsum(lengths)
            slots = np.repeat(slots - ends + lengths, lengths) + np.arange(int(ends[-1]))
            store.changing(slots)
            store.items[slots] = 0
        store.flags[slots] = FINAL_ROW  # from which nothing starts, and to which no chain leads
        store.release(slots)
        self._rows -= len(slots)

    def _live(self) -> np.ndarray:
        store = self.store
        if store.items is not None:
            return store.items[: store.newest] != 0
        return (store.flags[: store.newest] & CODE) != FINAL_ROW

    def _prepare(self, rows: int) -> None:
        """So many rows may be written: what can go wrong with the disk goes wrong before anything changes."""
        store = self.store
        first = store.newest if store.newest + rows <= store.slots else 0
        store.changing(slice(first, min(store.newest + rows, store.slots)))

    def _make_room(self, rows: int) -> None:
        store = self.store
        if store.newest + rows > store.slots:
            self._compact()
        if store.newest + rows > store.slots:
            # Logs of steps never get here; items of many rows may all be long ones now.
            self.relay((store.newest + rows) * 5 // 4)

    def _compact(self) -> None:
        live = self._live()
        if self.hits is not None:
            before = item_slots(self.store)
            self.hits.moved(before, (np.cumsum(live) - 1)[before], self.store.slots)
        self.places.renumber(np.cumsum(live) - 1)
        self.store.keep(np.flatnonzero(live))


def _last_of_each(places: np.ndarray) -> np.ndarray:
    """Ascending indices of the last item offered for each place."""
    if len(places) == 1:
        return np.flatnonzero(places >= 0)
    backwards = places[::-1]
    _, found = np.unique(backwards, return_index=True)
    found = found[backwards[found] >= 0]
    return np.sort(len(places) - 1 - found)
