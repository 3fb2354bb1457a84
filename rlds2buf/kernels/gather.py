"""Gathering rows of many columns in one call.

A sampled batch touches a few random rows of every column, so its cost is cache misses plus the
cost of calls.  One compiled call for all columns leaves only the misses.  Columns come as addresses
and row sizes, so that one compiled function serves every dtype and nesting.
"""

from __future__ import annotations

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

__all__ = ["gather_rows"]

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


@intrinsic
def _prefetch(typingctx, address):  # type: ignore[no-untyped-def]
    """Ask for the cache line at an integer address, without waiting for it."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        pointer = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, word, word, word])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        # read, keep in all cache levels, data (not instructions)
        builder.call(prefetch, [pointer, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@numba.njit(nogil=True, cache=True)
def gather_rows(addresses, row_bytes, slots, out, offsets):  # type: ignore[no-untyped-def]
    """Copy row ``slots[c, i]`` of column c to row i of its part of `out`, for every c and i.

    Args:
        addresses: ``[C] int64``, where each column's first byte lies.
        row_bytes: ``[C] int64``, bytes of one row of each.
        slots: ``[C, B] int64``, rows to take; each column has its own.
        out: ``uint8``, large enough for all parts.
        offsets: ``[C] int64``, where each part starts in `out`.
    """
    base = out.ctypes.data
    count = slots.shape[1]
    # All lines are asked for first: copying row by row has only a few misses under way at a time.
    for c in range(addresses.shape[0]):
        size = row_bytes[c]
        for i in range(count):
            first = addresses[c] + slots[c, i] * size
            for line in range(0, min(size, _AHEAD), 64):
                _prefetch(first + line)
            _prefetch(first + min(size, _AHEAD) - 1)
    for c in range(addresses.shape[0]):
        size = row_bytes[c]
        target = base + offsets[c]
        for i in range(count):
            _copy(target + i * size, addresses[c] + slots[c, i] * size, size)
