"""Inserting into one Reverb server: what is under way, what is acknowledged, and what happens when it fails.

Reverb answers an insert with the item's key once the item is in its table.  It drops what is still
waiting when the client ends its side of the stream, so the stream stays open until the last key is
back.  Chunks live on a stream until a request with items no longer names them among those to keep;
on a new stream they have to be sent again, so every request remembers the ones it takes for granted.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from rlds2buf.errors import ServerUnavailable, SinkError, WriteTimeout
from rlds2buf.formats.reverb.protocol.chunks import encode_varint
from rlds2buf.formats.reverb.protocol.connection import ReverbConnection, TableState, is_transient, translate
from rlds2buf.formats.reverb.protocol.stream import OneStream

__all__ = ["MAX_UNDER_WAY_ITEMS", "InsertStream", "Request", "ServerRestarted"]

MESSAGE_BYTES: Final = 4 << 20
"""Chunks of a request are spread over messages of about this size."""

MAX_UNDER_WAY_ITEMS: Final = 16384
MAX_UNDER_WAY_BYTES: Final = 32 << 20
"""What may be sent and not yet acknowledged; it is held in memory to be sent again."""

PROBE_SECONDS: Final = 5.0
CONNECT_SECONDS: Final = 5.0
FIRST_BACKOFF: Final = 0.1
MAX_BACKOFF: Final = 5.0


class ServerRestarted(ServerUnavailable):
    """The server is another process than the one that this push began with; what that one had may be gone."""


@dataclasses.dataclass
class Request:
    """One ``InsertStreamRequest``, maybe sent as several messages.

    Attributes:
        chunks: encoded ``ChunkData`` that are new.
        items: encoded items, tags included.
        keys: of the items.
        carry: encoded ``ChunkData`` sent earlier on that this request or later ones still point at.
        keep: keys of the chunks that later requests point at.
        marks: handed to `on_acknowledged` once this request and all before it are acknowledged.
    """

    chunks: list[bytes]
    items: bytes
    keys: list[int]
    carry: list[bytes] = dataclasses.field(default_factory=list)
    keep: list[int] = dataclasses.field(default_factory=list)
    marks: list[Any] = dataclasses.field(default_factory=list)
    remaining: int = 0

    @property
    def size(self) -> int:
        """Bytes, about."""
        return len(self.items) + sum(map(len, self.chunks))

    def encode(self, *, fresh: bool) -> Iterator[bytes]:
        """The messages; on a fresh stream the carried chunks come first."""
        parts: list[bytes] = []
        size = 0
        for chunk in [*self.carry, *self.chunks] if fresh else self.chunks:
            if size > MESSAGE_BYTES:
                yield b"".join(parts)
                parts, size = [], 0
            parts += (b"\x0a", encode_varint(len(chunk)), chunk)
            size += len(chunk)
        parts.append(self.items)
        if self.keep:
            packed = b"".join(map(encode_varint, self.keep))
            parts += (b"\x1a", encode_varint(len(packed)), packed)
        yield b"".join(parts)


class InsertStream:
    """Sends requests to one table of one server and waits for their keys.

    Used from one thread; answers are read in a second one, and gRPC sends in its own.

    Args:
        address: ``host:port``.
        table: its name.
        timeout: seconds without any progress after which it gives up, whether the server is silent
            or the connection lost; a lost connection is made again with growing pauses until then.
        on_acknowledged: called with a request's marks, in the order of sending, from :meth:`send`,
            :meth:`drain` or :meth:`poll`.

    Attributes:
        acknowledged: items acknowledged so far.
        reconnects: how often the connection was made again.
        timeout: as given; may be changed.
        state_id: of the server.
    """

    def __init__(
        self,
        address: str,
        table: str,
        *,
        timeout: float,
        on_acknowledged: Callable[[list[Any]], None],
    ) -> None:
        self.address = address
        self.table = table
        self.acknowledged = 0
        self.reconnects = 0
        self.state_id = 0
        self.timeout = timeout
        self._on_acknowledged = on_acknowledged
        self._stream: OneStream | None = None
        self._under_way: collections.deque[Request] = collections.deque()
        self._owner: dict[int, Request] = {}
        self._items = self._bytes = 0
        self._failures = 0  # in a row, without a request acknowledged between them
        self._failing_since = 0.0
        self._failed: SinkError | None = None

    def connect(self) -> TableState:
        """Find the table; tries again while the server can't be reached.

        Raises:
            ServerUnavailable: nobody answers, or not Reverb.
            SinkError: there is no such table.
        """
        give_up = time.monotonic() + min(self.timeout, CONNECT_SECONDS)
        attempt = 0
        while True:
            try:
                return self.probe()
            except ServerUnavailable:
                if time.monotonic() + _backoff(attempt) > give_up:
                    raise
            time.sleep(_backoff(attempt))
            attempt += 1

    def probe(self) -> TableState:
        """The table as the server sees it now; notes the server's state id at the first call.

        Raises:
            ServerUnavailable: nobody answers.
            ServerRestarted: it is not the server that was there at the first call.
            SinkError: there is no such table.
        """
        # A connection of its own: on one whose peer has stopped reading, gRPC keeps no deadline.
        with ReverbConnection(self.address) as connection:
            state_id, state = connection.table(self.table, min(self.timeout, PROBE_SECONDS))
        if self.state_id and state_id != self.state_id:
            raise ServerRestarted(
                f"{self.address}: the server was restarted after it had acknowledged {self.acknowledged} items; "
                f"now {state}"
            )
        self.state_id = state_id
        return state

    def send(self, request: Request) -> None:
        """Send one request; waits while too much is under way.

        Raises:
            WriteTimeout: no progress for `timeout` seconds; the message holds the table's state.
            ServerUnavailable: the connection is lost, and stays so.
            ServerRestarted: another server answers at the address.
            SinkError: the server refuses the request.
        """
        request.remaining = len(request.keys)
        self._wait(lambda: not self._under_way or self._has_room(request))
        self._under_way.append(request)
        self._owner.update(dict.fromkeys(request.keys, request))
        self._items += len(request.keys)
        self._bytes += request.size
        if self._stream is None:
            self._start()
        else:
            self._stream.put(request.encode(fresh=False))
        self.poll()

    def mark(self, marks: list[Any]) -> None:
        """Have `marks` handed back once everything sent so far is acknowledged."""
        if self._under_way:
            self._under_way[-1].marks.extend(marks)
        else:
            self._on_acknowledged(marks)

    def drain(self) -> None:
        """Wait until everything sent is acknowledged; raises like :meth:`send`."""
        self._wait(lambda: not self._under_way)

    def poll(self) -> None:
        """Take the answers that are there; raises like :meth:`send`."""
        self._wait(lambda: True)

    def close(self) -> None:
        """End the stream; what is not acknowledged may be dropped by the server."""
        if self._stream is not None:
            self._stream.finish()
            self._stream = None

    def _has_room(self, request: Request) -> bool:
        return (
            self._items + len(request.keys) <= MAX_UNDER_WAY_ITEMS and self._bytes + request.size <= MAX_UNDER_WAY_BYTES
        )

    def _wait(self, ready: Callable[[], bool]) -> None:
        if self._failed is not None:
            raise self._failed
        try:
            while True:
                if self._stream is not None:
                    self._take(self._stream.answers())
                    if self._stream.error is not None:
                        self._recover(self._stream.error)
                        continue
                if ready():
                    return
                assert self._stream is not None
                if not self._stream.wait(self.timeout):
                    self._stalled()
        except SinkError as error:
            self._failed = error
            self._drop_stream()
            raise

    def _take(self, keys: list[int]) -> None:
        for key in keys:
            request = self._owner.pop(key, None)
            if request is not None:
                request.remaining -= 1
                self._items -= 1
        while self._under_way and not self._under_way[0].remaining:
            done = self._under_way.popleft()
            self._bytes -= done.size
            self._failures = 0
            # Not key by key: after a reconnection the keys of a request are asked for once more.
            self.acknowledged += len(done.keys)
            self._on_acknowledged(done.marks)

    def _start(self) -> None:
        """Open a new stream and send everything under way on it."""
        self._owner.clear()
        self._items = 0
        stream = self._stream = OneStream(ReverbConnection(self.address))
        for number, request in enumerate(self._under_way):
            request.remaining = len(request.keys)
            self._items += len(request.keys)
            self._owner.update(dict.fromkeys(request.keys, request))
            stream.put(request.encode(fresh=number == 0))

    def _recover(self, error: Any) -> None:
        """After a broken stream: try again, a bounded number of times in a row."""
        self._drop_stream()
        if not is_transient(error):
            raise translate(error, self.address) from error
        last: Exception = translate(error, self.address)
        if not self._failures:
            self._failing_since = time.monotonic()
        while (left := self._failing_since + self.timeout - time.monotonic()) > 0:
            time.sleep(min(_backoff(self._failures), left))
            self._failures += 1
            try:
                self.probe()
            except ServerRestarted:
                raise
            except ServerUnavailable as again:
                last = again
                continue
            self.reconnects += 1
            if self._under_way:
                self._start()
            return
        raise ServerUnavailable(
            f"{last}; gave up after {self._failures} retries in {self.timeout:g} s, with {self.acknowledged} items of "
            f"this push acknowledged and {len(self._owner)} under way to table {self.table!r}"
        ) from error

    def _stalled(self) -> None:
        """After `timeout` seconds without progress: find out why, and say so."""
        waiting = len(self._owner)
        try:
            state = self.probe()
        except ServerRestarted:
            raise
        except SinkError as error:
            raise ServerUnavailable(
                f"{error}; {self.acknowledged} items of this push are acknowledged, {waiting} are under way"
            ) from error
        blocked = state.insertable == 0
        why = "its rate limiter lets nothing in until somebody samples" if blocked else "the server does not say why"
        raise WriteTimeout(
            f"{self.address}: no item was acknowledged for {self.timeout:g} s: {why}. {self.acknowledged} items of "
            f"this push are acknowledged, {waiting} are under way; {state}"
        )

    def _drop_stream(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None


def _backoff(attempt: int) -> float:
    return min(FIRST_BACKOFF * 2.0**attempt, MAX_BACKOFF)
