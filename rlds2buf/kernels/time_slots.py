"""Time slots: rows of several buffers that belong to the same step of the same episode.

A slot is found by its episode and time through a hash table with linear probing, and leads to its
rows through a list that each row continues: the newest first.  Slots that hold rows stand in a
dense list, so that drawing one is one look-up.
"""

from __future__ import annotations

import numpy as np

from rlds2buf.kernels.compiled import compiled

__all__ = ["collect", "enter", "find", "forget_rows", "forget_times", "holds_agent", "tally"]

ALIVE, FREE, SERIAL = 0, 1, 2
"""Places in `counts`: slots that hold rows, slots that can be used, and the number of the slot to come."""


@compiled
def _home(episode, time, size):  # type: ignore[no-untyped-def]
    """Where a slot's entry is looked for first: a mix of both numbers (the finaliser of MurmurHash3)."""
    word = np.uint64(episode) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(time)
    word ^= word >> np.uint64(33)
    word *= np.uint64(0xFF51AFD7ED558CCD)
    word ^= word >> np.uint64(33)
    word *= np.uint64(0xC4CEB9FE1A85EC53)
    word ^= word >> np.uint64(33)
    return np.int64(word & np.uint64(size - 1))


@compiled
def _look(table, slots, episode, time):  # type: ignore[no-untyped-def]
    """The table's entry of a slot, or the empty one where it belongs."""
    at = _home(episode, time, table.shape[0])
    while table[at] >= 0 and (slots[table[at], 0] != episode or slots[table[at], 1] != time):
        at = (at + 1) & (table.shape[0] - 1)
    return at


@compiled
def find(table, slots, episodes, times, out):  # type: ignore[no-untyped-def]
    """Fill `out` ``[n] int64`` with the slots of these episodes and times, -1 where there is none."""
    for i in range(episodes.shape[0]):
        out[i] = table[_look(table, slots, episodes[i], times[i])]


@compiled
def holds_agent(heads, rows, first, stop, found, agents):  # type: ignore[no-untyped-def]
    """The first i whose slot ``found[i]`` has a row of agent ``agents[i]`` among the rows `first` to `stop`, or -1."""
    for i in range(found.shape[0]):
        if found[i] < 0:
            continue
        row = heads[found[i]]
        while row >= 0:
            if first <= row < stop and rows[row, 2] == agents[i]:
                return i
            row = rows[row, 1]
    return -1


@compiled
def enter(table, slots, heads, alive, place, free, counts, rows, episodes, times, agents, which):  # type: ignore[no-untyped-def]
    """Put rows into their slots, making those that are not there.

    Args:
        table: ``[H] int32``, H a power of two: slots, or -1.
        slots: ``[S, 3] int64``: episode, time and number of each slot.
        heads: ``[S] int32``: newest row of each, -1 in one that holds none.
        alive: ``[S] int32``, of which the first ``counts[ALIVE]`` are the slots that hold rows.
        place: ``[S] int32``: where in `alive` each is.
        free: ``[S] int32``, of which the first ``counts[FREE]`` can be used.
        counts: ``[3] int64``.
        rows: ``[S, 3] int64``: of each row its slot (-1: none), the next older row there, its agent.
        episodes, times, agents: ``[n] int64``.
        which: ``[n] int64``, the rows.
    """
    for i in range(which.shape[0]):
        at = _look(table, slots, episodes[i], times[i])
        slot = table[at]
        if slot < 0:
            counts[FREE] -= 1
            slot = free[counts[FREE]]
            table[at] = slot
            slots[slot, 0] = episodes[i]
            slots[slot, 1] = times[i]
            slots[slot, 2] = counts[SERIAL]
            counts[SERIAL] += 1
            heads[slot] = -1
            alive[counts[ALIVE]] = slot
            place[slot] = counts[ALIVE]
            counts[ALIVE] += 1
        row = which[i]
        rows[row, 0] = slot
        rows[row, 1] = heads[slot]
        rows[row, 2] = agents[i]
        heads[slot] = row


@compiled
def _forget(table, slots, heads, alive, place, free, counts, rows, slot):  # type: ignore[no-untyped-def]
    """Let go of a slot and of what it says of its rows."""
    row = heads[slot]
    while row >= 0:
        rows[row, 0] = -1
        row = rows[row, 1]
    heads[slot] = -1
    last = alive[counts[ALIVE] - 1]
    alive[place[slot]] = last
    place[last] = place[slot]
    counts[ALIVE] -= 1
    free[counts[FREE]] = slot
    counts[FREE] += 1
    # Entries behind the gap move into it, as far as their own place is not after it.
    wrap = table.shape[0] - 1
    gap = _look(table, slots, slots[slot, 0], slots[slot, 1])
    at = (gap + 1) & wrap
    while table[at] >= 0:
        home = _home(slots[table[at], 0], slots[table[at], 1], table.shape[0])
        if ((at - home) & wrap) >= ((at - gap) & wrap):
            table[gap] = table[at]
            gap = at
        at = (at + 1) & wrap
    table[gap] = -1


@compiled
def forget_rows(table, slots, heads, alive, place, free, counts, rows, first, capacity, start, stop):  # type: ignore[no-untyped-def]
    """Let go of the slots of rows with keys `start` to `stop` of the buffer whose rows begin at `first`."""
    for key in range(start, stop):
        slot = rows[first + key % capacity, 0]
        if slot >= 0:
            _forget(table, slots, heads, alive, place, free, counts, rows, slot)


@compiled
def forget_times(table, slots, heads, alive, place, free, counts, rows, episodes, times):  # type: ignore[no-untyped-def]
    """Let go of the slots of these episodes and times, where there are such."""
    for i in range(episodes.shape[0]):
        slot = table[_look(table, slots, episodes[i], times[i])]
        if slot >= 0:
            _forget(table, slots, heads, alive, place, free, counts, rows, slot)


@compiled
def tally(heads, rows, owner, drawn, totals):  # type: ignore[no-untyped-def]
    """Fill ``totals [P] int64`` with how many rows of each owner the slots ``drawn [n]`` have together."""
    totals[:] = 0
    for i in range(drawn.shape[0]):
        row = heads[drawn[i]]
        while row >= 0:
            totals[owner[row]] += 1
            row = rows[row, 1]


@compiled
def collect(heads, rows, owner, drawn, ends, out, position):  # type: ignore[no-untyped-def]
    """List the rows of drawn slots: owner by owner, slot by slot, in the order in which they came.

    Args:
        heads, rows: as for :func:`enter`.
        owner: ``[S] int32``, whose each row is.
        drawn: ``[n] int64`` slots.
        ends: ``[P] int64``, where each owner's part of `out` ends; changed.
        out: ``[total] int64``, filled with rows.
        position: ``[total] int64``, filled with their slots' places in `drawn`.
    """
    # Lists lead from new to old, so both orders are right if all is filled from its end.
    for i in range(drawn.shape[0] - 1, -1, -1):
        row = heads[drawn[i]]
        while row >= 0:
            ends[owner[row]] -= 1
            out[ends[owner[row]]] = row
            position[ends[owner[row]]] = i
            row = rows[row, 1]
