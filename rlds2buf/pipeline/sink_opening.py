"""Which sink a target means."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from rlds2buf.core.options import check_types
from rlds2buf.files.local_path import refuse_address
from rlds2buf.io.sink import Sink

__all__ = ["KINDS", "Kind", "open_sink"]


class Kind(NamedTuple):
    """What a path can become.

    Attributes:
        module, cls: where its :class:`~rlds2buf.io.sink.Sink` lives in ``rlds2buf``.
        suffixes: of the names that mean it.
    """

    module: str
    cls: str
    suffixes: tuple[str, ...] = ()


KINDS: Final[Mapping[str, Kind]] = {
    "buffer": Kind("formats.buffer.sink", "BufferFolderSink"),
    "rlds": Kind("formats.rlds.sink", "RldsDirSink"),
    "minari": Kind("formats.minari.sink", "MinariDirSink"),
    "d4rl": Kind("formats.d4rl.sink", "D4rlHdf5Sink", (".hdf5", ".h5")),
    "reverb-checkpoint": Kind("formats.reverb.checkpoint_sink", "ReverbCheckpointSink"),
}
"""What a path can become, as ``rlds2buf convert --to`` takes it."""


def open_sink(
    target: Any, *, to: str = "buffer", overwrite: bool = False, resume: bool = False, **options: Any
) -> Sink:
    """The sink for a target.

    ======================================  ===============================================================
    target                                  sink
    ======================================  ===============================================================
    a Sink                                  itself
    a list                                  :class:`~rlds2buf.formats.memory.sink.MemorySink`
    a buffer (it has ``add``, ``sample``)   :class:`~rlds2buf.formats.buffer.sink.BufferSink`
    a path                                  one of `KINDS`: a saved buffer, an RLDS folder, ...
    ======================================  ===============================================================

    Args:
        target: where the episodes go.
        to: what to write at a path, one of `KINDS`.
        overwrite, resume: for a path only.
        options: for a path: those of what is written there, its class's docstring lists them.

    Raises:
        ValueError: unknown `to`, an option that the target does not take, or an address.
        TypeError: none of the above, or an option that the sink of a path does not have.

    >>> open_sink([])
    <MemorySink memory>
    """
    if to not in KINDS:
        raise ValueError(f"to must be one of {', '.join(KINDS)}, got {to!r}")
    if isinstance(target, str | os.PathLike):
        refuse_address(target)
        return _of_path(os.fspath(target), to, {"overwrite": overwrite, "resume": resume, **options})
    if overwrite or resume or options:
        given = ", ".join(options) or "overwrite and resume"
        raise ValueError(f"{given}: for a path, not for a {type(target).__name__}")
    if isinstance(target, Sink):
        return target
    if isinstance(target, list):
        from rlds2buf.formats.memory.sink import MemorySink

        return MemorySink(target)
    if hasattr(target, "add") and hasattr(target, "sample"):
        from rlds2buf.formats.buffer.sink import BufferSink

        return BufferSink(target)
    raise TypeError(f"a sink is a path, a list, a buffer or a Sink, got {type(target).__name__}")


def _of_path(path: str, to: str, options: dict[str, Any]) -> Sink:
    kind = KINDS[to]
    cls = getattr(importlib.import_module(f"rlds2buf.{kind.module}"), kind.cls)
    known = {p.name for p in inspect.signature(cls).parameters.values() if p.kind is p.KEYWORD_ONLY}
    for option in [option for option in options if option not in known]:
        if options.pop(option) and option == "resume":
            raise ValueError(f"{to} is written in one go: resume is not for it")
        if option not in ("overwrite", "resume"):
            offered = ", ".join(sorted(known - {"overwrite", "resume"})) or "none"
            raise TypeError(f"{to} takes no option {option!r}; its options: {offered}")
    check_types(cls, options)
    where, why = cls.usual_target(path)
    sink: Sink = cls(where, **options)
    sink.notes = (why,) if why else ()
    return sink
