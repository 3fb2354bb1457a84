"""Which sink a target means."""

from __future__ import annotations

import os
from typing import Any

from rlds2buf.sinks.base import Sink

__all__ = ["KINDS", "open_sink"]

KINDS = ("buffer", "reverb-checkpoint")
"""What a path can become, as ``rlds2buf convert --to`` takes it."""


def open_sink(target: Any, *, to: str = "buffer", overwrite: bool = False, resume: bool = False) -> Sink:
    """The sink for a target.

    ======================================  ===============================================================
    target                                  sink
    ======================================  ===============================================================
    a Sink                                  itself
    a list                                  :class:`~rlds2buf.sinks.memory.MemorySink`
    a buffer (it has ``add``, ``sample``)   :class:`~rlds2buf.sinks.buffer.BufferSink`
    a path                                  :class:`~rlds2buf.sinks.buffer.BufferFolderSink`, or
                                            :class:`~rlds2buf.sinks.reverb_checkpoint.ReverbCheckpointSink`
    ======================================  ===============================================================

    Args:
        target: where the episodes go.
        to: what to write at a path, one of `KINDS`.
        overwrite, resume: for a path only.

    Raises:
        ValueError: unknown `to`, or an option that the target does not take.
        TypeError: none of the above.

    >>> open_sink([])
    <MemorySink memory>
    """
    if to not in KINDS:
        raise ValueError(f"to must be one of {', '.join(KINDS)}, got {to!r}")
    if isinstance(target, str | os.PathLike) and to == "reverb-checkpoint":
        from rlds2buf.sinks.reverb_checkpoint import ReverbCheckpointSink

        if resume:
            raise ValueError("a Reverb checkpoint is written in one go: resume is not for it")
        return ReverbCheckpointSink(os.fspath(target), overwrite=overwrite)
    if isinstance(target, str | os.PathLike):
        from rlds2buf.sinks.buffer import BufferFolderSink

        return BufferFolderSink(os.fspath(target), overwrite=overwrite, resume=resume)
    if overwrite or resume:
        raise ValueError(f"overwrite and resume are for a path, not for a {type(target).__name__}")
    if isinstance(target, Sink):
        return target
    if isinstance(target, list):
        from rlds2buf.sinks.memory import MemorySink

        return MemorySink(target)
    if hasattr(target, "add") and hasattr(target, "sample"):
        from rlds2buf.sinks.buffer import BufferSink

        return BufferSink(target)
    raise TypeError(f"a sink is a path, a list, a buffer or a Sink, got {type(target).__name__}")
