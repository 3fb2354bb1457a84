"""Episodes into a table of one or several running Reverb servers."""

from __future__ import annotations

import copy
import dataclasses
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.arguments import choice
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import CountsDisagree, SignatureMismatch, SinkError
from rlds2buf.formats.reverb.item_keys import (
    BY_CONTENT,
    BY_NUMBER,
    BY_SOURCE,
    ContentKeys,
    EpisodeKeys,
    KeyMaker,
    source_name,
)
from rlds2buf.formats.reverb.occurrences import UNKNOWN, collision
from rlds2buf.formats.reverb.patterns.base import Laid, Pattern, check_batch
from rlds2buf.formats.reverb.patterns.priorities import Priority, check_priority, priorities_of
from rlds2buf.formats.reverb.protocol.connection import TableState, address_of
from rlds2buf.formats.reverb.protocol.insert_stream import MAX_UNDER_WAY_ITEMS, InsertStream
from rlds2buf.formats.reverb.protocol.item_encoder import Column, ItemEncoder
from rlds2buf.formats.reverb.protocol.signature import differences, flatten_signature, flatten_spec
from rlds2buf.formats.reverb.push_journal import (
    BY_CONTENT_VERSION,
    BY_NUMBER_VERSION,
    CollisionInJournal,
    Journal,
    ServerRecord,
)
from rlds2buf.formats.reverb.rehearsal import Rehearsal, items_there
from rlds2buf.formats.reverb.request_builder import RequestBuilder, chunk_length_for
from rlds2buf.formats.reverb.table_count import ServerCount
from rlds2buf.formats.reverb.table_room import RoomLeft
from rlds2buf.io.sink import Sink

__all__ = ["ReverbTableSink", "ServerCount"]

ABORT_SECONDS = 2.0
DRAW_SECONDS = 2.0

_LOG = logging.getLogger("rlds2buf")


@dataclasses.dataclass
class _Server:
    """One server of a push: its stream, its builder, its place in the journal."""

    number: int  # as it was named
    place: int  # in the journal, and among those that episodes belong to
    stream: InsertStream
    builder: RequestBuilder | None = None
    items: int = 0  # acknowledged in earlier runs, or sent in this one
    sent: int = 0  # of them, in this one
    order: list[int] | None = None  # of the tensors, where it is not the pattern's own
    room: RoomLeft | None = None  # None where the table may evict, or never does


