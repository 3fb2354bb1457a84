"""Windows: the rows at given offsets from some, in one gather, and what is earned from them on.

A row that stands for what its transition led to, which has no row of its own where an episode was cut, is
written as ``~slot``, below 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds2buf.core.row_flags import BREAK, CODE, FINAL_ROW, LINKED, OWN_NEXT
from rlds2buf.kernels.chain_back import before, before_numpy
from rlds2buf.kernels.compiled import compiled
from rlds2buf.kernels.gather import ALIGN, RowsAt
from rlds2buf.kernels.memory import copy_bytes
from rlds2buf.kernels.runs import lacks_next

__all__ = [
    "AHEAD",
    "AHEAD_RECORDED",
    "ENDS",
    "STARTS",
    "WITHIN",
    "count_before",
    "earnings",
    "earnings_numpy",
    "find_rows",
    "gather_windows",
    "longest_run",
]

STARTS, ENDS = 0, 1
"""From where offsets count: the drawn steps, or the last ones of their transitions."""

WITHIN, AHEAD_RECORDED, AHEAD = 0, 1, 2
"""How far a window reaches: to the last transition, to what that led to if it was recorded, or in any case."""


def _after_numpy(flags: np.ndarray, links: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """The slots of the rows that follow these, or -1."""
    flag = flags[slots]
    following = slots + 1
    following[following == len(flags)] = 0
    if len(links):
        linked = (flag & LINKED) != 0
        following[linked] = links[slots[linked]]
    ends = ((flag & (CODE | BREAK)) != 0) | ((flags[following] & CODE) == CODE)
    return np.where(ends, -1, following)


def _lacks_next_numpy(flags: np.ndarray, slots: np.ndarray) -> np.ndarray:
    after = flags[(slots + 1) % len(flags)]
    return ((flags[slots] & OWN_NEXT) == 0) & ((after & CODE) == FINAL_ROW) & ((after & BREAK) != 0)


def find_rows_numpy(
    flags: np.ndarray,
    links: np.ndarray,
    back: np.ndarray,
    oldest: int,
    anchors: np.ndarray,
    anchor: np.ndarray,
    reach: np.ndarray,
    offsets: np.ndarray,
    edges: np.ndarray,
    rows: np.ndarray,
    places: np.ndarray,
) -> None:
    """:func:`find_rows`, all items a step at a time."""
    count = anchors.shape[1]
    for g in range(len(edges) - 1):
        slot, at = anchors[anchor[g]].copy(), np.zeros(count, np.int64)
        ahead = np.zeros(count, np.bool_)
        width = int(edges[g + 1] - edges[g])
        found = rows[count * edges[g] : count * edges[g + 1]].reshape(count, width)
        place = places[count * edges[g] : count * edges[g + 1]].reshape(count, width)
        for k in range(width):
            want = int(offsets[edges[g] + k])
            _step_back(flags, links, back, oldest, want, slot, at, ahead)
            _step_on(flags, links, int(reach[g]), want, slot, at, ahead)
            found[:, k] = np.where(ahead, ~slot, slot)
            if anchor[g] == ENDS:
                found[at == 1, k] = ~anchors[ENDS, at == 1]
            place[:, k] = at


def _step_back(
    flags: np.ndarray,
    links: np.ndarray,
    back: np.ndarray,
    oldest: int,
    want: int,
    slot: np.ndarray,
    at: np.ndarray,
    ahead: np.ndarray,
) -> None:
    going = np.flatnonzero(at > want)
    while len(going):
        leaving = going[ahead[going]]
        others = going[~ahead[going]]
        ahead[leaving] = False
        found = before_numpy(flags, links, back, oldest, slot[others])
        moved = others[found >= 0]
        slot[moved] = found[found >= 0]
        at[leaving] -= 1
        at[moved] -= 1
        going = np.concatenate([leaving, moved])
        going = going[at[going] > want]


def _step_on(
    flags: np.ndarray, links: np.ndarray, reach: int, want: int, slot: np.ndarray, at: np.ndarray, ahead: np.ndarray
) -> None:
    going = np.flatnonzero((at < want) & ~ahead)
    while len(going):
        found = _after_numpy(flags, links, slot[going])
        last = going[found < 0]
        if reach:
            last = last if reach == AHEAD else last[~_lacks_next_numpy(flags, slot[last])]
            ahead[last] = True
            at[last] += 1
        going, found = going[found >= 0], found[found >= 0]
        slot[going] = found
        at[going] += 1
        going = going[at[going] < want]


@compiled
def _after(flags, links, slot):  # type: ignore[no-untyped-def]
    """The slot of the row that follows this one, or -1."""
    flag = flags[slot]
    if flag & CODE or flag & BREAK:
        return -1
    if flag & LINKED:
        following = links[slot]
    else:
        following = slot + 1
        if following == flags.shape[0]:
            following = 0
    return -1 if flags[following] & CODE == CODE else following


@compiled(twin=find_rows_numpy)
def find_rows(  # type: ignore[no-untyped-def]
    flags, links, back, oldest, anchors, anchor, reach, offsets, edges, rows, places
):
    """Find the rows at some offsets from each of B, or the nearest ones of the same run that there are.

    Offsets come in G groups of K each, which have K of their own; in any order, those of a group being
    walked to one from the other.  What a transition leads to may differ from what the next one starts from,
    where data say both: from where transitions end, a step of 1 is the former.

    Args:
        flags: ``[capacity] uint8``.
        links: ``[capacity] int64`` successor slots, used where LINKED; may be empty if none is.
        back, oldest: as for :func:`~rlds2buf.kernels.chain_back.walk_back`.
        anchors: ``[2, B] int64``, slots to start from: those of the steps, and where the transitions end.
        anchor: ``[G] int64``, from which of them each group does: STARTS or ENDS.
        reach: ``[G] uint8``: WITHIN, AHEAD_RECORDED or AHEAD.
        offsets: ``[sum of K] int64``, group by group.
        edges: ``[G + 1] int64``, where each group starts.
        rows: ``[B * sum of K] int64``, filled group by group with ``[B, K]``: slots, or ``~slot`` for what
            the transition in that slot led to.
        places: ``[B * sum of K] int64``, likewise with the offsets at which these stand.
    """
    count = anchors.shape[1]
    for g in range(edges.shape[0] - 1):
        first, stop = edges[g], edges[g + 1]
        wanted, width = offsets[first:stop], stop - first
        for i in range(count):
            out = count * first + i * width
            start = anchors[anchor[g], i]
            _find_window(flags, links, back, oldest, start, reach[g], wanted, rows[out:], places[out:])
            if anchor[g] == ENDS:
                for k in range(out, out + width):
                    if places[k] == 1:
                        rows[k] = ~start


@compiled
def _find_window(flags, links, back, oldest, slot, reach, offsets, rows, places):  # type: ignore[no-untyped-def]
    """One item's window."""
    at = 0
    ahead = False
    for k in range(offsets.shape[0]):
        want = offsets[k]
        while at > want:
            found = slot if ahead else before(flags, links, back, oldest, slot)
            if found < 0:
                break
            slot = found
            ahead = False
            at -= 1
        while at < want and not ahead:
            found = _after(flags, links, slot)
            if found >= 0:
                slot = found
            elif reach == AHEAD or (reach == AHEAD_RECORDED and not lacks_next(flags, slot)):
                ahead = True
            else:
                break
            at += 1
        rows[k] = ~slot if ahead else slot
        places[k] = at


