"""A table of a running Reverb server, looked at by sampling."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from rlds2buf.core.episode import Episode
from rlds2buf.errors import EpisodeError, ServerUnavailable, SinkError, SourceError, SourceNotFound
from rlds2buf.formats.reverb.item_episodes import ItemSource
from rlds2buf.formats.reverb.protocol.chunks import decode_tensor
from rlds2buf.formats.reverb.protocol.connection import ReverbConnection, TableState, address_of, describe, is_timeout
from rlds2buf.formats.reverb.protocol.messages import message
from rlds2buf.formats.reverb.protocol.signature import flatten_signature

__all__ = ["ReverbTableSource"]


class ReverbTableSource(ItemSource):
    """Items of a table, each as an episode (:func:`rlds2buf.formats.reverb.item_episodes.episode_of`).

    Reverb hands items out only by sampling, so every pass samples `num_items` anew, as the table's
    sampler picks them: the same item may come twice, and a FIFO sampler gives the oldest one each
    time.  Sampling counts against the rate limiter and shows in `times_sampled`.

    Args:
        uri: ``reverb://host:port/table``.
        num_items: how many to sample in a pass; None: as many as the table holds, up to 1000.
        consume: allow it on a table that removes items after some samples.
        timeout: seconds to wait for an answer.

    Raises:
        SourceNotFound: the server has no such table.
        SourceError: nobody answers, or a pass would remove items.
        ValueError: no such address, or `num_items` is negative.
    """

    format: ClassVar[str] = "reverb"

    def __init__(self, uri: str, *, num_items: int | None = None, consume: bool = False, timeout: float = 10.0) -> None:
        self.name = uri
        place, _, self._table = uri.removeprefix("reverb://").partition("/")
        if not self._table:
            raise ValueError(f"a table's address is reverb://HOST:PORT/TABLE, got {uri!r}")
        if num_items is not None and num_items < 0:
            raise ValueError(f"num_items can't be negative, got {num_items}")
        self._address = address_of(place)
        self._timeout = timeout
        state = self._look()
        if state.max_times_sampled and not consume:
            raise SourceError(
                f"{uri}: the table removes an item after {state.max_times_sampled} samples, and looking at it is "
                "sampling; pass consume=True to do so"
            )
        self._num_items = min(state.size, 1000) if num_items is None else num_items if state.size else 0
        self.fields = None if state.signature is None else flatten_signature(state.signature)
        self._state = state

    @property
    def num_episodes(self) -> int:
        """How many are sampled in a pass."""
        return self._num_items

    def details(self) -> dict[str, Any]:
        """The table's settings and counts."""
        state = self._state
        return {
            "table": state.name,
            "items": state.size,
            "max_size": state.max_size,
            "max_times_sampled": state.max_times_sampled,
            "inserted": state.inserted,
            "sampled": state.sampled,
            "samples_per_insert": state.samples_per_insert,
            "min_size_to_sample": state.min_size_to_sample,
            "signature": self.signature(),
        }

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Episode | EpisodeError]:
        """Sample items numbered `start` to `stop`; which ones is the sampler's choice."""
        stop = self._num_items if stop is None else min(stop, self._num_items)
        if start >= stop:
            return
        with ReverbConnection(self._address) as connection:
            for index, (item, tensors) in enumerate(self._samples(connection, stop - start), start):
                yield self.episode(
                    item,
                    index,
                    lambda key, number, tensors=tensors: tensors[key][number],  # type: ignore[misc]
                )

    def _samples(self, connection: ReverbConnection, count: int) -> Iterator[tuple[Any, dict[int, list[np.ndarray]]]]:
        limit = message("Timeout", milliseconds=int(self._timeout * 1000))
        request = message(
            "SampleStreamRequest", table=self._table, num_samples=count, rate_limiter_timeout=limit
        ).SerializeToString()
        requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        requests.put(request)
        call = connection.sample_stream(iter(requests.get, None), self._timeout + count)
        parse = message("SampleStreamResponse").FromString
        item: Any = None
        tensors: dict[int, list[np.ndarray]] = {}
        try:
            for answer in call:
                for entry in parse(answer).entries:
                    if entry.HasField("info"):
                        item = entry.info.item
                    for chunk in entry.data:
                        tensors[chunk.chunk_key] = [
                            decode_tensor(tensor, delta_encoded=chunk.delta_encoded) for tensor in chunk.data.tensors
                        ]
                    if entry.end_of_sequence:
                        yield item, tensors
                        tensors = {}
                        count -= 1
                if not count:
                    return
        except SourceError:
            raise
        except Exception as error:
            if not hasattr(error, "code"):
                raise
            raise self._translated(error) from error
        finally:
            requests.put(None)
            call.cancel()

    def _look(self) -> TableState:
        try:
            with ReverbConnection(self._address) as connection:
                return connection.table(self._table, self._timeout)[1]
        except ServerUnavailable as error:
            raise SourceError(str(error)) from error
        except SinkError as error:
            raise SourceNotFound(str(error)) from error

    def _translated(self, error: Any) -> SourceError:
        if is_timeout(error):
            return SourceError(f"{self.name}: no item came within {self._timeout:g} s; {self._look()}")
        return SourceError(f"{self.name}: {describe(error)}")
