"""Gathering rows of many columns in one call.

A sampled batch touches a few random rows of every column, so its cost is cache misses plus the
cost of calls.  One compiled call for all columns, and moves of fixed width for short rows, leave
only the misses, and the processor has many of them under way at a time: asking for lines ahead
makes it slower.  Columns come as addresses and row sizes, so that one compiled function serves every
dtype and nesting.
"""

from __future__ import annotations

import numba
from numba.core import cgutils, types
from numba.extending import intrinsic

__all__ = ["AT_LAST", "AT_SLOT", "BEHIND_LAST", "gather_rows"]

AT_SLOT, AT_LAST, BEHIND_LAST = 0, 1, 2
"""Which of an item's rows a column gives: its first, its last, or the one behind its last."""


@intrinsic
def _copy(typingctx, target, source, size):  # type: ignore[no-untyped-def]  # numba's own typing protocol
    """C's ``memcpy`` between integer addresses; where the size is known to the compiler, plain moves."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        pointer = context.get_value_type(types.voidptr)
        to, of = (builder.inttoptr(address, pointer) for address in args[:2])
        cgutils.raw_memcpy(builder, to, of, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@numba.njit(nogil=True, cache=True)
def gather_rows(addresses, row_bytes, choice, slots, last, capacity, out, offsets):  # type: ignore[no-untyped-def]
    """Copy one row of every column for every item of a batch.

    Args:
        addresses: ``[C] int64``, where each column's first byte lies.
        row_bytes: ``[C] int64``, bytes of one row of each.
        choice: ``[C] uint8``, which row: AT_SLOT, AT_LAST or BEHIND_LAST.
        slots: ``[B] int64``, each item's first row.
        last: ``[B] int64``, each item's last row; the same array for items of one row.
        capacity: rows in the ring, behind the last of which the first follows.
        out: ``uint8``, large enough for all parts.
        offsets: ``[C] int64``, where each column's part ``[B]`` starts in `out`.
    """
    base = out.ctypes.data
    for c in range(addresses.shape[0]):
        _gather_column(base + offsets[c], addresses[c], row_bytes[c], choice[c], slots, last, capacity)


@numba.njit(nogil=True, cache=True)
def _gather_column(to, of, size, which, slots, last, capacity):  # type: ignore[no-untyped-def]
    if size >= 128:
        for i in range(slots.shape[0]):
            _copy(to + i * size, of + _row(which, slots, last, i, capacity) * size, size)
    elif size >= 64:
        _gather_short(to, of, size, 64, which, slots, last, capacity)
    elif size >= 32:
        _gather_short(to, of, size, 32, which, slots, last, capacity)
    elif size >= 16:
        _gather_short(to, of, size, 16, which, slots, last, capacity)
    elif size >= 8:
        _gather_short(to, of, size, 8, which, slots, last, capacity)
    elif size >= 4:
        _gather_short(to, of, size, 4, which, slots, last, capacity)
    elif size >= 2:
        _gather_short(to, of, size, 2, which, slots, last, capacity)
    elif size == 1:
        _gather_short(to, of, size, 1, which, slots, last, capacity)


@numba.njit(nogil=True, cache=True, inline="always")
def _gather_short(to, of, size, width, which, slots, last, capacity):  # type: ignore[no-untyped-def]
    """Copy rows of `width` to ``2 * width`` bytes by two moves of `width`, a constant, that may overlap."""
    for i in range(slots.shape[0]):
        source = of + _row(which, slots, last, i, capacity) * size
        target = to + i * size
        _copy(target, source, width)
        _copy(target + size - width, source + size - width, width)


@numba.njit(nogil=True, cache=True, inline="always")
def _row(choice, slots, last, i, capacity):  # type: ignore[no-untyped-def]
    if choice == AT_SLOT:
        return slots[i]
    row = last[i]
    if choice == BEHIND_LAST:
        row += 1
        if row == capacity:
            row = 0
    return row
