"""Walking from a stored row to the ones before it, as the burn-in of sequences does."""

from __future__ import annotations

import numpy as np

from rlds2buf.core.row_flags import BREAK, CODE, LINKED
from rlds2buf.kernels.compiled import compiled

__all__ = ["before", "before_numpy", "note_links", "walk_back"]


def walk_back_numpy(
    flags: np.ndarray,
    links: np.ndarray,
    back: np.ndarray,
    oldest: int,
    starts: np.ndarray,
    out: np.ndarray,
    steps: np.ndarray,
) -> None:
    """:func:`walk_back`, all starts a step at a time."""
    limit = out.shape[1]
    out[:] = starts[:, None]
    steps[:] = 0
    going, slot = np.arange(len(starts)), starts
    for count in range(1, limit + 1):
        slot = before_numpy(flags, links, back, oldest, slot)
        going, slot = going[slot >= 0], slot[slot >= 0]
        if not len(going):
            return
        out[going, limit - count] = slot
        steps[going] = count


def before_numpy(flags: np.ndarray, links: np.ndarray, back: np.ndarray, oldest: int, slots: np.ndarray) -> np.ndarray:
    """The slots of the rows that go on to these, or -1."""
    capacity = len(flags)
    age = (slots - oldest) % capacity
    before = (slots - 1) % capacity
    found = np.where((age == 0) | ((flags[before] & (CODE | BREAK | LINKED)) != 0), -1, before)
    if len(back):
        before = back[slots]
        flag = flags[before]
        leads = ((before - oldest) % capacity < age) & ((flag & LINKED) != 0) & ((flag & (CODE | BREAK)) == 0)
        found = np.where(leads & (links[before] == slots), before, found)
    return found


def note_links_numpy(flags: np.ndarray, links: np.ndarray, slots: np.ndarray, back: np.ndarray) -> None:
    """:func:`note_links`."""
    linked = slots[(flags[slots] & (LINKED | BREAK)) == LINKED]
    back[links[linked]] = linked


@compiled(twin=walk_back_numpy)
def walk_back(flags, links, back, oldest, starts, out, steps):  # type: ignore[no-untyped-def]
    """Go up to B rows back from each start, stopping at the start of its episode and at the oldest row.

    A row comes before another one if it goes on and the other one is what follows it: the row of the
    slot before unless that is linked elsewhere, or the one whose link leads here.  The row at the end
    of an episode, of a source's last step so far, or one that left, goes on to nothing.

    Args:
        flags: ``[capacity] uint8``.
        links: ``[capacity] int64`` successor slots, used where LINKED; may be empty if none is.
        back: ``[capacity] int64``, slots of the rows whose links lead to each row; entries of which
            that is not (or no longer) so do no harm. Empty like `links`.
        oldest: slot of the oldest row.
        starts: ``[S] int64`` slots.
        out: ``[S, B] int64``, filled from its end: the row before the start comes last. What lies
            before the first real one is the start's own slot.
        steps: ``[S] int32``, filled with how many are real, 0 to B.
    """
    limit = out.shape[1]
    for i in range(starts.shape[0]):
        slot = starts[i]
        count = 0
        while count < limit:
            found = before(flags, links, back, oldest, slot)
            if found < 0:
                break
            slot = found
            count += 1
            out[i, limit - count] = slot
        steps[i] = count
        for k in range(limit - count):
            out[i, k] = starts[i]


@compiled
def before(flags, links, back, oldest, slot):  # type: ignore[no-untyped-def]
    """The slot of the row that goes on to this one, or -1; the arguments are those of :func:`walk_back`."""
    capacity = flags.shape[0]
    if slot == oldest:
        return -1
    if back.shape[0]:
        leading = back[slot]
        flag = flags[leading]
        age, older = slot - oldest, leading - oldest
        if age < 0:
            age += capacity
        if older < 0:
            older += capacity
        # A row that is older than a held one is held.
        if older < age and flag & LINKED and not flag & (CODE | BREAK) and links[leading] == slot:
            return leading
    leading = slot - 1 if slot else capacity - 1
    return -1 if flags[leading] & (CODE | BREAK | LINKED) else leading


@compiled(twin=note_links_numpy)
def note_links(flags, links, slots, back):  # type: ignore[no-untyped-def]
    """Enter the linked ones of some rows as what comes before the rows that their links lead to.

    Args:
        flags: ``[capacity] uint8``.
        links: ``[capacity] int64``.
        slots: ``[n] int64``, the rows to look at.
        back: ``[capacity] int64``, changed.
    """
    for i in range(slots.shape[0]):
        slot = slots[i]
        if flags[slot] & LINKED and not flags[slot] & BREAK:
            back[links[slot]] = slot
