"""A push that sends nothing: which items it would send, and whether they are in the table already.

It is asked for only where the table may have too little room; then the source is read once more for it.
"""

from __future__ import annotations

import math
import queue
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import SinkError
from rlds2buf.formats.reverb.item_keys import EpisodeKeys
from rlds2buf.formats.reverb.patterns.base import Pattern, check_batch
from rlds2buf.formats.reverb.protocol.connection import ReverbConnection, TableState
from rlds2buf.formats.reverb.protocol.messages import message
from rlds2buf.io.sink import Sink

__all__ = ["Rehearsal", "drawn_keys", "items_there"]

DRAWS: Final = 64
DRAWN_BYTES: Final = 32 << 20
"""A server sends a sample's data with its key, so no more are drawn than come in so many bytes."""


class Rehearsal(Sink):
    """Takes the episodes of a push and notes what it would send to each server.

    Args:
        pattern: what items they become; one of its own, for it may hold the rows of the episode before.
        keys: gives the keys of the next episodes, from their numbers, tensors and edges.
        judge: gives the place of the server of each, and whether it is known to be there.
        servers: how many there are.

    Attributes:
        new: by server, the keys ``[I] uint64`` of the items that are not known to be there.
    """

    def __init__(
        self,
        pattern: Pattern,
        keys: Callable[[np.ndarray, list[np.ndarray], np.ndarray], EpisodeKeys],
        judge: Callable[[EpisodeKeys, np.ndarray], tuple[np.ndarray, np.ndarray]],
        servers: int,
    ) -> None:
        self.name = "rehearsal"
        self.pattern = pattern
        self.new = [np.zeros(0, np.uint64) for _ in range(servers)]
        self._keys, self._judge = keys, judge
        self._parts: list[list[np.ndarray]] = [[] for _ in range(servers)]
        self._spec = StepSpec()
        self._written = 0

    def open(self, spec: StepSpec, provenance: Mapping[str, Any]) -> None:
        """Begin."""
        self.pattern.reset()
        self._spec = spec

    def write_batch(self, batch: EpisodeBatch) -> int:
        """Note the items of some episodes.

        Raises:
            EpisodeError: one does not fit the spec.
        """
        if self.pattern.crosses and len(batch) > 1:
            return super().write_batch(batch)
        check_batch(self._spec, batch)
        numbers = np.arange(self._written, self._written + len(batch)) if batch.index is None else batch.index
        self._written += len(batch)
        laid = self.pattern.lay(batch)
        keys = self._keys(numbers, laid.tensors, laid.edges)
        owners, known = self._judge(keys, numbers)
        items = keys.items(laid.of, laid.numbers)
        for place, parts in enumerate(self._parts):
            parts.append(items[((owners == place) & ~known)[laid.of]])
        return len(items)

    def commit(self) -> None:
        """Put the keys together."""
        self.new = [np.concatenate([np.zeros(0, np.uint64), *parts]) for parts in self._parts]

    def abort(self) -> None:
        """Forget them."""
        self._parts = [[] for _ in self._parts]


def items_there(address: str, state: TableState, keys: np.ndarray, timeout: float) -> int:
    """About how many items of these keys a table holds: a server lists none, but a sample has its key.

    Drawing counts as sampling, so it is left alone, and 0 is the answer, where samples remove items.

    Args:
        address: ``host:port``.
        state: of the table.
        keys: ``[I] uint64``, distinct.
        timeout: seconds to wait for samples.
    """
    if not len(keys) or not state.size or state.max_times_sampled:
        return 0
    drawn = drawn_keys(address, state.name, DRAWS, timeout)
    found = int(np.isin(drawn, keys).sum())
    if not found:
        return 0
    share = found / len(drawn)
    if not state.deterministic:  # such a sampler gives the same item each time
        share = min(1.0, share + 3 * math.sqrt(share * (1 - share) / len(drawn)))
    return min(len(keys), math.ceil(share * state.size))


def drawn_keys(address: str, table: str, count: int, timeout: float) -> np.ndarray:
    """``[n] uint64``: keys of `count` samples, or of as many as the server gives in time, or as come in few bytes.

    Raises:
        ServerUnavailable: nobody answers.
    """
    limit = message("Timeout", milliseconds=int(timeout * 1000))
    request = message("SampleStreamRequest", table=table, num_samples=count, rate_limiter_timeout=limit)
    requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    requests.put(request.SerializeToString())
    parse = message("SampleStreamResponse").FromString
    found: list[int] = []
    size = 0
    with ReverbConnection(address) as connection:
        call = connection.sample_stream(iter(requests.get, None), 2 * timeout)
        try:
            for answer in call:
                size += len(answer)
                found += [entry.info.item.key for entry in parse(answer).entries if entry.HasField("info")]
                if len(found) >= count or size > DRAWN_BYTES:
                    break
        except SinkError:
            raise
        except Exception as error:
            if not hasattr(error, "code"):  # a grpc.RpcError: the rate limiter gives none
                raise
        finally:
            requests.put(None)
            call.cancel()
    return np.array(found, np.uint64)
