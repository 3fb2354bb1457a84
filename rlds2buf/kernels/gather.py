"""Gathering rows of many columns in one call.

A sampled batch touches a few random rows of every column, so its cost is cache misses plus the
cost of calls.  One compiled call for all columns leaves only the misses.  Columns come as addresses
and row sizes, so that one compiled function serves every dtype and nesting.
"""

from __future__ import annotations

import numba
import numpy as np
from numba.core import types
from numba.extending import intrinsic

__all__ = ["gather_rows"]


@intrinsic
def _pointer(typingctx, address):  # type: ignore[no-untyped-def]  # numba's own typing protocol
    """An integer address as a pointer."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.inttoptr(args[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), codegen


@numba.njit(nogil=True, cache=True)
def gather_rows(addresses, row_bytes, slots, out, offsets):  # type: ignore[no-untyped-def]
    """Copy row ``slots[c, i]`` of column c to row i of its part of `out`, for every c and i.

    Args:
        addresses: ``[C] int64``, where each column's first byte lies.
        row_bytes: ``[C] int64``, bytes of one row of each.
        slots: ``[C, B] int64``, rows to take; each column has its own.
        out: ``uint8``, large enough for all parts.
        offsets: ``[C] int64``, where each part starts in `out`; multiples of 8.
    """
    base = out.ctypes.data
    count = slots.shape[1]
    for c in range(addresses.shape[0]):
        size = row_bytes[c]
        source = addresses[c]
        target = base + offsets[c]
        # The widest word that divides both the row and the column's alignment.
        if size % 8 == 0 and source % 8 == 0:
            words = size // 8
            a8 = numba.carray(_pointer(source), (1 << 56,), np.uint64)
            b8 = numba.carray(_pointer(target), (count * words,), np.uint64)
            for i in range(count):
                start = slots[c, i] * words
                for j in range(words):
                    b8[i * words + j] = a8[start + j]
        elif size % 4 == 0 and source % 4 == 0:
            words = size // 4
            a4 = numba.carray(_pointer(source), (1 << 56,), np.uint32)
            b4 = numba.carray(_pointer(target), (count * words,), np.uint32)
            for i in range(count):
                start = slots[c, i] * words
                for j in range(words):
                    b4[i * words + j] = a4[start + j]
        else:
            a1 = numba.carray(_pointer(source), (1 << 56,), np.uint8)
            b1 = numba.carray(_pointer(target), (count * size,), np.uint8)
            for i in range(count):
                start = slots[c, i] * size
                for j in range(size):
                    b1[i * size + j] = a1[start + j]
