"""Reverb's items in bulk: thousands of ``PrioritizedItem`` messages written with numpy.

Items of one shape differ only in a few numbers: key, priority, and which chunk, offset and length
each column points at.  So one message is laid out as bytes, with every varint at a fixed width
(protobuf reads padded varints), repeated, and the numbers are written into all copies at once.

Source: schema.proto and reverb_service.proto in https://github.com/google-deepmind/reverb
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rlds2buf.formats.reverb.protocol.chunks import encode_varint, padded_varints

__all__ = ["Column", "ItemEncoder", "RowSpan", "split_items"]

_KEY_BYTES = 10  # a uint64 varint at its longest
_TIME_BYTES = 5  # seconds and nanoseconds of a timestamp


class Column(NamedTuple):
    """One column of an item.

    Attributes:
        tensor: which tensor of the chunks it reads.
        span: which of the row spans given to :meth:`ItemEncoder.encode` it covers.
        squeeze: drop the row axis; the span must then be one row long.
    """

    tensor: int
    span: int = 0
    squeeze: bool = False


class RowSpan(NamedTuple):
    """Rows ``starts[i]`` up to (not with) ``stops[i]`` for each of I items; int64 ``[I]``."""

    starts: np.ndarray
    stops: np.ndarray


@dataclasses.dataclass(frozen=True)
class _Template:
    """Bytes of one item, and where its numbers go."""

    row: np.ndarray
    key: int
    priority: int
    seconds: int  # unused where items carry no time
    columns: tuple[tuple[int, int], ...]  # where the first slice of each column starts, and how long one is
    slices: tuple[int, ...]  # how many slices each row span takes


class ItemEncoder:
    """Encodes the items of one table.

    Args:
        table: its name.
        columns: of an item, in the signature's flat order.
        max_chunk_length: rows of the longest chunk that items will point into.
        timed: whether items carry the time at which they were inserted, as they do in checkpoints.

    >>> encoder = ItemEncoder("replay", [Column(0), Column(1)], max_chunk_length=4)
    >>> data = encoder.encode(np.array([7, 8], np.uint64), np.ones(2), [RowSpan(np.array([0, 3]), np.array([2, 5]))],
    ...                        np.array([0, 4, 8]), np.array([100, 101], np.uint64))
    >>> from rlds2buf.formats.reverb.protocol.messages import message
    >>> [[len(column.chunk_slices) for column in item.flat_trajectory.columns]
    ...  for item in message("InsertStreamRequest", data).items]
    [[1, 1], [2, 2]]
    """

    def __init__(self, table: str, columns: Sequence[Column], *, max_chunk_length: int, timed: bool = False) -> None:
        self.table = table
        self.columns = tuple(columns)
        self.timed = timed
        self._number_bytes = len(encode_varint(max_chunk_length))
        self._templates: dict[tuple[int, ...], _Template] = {}

    def encode(
        self,
        keys: np.ndarray,
        priorities: np.ndarray,
        spans: Sequence[RowSpan],
        chunk_starts: np.ndarray,
        chunk_keys: np.ndarray,
        *,
        times: np.ndarray | None = None,
    ) -> bytes:
        """Encode I items that point into J consecutive chunks.

        Args:
            keys: ``[I] uint64``.
            priorities: ``[I] float64``, finite and not negative.
            spans: the row spans that the columns refer to, at least one row each.
            chunk_starts: ``[J+1] int64``, ascending: the first row of each chunk, then the end.
            chunk_keys: ``[J] uint64``.
            times: ``[I] int64`` nanoseconds since 1970, if items are timed.

        Returns:
            The ``items`` field of an ``InsertStreamRequest``, I times.
        """
        firsts = [np.searchsorted(chunk_starts, span.starts, side="right") - 1 for span in spans]
        lasts = [np.searchsorted(chunk_starts, span.stops - 1, side="right") - 1 for span in spans]
        which, shapes = _kinds([last - first + 1 for first, last in zip(firsts, lasts, strict=True)])
        templates = [self._template(shape) for shape in shapes]
        blocks = []
        chunk_varints = padded_varints(chunk_keys, _KEY_BYTES)
        key_varints = padded_varints(keys, _KEY_BYTES)
        for number, template in enumerate(templates):
            chosen = np.flatnonzero(which == number)
            block = np.tile(template.row, (len(chosen), 1))
            block[:, template.key : template.key + _KEY_BYTES] = key_varints[chosen]
            block[:, template.priority : template.priority + 8] = (
                np.ascontiguousarray(priorities[chosen], "<f8").view(np.uint8).reshape(-1, 8)
            )
            if times is not None:
                self._fill_times(template, block, times[chosen])
            rows = [
                self._slice_block(template, i, span.starts[chosen], span.stops[chosen], first[chosen], chunk_starts)
                for i, (span, first) in enumerate(zip(spans, firsts, strict=True))
            ]
            self._fill(template, block, rows, [first[chosen] for first in firsts], chunk_varints)
            blocks.append(block)
        return _in_order(blocks, which)

    def _fill_times(self, template: _Template, block: np.ndarray, times: np.ndarray) -> None:
        nanos = template.seconds + _TIME_BYTES + 1
        block[:, template.seconds : template.seconds + _TIME_BYTES] = padded_varints(times // 10**9, _TIME_BYTES)
        block[:, nanos : nanos + _TIME_BYTES] = padded_varints(times % 10**9, _TIME_BYTES)

    def _slice_block(
        self,
        template: _Template,
        span: int,
        starts: np.ndarray,
        stops: np.ndarray,
        first: np.ndarray,
        chunk_starts: np.ndarray,
    ) -> np.ndarray:
        """Offsets and lengths ``[n, slices, 2]`` of a row span cut at the chunk borders."""
        chunk = first[:, None] + np.arange(template.slices[span])
        begin = np.maximum(starts[:, None], chunk_starts[chunk])
        end = np.minimum(stops[:, None], chunk_starts[chunk + 1])
        return np.stack([begin - chunk_starts[chunk], end - begin], axis=2)

    def _fill(
        self,
        template: _Template,
        block: np.ndarray,
        rows: list[np.ndarray],
        firsts: list[np.ndarray],
        chunk_varints: np.ndarray,
    ) -> None:
        width = self._number_bytes
        numbers = [padded_varints(part, width) for part in rows]
        for column, (at, slice_bytes) in zip(self.columns, template.columns, strict=True):
            for i in range(template.slices[column.span]):
                key = at + i * slice_bytes + 3  # after the slice's tag, its length, and the key's tag
                block[:, key : key + _KEY_BYTES] = chunk_varints[firsts[column.span] + i]
                offset = key + _KEY_BYTES + 1
                block[:, offset : offset + width] = numbers[column.span][:, i, 0]
                length = offset + width + 1
                block[:, length : length + width] = numbers[column.span][:, i, 1]

    def _template(self, slices: tuple[int, ...]) -> _Template:
        """The layout of an item whose row spans take this many slices."""
        if slices in self._templates:
            return self._templates[slices]
        if len(self._templates) >= 64:  # whole episodes of every length would pile up
            self._templates.clear()
        number = bytes(self._number_bytes)
        body = bytearray()
        at = []
        for column in self.columns:
            index = b"\x20" + encode_varint(column.tensor)
            one = b"\x08" + bytes(_KEY_BYTES) + b"\x10" + number + b"\x18" + number + index
            one = b"\x0a" + encode_varint(len(one)) + one
            part = bytearray(one * slices[column.span])
            if column.squeeze:
                part += b"\x10\x01"
            lead = b"\x0a" + encode_varint(len(part))
            at.append((len(body) + len(lead), len(one)))
            body += lead + part
        name = self.table.encode()
        front = b"\x08" + bytes(_KEY_BYTES) + b"\x12" + encode_varint(len(name)) + name + b"\x29" + bytes(8)
        seconds = len(front) + 3
        if self.timed:
            front += (
                b"\x3a" + bytes((2 + 2 * _TIME_BYTES,)) + b"\x08" + bytes(_TIME_BYTES) + b"\x10" + bytes(_TIME_BYTES)
            )
        priority = 1 + _KEY_BYTES + 1 + len(encode_varint(len(name))) + len(name) + 1
        front += b"\x42" + encode_varint(len(body))
        lead = b"\x12" + encode_varint(len(front) + len(body))
        row = np.frombuffer(lead + front + bytes(body), np.uint8)
        base = len(lead) + len(front)
        template = _Template(
            row=row,
            key=len(lead) + 1,
            priority=len(lead) + priority,
            seconds=len(lead) + seconds,
            columns=tuple((base + offset, slice_bytes) for offset, slice_bytes in at),
            slices=slices,
        )
        self._templates[slices] = template
        return template


def _kinds(slices: Sequence[np.ndarray]) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    """Which of the different combinations each item has, and those combinations."""
    base = int(max(part.max() for part in slices)) + 1
    code = np.zeros(len(slices[0]), np.int64)
    for part in slices:
        code = code * base + part
    _, first, which = np.unique(code, return_index=True, return_inverse=True)
    return which, [tuple(int(part[i]) for part in slices) for i in first]


def _in_order(blocks: Sequence[np.ndarray], which: np.ndarray) -> bytes:
    """The rows of the blocks, as `which` says whose turn it is."""
    if len(blocks) == 1:
        return blocks[0].tobytes()
    views = [memoryview(block.tobytes()) for block in blocks]
    widths = [block.shape[1] for block in blocks]
    taken = [0] * len(blocks)
    edges = [0, *(np.flatnonzero(np.diff(which)) + 1).tolist(), len(which)]
    runs = []
    for turn, start, stop in zip(which[edges[:-1]].tolist(), edges, edges[1:], strict=False):
        begin, end = taken[turn], taken[turn] + (stop - start) * widths[turn]
        runs.append(views[turn][begin:end])
        taken[turn] = end
    return b"".join(runs)


def split_items(data: bytes) -> Iterator[bytes]:
    """The ``PrioritizedItem`` messages in what :meth:`ItemEncoder.encode` gave.

    >>> list(split_items(b"\\x12\\x02\\x08\\x01\\x12\\x02\\x08\\x02"))
    [b'\\x08\\x01', b'\\x08\\x02']
    """
    at = 0
    while at < len(data):
        at += 1  # the field's tag
        size = shift = 0
        while True:
            byte = data[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        yield data[at : at + size]
        at += size
