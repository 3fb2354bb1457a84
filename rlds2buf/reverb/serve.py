"""A Reverb server that holds a dataset, in this process."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import errno
import inspect
import os
import socket
import sys
import tempfile
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.errors import SinkError
from rlds2buf.formats.reverb.checkpoint_origin import Origin, item_keys, latest_in, require_checkpoints_only
from rlds2buf.formats.reverb.checkpoint_sink import ReverbCheckpointSink
from rlds2buf.formats.reverb.item_keys import BY_CONTENT, BY_NUMBER, KeyMaker
from rlds2buf.formats.reverb.patterns.base import Pattern
from rlds2buf.formats.reverb.patterns.make import PATTERN_OPTIONS, take_pattern
from rlds2buf.formats.reverb.protocol.signature import flatten_spec
from rlds2buf.formats.reverb.table_count import ServerCount
from rlds2buf.formats.reverb.table_spec import TableSpec, take_table
from rlds2buf.io.source import Source
from rlds2buf.pipeline.conversion import ConvertReport
from rlds2buf.pipeline.opening import open_source
from rlds2buf.reverb.push import PushReport, push, write_checkpoint
from rlds2buf.reverb.tf_tables import built, load

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

    def __init__(
        self, server: Any, table: TableSpec, report: PushReport, checkpoint: str | None, held: contextlib.ExitStack
    ) -> None:
        self._held = held
        self.port: int = server.port
        self.address = f"localhost:{server.port}"
        self.listens = f"[::]:{server.port}"
        self.table = table
        self.report = report
        self.checkpoint = checkpoint

    def stop(self) -> None:
        """Stop the server; idempotent."""
        self._held.close()

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

    A table whose rate limiter would make a push wait (`samples_per_insert`) is filled by a checkpoint instead.
    Reverb's server listens on every network interface, without authentication; it can't be told otherwise.

    Args:
        source: a Source, or whatever :func:`rlds2buf.open_source` takes.
        table: the table's settings, or just its name; a `max_size` of None makes room for everything, and for
            what actors will add (:meth:`~rlds2buf.formats.reverb.table_spec.TableSpec.size_for`).
        port: where it listens; None takes a free port.
        checkpoint: folder for Reverb's checkpoints, which holds nothing else.  The latest one there is loaded first,
            with its own settings of the table; one is written once the table is filled, and clients may ask for
            more.  It must be of these data, or of the same path's before they grew.
        pattern: as for :func:`rlds2buf.push`.
        progress: show a bar on standard error, if that is a terminal.
        options: further ones of :func:`rlds2buf.push`; and the table's settings (``sampler``, ``remover``,
            ``max_size``, ``samples_per_insert``, ...), where `table` is a name.

    Raises:
        MissingDependency: dm-reverb is not installed.
        SinkError: the port is taken, or the checkpoint is of another table or other data; the message says whose.
        Further, what :func:`rlds2buf.push` raises.
    """
    settings, shape = take_table(table, options), take_pattern(pattern, dict(options))
    reverb = load("reverb", "server")
    with contextlib.ExitStack() as stack:
        opened = source if isinstance(source, Source) else stack.enter_context(open_source(source))
        folder = None if checkpoint is None else _CheckpointFolder(checkpoint, opened, settings.name, shape.text)
        began_with = None if folder is None else folder.latest
        if folder is not None:
            options["distinct_by"] = folder.keys_of(opened, settings.name, shape, options)
        # Until the caller has it, an error stops the server.
        held = stack.enter_context(contextlib.ExitStack())
        seed, seeded = checkpoint, None
        plain = options.get("resume") is None and options.get("distinct_by", BY_CONTENT) == BY_CONTENT
        if settings.samples_per_insert is not None and began_with is None and plain:
            # The rate limiter would hold a push back until somebody samples, and nobody knows of the server yet.
            seed = checkpoint or os.path.join(held.enter_context(tempfile.TemporaryDirectory()), "seed")
            seeded = write_checkpoint(opened, seed, settings, pattern=pattern, progress=progress, **_written(options))
        keeper = None if seed is None else reverb.platform.checkpointers_lib.DefaultCheckpointer(os.fspath(seed))
        made = built(opened, settings, shape)
        server = _start(reverb, made, port, keeper)
        if folder is not None:
            held.callback(folder.sign_latest)
        held.callback(server.stop)
        client = reverb.Client(f"localhost:{server.port}")
        there = client.server_info()[settings.name]
        if seeded is None:
            options.setdefault("allow_eviction", settings.max_size is not None and began_with is None)
            report = push(opened, client.server_address, settings.name, pattern=pattern, progress=progress, **options)
        else:
            report = _seeded_report(seeded, settings.name, shape, opened, client.server_address, there.current_size)
        report.notes += [*([] if folder is None else folder.notes), *_settings_loaded(made.info, there)]
        written = None
        if folder is not None:
            written = client.checkpoint() if seeded is None else str(latest_in(folder.path))
            folder.sign(written, report.items)
        return Serving(server, settings, report, written, held.pop_all())


def _written(options: Mapping[str, Any]) -> dict[str, Any]:
    """What of the options of a push a checkpoint is written with; the others are about talking to a server.

    Raises:
        ValueError: one is none.
    """
    unknown = [name for name in options if name not in inspect.signature(push).parameters]
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: no option of a push")
    takes = {*inspect.signature(write_checkpoint).parameters, *inspect.signature(ReverbCheckpointSink).parameters}
    return {name: value for name, value in options.items() if name in takes or name in PATTERN_OPTIONS}


def _seeded_report(
    written: ConvertReport, table: str, pattern: Pattern, source: Source, address: str, size: int
) -> PushReport:
    """The report of a table that was filled by a checkpoint: nothing was sent."""
    count = ServerCount(address, size_after=size, items=written.items, new=size, agrees=size == written.items)
    fields = flatten_spec(pattern.signature(source.spec))
    columns = {nest.path_name(path): str(field) for path, field in fields}
    note = "the table was filled by a checkpoint, since its rate limiter lets a push wait for samples"
    return PushReport(written, table, columns, [count], notes=[note, *written.notes])


class _CheckpointFolder:
    """A checkpointer's folder: whose items its latest checkpoint holds, and a note of that in those to come.

    Attributes:
        path: of it.
        latest: the checkpoint that the server will load, or None.
        notes: sentences worth reading.

    Raises:
        SinkError: there is something else in it, or the checkpoint is of other data or other items.
    """

    def __init__(self, folder: str, source: Source, table: str, pattern: str) -> None:
        require_checkpoints_only(folder)
        self.latest = latest_in(folder)
        self.notes: list[str] = []
        self.path = folder
        self._own = Origin.of(source.name, source.fingerprint(), table, pattern)
        self._found = found = None if self.latest is None else Origin.read(self.latest)
        if self.latest is None:
            return
        if found is None:
            self.notes.append(
                f"the table began with the checkpoint {self.latest}, which does not say whose items it holds"
            )
            return
        if differs := found.differs(self._own):
            raise SinkError(
                f"{folder}: the checkpoint there ({self.latest.name}) holds {found}, and these are other "
                f"{' and other '.join({'data': 'data', 'pattern': 'items'}[what] for what in differs)}: {source.name} "
                f"({pattern}). Name another folder; or serve {found.source} from this one, and push to that server"
            )
        self.notes.append(f"the table began with the checkpoint {self.latest}: {found}")

    def keys_of(self, source: Source, table: str, pattern: Pattern, options: Mapping[str, Any]) -> str:
        """What keys the items are to have, so that those of the checkpoint are not doubled: a push's `distinct_by`."""
        kind = str(options.get("distinct_by", BY_CONTENT))
        if self._found is not None:
            kind = str(options.get("distinct_by", self._found.distinct_by))
        elif self.latest is not None and self._holds_numbered(self.latest, source, table, pattern, options):
            kind = BY_NUMBER
        self._own = dataclasses.replace(self._own, distinct_by=kind)
        return kind

    def _holds_numbered(
        self, latest: Path, source: Source, table: str, pattern: Pattern, options: Mapping[str, Any]
    ) -> bool:
        """Whether a checkpoint holds these data under the keys of version 0.1.0, which left no note."""
        maker = KeyMaker({"fingerprint": self._own.fingerprint, "options": options}, table, pattern.text, 1)
        for batch in source.read_batches():
            if isinstance(batch, EpisodeBatch):
                laid = copy.deepcopy(pattern).lay(batch)
                numbers = np.arange(len(batch)) if batch.index is None else batch.index
                keys = maker.episodes(numbers, laid.tensors, laid.edges).items(laid.of, laid.numbers)
                return bool(np.isin(keys, item_keys(latest, table)).any())
        return False

    def sign(self, checkpoint: str, items: int) -> None:
        """Put the note into a checkpoint that the server has written."""
        self._own = dataclasses.replace(self._own, items=items)
        self._own.write(Path(checkpoint))

    def sign_latest(self) -> None:
        """Put the note into a checkpoint that a client has asked for, if the latest has none."""
        latest = latest_in(self.path)
        if latest is not None and Origin.read(latest) is None:
            with contextlib.suppress(SinkError):
                self._own.write(latest)


def _settings_loaded(asked: Any, there: Any) -> list[str]:
    """What a table that came from a checkpoint does otherwise than was asked for."""
    names = ("max_size", "max_times_sampled", "sampler_options", "remover_options")
    pairs = [(name, getattr(asked, name), getattr(there, name)) for name in names]
    pairs += [
        (name, getattr(asked.rate_limiter_info, name), getattr(there.rate_limiter_info, name))
        for name in ("samples_per_insert", "min_diff", "max_diff", "min_size_to_sample")
    ]
    differs = [f"{name} {_words(found)}, not {_words(wanted)}" for name, wanted, found in pairs if wanted != found]
    return [f"the table has the checkpoint's settings: {'; '.join(differs)}"] if differs else []


def _words(value: Any) -> str:
    return " ".join(str(value).split())


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
