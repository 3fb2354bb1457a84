"""Columns on their way into a file that can't be continued after a kill."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import SinkError, SnapshotCorrupt
from rlds2buf.files.column_file import ColumnFile

__all__ = ["ColumnSpool", "NumberColumn", "TextColumn"]

BLOCK_BYTES = 1 << 22
"""What is read back at a time."""


class NumberColumn:
    """Rows of numbers ``[n, ...]``: appended, then read back in pieces, never as a whole.

    Args:
        path: of the file, without suffix.
        row_shape, dtype: of the rows.
        reached: what :attr:`reached` was at the last sync, to resume from.
    """

    def __init__(
        self, path: Path, row_shape: tuple[int, ...], dtype: np.dtype, reached: list[int] | None = None
    ) -> None:
        resume = (int(reached[0]), int(reached[1])) if reached is not None else None
        self._file = ColumnFile(path.with_suffix(".npy"), row_shape, dtype, resume=resume)
        self._row_bytes = self._file.dtype.itemsize * int(np.prod(row_shape, dtype=np.int64))
        self._reader = -1
        self._offset = 0

    @property
    def rows(self) -> int:
        """How many there are."""
        return self._file.rows

    @property
    def reached(self) -> list[int]:
        """Rows and checksum, for the journal."""
        return [self._file.rows, self._file.crc]

    def append(self, rows: np.ndarray) -> None:
        """Write ``[n, ...]`` rows.

        Raises:
            SinkError: they can't be written.
        """
        self._file.append(rows)

    def sync(self) -> None:
        """Force what was appended to the disk."""
        self._file.sync()

    def finish(self) -> None:
        """Nothing more is appended; from here on :meth:`read` works."""
        self._file.finish()
        try:
            self._reader = os.open(self._file.path, os.O_RDONLY)
            self._offset = os.fstat(self._reader).st_size - self._file.rows * self._row_bytes
        except OSError as cause:
            raise SinkError(f"{self._file.path}: {cause.strerror or cause}") from cause

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows ``start`` up to (not with) ``stop``, as an array of their own."""
        out = np.empty((stop - start, *self._file.row_shape), self._file.dtype)
        if not out.size:
            return out
        left = memoryview(out.reshape(-1).view(np.uint8).data)
        at = self._offset + start * self._row_bytes
        while left:
            try:
                count = os.preadv(self._reader, [left], at)
            except OSError as cause:
                raise SinkError(f"{self._file.path}: {cause.strerror or cause}") from cause
            if not count:
                raise SinkError(f"{self._file.path}: it has become shorter")
            left, at = left[count:], at + count
        return out

    def blocks(self) -> Iterator[np.ndarray]:
        """All rows, some megabytes at a time."""
        step = max(1, BLOCK_BYTES // max(1, self._row_bytes))
        for start in range(0, self.rows, step):
            yield self.read(start, min(start + step, self.rows))

    def close(self) -> None:
        """Let go of the file; idempotent."""
        self._file.close()
        if self._reader >= 0:
            os.close(self._reader)
            self._reader = -1


class TextColumn:
    """Rows of byte strings ``[n, ...]``, as :class:`NumberColumn`.

    The strings lie one behind the other in one file; a second one has where each ends.
    """

    def __init__(self, path: Path, row_shape: tuple[int, ...], reached: list[list[int]] | None = None) -> None:
        first, second = reached if reached is not None else (None, None)
        self._row_shape = row_shape
        self._per_row = int(np.prod(row_shape, dtype=np.int64))
        self._bytes = NumberColumn(path.with_name(f"{path.name}-bytes"), (), np.dtype(np.uint8), first)
        try:
            self._ends = NumberColumn(path.with_name(f"{path.name}-ends"), row_shape, np.dtype(np.int64), second)
        except BaseException:
            self._bytes.close()
            raise

    @property
    def rows(self) -> int:
        """How many there are."""
        return self._ends.rows

    @property
    def reached(self) -> list[list[int]]:
        """As :attr:`NumberColumn.reached`, of both files."""
        return [self._bytes.reached, self._ends.reached]

    def append(self, rows: np.ndarray) -> None:
        """Write rows of ``bytes``, ``[n, ...] object``."""
        texts: list[bytes] = rows.reshape(-1).tolist()
        ends = self._bytes.rows + np.cumsum([len(text) for text in texts], dtype=np.int64)
        self._bytes.append(np.frombuffer(b"".join(texts), np.uint8))
        self._ends.append(ends.reshape(rows.shape))

    def sync(self) -> None:
        """Force what was appended to the disk."""
        self._bytes.sync()
        self._ends.sync()

    def finish(self) -> None:
        """Nothing more is appended."""
        self._bytes.finish()
        self._ends.finish()

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows ``start`` up to (not with) ``stop``, ``[n, ...] object``."""
        ends = self._ends.read(start, stop)
        out = np.empty(ends.size, object)
        if ends.size:
            low = int(self._ends.read(start - 1, start).reshape(-1)[-1]) if start else 0
            edges = [low, *ends.reshape(-1).tolist()]
            held = self._bytes.read(low, edges[-1]).tobytes()
            out[:] = [held[a - low : b - low] for a, b in itertools.pairwise(edges)]
        return out.reshape(ends.shape)

    def blocks(self) -> Iterator[np.ndarray]:
        """All rows, some thousands at a time."""
        step = max(1, (1 << 12) // max(1, self._per_row))
        for start in range(0, self.rows, step):
            yield self.read(start, min(start + step, self.rows))

    def close(self) -> None:
        """Let go of the files; idempotent."""
        self._bytes.close()
        self._ends.close()


class ColumnSpool:
    """Columns of one conversion, in a folder of its unfinished output.

    ::

        (append* -> sync)* -> finish -> columns[name].read

    Args:
        folder: to write in; made if it isn't there.
        fields: name to shape and dtype of one row; no axis may vary.
        reached: what the last :meth:`sync` of a killed run gave; what lies behind is cut off.

    Raises:
        SinkError: a file can't be written.
        SnapshotCorrupt: there is less in one than `reached` says.

    >>> import tempfile
    >>> fields = {"n": FieldSpec((), np.int64), "text": FieldSpec((), object)}
    >>> spool = ColumnSpool(Path(tempfile.mkdtemp()), fields)
    >>> spool.append({"n": np.arange(3), "text": np.array([b"a", b"", b"bc"], object)})
    >>> spool.finish()
    >>> spool.columns["n"].read(1, 3).tolist(), spool.columns["text"].read(1, 3).tolist()
    ([1, 2], [b'', b'bc'])
    >>> spool.close()
    """

    def __init__(self, folder: Path, fields: Mapping[str, FieldSpec], reached: Mapping[str, Any] | None = None) -> None:
        self.columns: dict[str, NumberColumn | TextColumn] = {}
        try:
            folder.mkdir(exist_ok=True)
            for i, (name, field) in enumerate(fields.items()):
                shape = tuple(n for n in field.shape if n is not None)
                assert len(shape) == len(field.shape), f"{name} has no fixed shape"
                at = None if reached is None else reached[name]
                path = folder / f"{i:03d}"
                self.columns[name] = (
                    TextColumn(path, shape, at) if field.is_string else NumberColumn(path, shape, field.dtype, at)
                )
        except (LookupError, TypeError, ValueError) as cause:
            self.close()
            raise SnapshotCorrupt(f"{folder}: its journal is not one of this conversion ({cause!r})") from cause
        except OSError as cause:
            self.close()
            raise SinkError(f"{folder}: {cause.strerror or cause}") from cause
        except BaseException:
            self.close()
            raise

    def append(self, rows: Mapping[str, np.ndarray]) -> None:
        """Write some rows of each column that is named."""
        for name, block in rows.items():
            self.columns[name].append(block)

    def sync(self) -> dict[str, Any]:
        """Force everything to the disk; returns what to put into the journal."""
        for column in self.columns.values():
            column.sync()
        return {name: column.reached for name, column in self.columns.items()}

    def finish(self) -> None:
        """Nothing more is appended; the columns can be read."""
        for column in self.columns.values():
            column.finish()

    def close(self) -> None:
        """Let go of the files; idempotent."""
        for column in self.columns.values():
            column.close()
