"""A table of a running Reverb server, looked at by sampling."""

from __future__ import annotations

import collections
import math
import queue
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from rlds2buf.core.episode import Episode
from rlds2buf.core.spec import spec_of
from rlds2buf.errors import EpisodeError, ServerUnavailable, SinkError, SourceError, SourceFormatError, SourceNotFound
from rlds2buf.formats.reverb.checkpoint_source import ReverbCheckpointSource
from rlds2buf.formats.reverb.item_episodes import ItemSource
from rlds2buf.formats.reverb.joined_items import ItemStore
from rlds2buf.formats.reverb.protocol.chunks import decode_tensor
from rlds2buf.formats.reverb.protocol.connection import ReverbConnection, TableState, address_of, describe, is_timeout
from rlds2buf.formats.reverb.protocol.messages import message
from rlds2buf.formats.reverb.protocol.signature import flatten_signature

__all__ = ["ReverbTableSource"]

_DECODED_CHUNKS = 256
_AT_ONCE = 1024
"""So many samples are asked for at least, to find items that are still to come."""
_CHECKPOINT_SECONDS = 600.0
_PATIENCE = 12
"""Of N items, nothing new among so many times N samples: of any one that is sampled evenly, the chance is 6e-6."""


class _NothingCame(SourceError):
    """No item came in time."""


