"""Gathering rows of many columns in one call.

A sampled batch touches a few random rows of every column, so its cost is cache misses plus the
cost of calls.  One compiled call for all columns, and moves of fixed width for short rows, leave
only the misses, and the processor has many of them under way at a time: asking for lines ahead
makes it slower.  Columns come as addresses and row sizes, so that one compiled function serves every
dtype and nesting.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds2buf.kernels.compiled import compiled
from rlds2buf.kernels.memory import copy_bytes

__all__ = ["ALIGN", "AT_LAST", "AT_SLOT", "BEHIND_LAST", "BEHIND_SLOT", "RowsAt", "gather_rows"]

AT_SLOT, AT_LAST, BEHIND_LAST, BEHIND_SLOT = 0, 1, 2, 3
"""Which of an item's rows a column gives: its first, its last, or the one behind one of these."""


ALIGN = 64
"""Where parts of a batch start: a cache line, and what other frameworks want of memory that they borrow."""


class RowsAt:
    """Rows of bytes at an address, as numpy takes them; whoever gives the address keeps them."""

    def __init__(self, address: int, rows: int, size: int) -> None:
        self.__array_interface__ = {"data": (address, True), "shape": (rows,), "typestr": f"|V{size}", "version": 3}


def gather_rows_numpy(
    addresses: np.ndarray,
    row_bytes: np.ndarray,
    choice: np.ndarray,
    slots: np.ndarray,
    last: np.ndarray,
    capacity: int,
    out: np.ndarray,
    offsets: np.ndarray,
) -> int:
    """:func:`gather_rows`, by one ``take`` a column."""
    skip = -out.ctypes.data % ALIGN
    rows: dict[int, Any] = {AT_SLOT: slots, AT_LAST: last}
    columns = zip(addresses.tolist(), row_bytes.tolist(), choice.tolist(), (offsets + skip).tolist(), strict=True)
    for address, size, which, start in columns:
        if which not in rows:
            behind = (slots if which == BEHIND_SLOT else last) + 1
            behind[behind == capacity] = 0
            rows[which] = behind
        if size and len(slots):
            target = out[start : start + size * len(slots)].view(f"V{size}")
            np.asarray(RowsAt(address, capacity, size)).take(rows[which], out=target, mode="clip")
    return skip


@compiled(twin=gather_rows_numpy)
def gather_rows(addresses, row_bytes, choice, slots, last, capacity, out, offsets):  # type: ignore[no-untyped-def]
    """Copy one row of every column for every item of a batch.

    Args:
        addresses: ``[C] int64``, where each column's first byte lies.
        row_bytes: ``[C] int64``, bytes of one row of each.
        choice: ``[C] uint8``, which row: AT_SLOT, AT_LAST, BEHIND_LAST or BEHIND_SLOT.
        slots: ``[B] int64``, each item's first row.
        last: ``[B] int64``, each item's last row (or any other); the same array for items of one row.
        capacity: rows in the ring, behind the last of which the first follows.
        out: ``uint8``, large enough for all parts and ALIGN bytes more.
        offsets: ``[C] int64``, where each column's part ``[B]`` starts, counted from the first byte
            of `out` at an address that is a multiple of ALIGN.

    Returns:
        The index of that byte.
    """
    skip = -out.ctypes.data % ALIGN
    base = out.ctypes.data + skip
    for c in range(addresses.shape[0]):
        to, of, size, which = base + offsets[c], addresses[c], row_bytes[c], choice[c]
        behind = 1 if which == BEHIND_LAST or which == BEHIND_SLOT else 0
        if which == AT_SLOT or which == BEHIND_SLOT:
            _gather_column(to, of, size, slots, behind, capacity)
        else:
            _gather_column(to, of, size, last, behind, capacity)
    return skip


@compiled
def _gather_column(to, of, size, rows, behind, capacity):  # type: ignore[no-untyped-def]
    if size >= 128:
        for i in range(rows.shape[0]):
            copy_bytes(to + i * size, of + _row(rows[i] + behind, capacity) * size, size)
    elif size >= 64:
        _gather_short(to, of, size, 64, rows, behind, capacity)
    elif size >= 32:
        _gather_short(to, of, size, 32, rows, behind, capacity)
    elif size >= 16:
        _gather_short(to, of, size, 16, rows, behind, capacity)
    elif size >= 8:
        _gather_short(to, of, size, 8, rows, behind, capacity)
    elif size >= 4:
        _gather_short(to, of, size, 4, rows, behind, capacity)
    elif size >= 2:
        _gather_short(to, of, size, 2, rows, behind, capacity)
    elif size == 1:
        _gather_short(to, of, size, 1, rows, behind, capacity)


@compiled(inline="always")
def _gather_short(to, of, size, width, rows, behind, capacity):  # type: ignore[no-untyped-def]
    """Copy rows of `width` to ``2 * width`` bytes by two moves of `width`, a constant, that may overlap."""
    for i in range(rows.shape[0]):
        source = of + _row(rows[i] + behind, capacity) * size
        target = to + i * size
        copy_bytes(target, source, width)
        copy_bytes(target + size - width, source + size - width, width)


@compiled(inline="always")
def _row(row, capacity):  # type: ignore[no-untyped-def]
    return 0 if row == capacity else row