def gather_windows_numpy(
    addresses: np.ndarray,
    own: np.ndarray,
    row_bytes: np.ndarray,
    group: np.ndarray,
    flags: np.ndarray,
    rows: np.ndarray,
    edges: np.ndarray,
    out: np.ndarray,
    offsets: np.ndarray,
) -> int:
    """:func:`gather_windows`, by one ``take`` a column."""
    skip = -out.ctypes.data % ALIGN
    capacity = len(flags)
    lists: dict[int, Any] = {}
    columns = zip(
        addresses.tolist(), own.tolist(), row_bytes.tolist(), group.tolist(), (offsets + skip).tolist(), strict=True
    )
    for address, next_address, size, g, start in columns:
        if g not in lists:
            some = rows[edges[g] : edges[g + 1]]
            ahead = some < 0
            slots = np.where(ahead, ~some, some)
            mine = np.flatnonzero(ahead & ((flags[slots] & OWN_NEXT) != 0))
            behind = slots + ahead
            behind[behind == capacity] = 0
            lists[g] = behind, mine, slots[mine]
        behind, mine, slots = lists[g]
        if size and len(behind):
            target = out[start : start + size * len(behind)].view(f"V{size}")
            np.asarray(RowsAt(address, capacity, size)).take(behind, out=target, mode="clip")
            if len(mine) and next_address:
                target[mine] = np.asarray(RowsAt(next_address, capacity, size))[slots]
    return skip


