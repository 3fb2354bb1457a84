"""Episodes into a table of one or several running Reverb servers."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import CountsDisagree, SignatureMismatch, SinkError
from rlds2buf.formats.reverb.item_keys import KeyMaker
from rlds2buf.formats.reverb.patterns.base import Laid, Pattern, check_batch
from rlds2buf.formats.reverb.patterns.priorities import Priority, check_priority, priorities_of
from rlds2buf.formats.reverb.protocol.connection import TableState, address_of
from rlds2buf.formats.reverb.protocol.insert_stream import InsertStream
from rlds2buf.formats.reverb.protocol.item_encoder import Column, ItemEncoder
from rlds2buf.formats.reverb.protocol.signature import differences, flatten_signature, flatten_spec
from rlds2buf.formats.reverb.push_journal import Journal
from rlds2buf.formats.reverb.request_builder import RequestBuilder, chunk_length_for
from rlds2buf.io.sink import Sink

__all__ = ["ReverbTableSink", "ServerCount"]

ABORT_SECONDS = 2.0

_LOG = logging.getLogger("rlds2buf")


@dataclasses.dataclass
class ServerCount:
    """One server's table before and after, and whether that agrees with what was pushed.

    Attributes:
        address: ``host:port``.
        size_before, size_after: items in the table.
        items: of this push (earlier runs of its journal included) that belong to this server.
        acknowledged: of those, sent and acknowledged in this run.
        new: items that the server says were inserted; None if it was never asked.
        already_there: ``items - new``: sent, and only updated.
        removed: items that have left the table since the push began.
        agrees: every item is in the table once, by the server's own counts; None while unknown.
    """

    address: str
    size_before: int = 0
    size_after: int = 0
    items: int = 0
    acknowledged: int = 0
    new: int | None = None
    already_there: int = 0
    removed: int = 0
    agrees: bool | None = None


@dataclasses.dataclass
class _Server:
    """One server of a push: its stream, its builder, its place in the journal."""

    number: int
    stream: InsertStream
    builder: RequestBuilder | None = None
    items: int = 0  # acknowledged in earlier runs, or sent in this one
    max_size: int = 0
    order: list[int] | None = None  # of the tensors, where it is not the pattern's own
    forgets: bool = False  # the table removes items by itself, after max_times_sampled samples


class ReverbTableSink(Sink):
    """Writes items to a table over Reverb's own protocol; needs neither TensorFlow nor dm-reverb.

    `open` looks at the table before anything is sent.  Items are acknowledged while others are
    under way; `flush` waits for all of them, and `commit` compares the server's counts with ours.
    `abort` leaves the items that were written where they are.

    Args:
        servers: ``host:port`` each; episodes are spread over them by hash, the same way every time.
        table: its name, on every server.
        pattern: what items an episode becomes.
        priority: of the items: a number, the name of a step field (its value at the item's first
            row), or a function that gets all items of an episode as the pattern's NamedTuple of
            arrays ``[I, ...]`` and returns ``[I]``.
        chunk_length: steps per chunk; None chooses by the size of a step.
        journal: path of the file that records what is acknowledged; None keeps none.
        timeout: seconds without progress after which a write is given up.
        allow_eviction: push more items than the table holds, so that its remover drops some.

    Attributes:
        columns: the items' columns, field name to type.
        counts: one ServerCount per server, filled by `commit` and `abort`.
        disagreements: after `commit`, one for each server whose counts are not ours.
        notes: sentences about the table that the user should read.
        episodes_without_items: episodes too short for the pattern.
        sent: items sent in this run.
        passed_over: items not sent, for the journal has them as acknowledged.
        reconnects: how often a lost connection was made again.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        servers: Sequence[str],
        table: str,
        pattern: Pattern,
        *,
        priority: Priority = 1.0,
        chunk_length: int | None = None,
        journal: str | os.PathLike[str] | None = None,
        timeout: float = 60.0,
        allow_eviction: bool = False,
    ) -> None:
        if not servers:
            raise ValueError("at least one server is needed")
        self.addresses = [address_of(server) for server in servers]
        if len(set(self.addresses)) != len(self.addresses):
            raise ValueError(f"a server is named twice: {', '.join(self.addresses)}")
        if pattern.crosses and len(self.addresses) > 1:
            raise ValueError("items that cross episode borders can't be spread over several servers")
        if not timeout > 0 or not math.isfinite(timeout):
            raise ValueError(f"timeout must be a positive number of seconds, got {timeout}")
        if chunk_length is not None and chunk_length < 1:
            raise ValueError(f"chunk_length must be at least 1, got {chunk_length}")
        check_priority(priority, pattern)
        self.name = f"reverb://{','.join(self.addresses)}/{table}"
        self.table = table
        self.pattern = pattern
        self.counts = [ServerCount(address) for address in self.addresses]
        self.columns: dict[str, str] = {}
        self.disagreements: list[CountsDisagree] = []
        self._expected: int | None = None
        self.notes: list[str] = []
        self.episodes_without_items = 0
        self.sent = self.passed_over = self.reconnects = 0
        self._priority = priority
        self._chunk_length = chunk_length
        self._journal_path = journal
        self._journal: Journal | None = None
        self._timeout = timeout
        self._allow_eviction = allow_eviction
        self._servers: list[_Server] = []
        self._spec = StepSpec()
        self._keys: KeyMaker | None = None
        self._written = 0

    def expect(self, episodes: int | None, items: int | None = None, source_ids: Sequence[str] = ()) -> None:
        """With `items`, :meth:`open` refuses a table that can't hold them."""
        self._expected = self._expected if items is None else items

    def open(self, spec: StepSpec, provenance: Mapping[str, Any]) -> None:
        """Look at the table on every server: that it is there, its signature, its room, its rate limiter.

        Raises:
            ServerUnavailable: nobody answers, or not Reverb.
            SignatureMismatch: the table takes other columns; the message says which.
            SinkError: no such table, no room, the data lack a field, or the journal is another push's.
        """
        self._spec = spec
        self.notes.clear()
        self.pattern.reset()
        self.counts = [ServerCount(address) for address in self.addresses]
        self.disagreements.clear()
        self._written = self.episodes_without_items = self.sent = self.passed_over = 0
        try:
            fields = flatten_spec(self.pattern.signature(spec))
            self.columns = {nest.path_name(path): str(field) for path, field in fields}
            columns = self.pattern.columns(spec)
        except ValueError as error:
            raise SinkError(f"{provenance['source']}: {error}") from error
        if self._chunk_length is None:
            self._chunk_length = chunk_length_for(spec, self.pattern.chunk_steps)
        self._keys = KeyMaker(provenance, self.table, self.pattern.text, self._chunk_length)
        self._servers = [self._server(number) for number in range(len(self.addresses))]
        states = [server.stream.connect() for server in self._servers]
        orders = [self._check(server, state, fields) for server, state in zip(self._servers, states, strict=True)]
        self._journal = Journal(self._journal_path, self._header(provenance), len(self._servers))
        for server, state, order in zip(self._servers, states, orders, strict=True):
            self._begin(server, state)
            server.items = self._journal.servers[server.number].items
            ordered = [columns[i] for i in order]
            if columns == [Column(i) for i in range(len(columns))]:
                # Column i from tensor i: only such items can Reverb also hand out step by step.
                server.order, ordered = order, columns
            encoder = ItemEncoder(self.table, ordered, max_chunk_length=self._chunk_length)
            server.builder = RequestBuilder(
                encoder, self._chunk_length, send=server.stream.send, mark=server.stream.mark
            )

    def resumed(self) -> Mapping[str, Any] | None:
        """The journal's last word on how far the reading had come."""
        assert self._journal is not None
        # Items that cross borders need the rows of the episode before, so that one is read again.
        progress = None if self.pattern.crosses else self._journal.progress
        if progress is not None:
            self.passed_over = int(progress["items"])
        return progress

    def write_batch(self, batch: EpisodeBatch) -> int:
        """Send the items of some episodes; returns how many there are, sent now or acknowledged earlier.

        Raises:
            EpisodeError: one does not fit the spec, or its priorities are no priorities.
            WriteTimeout, ServerUnavailable, SinkError: as the docstring of the stream says.
        """
        if self.pattern.crosses and len(batch) > 1:
            return super().write_batch(batch)  # what is laid out follows from what was
        assert self._journal is not None and self._keys is not None
        check_batch(self._spec, batch)
        numbers = np.arange(self._written, self._written + len(batch)) if batch.index is None else batch.index
        owners = self._keys.shards(numbers, len(self._servers))
        acknowledged = [record.episodes for record in self._journal.servers]
        pairs = zip(numbers.tolist(), owners.tolist(), strict=True)
        known = np.array([number in acknowledged[owner] for number, owner in pairs])
        laid = self.pattern.lay(batch)
        priorities, fault = priorities_of(self._priority, batch, laid, ~known)
        new = np.where(known, 0, laid.counts)
        end, overflow = self._room(new, owners, len(batch) if fault is None else fault[0])
        for server in self._servers:
            mine = (owners == server.number) & ~known
            mine[end:] = False
            if mine.any():
                self._send(server, laid.take(mine), numbers[mine], priorities[mine[laid.of]])
        self._written += min(end + 1, len(batch))
        self.episodes_without_items += int(np.count_nonzero(laid.counts[:end] == 0))
        self.passed_over += int(laid.counts[:end][known[:end]].sum())
        items = int(laid.counts[:end].sum())
        if overflow is not None:
            raise overflow
        if fault is not None:
            if end + 1 < len(batch):
                self.pattern.take_back(batch.take(slice(end + 1, None)))
            fault[1].written = end, items
            raise fault[1]
        return items

    def _room(self, items: np.ndarray, owners: np.ndarray, end: int) -> tuple[int, SinkError | None]:
        """How many of the episodes before `end` the tables hold, each with so many items, and why no more."""
        found: SinkError | None = None
        for server in () if self._allow_eviction else self._servers:
            held = server.items + np.cumsum(np.where(owners == server.number, items, 0))
            over = np.flatnonzero(held[:end] > server.max_size)
            if len(over):
                end, found = int(over[0]), self._no_room(server, int(held[over[0]]))
        return end, found

    def _send(self, server: _Server, laid: Laid, numbers: np.ndarray, priorities: np.ndarray) -> None:
        assert server.builder is not None and self._keys is not None
        server.items += len(laid.numbers)
        self.sent += len(laid.numbers)
        keys = self._keys.episodes(numbers, laid.tensors, laid.edges)
        ordered = laid.tensors if server.order is None else [laid.tensors[i] for i in server.order]
        marks = list(zip(numbers.tolist(), laid.counts.tolist(), strict=True))
        server.builder.add(laid._replace(tensors=ordered), keys, priorities, marks)

    def flush(self) -> None:
        """Send what is held back and wait until every item is acknowledged."""
        for server in self._servers:
            assert server.builder is not None
            server.builder.flush()
        for server in self._servers:
            server.stream.drain()

    def checkpoint(self, progress: Mapping[str, Any]) -> None:
        """With a journal: wait until everything is acknowledged, and note how far the reading has come."""
        if self._journal_path is not None:
            assert self._journal is not None
            self.flush()
            self._journal.checkpoint(progress)

    def commit(self) -> None:
        """Compare the server's counts with ours, and close."""
        for server in self._servers:
            self._count(server, server.stream.probe())
        self._close()

    def abort(self) -> None:
        """Wait for what is under way, if the servers still answer; note what is there, and close."""
        for server in self._servers:
            if server.builder is None:
                continue
            server.stream.timeout = min(self._timeout, ABORT_SECONDS)
            try:
                server.builder.flush()
                server.stream.drain()
                self._count(server, server.stream.probe(), finished=False)
            except SinkError:
                self.counts[server.number].acknowledged = server.stream.acknowledged
        self._close()

    def _server(self, number: int) -> _Server:
        def acknowledged(marks: list[Any]) -> None:
            assert self._journal is not None
            self._journal.acknowledge(number, marks)

        return _Server(
            number,
            InsertStream(self.addresses[number], self.table, timeout=self._timeout, on_acknowledged=acknowledged),
        )

    def _header(self, provenance: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "fingerprint": provenance["fingerprint"],
            "servers": self.addresses,
            "table": self.table,
            "pattern": self.pattern.text,
            "chunk_length": self._chunk_length,
            "priority": self._priority if isinstance(self._priority, int | float | str) else "function",
            "options": provenance["options"],
        }

    def _check(self, server: _Server, state: TableState, fields: list[tuple[nest.Path, FieldSpec]]) -> list[int]:
        """The order in which the table wants our columns; notes what to know about the table."""
        server.max_size = state.max_size
        server.forgets = state.max_times_sampled > 0
        where = self.addresses[server.number]
        order = list(range(len(fields)))
        if state.signature is not None:
            theirs = flatten_signature(state.signature)
            lines = differences(fields, theirs)
            if lines:
                raise SignatureMismatch(
                    f"{where}: table {self.table!r} takes other columns than the data give:\n  " + "\n  ".join(lines)
                )
            place = {path: i for i, (path, _) in enumerate(fields)}
            order = [place[field.path] for field in theirs]
        if self._expected is None:
            self._note(f"{where}: {state}")
            return order
        alone = len(self.addresses) == 1
        if alone and self._expected > state.max_size and not self._allow_eviction:
            raise self._no_room(server, self._expected)
        share = -(-self._expected // len(self.addresses))
        text = f"{where}: {state}; {'' if alone else 'about '}{share} items will be pushed"
        if share > state.room:
            text += f", and there is room for {state.room} more before others go (or are they there already?)"
        if state.insertable is not None and share > state.insertable:
            text += f"; the push will wait for samples after {state.insertable} new items"
        self._note(text)
        return order

    def _note(self, text: str) -> None:
        self.notes.append(text)
        _LOG.info(text)

    def _begin(self, server: _Server, state: TableState) -> None:
        """Go on from the journal, or start anew if the server has forgotten what it had acknowledged."""
        assert self._journal is not None
        record = self._journal.servers[server.number]
        number = f"{server.stream.state_id:032x}"
        gone = max(record.size + (state.inserted - record.inserted), record.items) - state.size
        keeps = server.forgets or self._allow_eviction or gone <= 0
        if record.state == number and state.inserted >= record.seen and keeps:
            return
        if record.items:
            self._note(
                f"{self.addresses[server.number]}: the server was restarted or its table emptied since it acknowledged "
                f"{record.items} items; everything is pushed again, and what is there is not doubled"
            )
        self._journal.begin(server.number, number, size=state.size, inserted=state.inserted)

    def _no_room(self, server: _Server, items: int) -> SinkError:
        return SinkError(
            f"{self.addresses[server.number]}: table {self.table!r} holds at most {server.max_size} items, and this "
            f"push has {items} or more; it would remove its own items. Give the table a larger max_size, or allow it "
            "(allow_eviction=True)"
        )

    def _count(self, server: _Server, state: TableState, *, finished: bool = True) -> None:
        assert self._journal is not None
        record, count = self._journal.servers[server.number], self.counts[server.number]
        count.size_before, count.size_after = record.size, state.size
        count.items, count.acknowledged = record.items, server.stream.acknowledged
        self._journal.look(server.number, state.inserted)
        count.new = state.inserted - record.inserted
        count.already_there = max(0, count.items - count.new)
        count.removed = record.size + count.new - state.size
        if not finished:
            return
        kept = count.removed == 0 or (self._allow_eviction and state.size == state.max_size)
        once = count.new <= count.items and count.already_there <= count.size_before
        # Of a table that drops what was sampled, nothing can be told by counting.
        count.agrees = server.forgets or (once and kept)
        if not count.agrees:
            wrong = CountsDisagree(
                f"{count.address}: the counts do not agree: {count.items} items were acknowledged and the server says "
                f"it inserted {count.new}; the table had {count.size_before} and has {count.size_after}, so "
                f"{count.removed} have left it",
                address=count.address,
                items=count.items,
                inserted=count.new,
                size_before=count.size_before,
                size_after=count.size_after,
            )
            self.disagreements.append(wrong)
            self._note(str(wrong))

    def _close(self) -> None:
        for server in self._servers:
            self.reconnects += server.stream.reconnects
            server.stream.close()
        self._servers = []
        if self._journal is not None:
            self._journal.close()
