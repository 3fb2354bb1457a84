"""Runs: the stretches of consecutive transitions that stored rows make up, and picks from them.

A run is described by positions.  Where each transition is followed by the next row, a position is
the row's key; where sources are interleaved, it is a place in a list of members that has each run in
one piece.  Either way a run is an interval, runs follow each other in order of position, and one
look-up serves both.
"""

from __future__ import annotations

import numpy as np

from rlds2buf.core.row_flags import BREAK, CODE, FINAL_ROW, LINKED, OWN_NEXT
from rlds2buf.kernels.compiled import compiled

__all__ = ["EPISODE", "FINAL", "FUTURE", "chain_rows", "lacks_next", "pick_rows", "scan_runs"]

FINAL, EPISODE, FUTURE = 0, 1, 2
"""Strategies: the end of the run, anywhere in it, from the transition itself on."""


@compiled
def lacks_next(flags, slot):  # type: ignore[no-untyped-def]
    """Whether the next observation of a row in a slot is a placeholder: a final row that carries BREAK."""
    if flags[slot] & OWN_NEXT:
        return False
    following = slot + 1
    if following == flags.shape[0]:
        following = 0
    return flags[following] & CODE == FINAL_ROW and flags[following] & BREAK != 0


def scan_runs_numpy(flags: np.ndarray, slot: int, start: int, stop: int, first: int, runs: np.ndarray) -> int:
    """:func:`scan_runs`."""
    keys = np.arange(start, stop)
    slots = (slot + np.arange(stop - start)) % max(len(flags), 1)
    here = flags[slots]
    is_step = (here & CODE) != FINAL_ROW
    keys, slots, here = keys[is_step], slots[is_step], here[is_step]
    ends = np.flatnonzero(((here & (CODE | BREAK)) != 0) | (keys == stop - 1))
    if runs.shape[1] and len(ends):
        begins = np.append(0, ends[:-1] + 1)
        runs[0] = keys[begins]
        runs[1] = keys[ends]
        after = flags[(slots[ends] + 1) % len(flags)]
        lacks = ((here[ends] & OWN_NEXT) == 0) & ((after & CODE) == FINAL_ROW) & ((after & BREAK) != 0)
        runs[2] = keys[ends] - lacks
        if first >= 0:
            runs[0, 0] = first
    return len(ends)


@compiled(twin=scan_runs_numpy)
def scan_runs(flags, slot, start, stop, first, runs):  # type: ignore[no-untyped-def]
    """Find the runs of rows that are followed, if at all, by the next row.

    Args:
        flags: ``[capacity] uint8``.
        slot: of the row with key `start`.
        start, stop: keys of the rows to look at.
        first: key of the run that is under way at `start`, or -1.
        runs: ``[3, K] int64``, filled with each run's first and last key and the last one whose next
            observation was recorded; K = 0 only counts.

    Returns:
        How many runs there are; one that is under way at the end is among them.
    """
    count = 0
    fill = runs.shape[1] > 0
    capacity = flags.shape[0]
    for key in range(start, stop):
        flag = flags[slot]
        code = flag & CODE
        if code != FINAL_ROW:
            if first < 0:
                first = key
            if code != 0 or flag & BREAK or key == stop - 1:
                if fill:
                    runs[0, count] = first
                    runs[1, count] = key
                    runs[2, count] = key - 1 if lacks_next(flags, slot) else key
                count += 1
                first = -1
        slot += 1
        if slot == capacity:
            slot = 0
    return count


@compiled
def chain_rows(flags, links, slots, place, members, runs):  # type: ignore[no-untyped-def]
    """Put the rows of each chain side by side, chains in the order of their first rows.

    Args:
        flags: ``[capacity] uint8``.
        links: ``[capacity] int64``, successor slots of rows with LINKED.
        slots: ``[n] int64`` of rows that start transitions, each before its successor, which is
            among them.
        place: ``[capacity] int64``; those of `slots` are set to 0.
        members: ``[n] int64``, filled with slots, chain by chain.
        runs: ``[2, n] int64``, filled with each chain's length, and 1 where the next observation of
            its last row is a placeholder.

    Returns:
        How many chains there are.
    """
    capacity = flags.shape[0]
    for i in range(slots.shape[0]):
        place[slots[i]] = -1
    count = total = 0
    for i in range(slots.shape[0]):
        slot = slots[i]
        if place[slot] == 0:
            continue  # a chain that started earlier came through here
        start = total
        while True:
            place[slot] = 0
            members[total] = slot
            total += 1
            flag = flags[slot]
            if flag & CODE or flag & BREAK:
                break
            if flag & LINKED:
                slot = links[slot]
            else:
                slot += 1
                if slot == capacity:
                    slot = 0
        runs[0, count] = total - start
        runs[1, count] = 1 if lacks_next(flags, slot) else 0
        count += 1
    return count


