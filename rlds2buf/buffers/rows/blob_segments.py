"""A column of byte strings in files that are written in place, as far as that goes with strings.

Strings are appended to segments, files of some ten megabytes, and each row keeps where its string
starts and how long it is.  Rows leave in order as a rule, so a segment is all gone after a while, and
its file with it.  Where they leave at random, what is left in segments that are mostly gone is moved
to the newest one when files take about twice what is held: each byte is moved once in a while, as
often as others are written.
"""

from __future__ import annotations

import dataclasses
import os
from bisect import bisect_right
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rlds2buf.errors import SinkError, SnapshotCorrupt

__all__ = ["BlobHome", "LiveBlobs", "Segment"]

SEGMENT_BYTES = 1 << 26
_OPEN_FILES = 32
_PIECE = 1024


class BlobHome(Protocol):
    """What byte strings ask of the folder that their files are in."""

    def protect(self, column: np.ndarray, slots: np.ndarray) -> None:
        """Rows of one column are about to change."""

    def remove(self, file: Path) -> None:
        """A file is not needed any more."""


@dataclasses.dataclass
class Segment:
    """A file of byte strings.

    Attributes:
        path: of the file.
        start: of its first byte, counted through all segments of the column.
        size: bytes written.
        offset: of the first byte in the file.
        live: bytes of them that rows still hold.
    """

    path: Path
    start: int
    size: int = 0
    offset: int = 0
    live: int = 0