@compiled(twin=gather_windows_numpy)
def gather_windows(addresses, own, row_bytes, group, flags, rows, edges, out, offsets):  # type: ignore[no-untyped-def]
    """Copy the rows of a list for every column; each column has one of several lists.

    Args:
        addresses: ``[C] int64``, where each column's first byte lies.
        own: ``[C] int64``, likewise of the column of rows' own next observations; 0 where there is none.
        row_bytes: ``[C] int64``, bytes of one row of each; 0 leaves a column out.
        group: ``[C] int64``, which list.
        flags: ``[capacity] uint8``.
        rows: ``[n] int64``, lists one behind the other, as :func:`find_rows` gives them.
        edges: ``[lists + 1] int64``, where each starts.
        out: ``uint8``, large enough for all parts and ALIGN bytes more.
        offsets: ``[C] int64``, where each column's part starts, counted from the first byte of `out` at an
            address that is a multiple of ALIGN.

    Returns:
        The index of that byte.
    """
    skip = -out.ctypes.data % ALIGN
    base = out.ctypes.data + skip
    for c in range(addresses.shape[0]):
        first, stop = edges[group[c]], edges[group[c] + 1]
        if row_bytes[c]:
            _copy_rows(base + offsets[c], addresses[c], own[c], row_bytes[c], flags, rows[first:stop])
    return skip


@compiled
def _copy_rows(to, of, ahead, size, flags, rows):  # type: ignore[no-untyped-def]
    if size >= 128:
        for i in range(rows.shape[0]):
            copy_bytes(to + i * size, _place(of, ahead, size, flags, rows[i]), size)
    elif size >= 64:
        _copy_short(to, of, ahead, size, 64, flags, rows)
    elif size >= 32:
        _copy_short(to, of, ahead, size, 32, flags, rows)
    elif size >= 16:
        _copy_short(to, of, ahead, size, 16, flags, rows)
    elif size >= 8:
        _copy_short(to, of, ahead, size, 8, flags, rows)
    elif size >= 4:
        _copy_short(to, of, ahead, size, 4, flags, rows)
    elif size >= 2:
        _copy_short(to, of, ahead, size, 2, flags, rows)
    else:
        _copy_short(to, of, ahead, size, 1, flags, rows)


@compiled(inline="always")
def _copy_short(to, of, ahead, size, width, flags, rows):  # type: ignore[no-untyped-def]
    """Copy rows of `width` to ``2 * width`` bytes by two moves of `width`, a constant, that may overlap."""
    for i in range(rows.shape[0]):
        source = _place(of, ahead, size, flags, rows[i])
        target = to + i * size
        copy_bytes(target, source, width)
        copy_bytes(target + size - width, source + size - width, width)