def pick_rows_numpy(
    slots: np.ndarray,
    capacity: int,
    oldest_slot: int,
    oldest_key: int,
    place: np.ndarray,
    members: np.ndarray,
    position: int,
    runs: np.ndarray,
    uniforms: np.ndarray,
    ratio: float,
    strategy: int,
    least: int,
    out: np.ndarray,
) -> None:
    """:func:`pick_rows`."""
    age = slots - oldest_slot
    age[age < 0] += capacity
    at = place[slots] if len(place) else oldest_key + age
    run = np.searchsorted(runs[0], at, side="right") - 1
    last = runs[2, run]
    out[0], out[1], out[2] = slots, 0, last - at + 1
    some = np.flatnonzero((uniforms[0] < ratio) & (at <= last))
    at, run, last = at[some], run[some], last[some]
    first = last
    if strategy == FUTURE:
        first = np.minimum(at + least, last)
    elif strategy == EPISODE:
        first = np.maximum(runs[0, run], oldest_key)
        if len(place):
            begins = zip(runs[0, run].tolist(), at.tolist(), strict=True)
            held = [b + np.searchsorted(members[b - position : a - position], oldest_key) for b, a in begins]
            first = np.array(held, np.int64)
    pick = first + np.minimum((uniforms[1, some] * (last - first + 1)).astype(np.int64), last - first)
    to = oldest_slot + (members[pick - position] if len(place) else pick) - oldest_key
    out[0, some] = np.where(to >= capacity, to - capacity, to)
    out[1, some] = 1


@compiled(twin=pick_rows_numpy)
def pick_rows(  # type: ignore[no-untyped-def]
    slots, capacity, oldest_slot, oldest_key, place, members, position, runs, uniforms, ratio, strategy, least, out
):
    """Pick for each transition another one of its run.

    Args:
        slots: ``[B] int64``, rows that start transitions.
        capacity, oldest_slot, oldest_key: of the ring of rows.
        place: ``[capacity] int64``, each row's position; empty where positions are keys.
        members: ``[n] int64``, keys in order of position, from `position` on; empty likewise.
        runs: ``[3, K] int64`` in order of position: first, last, and last that may be picked.
        uniforms: ``[2, B] float64`` in [0, 1): whether, and which.
        ratio: the chance of a transition to get a pick.
        strategy: FINAL, EPISODE or FUTURE.
        least: 0 if FUTURE may pick the transition itself, else 1.
        out: ``[3, B] int64``, filled with the picks' slots (the row's own one where it gets none), 1
            where there is a pick, and how many transitions from the row to the end of its run have a
            recorded next observation.
    """
    count = runs.shape[1]
    low, high = runs[0, 0], runs[1, count - 1]
    scale = count / (high - low + 1)
    linked = place.shape[0] > 0
    for i in range(slots.shape[0]):
        slot = slots[i]
        age = slot - oldest_slot
        if age < 0:
            age += capacity
        at = place[slot] if linked else oldest_key + age
        r = _run_of(runs, at, min(int((at - low) * scale), count - 1))
        last = runs[2, r]
        out[0, i] = slot
        out[1, i] = 0
        out[2, i] = last - at + 1
        if uniforms[0, i] >= ratio or at > last:
            continue
        first = last
        if strategy == FUTURE:
            first = min(at + least, last)
        elif strategy == EPISODE:
            first = runs[0, r]
            if linked:
                first = _first_held(members, position, first, at, oldest_key)
            elif first < oldest_key:
                first = oldest_key
        pick = first + min(int(uniforms[1, i] * (last - first + 1)), last - first)
        key = members[pick - position] if linked else pick
        to = oldest_slot + key - oldest_key
        out[0, i] = to - capacity if to >= capacity else to
        out[1, i] = 1


@compiled
def _run_of(runs, at, guess):  # type: ignore[no-untyped-def]
    """The run that holds a position, looked for from a guess outwards: runs of about equal length are found at once."""
    step = 1
    if runs[0, guess] <= at:
        low, high = guess, runs.shape[1] - 1
        while low < high and runs[0, min(low + step, high)] <= at:
            low = min(low + step, high)
            step *= 2
        high = min(low + step, high)
    else:
        low, high = 0, guess
        while high > 0 and runs[0, max(high - step, 0)] > at:
            high = max(high - step, 0)
            step *= 2
        low = max(high - step, 0)
    while low < high:
        middle = (low + high + 1) // 2
        if runs[0, middle] <= at:
            low = middle
        else:
            high = middle - 1
    return low


@compiled
def _first_held(members, position, first, at, oldest_key):  # type: ignore[no-untyped-def]
    """The first position from `first` to `at` whose row is still held: within a run, the oldest leave first."""
    low, high = first, at
    while low < high:
        middle = (low + high) // 2
        if members[middle - position] >= oldest_key:
            high = middle
        else:
            low = middle + 1
    return low
