"""A connection to a Reverb server: gRPC calls, and what their failures mean."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from rlds2buf.errors import MissingDependency, ServerUnavailable, SinkError, WriteTimeout
from rlds2buf.formats.reverb.protocol.messages import METHODS, message

__all__ = [
    "ReverbConnection",
    "ServerInfo",
    "StreamEnded",
    "TableState",
    "address_of",
    "describe",
    "is_timeout",
    "is_transient",
    "translate",
]

_HOST = re.compile(r"[\w.-]+|\[[0-9a-fA-F:.]+(%\w+)?\]")
"""A name (in any script, as resolvers take them), an IPv4 address, or an IPv6 address in brackets."""


class TableState(NamedTuple):
    """What a server says about one table.

    Attributes:
        name, size, max_size, max_times_sampled, num_episodes: as configured and now.
        inserted: items ever inserted, updates not counted.
        sampled: samples ever taken.
        samples_per_insert, min_diff, max_diff, min_size_to_sample: the rate limiter.
        deterministic: whether the sampler has an order (FIFO, LIFO or heap).
        signature: the ``StructuredValue`` message, or None.
    """

    name: str
    size: int
    max_size: int
    max_times_sampled: int
    num_episodes: int
    inserted: int
    sampled: int
    samples_per_insert: float
    min_diff: float
    max_diff: float
    min_size_to_sample: int
    deterministic: bool
    signature: Any

    @property
    def room(self) -> int:
        """How many more items fit before the oldest go."""
        return max(0, self.max_size - self.size)

    @property
    def insertable(self) -> int | None:
        """How many more items the rate limiter lets in while nobody samples; None if it never blocks.

        Reverb lets an insert through while fewer than `min_size_to_sample` items were inserted, and
        after that while ``inserts * samples_per_insert - samples <= max_diff``.
        """
        by_rate = (self.max_diff + self.sampled) / self.samples_per_insert
        if not math.isfinite(by_rate) or by_rate >= 2**62:
            return None
        return max(math.floor(by_rate) - self.inserted, self.min_size_to_sample - self.inserted, 0)

    @property
    def never_evicts(self) -> bool:
        """Whether inserts wait where they would evict, as those of ``reverb.Table.queue`` do.

        Each sample removes its item there, and the rate limiter lets in no more than the table holds.
        """
        return self.max_times_sampled == 1 and self.samples_per_insert == 1.0 and self.max_diff <= self.max_size

    def __str__(self) -> str:
        text = f"table {self.name!r}: {self.size} of at most {self.max_size} items"
        left = self.insertable
        if left is not None:
            text += (
                f"; its rate limiter lets in {left} more until somebody samples (inserts {self.inserted} x "
                f"samples per insert {self.samples_per_insert:g} - samples {self.sampled} may reach {self.max_diff:g})"
            )
        return text


class ServerInfo(NamedTuple):
    """A server's answer to ``ServerInfo``.

    Attributes:
        state_id: a random number that the server draws when it starts.
        tables: by name.
    """

    state_id: int
    tables: dict[str, TableState]


def address_of(uri: str) -> str:
    """``host:port`` of an address, with or without ``reverb://``.

    A host is a name, an IPv4 address, or an IPv6 address in brackets.

    Raises:
        TypeError: it is no text.
        ValueError: host or port are missing, or are none; the message says which.

    >>> address_of("reverb://localhost:8000"), address_of("[::1]:8000")
    ('localhost:8000', '[::1]:8000')
    """
    if not isinstance(uri, str):
        raise TypeError(f"a Reverb server's address is a text HOST:PORT, got {uri!r}")
    address = uri.removeprefix("reverb://").removeprefix("grpc://").rstrip("/")
    if wrong := _fault(address):
        raise ValueError(f"a Reverb server's address is HOST:PORT, got {uri!r}: {wrong}")
    return address


def _fault(address: str) -> str | None:
    """What is wrong with ``host:port``, or None."""
    host, colon, port = address.rpartition(":")
    if "/" in address:
        return "there is a / in it (a table is named apart from its server)"
    if not colon or not port or port.endswith("]"):
        return "there is no port"
    if not (port.isascii() and port.isdigit()):
        return f"{port!r} is no port"
    if not 0 < int(port) < 65536:
        return f"the port {port} is not from 1 to 65535"
    if _HOST.fullmatch(host):
        return None
    return "an IPv6 address stands in brackets, as in [::1]:8000" if ":" in host else f"{host!r} is no host"


class ReverbConnection:
    """One channel to one server; a context manager.

    Nothing is sent before the first call.

    Args:
        address: ``host:port``.

    Raises:
        MissingDependency: grpcio is not installed.
    """

    def __init__(self, address: str) -> None:
        self.address = address_of(address)
        options = [
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
            # Failures are retried here, where they can be counted, not inside a shared channel.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
        ]
        if self.address.rpartition(":")[0] in ("localhost", "127.0.0.1", "[::1]"):
            options.append(("grpc.enable_http_proxy", 0))
        self._channel = _grpc().insecure_channel(self.address, options=options)

    def server_info(self, timeout: float) -> ServerInfo:
        """Every table of the server.

        Raises:
            ServerUnavailable: nobody answers within `timeout` seconds, or what answers is not Reverb, or one before
                0.5, whose streams are others.
        """
        grpc = _grpc()
        try:
            answer = self._channel.unary_unary(METHODS["ServerInfo"])(b"", timeout=timeout)
            info = message("ServerInfoResponse", answer)
        except grpc.RpcError as cause:
            if cause.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise ServerUnavailable(f"{self.address}: no answer within {timeout:g} s") from cause
            raise ServerUnavailable(f"{self.address}: no Reverb server answers ({describe(cause)})") from cause
        except Exception as cause:  # protobuf's DecodeError
            raise ServerUnavailable(f"{self.address}: what answers is not a Reverb server ({cause})") from cause
        # Reverb tells this since 0.5 (November 2021), which is also when items became what they are on the wire.
        if not all(table.HasField("table_worker_time") for table in info.table_info):
            raise ServerUnavailable(
                f"{self.address}: the server is of a Reverb before 0.5, which takes and gives items in another form; "
                "install dm-reverb 0.5 or newer there"
            )
        state = (info.tables_state_id.high << 64) | info.tables_state_id.low
        return ServerInfo(state, {table.name: _table_state(table) for table in info.table_info})

    def table(self, name: str, timeout: float) -> tuple[int, TableState]:
        """The server's state id and one of its tables.

        Raises:
            ServerUnavailable: nobody answers.
            SinkError: the server has no such table; the message lists those it has.
        """
        info = self.server_info(timeout)
        if name not in info.tables:
            there = ", ".join(repr(other) for other in sorted(info.tables)) or "none"
            raise SinkError(f"{self.address}: the server has no table {name!r}; its tables: {there}")
        return info.state_id, info.tables[name]

    def insert_stream(self, requests: Iterator[bytes]) -> Any:
        """Open ``InsertStream``: takes encoded ``InsertStreamRequest``, iterates encoded responses."""
        return self._channel.stream_stream(METHODS["InsertStream"])(requests)

    def sample_stream(self, requests: Iterator[bytes], timeout: float) -> Any:
        """Open ``SampleStream``: takes encoded ``SampleStreamRequest``, iterates encoded responses."""
        return self._channel.stream_stream(METHODS["SampleStream"])(requests, timeout=timeout)

    def checkpoint(self, timeout: float) -> str:
        """Let the server write a checkpoint; the path where it lies on the server's machine.

        Raises:
            ServerUnavailable: nobody answers within `timeout` seconds.
            SinkError: the server has no checkpointer, or can't write.
        """
        grpc = _grpc()
        try:
            answer = self._channel.unary_unary(METHODS["Checkpoint"])(b"", timeout=timeout)
        except grpc.RpcError as cause:
            raise translate(cause, self.address) from cause
        return str(message("CheckpointResponse", answer).checkpoint_path)

    def close(self) -> None:
        """Close the channel; calls under way are cancelled."""
        self._channel.close()

    def __enter__(self) -> ReverbConnection:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class StreamEnded(Exception):
    """A stream ended while we still had it open, and gRPC has no error for it."""

    def code(self) -> Any:
        """As a ``grpc.RpcError`` has it."""
        return _grpc().StatusCode.UNAVAILABLE

    def details(self) -> str:
        """As a ``grpc.RpcError`` has it."""
        return str(self.args[0])


def is_transient(error: Any) -> bool:
    """Whether a failed call may succeed when it is tried again."""
    codes = _grpc().StatusCode
    return error.code() in (codes.UNAVAILABLE, codes.UNKNOWN, codes.CANCELLED, codes.ABORTED, codes.INTERNAL)


def is_timeout(error: Any) -> bool:
    """Whether a call failed because nothing came in time."""
    return bool(error.code() is _grpc().StatusCode.DEADLINE_EXCEEDED)


def translate(error: Any, address: str) -> SinkError:
    """Our error for a gRPC one."""
    codes = _grpc().StatusCode
    text = f"{address}: {describe(error)}"
    if error.code() is codes.DEADLINE_EXCEEDED:
        return WriteTimeout(text)
    return ServerUnavailable(text) if is_transient(error) else SinkError(text)


def describe(error: Any) -> str:
    """A gRPC error in one line."""
    details = " ".join((error.details() or "").split())
    return f"{error.code().name}: {details}" if details else error.code().name


def _table_state(table: Any) -> TableState:
    limiter = table.rate_limiter_info
    return TableState(
        name=table.name,
        size=table.current_size,
        max_size=table.max_size,
        max_times_sampled=table.max_times_sampled,
        num_episodes=table.num_episodes,
        inserted=limiter.insert_stats.completed,
        sampled=limiter.sample_stats.completed,
        samples_per_insert=limiter.samples_per_insert,
        min_diff=limiter.min_diff,
        max_diff=limiter.max_diff,
        min_size_to_sample=limiter.min_size_to_sample,
        deterministic=table.sampler_options.is_deterministic,
        signature=table.signature if table.HasField("signature") else None,
    )


@functools.cache
def _grpc() -> Any:
    try:
        import grpc
    except ImportError as cause:
        raise MissingDependency(
            "talking to Reverb needs grpcio: pip install 'rlds2buf[reverb]'", name="grpc"
        ) from cause
    return grpc