@compiled(inline="always")
def _place(of, own, size, flags, row):  # type: ignore[no-untyped-def]
    """The address of a row, or of what its transition led to."""
    if row >= 0:
        return of + row * size
    slot = ~row
    if own and flags[slot] & OWN_NEXT:
        return own + slot * size
    slot += 1
    return of + (0 if slot == flags.shape[0] else slot) * size


def count_before_numpy(
    flags: np.ndarray, links: np.ndarray, back: np.ndarray, oldest: int, slots: np.ndarray, counts: np.ndarray
) -> None:
    """:func:`count_before`."""
    counts[:] = 0
    going, here = np.arange(len(slots)), slots
    while len(going):
        here = before_numpy(flags, links, back, oldest, here)
        going, here = going[here >= 0], here[here >= 0]
        counts[going] += 1


@compiled(twin=count_before_numpy)
def count_before(flags, links, back, oldest, slots, counts):  # type: ignore[no-untyped-def]
    """Fill `counts` ``[B] int64`` with how many held rows of the same run come before each of `slots`."""
    for i in range(slots.shape[0]):
        slot = slots[i]
        counts[i] = 0
        while True:
            slot = before(flags, links, back, oldest, slot)
            if slot < 0:
                break
            counts[i] += 1


def earnings_numpy(flags: np.ndarray, links: np.ndarray, reward: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """:func:`earnings`."""
    out[:] = 0
    for k in range(rows.shape[1] - 1, -1, -1):
        stop = rows[:, k + 1] if k + 1 < rows.shape[1] else np.full(len(rows), -1)
        going, here = np.arange(len(rows)), rows[:, k]
        for _ in range(len(flags)):
            if not len(going):
                break
            met = here == stop[going]
            out[going[met], k] += out[going[met], k + 1] if met.any() else 0
            going, here = going[~met], here[~met]
            out[going, k] += reward[here]
            here = _after_numpy(flags, links, here)
            going, here = going[here >= 0], here[here >= 0]


@compiled(twin=earnings_numpy)
def earnings(flags, links, reward, rows, out):  # type: ignore[no-untyped-def]
    """Sum up the rewards from rows on to the end of what is stored of their runs.

    Args:
        flags, links: as for :func:`find_rows`.
        reward: ``[capacity]`` numbers.
        rows: ``[B, K] int64``, slots; those of an item of one run, and quickest in the order of time.
        out: ``[B, K] float64``, filled.
    """
    last = rows.shape[1] - 1
    for i in range(rows.shape[0]):
        for k in range(last, -1, -1):
            slot = rows[i, k]
            total = 0.0
            for _ in range(flags.shape[0]):  # damaged links may lead round in a circle
                if slot < 0:
                    break
                if k < last and slot == rows[i, k + 1]:
                    total += out[i, k + 1]
                    break
                total += reward[slot]
                slot = _after(flags, links, slot)
            out[i, k] = total


def longest_run_numpy(
    flags: np.ndarray, links: np.ndarray, back: np.ndarray, oldest: int, slots: np.ndarray, enough: int
) -> int:
    """:func:`longest_run`."""
    here = slots[before_numpy(flags, links, back, oldest, slots) < 0]
    count = 0
    while len(here) and count < min(enough, len(flags)):
        count += 1
        here = _after_numpy(flags, links, here)
        here = here[here >= 0]
    return count


@compiled(twin=longest_run_numpy)
def longest_run(flags, links, back, oldest, slots, enough):  # type: ignore[no-untyped-def]
    """How many transitions the longest run has, among those that start in `slots`; `enough`, if it has more."""
    longest = 0
    for i in range(slots.shape[0]):
        slot = slots[i]
        if before(flags, links, back, oldest, slot) >= 0:
            continue
        count = 0
        while slot >= 0 and count < min(enough, flags.shape[0]):
            count += 1
            slot = _after(flags, links, slot)
        longest = max(longest, count)
        if longest == enough:
            break
    return longest
