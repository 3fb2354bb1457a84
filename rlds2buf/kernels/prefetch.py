"""Asking for memory before it is needed."""

from __future__ import annotations

from rlds2buf.kernels.compiled import Instruction

__all__ = ["prefetch"]


@Instruction
def prefetch(typingctx, address):  # type: ignore[no-untyped-def]
    """Ask for the cache line at an integer address, without waiting for it."""
    from llvmlite import ir
    from numba.core import cgutils, types

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        pointer = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, word, word, word])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        # read, keep in all cache levels, data (not instructions)
        builder.call(prefetch, [pointer, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(types.int64), codegen
