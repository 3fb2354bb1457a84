"""Episodes laid out as items, turned into insert requests of a good size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from rlds2buf.core.fields import DATA_FIELDS
from rlds2buf.core.spec import StepSpec
from rlds2buf.formats.reverb.protocol.chunks import ChunkEncoder
from rlds2buf.formats.reverb.protocol.insert_stream import Request
from rlds2buf.formats.reverb.protocol.item_encoder import ItemEncoder, RowSpan

__all__ = ["RequestBuilder", "chunk_length_for"]

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


class _Part(NamedTuple):
    """Items of one episode waiting to be encoded, rows counted from `base` on."""

    keys: np.ndarray
    priorities: np.ndarray
    spans: list[RowSpan]
    chunk_starts: np.ndarray
    chunk_keys: np.ndarray


class RequestBuilder:
    """Collects items, of several short episodes or a part of a long one, and hands out full requests.

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

    def add(
        self,
        tensors: Sequence[np.ndarray],
        spans: Sequence[RowSpan],
        keys: np.ndarray,
        priorities: np.ndarray,
        *,
        episode_id: int,
        chunk_keys: Callable[[int], np.ndarray],
        mark: Any,
    ) -> None:
        """Add one episode's items, in order; sends every request that gets full.

        Args:
            tensors: arrays ``[R, ...]``.
            spans: rows of the I items; from item to item neither starts nor stops go back.
            keys: ``[I] uint64``.
            priorities: ``[I] float64``.
            episode_id: uint64.
            chunk_keys: gives the keys ``[J] uint64`` of J chunks.
            mark: comes back once the last of the items is acknowledged.
        """
        rows = len(tensors[0])
        borders = np.append(np.arange(0, rows, self._chunk_length, dtype=np.int64), rows)
        chunk_names = chunk_keys(len(borders) - 1)
        names, cuts = chunk_names.tolist(), borders.tolist()
        row_bytes = max(1, sum(tensor.nbytes for tensor in tensors) // rows)
        first_row = np.minimum.reduce([span.starts for span in spans])
        last_row = np.maximum.reduce([span.stops for span in spans]) - 1
        kept: dict[int, bytes] = {}  # chunks that are sent, and that later items of this episode need
        sent = 0
        done = 0
        while done < len(keys):
            stop = min(len(keys), done + max(1, min(self._max_items - self._items, self._max_bytes // row_bytes)))
            low = int(first_row[done]) // self._chunk_length
            high = int(last_row[stop - 1]) // self._chunk_length + 1
            fresh = max(sent, low)
            chunks = self._chunk_encoder.encode(names[fresh:high], episode_id, cuts[fresh : high + 1], tensors)
            kept.update(enumerate(chunks, fresh))
            self._chunks += chunks
            self._bytes += sum(map(len, chunks))
            sent = max(sent, high)
            shift = self._rows - cuts[low]
            self._parts.append(
                _Part(
                    keys[done:stop],
                    priorities[done:stop],
                    [RowSpan(span.starts[done:stop] + shift, span.stops[done:stop] + shift) for span in spans],
                    borders[low:high] + shift,
                    chunk_names[low:high],
                )
            )
            self._rows += cuts[high] - cuts[low]
            self._items += stop - done
            done = stop
            if done < len(keys):
                needed = int(first_row[done]) // self._chunk_length
                kept = {number: chunk for number, chunk in kept.items() if number >= needed}
                if self._full():
                    self._hand_out([names[number] for number in kept], list(kept.values()))
        self._marks.append(mark)
        if self._full():
            self.flush()

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
