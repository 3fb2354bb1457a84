"""The records that a block of episodes was read from, as they lie in TFRecord files."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

__all__ = ["FOOTER_BYTES", "HEADER_BYTES", "Records"]

HEADER_BYTES: Final = 12
FOOTER_BYTES: Final = 4
"""Of a frame, before and behind the record: its length with a checksum, and its own checksum."""


class Records(Sequence[tuple[bytes, int]]):
    """E records in their frames, one behind the other; all of them are written by writing one piece of memory.

    As a sequence: each record's bytes and their masked checksum, whose frame has been compared with it.

    Args:
        frames: bytes that hold them.
        edges: ``[E + 1] int64``, where each frame begins in `frames`, and where the last one ends.

    >>> records = Records(b"length..crc.abcCRC.length..crc.deCRC.", np.array([0, 19, 37]))
    >>> len(records), records[1][0], bytes(records.take([1]).whole)
    (2, b'de', b'length..crc.deCRC.')
    """

    __slots__ = ("edges", "frames")

    def __init__(self, frames: bytes | bytearray, edges: np.ndarray) -> None:
        self.frames = frames
        self.edges = edges

    @property
    def whole(self) -> memoryview:
        """All frames as they are written to a file."""
        return memoryview(self.frames)[int(self.edges[0]) : int(self.edges[-1])]

    @property
    def sizes(self) -> np.ndarray:
        """``[E] int64``, bytes of each record without its frame."""
        return np.diff(self.edges) - (HEADER_BYTES + FOOTER_BYTES)

    def take(self, which: Any) -> Records:
        """Those of some episodes: a slice (shares memory), or numbers."""
        if isinstance(which, slice):
            first, stop, step = which.indices(len(self))
            if step == 1:
                return Records(self.frames, self.edges[first : max(stop, first) + 1])
            which = range(first, stop, step)
        return Records.join(self.take(slice(i, i + 1)) for i in np.asarray(which).tolist())

    @classmethod
    def join(cls, parts: Iterable[Records]) -> Records:
        """Several behind one another; what follows on in one piece of memory is not copied."""
        found = list(parts)
        one = found[0] if found else cls(b"", np.zeros(1, np.int64))
        if all(b.frames is one.frames and a.edges[-1] == b.edges[0] for a, b in itertools.pairwise(found)):
            edges = [part.edges[:-1] for part in found[:-1]]
            return cls(one.frames, np.concatenate([*edges, (found or [one])[-1].edges]))
        lengths = np.concatenate([np.diff(part.edges) for part in found])
        return cls(b"".join(part.whole for part in found), np.concatenate([[0], np.cumsum(lengths)]))

    def __len__(self) -> int:
        return len(self.edges) - 1

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return self.take(i)
        if not -len(self) <= i < len(self):
            raise IndexError(i)
        i %= len(self)
        begin, end = int(self.edges[i]) + HEADER_BYTES, int(self.edges[i + 1]) - FOOTER_BYTES
        return bytes(self.frames[begin:end]), int.from_bytes(self.frames[end : end + FOOTER_BYTES], "little")