class ReverbTableSink(Sink):
    """Writes items to a table over Reverb's own protocol; needs neither TensorFlow nor dm-reverb.

    `open` looks at the table before anything is sent.  Items are acknowledged while others are
    under way; `flush` waits for all of them, and `commit` compares the server's counts with ours.
    `abort` leaves the items that were written where they are.

    Args:
        servers: ``host:port`` each; episodes are spread over them by hash, the same way every time, in whatever order
            the servers are named.
        table: its name, on every server.
        pattern: what items an episode becomes.
        priority: of the items: a number, the name of a step field (its value at the item's first
            row), or a function that gets all items of an episode as the pattern's NamedTuple of
            arrays ``[I, ...]`` and returns ``[I]``.
        chunk_length: steps per chunk; None chooses by the size of a step.
        journal: path of the file that records what is acknowledged; None keeps none.  It serves every source: what it
            has is passed over, wherever that was read.
        timeout: seconds without progress after which a write is given up.
        allow_eviction: push more items than the table has room for, so that its remover drops some.
        keep_existing: send only what the journal does not have, so that priorities that were changed since stay.
        distinct_by: ``"content"``: equal episodes of several sources are the same items; ``"source"``: they are items
            of their own.  Equal episodes of one source always are.  ``"number"``: as version 0.1.0 had it.
        occurrences: the number of an episode to how many equal ones come before it in the whole source, where only
            a part of that is pushed (:class:`~.occurrences.CountingSink`); None counts them as they come.

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
        keep_existing: bool = False,
        distinct_by: str = BY_CONTENT,
        occurrences: Mapping[int, int] | None = None,
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
        if keep_existing and journal is None:
            raise ValueError(
                "keep_existing (--keep-existing) needs the journal of the earlier push (resume=): Reverb "
                "does not tell which keys it has, and sending an item again sets its priority"
            )
        choice("distinct_by", distinct_by, (BY_CONTENT, BY_SOURCE, BY_NUMBER))
        check_priority(priority, pattern)
        self.name = f"reverb://{','.join(self.addresses)}/{table}"
        self.table = table
        self.pattern = pattern
        self.counts = [ServerCount(address) for address in self.addresses]
        self.columns: dict[str, str] = {}
        self.disagreements: list[CountsDisagree] = []
        self._expected: int | None = None
        self._counting: Callable[[], int] | None = None
        self._reading: Callable[[Sink], Any] | None = None
        self._rehearsal: Rehearsal | None = None
        self._began: dict[int, int] = {}  # sizes of the tables when this push began
        self.notes: list[str] = []
        self.episodes_without_items = 0
        self.sent = self.passed_over = self.reconnects = 0
        self._priority = priority
        self._chunk_length = chunk_length
        self._journal_path = journal
        self._journal: Journal | None = None
        self._timeout = timeout
        self._allow_eviction = allow_eviction
        self._keep_existing = keep_existing
        self._distinct_by = distinct_by
        self._occurrences = occurrences
        self._servers: list[_Server] = []
        self._spec = StepSpec()
        self._keys: ContentKeys | KeyMaker | None = None
        self._source = ""
        self._written = 0

    def expect(self, episodes: int | None, items: int | None = None, source_ids: Sequence[str] = ()) -> None:
        """With `items`, :meth:`open` refuses a table that has no room for them."""
        self._expected = self._expected if items is None else items

    def look_ahead(self, count: Callable[[], int], read: Callable[[Sink], Any]) -> None:
        """Where a table may have too little room, let :meth:`open` know more of what will come.

        Args:
            count: gives about how many items it will be; asked if nobody has said so.
            read: hands everything that will come to another sink.
        """
        self._counting, self._reading = count, read

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
        self._servers = [self._server(number) for number in range(len(self.addresses))]
        states = [server.stream.connect() for server in self._servers]
        for count, state in zip(self.counts, states, strict=True):
            count.size_before = count.size_after = state.size
        orders = [self._order(server, state, fields) for server, state in zip(self._servers, states, strict=True)]
        self._journal = self._opened_journal(provenance)
        self._check_room(states, provenance)
        for server, state, order in zip(self._servers, states, orders, strict=True):
            self._begin(server, state)
            record = self._record(server)
            self._began.setdefault(server.number, record.size)
            server.items = record.items
            ordered = [columns[i] for i in order]
            if columns == [Column(i) for i in range(len(columns))]:
                # Column i from tensor i: only such items can Reverb also hand out step by step.
                server.order, ordered = order, columns
            encoder = ItemEncoder(self.table, ordered, max_chunk_length=self._chunk_length)
            server.builder = RequestBuilder(
                encoder, self._chunk_length, send=server.stream.send, mark=server.stream.mark
            )
        self._keys = self._made_keys(provenance)
        if isinstance(self._keys, ContentKeys):
            source = {name: provenance[name] for name in ("source", "fingerprint", "options")}
            # Items that cross borders need the rows of the episode before, so everything is read again.
            self._keys.go_on_from(self._journal.run(source, from_start=self.pattern.crosses))

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
        laid = self.pattern.lay(batch)
        keys = self._keys.episodes(numbers, laid.tensors, laid.edges)
        owners = keys.owners(len(self._servers))
        known = self._known(keys, owners, numbers)
        priorities, fault = priorities_of(self._priority, batch, laid, ~known)
        new = np.where(known, 0, laid.counts)
        end, overflow = self._room(new, owners, len(batch) if fault is None else fault[0])
        for server in self._servers:
            mine = (owners == server.place) & ~known
            mine[end:] = False
            if mine.any():
                self._send(server, laid.take(mine), keys.take(mine), priorities[mine[laid.of]])
        self._journal.pass_over(keys.take(np.flatnonzero(known[:end])))
        self._keys.take_back(keys.take(slice(end, None)))
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

    def _known(self, keys: EpisodeKeys, owners: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """``[E] bool``: which episodes the journal has as acknowledged."""
        assert self._journal is not None
        try:
            return self._journal.known(keys, owners)
        except CollisionInJournal as error:
            raise collision(self._source, UNKNOWN, int(numbers[error.position])) from error

    def _room(self, items: np.ndarray, owners: np.ndarray, end: int) -> tuple[int, SinkError | None]:
        """How many of the episodes before `end` the tables have room for, each with so many items, and why no more."""
        found: SinkError | None = None
        for server in self._servers:
            if server.room is None or not end:
                continue
            wanted = np.cumsum(np.where(owners == server.place, items, 0))[:end]
            over = np.flatnonzero(wanted > server.room.left(int(wanted[-1])))
            if len(over):
                end, found = int(over[0]), self._full(server, server.items + int(wanted[over[0]]))
        return end, found

    def _send(self, server: _Server, laid: Laid, keys: EpisodeKeys, priorities: np.ndarray) -> None:
        assert server.builder is not None
        server.items += len(laid.numbers)
        server.sent += len(laid.numbers)
        if server.room is not None:
            server.room.take(len(laid.numbers))
        self.sent += len(laid.numbers)
        ordered = laid.tensors if server.order is None else [laid.tensors[i] for i in server.order]
        marks = list(zip(keys.marks, laid.counts.tolist(), strict=True))
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
        self._note_equal_episodes()
        self._close()

    def _note_equal_episodes(self) -> None:
        """Say that items were there before, where that may be a surprise."""
        assert self._journal is not None
        if self._journal.version == BY_NUMBER_VERSION or self._distinct_by == BY_SOURCE:
            return
        advice = "equal episodes of several sources are the same items (--distinct-by source keeps them apart)"
        if {source["source"] for source in self._journal.sources} - {self._source} and self.passed_over:
            self._note(f"{self.passed_over} items were acknowledged before, maybe from another source: {advice}")
        there = sum(count.already_there or 0 for count in self.counts)
        if there:
            self._note(f"{there} items were in the table before, maybe from another source: {advice}")

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
            self._journal.acknowledge(self._servers[number].place, marks)

        return _Server(
            number,
            number,
            InsertStream(self.addresses[number], self.table, timeout=self._timeout, on_acknowledged=acknowledged),
        )

    def _opened_journal(self, provenance: Mapping[str, Any]) -> Journal:
        """The journal; it says what keys are made of, and so which server an episode belongs to."""
        how = {
            "table": self.table,
            "pattern": self.pattern.text,
            "priority": self._priority if isinstance(self._priority, int | float | str) else "function",
        }
        header = {**how, "servers": sorted(self.addresses), "distinct_by": self._distinct_by}
        old_header = {
            **how,
            "servers": self.addresses,
            "fingerprint": provenance["fingerprint"],
            "chunk_length": self._chunk_length,
            "options": provenance["options"],
        }
        free = ("priority",) if self._keep_existing else ()
        if self._distinct_by == BY_SOURCE:
            header["source"] = source_name(provenance["source"])
        version = BY_NUMBER_VERSION if self._distinct_by == BY_NUMBER else BY_CONTENT_VERSION
        journal = Journal(
            self._journal_path, header, len(self._servers), old_header=old_header, free=free, version=version
        )
        if journal.version != BY_NUMBER_VERSION:
            for place, number in enumerate(sorted(range(len(self.addresses)), key=self.addresses.__getitem__)):
                self._servers[number].place = place
        return journal

    def _made_keys(self, provenance: Mapping[str, Any]) -> ContentKeys | KeyMaker:
        """What makes the keys, as the journal has them."""
        assert self._journal is not None and self._chunk_length is not None
        self._source = str(provenance["source"])
        about = (provenance, self.table, self.pattern.text, self._chunk_length)
        if self._journal.version == BY_NUMBER_VERSION:
            return KeyMaker(*about)
        return ContentKeys(*about, distinct_by=self._distinct_by, occurrences=self._occurrences)

    def _order(self, server: _Server, state: TableState, fields: list[tuple[nest.Path, FieldSpec]]) -> list[int]:
        """The order in which the table wants our columns."""
        if state.signature is None:
            return list(range(len(fields)))
        theirs = flatten_signature(state.signature)
        lines = differences(fields, theirs)
        if lines:
            raise SignatureMismatch(
                f"{self.addresses[server.number]}: table {self.table!r} takes other columns than the data give:\n  "
                + "\n  ".join(lines)
            )
        place = {path: i for i, (path, _) in enumerate(fields)}
        return [place[field.path] for field in theirs]

    def _check_room(self, states: Sequence[TableState], provenance: Mapping[str, Any]) -> None:
        """Refuse a push that would make a table drop items, before anything is sent; note what to know of the tables.

        Raises:
            SinkError: a table has no room for the items that are not there yet.
        """
        for server, state in zip(self._servers, states, strict=True):
            if not (self._allow_eviction or state.never_evicts):
                server.room = self._room_left(server, state)
        self._count_ahead(states)
        for server, state in zip(self._servers, states, strict=True):
            if self._expected is None:
                self._note(f"{self.addresses[server.number]}: {state}")
                continue
            share = -(-self._expected // len(self._servers))
            if server.room is not None and share > state.max_size:
                raise self._too_small(server, state, share)
            if server.room is not None and share > state.room:
                self._check_little_room(server, states, share, provenance)
            self._note_room(server, state, share)

    def _count_ahead(self, states: Sequence[TableState]) -> None:
        """Have the items counted, if it matters and nobody has said how many there are."""
        if self._expected is not None or self._counting is None:
            return
        for server, state in zip(self._servers, states, strict=True):
            # A log that is pushed once more has seldom doubled; if it has, the push ends before anything is evicted.
            plenty = self._is_believed(server, state) and state.room >= self._record(server).items > 0
            if server.room is not None and state.size and not plenty:
                self._expected = self._counting()
                return

    def _check_little_room(
        self, server: _Server, states: Sequence[TableState], share: int, provenance: Mapping[str, Any]
    ) -> None:
        """Where a table has no room for all items: refuse unless enough of them are there already."""
        state = states[server.number]
        began = self._began.get(server.number)
        if began is not None and state.size <= began + share <= state.max_size:
            # This push began with enough room, and the server came back with some of its items at most.
            server.room = None
            return
        if self._reading is None:
            raise self._no_room(server, state, share, 0)
        if self._rehearsal is None:
            self._rehearsal = self._rehearse(states, provenance)
        new = self._rehearsal.new[server.place]
        if len(new) <= state.room:
            return
        there = items_there(self.addresses[server.number], state, new, min(self._timeout, DRAW_SECONDS))
        if len(new) - there > state.room:
            raise self._no_room(server, state, len(new), there)
        server.room = None

    def _rehearse(self, states: Sequence[TableState], provenance: Mapping[str, Any]) -> Rehearsal:
        """Read everything that will come without sending it."""
        assert self._reading is not None
        believed = [s.place for s, state in zip(self._servers, states, strict=True) if self._is_believed(s, state)]
        maker = self._made_keys(provenance)

        def judge(keys: EpisodeKeys, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            owners = keys.owners(len(self._servers))
            return owners, self._known(keys, owners, numbers) & np.isin(owners, believed)

        rehearsal = Rehearsal(copy.deepcopy(self.pattern), maker.episodes, judge, len(self._servers))
        self._reading(rehearsal)
        return rehearsal

    def _note_room(self, server: _Server, state: TableState, share: int) -> None:
        alone = len(self._servers) == 1
        text = f"{self.addresses[server.number]}: {state}; {'' if alone else 'about '}{share} items will be pushed"
        coming = share - (min(share, self._record(server).items) if self._is_believed(server, state) else 0)
        if coming > state.room:
            text += f", and there is room for {state.room} more before others go (or are they there already?)"
        if state.insertable is not None and coming > state.insertable:
            text += f"; the push will wait for samples after {state.insertable} new items"
        self._note(text)

    def _record(self, server: _Server) -> ServerRecord:
        assert self._journal is not None
        return self._journal.servers[server.place]

    def _room_left(self, server: _Server, state: TableState) -> RoomLeft:
        def settle() -> None:
            assert server.builder is not None
            server.builder.flush()
            server.stream.drain()

        def under_way() -> int:
            return server.sent - server.stream.acknowledged

        return RoomLeft(state, ask=server.stream.probe, settle=settle, under_way=under_way)

    def _note(self, text: str) -> None:
        self.notes.append(text)
        _LOG.info(text)

    def _is_believed(self, server: _Server, state: TableState) -> bool:
        """Whether what the journal has as acknowledged is still in the table."""
        record = self._record(server)
        gone = max(record.size + (state.inserted - record.inserted), record.items) - state.size
        keeps = state.max_times_sampled > 0 or self._allow_eviction or gone <= 0
        return record.state == f"{server.stream.state_id:032x}" and state.inserted >= record.seen and keeps

    def _begin(self, server: _Server, state: TableState) -> None:
        """Go on from the journal, or start anew if the server has forgotten what it had acknowledged."""
        assert self._journal is not None
        record = self._record(server)
        number = f"{server.stream.state_id:032x}"
        where = self.addresses[server.number]
        if self._is_believed(server, state):
            arrived = min(state.inserted - record.inserted - record.items, MAX_UNDER_WAY_ITEMS)
            if self._keep_existing and arrived > 0:
                self._note(
                    f"{where}: up to {arrived} items arrived that the journal does not have as acknowledged, under way "
                    "when an earlier run ended, unless they are others'; what was under way is sent again, with the "
                    "priority of this push"
                )
            return
        if record.items:
            same = record.state == number and state.inserted >= record.seen
            why = "items have left its table" if same else "the server was restarted or its table emptied"
            if self._keep_existing:
                raise SinkError(
                    f"{where}: {why} since it acknowledged {record.items} items, and which of them are still there "
                    "can't be told. Without keep_existing (--keep-existing) everything is pushed again: nothing is "
                    "doubled, and every item has the priority of that push"
                )
            self._note(
                f"{where}: {why} since it acknowledged {record.items} items; everything is pushed again, and what is "
                "there is not doubled"
            )
        self._journal.begin(server.place, number, size=state.size, inserted=state.inserted)

    def _too_small(self, server: _Server, state: TableState, items: int) -> SinkError:
        return SinkError(
            f"{self.addresses[server.number]}: table {self.table!r} holds at most {state.max_size} items, and this "
            f"push has {items} or more; it would remove its own items. Give the table a larger max_size, or allow it "
            "(allow_eviction=True)"
        )

    def _no_room(self, server: _Server, state: TableState, new: int, there: int) -> SinkError:
        already = f", of which about {there} seem to be there already" if there else ", none of which seem to be there"
        return SinkError(
            f"{self.addresses[server.number]}: table {self.table!r} has room for {state.room} more items (it holds "
            f"{state.size} of at most {state.max_size}), and this push has {new}{already}; it would remove others, so "
            "nothing was sent. Give the table a larger max_size; or go on with the journal of the push that put its "
            "items there; or allow it (allow_eviction=True), which removes nothing where they are all there already"
        )

    def _full(self, server: _Server, items: int) -> SinkError:
        where = self.addresses[server.number]
        state = server.stream.probe()
        if items > state.max_size:
            return self._too_small(server, state, items)
        return SinkError(
            f"{where}: table {self.table!r} is full: it holds {state.size} of at most {state.max_size} items. "
            f"{server.stream.acknowledged} of this push are in it, and it removed nothing; the next would. Give the "
            "table a larger max_size, or allow it (allow_eviction=True)"
        )

    def _count(self, server: _Server, state: TableState, *, finished: bool = True) -> None:
        assert self._journal is not None
        record, count = self._record(server), self.counts[server.number]
        count.size_before, count.items, count.acknowledged = record.size, record.items, server.stream.acknowledged
        self._journal.look(server.place, state.inserted)
        inserted = state.inserted - record.inserted
        count.take(state, inserted)
        if not finished:
            return
        count.judge(state, may_evict=self._allow_eviction)
        if count.agrees is False:
            wrong = CountsDisagree(
                f"{count.address}: the counts do not agree: {count.items} items were acknowledged and the server says "
                f"it inserted {inserted}; the table had {count.size_before} and has {count.size_after}, so "
                f"{count.removed} have left it",
                address=count.address,
                items=count.items,
                inserted=inserted,
                size_before=count.size_before,
                size_after=count.size_after,
            )
            self.disagreements.append(wrong)
            self._note(str(wrong))
        elif (note := count.note()) is not None:
            self._note(note)

    def _close(self) -> None:
        for server in self._servers:
            self.reconnects += server.stream.reconnects
            server.stream.close()
        self._servers = []
        if self._journal is not None:
            self._journal.close()