class _Packed(Mapping[int, Any]):
    """Messages by key, as bytes: a message keeps the whole answer alive in which it came."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._data: dict[int, bytes] = {}

    def add(self, key: int, found: Any) -> None:
        """Keep one, unless it is there."""
        if key not in self._data:
            self._data[key] = found.SerializeToString()

    def __getitem__(self, key: int) -> Any:
        return message(self._kind, self._data[key])

    def __contains__(self, key: object) -> bool:
        return key in self._data

    def __iter__(self) -> Iterator[int]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)


class ReverbTableSource(ItemSource):
    """Items of a table, each as an episode (:func:`rlds2buf.formats.reverb.item_rows.episode_of`).

    Reverb hands items out only by sampling, so every pass samples `num_items` anew, as the table's
    sampler picks them: the same item may come twice, and a FIFO sampler gives the oldest one each
    time.  Sampling counts against the rate limiter and shows in `times_sampled`.  Actors and learners may
    go on meanwhile.

    :func:`rlds2buf.convert`, :func:`rlds2buf.push` and :func:`rlds2buf.validate` read the episodes that the items
    are of (:class:`~rlds2buf.formats.reverb.joined_items.JoinedItems`): items are sampled until each that the table
    held in the beginning has come, or the sampler gives no new ones, and how many came is said.  What came is held
    in memory, compressed as the server has it.

    Args:
        uri: ``reverb://host:port/table``.
        num_items: how many to sample in a pass; None: as many as the table holds, up to 1000, and for episodes
            until all have come.
        consume: allow it on a table that removes items after some samples.
        timeout: seconds to wait for an answer.
        join: True: read episodes, whoever asks; False: items.
        checkpoint: for episodes, let the server write a checkpoint into its folder, and read that: every item once,
            without sampling, whatever the sampler.  The folder must be reachable from here.

    Raises:
        SourceNotFound: the server has no such table, or its checkpoint is not found here.
        SourceError: nobody answers, or a pass would remove items, or the server is of a Reverb before 0.5.
        ValueError: no such address, or `num_items` is negative.
    """

    format: ClassVar[str] = "reverb"

    def __init__(
        self,
        uri: str,
        *,
        num_items: int | None = None,
        consume: bool = False,
        timeout: float = 10.0,
        join: bool | None = None,
        checkpoint: bool = False,
    ) -> None:
        self.name = uri
        self.join = join
        self._checkpoint = checkpoint
        place, _, self._table = uri.removeprefix("reverb://").partition("/")
        if not self._table:
            raise ValueError(f"a table's address is reverb://HOST:PORT/TABLE, got {uri!r}")
        if num_items is not None and num_items < 0:
            raise ValueError(f"num_items can't be negative, got {num_items}")
        self._address = address_of(place)
        self._timeout = timeout
        state = self._look()
        if state.max_times_sampled and not consume and not (checkpoint and join):
            raise SourceError(
                f"{uri}: the table removes an item after {state.max_times_sampled} samples, and looking at it is "
                "sampling; pass consume=True to do so"
            )
        self._most = num_items
        self._num_items = min(state.size, 1000) if num_items is None else num_items if state.size else 0
        self.fields = None if state.signature is None else flatten_signature(state.signature)
        self._state = state
        self._held: list[tuple[Any, list[Any]]] = []  # drawn to be looked at, and gone from the table

    @property
    def num_table_items(self) -> int:
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

    def read_items(self, start: int = 0, stop: int | None = None) -> Iterator[Episode | EpisodeError]:
        """Sample items numbered `start` to `stop`; which ones is the sampler's choice."""
        stop = self._num_items if stop is None else min(stop, self._num_items)
        if start >= stop:
            return
        with ReverbConnection(self._address) as connection:
            yield from self._items(self._samples(connection, stop - start), start)

    def first_item(self) -> Iterator[Episode | EpisodeError]:
        """One, which is read once more if the table may have lost it."""
        if not self._num_items:
            return
        with ReverbConnection(self._address) as connection:
            found = list(self._samples(connection, 1))
        self._held += found if self._state.max_times_sampled else []
        yield from self._items(iter(found), 0)

    def _items(self, samples: Iterator[tuple[Any, list[Any]]], start: int) -> Iterator[Episode]:
        decoded: collections.OrderedDict[int, list[np.ndarray]] = collections.OrderedDict()
        for index, (item, chunks) in enumerate(samples, start):
            for chunk in chunks:
                self._decode(chunk, decoded)
            found = self.episode(item, index, lambda key, number: decoded[key][number])
            self.__dict__.setdefault("_spec", spec_of(found))  # another look would be another sample
            yield found
            while len(decoded) > _DECODED_CHUNKS:
                decoded.popitem(last=False)

    def _decode(self, chunk: Any, decoded: collections.OrderedDict[int, list[np.ndarray]]) -> None:
        """Items share chunks, which come anew with each of them."""
        if chunk.chunk_key in decoded:
            decoded.move_to_end(chunk.chunk_key)
            return
        tensors = [decode_tensor(tensor, delta_encoded=chunk.delta_encoded) for tensor in chunk.data.tensors]
        for tensor in tensors:
            tensor.flags.writeable = False
        decoded[chunk.chunk_key] = tensors

    def store(self) -> ItemStore:
        """Sample until every item has come, or none is new; or read a checkpoint.  See the class."""
        if self._checkpoint:
            return self._written()
        state = self._state = self._look()
        state = state._replace(size=state.size + len(self._held))
        items, chunks = _Packed("PrioritizedItem"), _Packed("ChunkData")
        sampled, idle, why = 0, 0, ""
        most = self._most_samples(state)
        with ReverbConnection(self._address) as connection:
            while sampled < most and idle < _PATIENCE * state.size:
                if self._most is None and len(items) >= state.size:
                    break
                try:
                    for item, found in self._samples(connection, self._ahead(state, len(items), most - sampled)):
                        idle = idle + 1 if item.key in items else 0
                        items.add(item.key, item)
                        for chunk in found:
                            chunks.add(chunk.chunk_key, chunk)
                        sampled += 1
                except _NothingCame as error:
                    if not items:
                        raise
                    why = f": {error}"
                    break
        return ItemStore(items.values(), chunks, self._said(state, len(items), sampled, why))

    def _written(self) -> ItemStore:
        """What is in a checkpoint that the server writes now."""
        with ReverbConnection(self._address) as connection:
            try:
                path = connection.checkpoint(_CHECKPOINT_SECONDS)
            except SinkError as error:
                raise SourceError(f"{self.name}: no checkpoint was written: {error}") from error
        try:
            return ReverbCheckpointSource(path, table=self._table).store()
        except SourceNotFound as error:
            raise SourceNotFound(
                f"{self.name}: the server wrote a checkpoint at {path}, on its machine; from here: {error}"
            ) from error

    def _most_samples(self, state: TableState) -> float:
        if not state.size:
            return 0
        if self._most is not None:
            return self._most
        if state.max_times_sampled:
            return state.size * state.max_times_sampled
        return 1 if state.deterministic else math.inf  # it would give the same one for ever

    def _ahead(self, state: TableState, found: int, left: float) -> int:
        """How many to ask for at once: of a table that loses what is sampled no more than is wanted."""
        if self._most is not None:
            return int(left)
        missing = state.size - found
        return int(min(left, missing if state.max_times_sampled else max(missing, _AT_ONCE)))

    def _said(self, state: TableState, found: int, sampled: int, why: str) -> list[str]:
        """What a reader has to know of how the items were had."""
        said = []
        if found < state.size:
            lacking = f"{found:,} of the table's {state.size:,} items came in {sampled:,} samples{why}"
            if state.deterministic and not state.max_times_sampled:
                lacking += (
                    "; its sampler gives the same item until that is gone: with checkpoint=True the server writes "
                    "all of them into its folder, if it has one"
                )
            said.append(lacking)
        if state.max_times_sampled:
            said.append(f"the table removes items after {state.max_times_sampled} samples; {sampled:,} were taken")
        return said

    def _samples(self, connection: ReverbConnection, count: int) -> Iterator[tuple[Any, list[Any]]]:
        """Sampled items, each with its chunks; those that are held first.

        Raises:
            SourceError: the server refuses, or answers as no Reverb does that we know; of which _NothingCame: no
                item came in time.
        """
        held, self._held = self._held[:count], self._held[count:]
        yield from held
        count -= len(held)
        if not count:
            return
        limit = message("Timeout", milliseconds=int(self._timeout * 1000))
        request = message(
            "SampleStreamRequest", table=self._table, num_samples=count, rate_limiter_timeout=limit
        ).SerializeToString()
        requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        requests.put(request)
        call = connection.sample_stream(iter(requests.get, None), self._timeout + count)
        item: Any = None
        chunks: list[Any] = []
        try:
            for answer in call:
                for entry in self._entries(answer):
                    if entry.HasField("info"):
                        item = entry.info.item
                    chunks += entry.data
                    if entry.end_of_sequence:
                        yield item, chunks
                        chunks = []
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
        raise SourceError(f"{self.name}: the server ended the stream with {count} items to come; {self._look()}")

    def _entries(self, answer: bytes) -> Any:
        try:
            entries = message("SampleStreamResponse", answer).entries
        except Exception as cause:  # protobuf's DecodeError
            raise SourceFormatError(f"{self.name}: an answer is no SampleStreamResponse: {cause}") from cause
        if any(entry.HasField("info") and not entry.info.HasField("item") for entry in entries):
            raise SourceFormatError(f"{self.name}: samples come in another form than Reverb's since 0.4")
        return entries

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
            return _NothingCame(f"{self.name}: no item came within {self._timeout:g} s; {self._look()}")
        return SourceError(f"{self.name}: {describe(error)}")