class LiveBlobs:
    """Byte strings ``[slots, ...]``; unset ones are empty.

    Args:
        stem: what the names of new files start with.
        places: ``[slots, ..., 2] int64``: where each string starts, counted through all segments, and its
            length.
        segments: those there are.
        home: whose files they are; None for those that stay as they are.

    Raises:
        ValueError: a string lies outside of the segments.
    """

    dtype = np.dtype(object)

    def __init__(
        self, stem: Path, places: np.ndarray, segments: list[Segment] | None = None, *, home: BlobHome | None = None
    ) -> None:
        if places.dtype != np.int64 or places.ndim < 2 or places.shape[-1] != 2:
            raise ValueError(f"places of byte strings as {places.dtype}{list(places.shape)}")
        self.stem, self.places, self.home = stem, places, home
        self.shape = places.shape[:-1]
        self.segments = sorted(segments or [], key=lambda segment: segment.start)
        self._starts = [segment.start for segment in self.segments]
        self._files: dict[int, int] = {}
        self._width = int(np.prod(self.shape[1:], dtype=np.int64))
        self._count_live()

    @property
    def nbytes(self) -> int:
        """Bytes of the places, and of the strings held."""
        return int(self.places.nbytes) + sum(segment.live for segment in self.segments)

    @property
    def file_bytes(self) -> int:
        """Bytes of the segments."""
        return sum(segment.size for segment in self.segments)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        """The strings of rows (a slice, or ``[n]`` integers) as an object array; equal places share theirs."""
        places = self.places[index]
        flat = places.reshape(-1, 2)
        known: dict[tuple[int, int], bytes] = {}
        out = np.empty(len(flat), object)
        for i, place in enumerate(map(tuple, flat.tolist())):
            if place not in known:
                known[place] = self._read(*place)
            out[i] = known[place]
        return out.reshape(places.shape[:-1])

    def __setitem__(self, index: Any, values: Any) -> None:
        """Write the strings of rows ``[n, ...]``; None empties them.

        Raises:
            SinkError: they can't be written.
        """
        before = np.array(self.places[index]).reshape(-1, 2)
        if values is None:
            self.places[index] = 0
        else:
            flat = [value or b"" for value in np.asarray(values, object).reshape(-1).tolist()]
            self.places[index] = self._append(flat).reshape(*np.shape(values), 2)
        self._leave(before)
        if values is not None and self.file_bytes > 2 * self.nbytes + 2 * SEGMENT_BYTES:
            self._tidy()

    def keep(self, slots: np.ndarray) -> None:
        """Move the rows in ``slots [n] int64``, ascending, to the front; the others are gone."""
        for start in range(0, len(slots), 1 << 16):
            piece = slots[start : start + (1 << 16)]
            self.places[start : start + len(piece)] = self.places[piece]
        self.places[len(slots) :] = 0
        self._count_live()
        self._drop_empty()

    def discard(self) -> None:
        """Remove the files, all rows having been copied to another column; not those of a saved buffer to be kept."""
        if self.places.flags.writeable:
            for segment in self.segments:
                self._remove(segment)
            self.segments, self._starts = [], []

    def flush(self) -> None:
        """Force all strings to the disk."""
        for segment in self.segments:
            os.fsync(self._file(segment))

    def _append(self, values: list[bytes]) -> np.ndarray:
        data = b"".join(values)
        if not self.segments or self.segments[-1].size >= SEGMENT_BYTES or self.segments[-1].offset:
            end = self.segments[-1].start + self.segments[-1].size if self.segments else 0
            self.segments.append(Segment(self.stem.with_name(f"{self.stem.name}.{end:016x}.bytes"), end))
            self._starts.append(end)
        segment = self.segments[-1]
        try:
            written = 0
            while written < len(data):  # one call writes at most 2 GiB
                piece = memoryview(data)[written:]
                written += os.pwrite(self._file(segment), piece, segment.size + written)
        except OSError as cause:
            raise SinkError(f"{segment.path}: {cause.strerror or cause}") from cause
        lengths = np.fromiter(map(len, values), np.int64, len(values))
        starts = segment.start + segment.size + np.cumsum(lengths) - lengths
        segment.size += len(data)
        segment.live += len(data)
        return np.stack([starts, lengths], axis=-1)

    def _read(self, start: int, length: int) -> bytes:
        if not length:
            return b""
        segment = self.segments[bisect_right(self._starts, start) - 1]
        try:
            found = os.pread(self._file(segment), length, segment.offset + start - segment.start)
        except OSError as cause:
            raise SnapshotCorrupt(f"{segment.path}: {cause.strerror or cause}") from cause
        if len(found) != length:
            raise SnapshotCorrupt(f"{segment.path}: has become shorter")
        return found

    def _file(self, segment: Segment) -> int:
        """The segment's file, open; not all are at a time."""
        file = self._files.get(segment.start)
        if file is None:
            while len(self._files) >= _OPEN_FILES:
                os.close(self._files.pop(next(iter(self._files))))
            writable = self.places.flags.writeable and not segment.offset
            file = os.open(segment.path, os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY, 0o644)
            self._files[segment.start] = file
        return file

    def _which(self, places: np.ndarray) -> np.ndarray:
        """The numbers of the segments that ``places [n, 2]`` lie in."""
        return np.searchsorted(np.array(self._starts, np.int64), places[:, 0], side="right") - 1

    def _leave(self, places: np.ndarray) -> None:
        places = places[places[:, 1] > 0]
        if not len(places):
            return
        gone = np.bincount(self._which(places), places[:, 1], len(self.segments))
        for i in np.flatnonzero(gone).tolist():
            self.segments[i].live -= int(gone[i])
        self._drop_empty()

    def _count_live(self) -> None:
        """Find out anew how much of each segment is held."""
        places = self.places.reshape(-1, 2)
        places = places[places[:, 1] != 0]
        sizes = np.array([segment.size for segment in self.segments], np.int64)
        which = self._which(places)
        if len(places):
            ends = np.append(np.array(self._starts, np.int64) + sizes, 0)  # behind it for a place before the first
            if int(places.min()) < 0 or (places[:, 1] > ends[which] - places[:, 0]).any():
                raise ValueError("a byte string lies outside of its files")
        live = np.bincount(which, places[:, 1], len(self.segments)) if len(places) else np.zeros(len(self.segments))
        for segment, held in zip(self.segments, live.tolist(), strict=True):
            segment.live = int(held)

    def _drop_empty(self) -> None:
        """Remove the files of segments that nothing is held of, but for the newest."""
        empty = [segment for segment in self.segments[:-1] if segment.live <= 0]
        if not empty:
            return
        for segment in empty:
            file = self._files.pop(segment.start, None)
            if file is not None:
                os.close(file)
            self._remove(segment)
        self.segments = [segment for segment in self.segments if segment not in empty]
        self._starts = [segment.start for segment in self.segments]

    def _tidy(self) -> None:
        """Move what is held of segments that are mostly gone."""
        sparse = np.array([2 * segment.live < segment.size for segment in self.segments[:-1]] + [False])
        places = self.places.reshape(-1, 2)
        held = np.flatnonzero(places[:, 1] > 0)
        moving = held[sparse[self._which(places[held])]]
        for start in range(0, len(moving), _PIECE):
            rows = moving[start : start + _PIECE]
            values = [self._read(*place) for place in places[rows].tolist()]
            if self.home is not None:
                self.home.protect(self.places, rows // self._width)
            self._leave(places[rows])
            places[rows] = self._append(values)

    def _remove(self, segment: Segment) -> None:
        if self.home is not None:
            self.home.remove(segment.path)
        else:
            segment.path.unlink(missing_ok=True)

    def __del__(self) -> None:
        for file in getattr(self, "_files", {}).values():
            os.close(file)
