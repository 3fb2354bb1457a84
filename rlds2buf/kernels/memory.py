"""Bytes from one place in memory to another."""

from __future__ import annotations

from rlds2buf.kernels.compiled import Instruction

__all__ = ["copy_bytes"]


@Instruction
def copy_bytes(typingctx, target, source, size):  # type: ignore[no-untyped-def]  # numba's own typing protocol
    """C's ``memcpy`` between integer addresses; where the size is known to the compiler, plain moves."""
    from numba.core import cgutils, types

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        pointer = context.get_value_type(types.voidptr)
        to, of = (builder.inttoptr(address, pointer) for address in args[:2])
        cgutils.raw_memcpy(builder, to, of, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen
