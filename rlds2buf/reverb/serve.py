"""A Reverb server that holds a dataset, in this process."""

from __future__ import annotations

import contextlib
import errno
import socket
import sys
import types
from typing import Any, Final

from rlds2buf.errors import SinkError
from rlds2buf.formats.reverb.patterns.make import PATTERN_OPTIONS, make_pattern
from rlds2buf.formats.reverb.table_spec import TableSpec
from rlds2buf.io.source import Source
from rlds2buf.pipeline.opening import open_source
from rlds2buf.reverb.push import PushReport, push
from rlds2buf.reverb.tf_tables import load, make_table

__all__ = ["OPEN_TO_ALL", "Serving", "serve", "table_of"]

OPEN_TO_ALL: Final = (
    "Reverb has neither authentication nor encryption, and its server listens on every network interface: whoever "
    "reaches the port can read, change and empty the table. Keep it behind a firewall."
)
"""Its address is fixed: the C++ server binds ``[::]``, and takes only a port."""


class Serving:
    """A running server; a context manager that stops it.

    Attributes:
        address: ``localhost:port``, for clients on this machine.
        listens: ``[::]:port``, what the server is bound to: every network interface.
        port: the same port.
        table: the table's settings.
        report: of the push that filled the table.
        checkpoint: the folder of the checkpoint written after that, or None.
    """

    def __init__(self, server: Any, table: TableSpec, report: PushReport, checkpoint: str | None) -> None:
        self._server = server
        self.port: int = server.port
        self.address = f"localhost:{server.port}"
        self.listens = f"[::]:{server.port}"
        self.table = table
        self.report = report
        self.checkpoint = checkpoint

    def stop(self) -> None:
        """Stop the server; idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "address": self.address,
            "listens": self.listens,
            "warning": OPEN_TO_ALL,
            "table": self.table.name,
            "checkpoint": self.checkpoint,
            "push": self.report.to_json(),
        }

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


def serve(
    source: Any,
    table: TableSpec | str = "replay",
    *,
    port: int | None = None,
    checkpoint: str | None = None,
    pattern: str = "trajectory",
    progress: bool = False,
    **options: Any,
) -> Serving:
    """Start a real Reverb server with a table shaped by a dataset, and fill it.

    Reverb's server listens on every network interface, without authentication; it can't be told otherwise.

    Args:
        source: a Source, or whatever :func:`rlds2buf.open_source` takes.
        table: the table's settings, or just its name; a `max_size` of None makes room for everything.
        port: where it listens; None takes a free port.
        checkpoint: folder for Reverb's checkpoints.  The latest one there is loaded first, one is
            written once the table is filled, and clients may ask for more.
        pattern: as for :func:`rlds2buf.push`.
        progress: show a bar on standard error, if that is a terminal.
        options: further ones of :func:`rlds2buf.push`.

    Raises:
        MissingDependency: dm-reverb is not installed.
        SinkError: the port is taken, or the checkpoint is of another table.
        Further, what :func:`rlds2buf.push` raises.
    """
    settings = TableSpec(table) if isinstance(table, str) else table
    shape = make_pattern(pattern, **{name: options[name] for name in PATTERN_OPTIONS if name in options})
    reverb = load("reverb", "server")
    with contextlib.ExitStack() as stack:
        opened = source if isinstance(source, Source) else stack.enter_context(open_source(source))
        keeper = None if checkpoint is None else reverb.platform.checkpointers_lib.DefaultCheckpointer(checkpoint)
        server = _start(reverb, make_table(opened, settings, shape), port, keeper)
        # Until the caller has it, an error stops the server.
        guard = stack.enter_context(contextlib.ExitStack())
        guard.callback(server.stop)
        address = f"localhost:{server.port}"
        options.setdefault("allow_eviction", settings.max_size is not None)
        report = push(opened, address, settings.name, pattern=pattern, progress=progress, **options)
        written = None if checkpoint is None else reverb.Client(address).checkpoint()
        guard.pop_all()
        return Serving(server, settings, report, written)


def _start(reverb: Any, table: Any, port: int | None, keeper: Any) -> Any:
    if port is not None:
        # Reverb would share the port, and every client would reach one server or the other.
        try:
            with socket.create_server(("", port)):
                pass
        except OSError as cause:
            why = "another program listens there" if cause.errno == errno.EADDRINUSE else cause.strerror
            raise SinkError(f"port {port} can't be used: {why}") from cause
    try:
        return reverb.Server([table], port=port, checkpointer=keeper)
    except (ValueError, RuntimeError) as cause:
        raise SinkError(f"the Reverb server does not start: {cause}") from cause


def table_of(**settings: Any) -> TableSpec:
    """The settings of a table, for callers that have them as words.

    >>> table_of(name="replay", sampler="fifo").sampler
    'fifo'
    """
    return TableSpec(**settings)


class _CallableModule(types.ModuleType):
    """This module, as something that can be called: once imported it stands in the function's place."""

    def __call__(self, *arguments: Any, **options: Any) -> Serving:
        return serve(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule
