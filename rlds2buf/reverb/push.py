"""A dataset into a running Reverb server: the fast path, without TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

from rlds2buf.core import shown
from rlds2buf.errors import tell, told
from rlds2buf.formats.reverb.checkpoint_sink import ReverbCheckpointSink
from rlds2buf.formats.reverb.item_count import count_items, known_count
from rlds2buf.formats.reverb.patterns.make import make_pattern
from rlds2buf.formats.reverb.patterns.priorities import Priority
from rlds2buf.formats.reverb.protocol.insert_stream import ServerRestarted
from rlds2buf.formats.reverb.table_count import ServerCount
from rlds2buf.formats.reverb.table_sink import ReverbTableSink
from rlds2buf.formats.reverb.table_spec import TableSpec
from rlds2buf.io.source import Source
from rlds2buf.pipeline.conversion import ConvertReport, convert
from rlds2buf.pipeline.opening import open_source

__all__ = ["PushReport", "push", "write_checkpoint"]

MAX_RESTARTS = 3


@dataclasses.dataclass
class PushReport:
    """What became of a push.

    Attributes:
        conversion: the ConvertReport: episodes read, written, rejected; `items` counts every item
            that the data became, whether sent now or by an earlier run.
        table: its name.
        columns: of the items, field name to type.
        servers: per server, items before and after, and whether the counts agree.
        acknowledged: items sent in this run and acknowledged by a server.
        resumed: items passed over because the journal has them.
        new: items that the servers say were inserted since the push, or its journal, began; None if that can't be told.
        already_there: items of this push that a server had before they were sent (they were updated).
        episodes_without_items: episodes too short for the pattern.
        reconnects: how often a lost connection was made again.
        restarts: how often everything was sent again because a server had been restarted.
        notes: sentences worth reading.
    """

    conversion: ConvertReport
    table: str
    columns: dict[str, str]
    servers: list[ServerCount]
    acknowledged: int = 0
    resumed: int = 0
    new: int | None = None
    already_there: int = 0
    episodes_without_items: int = 0
    reconnects: int = 0
    restarts: int = 0
    notes: list[str] = dataclasses.field(default_factory=list)

    def __repr__(self) -> str:
        rows = [
            ("  episodes", f"{self.conversion.episodes:,} of {self.conversion.read:,} read"),
            ("  items", f"{self.items:,}, {self.acknowledged:,} acknowledged in this run"),
            ("  seconds", f"{self.conversion.seconds:.3g}"),
        ]
        counts = (("resumed", self.resumed), ("already there", self.already_there), ("reconnects", self.reconnects))
        rows += [(f"  {name}", f"{count:,}") for name, count in (*counts, ("restarts", self.restarts)) if count]
        rows += [
            (f"  {server.address}", f"{server.size_before:,} -> {server.size_after:,} items") for server in self.servers
        ]
        rejected = ", ".join(f"{rule} {count:,}" for rule, count in self.conversion.rejected.most_common())
        rows += [("  left out", rejected)] if rejected else []
        rows += [("  note", note) for note in self.notes]
        rows += [(f"  column {name}", kind) for name, kind in self.columns.items()]
        return shown.aligned(f"{self.conversion.source} -> {self.conversion.sink}, table {self.table}", rows)

    @property
    def items(self) -> int:
        """Items that the episodes became."""
        return self.conversion.items

    @property
    def agrees(self) -> bool:
        """Whether every server's own counts say that each item is in its table once."""
        return all(server.agrees is True for server in self.servers)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        own = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in ("conversion", "servers")
        }
        servers = [dataclasses.asdict(server) for server in self.servers]
        return {**self.conversion.to_json(), **own, "agrees": self.agrees, "servers": servers}


def push(
    source: Any,
    server: str | Sequence[str],
    table: str,
    *,
    sequence_length: int = 2,
    stride: int = 1,
    priority: Priority = 1.0,
    resume: str | os.PathLike[str] | None = None,
    timeout: float = 60.0,
    pattern: str = "trajectory",
    n_step: int = 1,
    gamma: float = 1.0,
    pad: bool = False,
    tile: bool = False,
    cross_episodes: bool = False,
    terminal_discount: str = "transition",
    policy_info: str | None = None,
    extras: Sequence[str] = (),
    end_of_episode: str = "zero_pad",
    stack: int = 1,
    chunk_length: int | None = None,
    allow_eviction: bool = False,
    keep_existing: bool = False,
    distinct_by: str = "content",
    occurrences: Mapping[int, int] | None = None,
    check_counts: bool = True,
    on_invalid: str = "raise",
    final_transition: str = "drop",
    allow_nonfinite: bool = False,
    progress: bool = False,
    **options: Any,
) -> PushReport:
    """Push a dataset into a table of a running Reverb server.

    Every item has a key that follows from what reaches the table: the episode's rows as the pattern takes them, how
    many equal episodes of the source came before, the step, the table and the pattern.  So pushing again updates items
    and never doubles them, and so does pushing a copy in another format, another split, another order, or the log that
    has grown since.  Only where a format holds other types (rewards as float64 here and float32 there) or gives the
    last row of an episode another discount, action or reward (a frame that closes a trajectory and holds no transition)
    are items others.  By default the items are those of TF-Agents' ReverbAddTrajectoryObserver with a sequence length
    of 2: N-1 trajectories of two frames for an episode of N rows.

    Args:
        source: a Source, or whatever :func:`rlds2buf.open_source` takes.
        server: ``host:port``, or several of them; episodes are spread by hash, the same way in whatever order they
            are named.
        table: the table's name.
        sequence_length, stride: frames per trajectory, and between the starts of trajectories.
        priority: a number; the name of a step field (``"extras/priority"``), read at each item's
            first row; or a function of all items of an episode that gives one number each.
        resume: path of a journal of acknowledged episodes.  If it exists, they are passed over, from whatever source
            they were read: of a log that has grown, only what is new is sent.  Journals of version 0.1.0 are continued
            with their own keys; they are of one dataset.
        timeout: seconds without progress after which it gives up, whatever the reason.
        pattern: ``"trajectory"``; ``"episode"``: one trajectory per episode; ``"transition"``: Acme's Transition,
            `n_step` long; ``"acme-sequence"`` and ``"acme-episode"``: Acme's Step, as its SequenceAdder and its
            EpisodeAdder write them (:mod:`rlds2buf.formats.reverb.patterns.acme_steps`); or ``"dopamine"``:
            Dopamine's ReplayElement (:mod:`rlds2buf.formats.reverb.patterns.dopamine`).
        n_step, gamma: for transitions, as in :func:`rlds2buf.transitions`, and for Dopamine's.
        pad, tile, cross_episodes: for trajectories at the end of episodes, see
            :class:`~rlds2buf.formats.reverb.patterns.trajectories.TrajectoryPattern`.
        terminal_discount: ``"transition"`` or ``"boundary"`` (as TF-Agents' util), see
            :func:`rlds2buf.step_pairs`.
        policy_info: the extra step field that becomes a trajectory's ``policy_info``.
        extras: the extra step fields that Acme's items carry.
        end_of_episode: ``"zero_pad"``, ``"truncate"`` or ``"write"``: Acme's sequences at the end of an episode.
        stack: frames per state of Dopamine's items.
        chunk_length: steps per chunk; None: 16 small steps, fewer where steps are large.
        allow_eviction: push more items than the table has room for; without it such a push is refused before
            anything is sent, and one that others leave no room ends before it evicts anything.
        keep_existing: leave the priorities of items that are in the table, which a learner may have changed: only
            what the journal does not have is sent, with whatever `priority` is now, and if the table no longer has
            what it acknowledged, nothing is.  Needs `resume`, for Reverb does not tell which keys it has.
        distinct_by: ``"content"``: equal episodes of sources that are pushed separately are the same items;
            ``"source"``: they are items of their own, if the sources have other names (paths).  Equal episodes of one
            source are always items of their own.  ``"number"``: as version 0.1.0 did, from the dataset's fingerprint
            and the episode's number; for tables that it filled without a journal.
        occurrences: where only a part of a source is pushed: how many equal episodes are before each in the whole, as
            :func:`rlds2buf.reverb.counting.count_occurrences` tells; None counts them as they come.
        check_counts: raise when the server's counts contradict ours afterwards.  Others may write to the table
            meanwhile; what can't be checked then is said in the report
            (:class:`~rlds2buf.formats.reverb.table_count.ServerCount`).
        on_invalid, final_transition, allow_nonfinite, progress: as in :func:`rlds2buf.convert`.
        options: for :func:`rlds2buf.open_source`, if `source` is not a Source.

    Returns:
        PushReport.

    Raises:
        SignatureMismatch: the table takes other columns; nothing was sent.
        ServerUnavailable: nobody answers, or a lost connection stays lost.
        WriteTimeout: no progress for `timeout` seconds; the message holds the table's state.
        SinkError: no such table, not enough room, another push's journal, or counts that disagree
            (CountsDisagree).
        EpisodeError: an episode is invalid, and `on_invalid` is ``"raise"``.
        SourceError: the source can't be read.
        ValueError: an argument is out of range.

        All but ValueError have the PushReport so far as their attribute ``report``; the items it
        counts as acknowledged are in the table.
    """
    items = make_pattern(
        pattern,
        sequence_length=sequence_length,
        stride=stride,
        pad=pad,
        tile=tile,
        cross_episodes=cross_episodes,
        terminal_discount=terminal_discount,
        policy_info=policy_info,
        n_step=n_step,
        gamma=gamma,
        extras=tuple(extras),
        end_of_episode=end_of_episode,
        stack=stack,
    )
    sink = ReverbTableSink(
        [server] if isinstance(server, str) else list(server),
        table,
        items,
        priority=priority,
        chunk_length=chunk_length,
        journal=resume,
        timeout=timeout,
        allow_eviction=allow_eviction,
        keep_existing=keep_existing,
        distinct_by=distinct_by,
        occurrences=occurrences,
    )
    how: dict[str, Any] = {
        "on_invalid": on_invalid,
        "final_transition": final_transition,
        "allow_nonfinite": allow_nonfinite,
    }
    with contextlib.ExitStack() as resources:
        if not isinstance(source, Source):
            source = resources.enter_context(open_source(source, **options))
        elif options:
            raise ValueError(f"{', '.join(options)}: for a path, not for an opened source")
        if final_transition == "drop":
            sink.expect(source.num_episodes, known_count(source, items))
        sink.look_ahead(functools.partial(count_items, source, items), functools.partial(convert, source, **how))
        report = _run(source, sink, how, progress)
    if check_counts and sink.disagreements:
        wrong = sink.disagreements[-1]
        wrong.report = report
        raise wrong
    return report


def write_checkpoint(
    source: Any,
    path: str | os.PathLike[str],
    table: TableSpec | str = "replay",
    *,
    on_invalid: str = "raise",
    final_transition: str = "drop",
    allow_nonfinite: bool = False,
    progress: bool = False,
    **options: Any,
) -> ConvertReport:
    """Write a dataset as a Reverb checkpoint, which a server loads when it starts: no network, no server.

    The items and their keys are those of :func:`push`, so pushing the same data to a server that
    started from the checkpoint changes nothing.

    Args:
        source: a Source, or whatever :func:`rlds2buf.open_source` takes.
        path: the folder to make, for ``DefaultCheckpointer(path)``.
        table: the table's settings, or just its name.
        on_invalid, final_transition, allow_nonfinite, progress: as in :func:`rlds2buf.convert`.
        options: as :class:`~rlds2buf.formats.reverb.checkpoint_sink.ReverbCheckpointSink` takes them: ``pattern``,
            ``priority``, ``chunk_length``, ``overwrite``, the pattern's (``sequence_length``, ``n_step``, ...), and
            where `table` is a name TableSpec's (``max_size``, ``sampler``, ...).

    Raises:
        SnapshotExists: the folder is there already.
        SinkError: it can't be written, or the table can't hold the items.
        EpisodeError, SourceError, ValueError: as for :func:`push`.
    """
    return convert(
        source,
        ReverbCheckpointSink(path, table, **options),
        on_invalid=on_invalid,
        final_transition=final_transition,
        allow_nonfinite=allow_nonfinite,
        progress=progress,
    )


def _run(source: Source, sink: ReverbTableSink, how: dict[str, Any], progress: bool) -> PushReport:
    restarts = 0
    while True:
        try:
            conversion = convert(source, sink, progress=progress, **how)
            return _report(conversion, sink, restarts)
        except ServerRestarted as error:
            # The new server may lack what the old one had acknowledged: send everything again.
            if restarts == MAX_RESTARTS:
                _attach(error, sink, restarts)
                raise
            restarts += 1
        except BaseException as error:
            _attach(error, sink, restarts)
            raise


def _report(conversion: ConvertReport, sink: ReverbTableSink, restarts: int) -> PushReport:
    short = sink.episodes_without_items
    notes = list(sink.notes)
    if sink.pattern.note:
        notes.append(sink.pattern.note)
    if short:
        notes.append(f"{short} episodes are too short for this pattern and gave no items")
    return PushReport(
        conversion,
        sink.table,
        sink.columns,
        sink.counts,
        acknowledged=sum(count.acknowledged for count in sink.counts),
        resumed=sink.passed_over,
        new=_sum([count.new for count in sink.counts]),
        already_there=sum(count.already_there for count in sink.counts),
        episodes_without_items=short,
        reconnects=sink.reconnects,
        restarts=restarts,
        notes=notes,
    )


def _sum(counts: Sequence[int | None]) -> int | None:
    """Of all of them, None if one is not known."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _attach(error: BaseException, sink: ReverbTableSink, restarts: int) -> None:
    conversion = told(error, "report")
    if isinstance(conversion, ConvertReport):
        tell(error, report=_report(conversion, sink, restarts))


class _CallableModule(types.ModuleType):
    """This module, as something that can be called: once imported it stands in the function's place."""

    def __call__(self, *arguments: Any, **options: Any) -> PushReport:
        return push(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule
