"""A column as an appendable ``.npy`` file with a running checksum."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import crc32c
import numpy as np

from rlds2buf.core.dtypes import parse_dtype
from rlds2buf.errors import SinkError, SnapshotCorrupt

__all__ = ["ColumnFile", "MappedFiles", "checksum", "open_column"]

_LOOK_EVERY_S = 0.1


class ColumnFile:
    """Writes rows one block after the other; numpy opens the finished file, memory-mapped or not.

    The header is written first with no rows and again at the end; numpy's format keeps room in it
    for the row count to grow (NEP 1 and ``numpy.lib.format``).

    Args:
        path: of the file.
        row_shape: without the time axis.
        dtype: of the rows.
        resume: ``(rows, crc)`` that an earlier writer had reached; what lies behind is cut off.

    Attributes:
        rows: how many were written.
        crc: CRC-32C of their bytes, header not counted.

    Raises:
        SinkError: the file can't be written.
        SnapshotCorrupt: there is less in it than `resume` says.
    """

    def __init__(
        self, path: Path, row_shape: tuple[int, ...], dtype: np.dtype, *, resume: tuple[int, int] | None = None
    ) -> None:
        self.path = path
        self.row_shape = row_shape
        self.dtype = np.dtype(dtype)
        self.rows, self.crc = resume or (0, 0)
        try:
            self._file = open(path, "r+b" if resume else "w+b", buffering=1 << 20)
            self._write_header(0)
            self._header = self._file.tell()
            if resume:
                end = self._header + self.rows * self._row_bytes
                if os.path.getsize(path) < end:
                    self.close()
                    raise SnapshotCorrupt(f"{path}: shorter than its journal says, it can't be continued")
                self._file.truncate(end)
                self._file.seek(end)
        except OSError as cause:
            raise _sink_error(path, cause) from cause

    @property
    def _row_bytes(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.row_shape, dtype=np.int64))

    def append(self, rows: np.ndarray) -> None:
        """Write ``[n, ...]`` rows, cast to the column's dtype."""
        block = np.ascontiguousarray(rows, self.dtype).reshape(-1).view(np.uint8)
        try:
            self._file.write(block.data)
        except OSError as cause:
            raise _sink_error(self.path, cause) from cause
        self.crc = crc32c.crc32c(block, self.crc)
        self.rows += len(rows)

    def first(self, count: int) -> np.ndarray:
        """The first `count` rows, read back.

        Raises:
            SinkError: the file can't be read.
        """
        try:
            self._file.flush()
            flat = np.fromfile(
                self.path, self.dtype, count * (self._row_bytes // self.dtype.itemsize), "", self._header
            )
        except OSError as cause:
            raise _sink_error(self.path, cause) from cause
        return flat.reshape(-1, *self.row_shape)

    def sync(self) -> None:
        """Force what was written to the disk."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as cause:
            raise _sink_error(self.path, cause) from cause

    def finish(self) -> dict[str, object]:
        """Write the true row count, sync and close; returns the manifest's entry."""
        try:
            self._file.seek(0)
            self._write_header(self.rows)
            assert self._file.tell() == self._header
            self.sync()
            self._file.close()
        except OSError as cause:
            raise _sink_error(self.path, cause) from cause
        return {
            "file": self.path.name,
            "dtype": self.dtype.str if self.dtype.kind != "V" else self.dtype.name,
            "shape": [self.rows, *self.row_shape],
            "crc32c": self.crc,
        }

    def close(self) -> None:
        """Close without finishing; idempotent, and never fails: on a full disk the last rows are lost."""
        with contextlib.suppress(OSError):
            self._file.close()

    def _write_header(self, rows: int) -> None:
        np.lib.format.write_array_header_1_0(
            self._file,
            {
                "descr": np.lib.format.dtype_to_descr(self.dtype),
                "fortran_order": False,
                "shape": (rows, *self.row_shape),
            },
        )


class MappedFiles:
    """Files that are read through memory, where one that was cut short ends the process (SIGBUS).

    Args:
        columns: those that are memory-mapped are looked after, others passed over.
    """

    def __init__(self, columns: Iterable[object]) -> None:
        mapped: list[Any] = [column for column in columns if isinstance(column, np.memmap)]
        self._files: list[Any] = [(m._mmap, m.offset + m.nbytes, m.filename) for m in mapped]
        self._next = 0.0

    def require_whole(self) -> None:
        """Look at all sizes, at most ten times a second: what is cut short in between can't be caught.

        Raises:
            SnapshotCorrupt: a file is shorter than it was.
        """
        now = time.monotonic()
        if now < self._next:
            return
        for file, size, name in self._files:
            if file.size() < size:
                raise SnapshotCorrupt(f"{name}: has become shorter since it was opened; its rows are gone")
        self._next = now + _LOOK_EVERY_S


def open_column(
    path: Path, shape: tuple[int, ...], dtype: str, *, writable: bool = False, private: bool = False
) -> np.ndarray:
    """Memory-map a finished column.

    Args:
        path: of the file.
        shape, dtype: that it must have.
        writable: what is written to the array goes into the file.
        private: what is written to it doesn't; where nothing was written, the array is as the file becomes.

    Raises:
        SnapshotCorrupt: the file is missing, not whole, or not of that shape and dtype.
    """
    if 0 in shape:
        try:
            array: np.ndarray = np.zeros(shape, parse_dtype(dtype))
        except ValueError as cause:
            raise SnapshotCorrupt(f"{path}: {dtype}{list(shape)} is no column ({cause})") from cause
        array.flags.writeable = writable or private
        return array
    try:
        array = np.lib.format.open_memmap(path, mode="r")  # for writing, numpy would stretch a short file with zeros
    except FileNotFoundError as cause:
        raise SnapshotCorrupt(f"{path}: the file is missing") from cause
    except Exception as cause:  # numpy evaluates the header as Python, so damage there is a SyntaxError or worse
        raise SnapshotCorrupt(f"{path}: {cause}") from cause
    if array.shape != shape or array.dtype != parse_dtype(dtype):
        raise SnapshotCorrupt(f"{path}: holds {array.dtype}{list(array.shape)}, the manifest says {dtype}{list(shape)}")
    return np.lib.format.open_memmap(path, mode="r+" if writable else "c") if writable or private else array


def checksum(array: np.ndarray, crc: int = 0) -> int:
    """CRC-32C of an array's bytes; `crc` is that of what came before them."""
    flat = array.reshape(-1).view(np.uint8)
    for start in range(0, len(flat), 1 << 26):
        crc = crc32c.crc32c(flat[start : start + (1 << 26)], crc)
    return crc


def _sink_error(path: Path, cause: OSError) -> SinkError:
    return SinkError(f"{path}: {cause.strerror or cause}")
