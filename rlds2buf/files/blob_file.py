"""Byte strings as two appendable columns: all bytes one behind the other, and where each string ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlds2buf.files.column_file import ColumnFile

__all__ = ["BlobFile", "SavedBlobs", "joined_bytes"]


class BlobFile:
    """Writes byte strings one block after the other; memory-mapped, string i is ``data[ends[i - 1]:ends[i]]``.

    Args:
        name: of the column; the two files' are ``name/bytes`` and ``name/ends``.
        row_shape: how many strings a row has, as a shape.
        column: makes (or continues) a column file of a name, row shape and dtype.
    """

    def __init__(
        self,
        name: str,
        row_shape: tuple[int, ...],
        column: Callable[[str, tuple[int, ...], np.dtype], ColumnFile],
    ) -> None:
        self._data = column(f"{name}/bytes", (), np.dtype(np.uint8))
        self._ends = column(f"{name}/ends", row_shape, np.dtype(np.int64))

    @property
    def rows(self) -> int:
        """Rows written."""
        return self._ends.rows

    def first(self, count: int, num_bytes: int) -> list[bytes]:
        """The first strings written, read back: at most `count`, of at most `num_bytes` together."""
        ends = self._ends.first(min(count, self.rows)).reshape(-1).tolist()
        ends = [end for end in ends if end <= num_bytes]
        data = self._data.first(ends[-1] if ends else 0).tobytes()
        return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def append(self, values: np.ndarray) -> None:
        """Write ``[n, ...] object`` byte strings; None counts as empty.

        Raises:
            SinkError: the files can't be written.
        """
        flat = [value or b"" for value in values.reshape(-1).tolist()]
        lengths = np.fromiter(map(len, flat), np.int64, len(flat))
        ends = self._data.rows + np.cumsum(lengths)
        self._data.append(np.frombuffer(b"".join(flat), np.uint8))
        self._ends.append(ends.reshape(values.shape))


class SavedBlobs:
    """A column that can only be read: all values one behind the other, and where each ends.

    Args:
        data: ``[total] uint8``.
        ends: ``[N, ...] int64``, ascending.

    Raises:
        ValueError: the two do not fit together.

    >>> data, ends = joined_bytes(np.array([b"pick", b"", b"place"], object))
    >>> SavedBlobs(data, ends)[np.array([2, 0])].tolist()
    [b'place', b'pick']
    """

    dtype = np.dtype(object)

    def __init__(self, data: np.ndarray, ends: np.ndarray) -> None:
        if data.dtype != np.uint8 or data.ndim != 1 or ends.dtype != np.int64 or ends.ndim < 1:
            raise ValueError(f"byte strings as {data.dtype}{list(data.shape)} and {ends.dtype}{list(ends.shape)}")
        self.shape = ends.shape
        self.data, self._ends = data, ends.reshape(-1)
        last = int(self._ends[-1]) if len(self._ends) else 0
        if last != len(data) or (len(self._ends) and int(self._ends[0]) < 0):
            raise ValueError(f"byte strings end at {last}, and there are {len(data)} bytes")
        if not (self._ends[1:] >= self._ends[:-1]).all():
            raise ValueError("byte strings end before they start")
        self._view = np.asarray(data).data if len(data) else memoryview(b"")

    def places(self) -> np.ndarray:
        """``[N, ..., 2] int64``: where each string starts, and its length."""
        starts = np.concatenate([np.zeros(min(1, len(self._ends)), np.int64), self._ends[:-1]])
        return np.stack([starts, self._ends - starts], axis=-1).reshape(*self.shape, 2)

    @property
    def nbytes(self) -> int:
        """Bytes of the files."""
        return int(self.data.nbytes + self._ends.nbytes)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        """The values of rows (a slice, or ``[n]`` integers) as an object array; equal rows share theirs."""
        width = int(np.prod(self.shape[1:], dtype=np.int64))
        rows = np.arange(*index.indices(len(self))) if isinstance(index, slice) else np.asarray(index)
        if not isinstance(index, slice) and rows.size and not (rows.min() >= 0 and rows.max() < len(self)):
            raise IndexError(f"byte strings {rows.min()} to {rows.max()} of {len(self)}")
        places = (rows.reshape(-1, 1) * width + np.arange(width)).reshape(-1)
        unique, inverse = np.unique(places, return_inverse=True)
        stops = self._ends[unique].tolist()
        starts = np.where(unique > 0, self._ends[unique - 1], 0).tolist()
        found = np.empty(len(unique), object)
        view = self._view
        found[:] = [bytes(view[start:stop]) for start, stop in zip(starts, stops, strict=True)]
        return found[inverse.reshape(-1)].reshape(*rows.shape, *self.shape[1:])

    def __setitem__(self, index: Any, values: Any) -> None:
        raise ValueError("a saved buffer's files never change")


def joined_bytes(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values of any shape one behind the other, ``[total] uint8``, and where each ends, ``values.shape int64``."""
    flat = [value or b"" for value in values.reshape(-1).tolist()]
    lengths = np.fromiter(map(len, flat), np.int64, len(flat))
    return np.frombuffer(b"".join(flat), np.uint8), np.cumsum(lengths).reshape(values.shape)
