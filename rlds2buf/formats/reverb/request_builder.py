"""Episodes laid out as items, turned into insert requests of a good size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from rlds2buf.core.fields import DATA_FIELDS
from rlds2buf.core.spec import StepSpec
from rlds2buf.formats.reverb.patterns.base import Laid
from rlds2buf.formats.reverb.protocol.chunks import ChunkEncoder, Chunks
from rlds2buf.formats.reverb.protocol.insert_stream import Request
from rlds2buf.formats.reverb.protocol.item_encoder import ItemEncoder, RowSpan

__all__ = ["Keys", "RequestBuilder", "chunk_length_for"]

MAX_ITEMS: Final = 1024
MAX_BYTES: Final = 1 << 20

CHUNK_BYTES: Final = 64 << 10
"""A chunk of more than one step has at most about as many bytes, unless told otherwise."""


def chunk_length_for(spec: StepSpec, steps: int = 16) -> int:
    """Steps per chunk for steps of that spec: `steps` small ones, fewer of images.

    A server sends whole chunks, so a long chunk makes sampling short items slow, and a short one
    makes inserting slow; between 8 and 32 small steps both are near their best.

    >>> from rlds2buf.core.spec import FieldSpec
    >>> chunk_length_for(StepSpec(observation=FieldSpec((35,), np.float32)))
    16
    >>> chunk_length_for(StepSpec(observation=FieldSpec((128, 128, 3), np.uint8)))
    1
    """
    row_bytes = sum(field.row_bytes for path, field in spec.fields() if path[0] in DATA_FIELDS)
    return int(min(steps, max(1, CHUNK_BYTES // max(row_bytes, 1))))


class Keys(Protocol):
    """The keys of some episodes: new ones, or such as say what they stand for (``EpisodeKeys``)."""

    @property
    def episode_ids(self) -> np.ndarray:
        """``[E] uint64``."""

    def items(self, of: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """``[I] uint64`` for items numbered ``[I]`` of episodes ``[I]``."""

    def chunks(self, of: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """``[J] uint64`` for chunks, likewise."""


class _Part(NamedTuple):
    """Items waiting to be encoded, rows counted from those of the request."""

    keys: np.ndarray
    priorities: np.ndarray
    spans: list[RowSpan]
    chunk_starts: np.ndarray
    chunk_keys: np.ndarray


class RequestBuilder:
    """Collects items, of many short episodes or a part of a long one, and hands out full requests.

    Args:
        encoder: of the table's items.
        chunk_length: steps per chunk.
        send: takes the requests.
        mark: takes marks that no request carries, because nothing is waiting.
        times: gives the times of so many items (nanoseconds since 1970), if the encoder's items are timed.
        max_items, max_bytes: a request is sent when it holds as many items, or about as many bytes of rows.
    """

    def __init__(
        self,
        encoder: ItemEncoder,
        chunk_length: int,
        *,
        send: Callable[[Request], None],
        mark: Callable[[list[Any]], None],
        times: Callable[[int], np.ndarray] | None = None,
        max_items: int = MAX_ITEMS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._encoder = encoder
        self._chunk_encoder = ChunkEncoder()
        self._chunk_length = chunk_length
        self._send = send
        self._mark = mark
        self._times = times
        self._max_items, self._max_bytes = max_items, max_bytes
        self._parts: list[_Part] = []
        self._items = self._rows = self._bytes = 0
        self._chunks: list[bytes] = []
        self._marks: list[Any] = []
        self._carry: list[bytes] = []

    def add(self, laid: Laid, keys: Keys, priorities: np.ndarray, marks: Sequence[Any]) -> None:
        """Add the items of some episodes, in order; sends every request that gets full.

        Args:
            laid: E episodes; from item to item neither starts nor stops of rows go back.
            keys: theirs.
            priorities: ``[I] float64``.
            marks: E of them, each comes back once the last of its episode's items is acknowledged.
        """
        chunks = self._chunks_of(laid, keys)
        item_keys = keys.items(laid.of, laid.numbers)
        first = np.searchsorted(chunks.borders, np.minimum.reduce([span.starts for span in laid.spans]), "right") - 1
        last = np.searchsorted(chunks.borders, np.maximum.reduce([span.stops for span in laid.spans]), "left") - 1
        used = _between(first, last, len(chunks.keys))
        row_bytes = max(1, sum(tensor[:1].nbytes for tensor in laid.tensors))
        ends = np.cumsum(laid.counts)
        kept: dict[int, bytes] = {}  # chunks that are sent, and that later items need
        sent = done = marked = 0
        while done < len(item_keys):
            room = min(self._max_items - self._items, (self._max_bytes - self._bytes) // row_bytes)
            stop = min(len(item_keys), done + max(1, room))
            low, high = int(first[done]), int(last[stop - 1]) + 1
            fresh = [number for number in range(max(sent, low), high) if used[number]]
            encoded = self._chunk_encoder.encode(chunks, fresh, laid.tensors)
            kept.update(zip(fresh, encoded, strict=True))
            self._chunks += encoded
            self._bytes += sum(map(len, encoded))
            sent = max(sent, high)
            shift = self._rows - int(chunks.borders[low])
            spans = [RowSpan(span.starts[done:stop] + shift, span.stops[done:stop] + shift) for span in laid.spans]
            starts = chunks.borders[low:high] + shift
            self._parts.append(_Part(item_keys[done:stop], priorities[done:stop], spans, starts, chunks.keys[low:high]))
            self._rows += int(chunks.borders[high] - chunks.borders[low])
            self._items += stop - done
            done = stop
            reached = int(np.searchsorted(ends, done, "right"))
            self._marks += marks[marked:reached]
            marked = max(marked, reached)
            if done < len(item_keys):
                kept = {number: chunk for number, chunk in kept.items() if number >= first[done]}
                if self._full():
                    self._hand_out(chunks.keys[list(kept)].tolist(), list(kept.values()))
        self._marks += marks[marked:]
        if self._full():
            self.flush()

    def _chunks_of(self, laid: Laid, keys: Keys) -> Chunks:
        """The chunks of each episode, one behind the other."""
        counts = -(-np.diff(laid.edges) // self._chunk_length)
        of = np.repeat(np.arange(len(counts)), counts)
        numbers = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
        first = numbers * self._chunk_length
        borders = np.append(laid.edges[of] + first, laid.edges[-1])
        return Chunks(borders, keys.chunks(of, numbers), keys.episode_ids[of], first)

    def flush(self) -> None:
        """Send what is waiting."""
        if self._items:
            self._hand_out([], [])
        elif self._marks:
            marks, self._marks = self._marks, []
            self._mark(marks)

    def _full(self) -> bool:
        return self._items >= self._max_items or self._bytes >= self._max_bytes

    def _hand_out(self, keep: list[int], carry: list[bytes]) -> None:
        parts = self._parts
        borders = np.append(np.concatenate([part.chunk_starts for part in parts]), self._rows)
        keys = np.concatenate([part.keys for part in parts])
        items = self._encoder.encode(
            keys,
            np.concatenate([part.priorities for part in parts]),
            [
                RowSpan(np.concatenate([one.starts for one in spans]), np.concatenate([one.stops for one in spans]))
                for spans in zip(*(part.spans for part in parts), strict=True)
            ],
            borders,
            np.concatenate([part.chunk_keys for part in parts]),
            times=None if self._times is None else self._times(len(keys)),
        )
        request = Request(
            chunks=self._chunks,
            items=items,
            keys=keys.tolist(),
            carry=self._carry,
            keep=keep,
            marks=self._marks,
        )
        self._parts, self._chunks, self._marks = [], [], []
        self._items = self._rows = self._bytes = 0
        self._carry = carry
        self._send(request)


def _between(first: np.ndarray, last: np.ndarray, count: int) -> list[bool]:
    """Which of so many chunks lie in any of the ranges from one up to and with another."""
    opened = np.bincount(first, minlength=count + 1) - np.bincount(last + 1, minlength=count + 1)
    return (np.cumsum(opened)[:count] > 0).tolist()
