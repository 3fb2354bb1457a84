"""Walking from a stored row to its successors, as n-step returns and sequences do."""

from __future__ import annotations

import numba

__all__ = ["BREAK", "CODE", "LINKED", "next_slots", "walk"]

CODE = 3
"""Mask of a row's ``is_done`` code in its flag byte (see core/fields.py)."""

BREAK = 1 << 6
"""Flag: the row goes on, but its successor is not stored (yet)."""

LINKED = 1 << 7
"""Flag: the successor is not the next slot; ``links`` says which."""


@numba.njit(nogil=True, cache=True)
def walk(flags, links, starts, out, steps):  # type: ignore[no-untyped-def]
    """Follow each chain for up to T rows, stopping at an end, a break and T.

    Args:
        flags: ``[capacity] uint8``.
        links: ``[capacity] int64`` successor slots, used where LINKED; may be empty if none is.
        starts: ``[B] int64`` first slots.
        out: ``[B, T] int64``, filled with the slots visited, the last one repeated.
        steps: ``[B] int32``, filled with how many were visited, 1 to T.
    """
    capacity = flags.shape[0]
    limit = out.shape[1]
    for i in range(starts.shape[0]):
        slot = starts[i]
        out[i, 0] = slot
        count = 1
        while count < limit:
            flag = flags[slot]
            if flag & CODE or flag & BREAK:
                break
            if flag & LINKED:
                slot = links[slot]
            else:
                slot += 1
                if slot == capacity:
                    slot = 0
            out[i, count] = slot
            count += 1
        steps[i] = count
        for k in range(count, limit):
            out[i, k] = slot


@numba.njit(nogil=True, cache=True)
def next_slots(slots, capacity, out):  # type: ignore[no-untyped-def]
    """``out = (slots + 1) % capacity``, without the division."""
    for i in range(slots.shape[0]):
        following = slots[i] + 1
        out[i] = 0 if following == capacity else following
