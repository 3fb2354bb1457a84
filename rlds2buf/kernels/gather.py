"""Gathering rows of many columns in one call.

A sampled batch touches a few random rows of every column, so its cost is cache misses plus the
cost of calls.  One compiled call for all columns leaves only the misses.  Columns come as addresses
and row sizes, so that one compiled function serves every dtype and nesting.
"""

from __future__ import annotations

import numba
from numba.core import cgutils, types
from numba.extending import intrinsic

from rlds2buf.kernels.prefetch import prefetch

__all__ = ["AT_LAST", "AT_SLOT", "BEHIND_LAST", "gather_rows"]

AT_SLOT, AT_LAST, BEHIND_LAST = 0, 1, 2
"""Which of an item's rows a column gives: its first, its last, or the one behind its last."""

_AHEAD = 256
"""Bytes of a row to ask for ahead; the hardware follows longer ones by itself."""


@intrinsic
def _copy(typingctx, target, source, size):  # type: ignore[no-untyped-def]  # numba's own typing protocol
    """C's ``memcpy`` between integer addresses: one wide move per row, where a loop over words stalls."""

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
    count = slots.shape[0]
    # All lines are asked for first: copying row by row has only a few misses under way at a time.
    for c in range(addresses.shape[0]):
        size = row_bytes[c]
        ahead = min(size, _AHEAD)
        for i in range(count):
            first = addresses[c] + _row(choice[c], slots, last, i, capacity) * size
            for line in range(0, ahead, 64):
                prefetch(first + line)
            if size:
                prefetch(first + ahead - 1)
    for c in range(addresses.shape[0]):
        size = row_bytes[c]
        target = base + offsets[c]
        for i in range(count):
            _copy(target + i * size, addresses[c] + _row(choice[c], slots, last, i, capacity) * size, size)


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
