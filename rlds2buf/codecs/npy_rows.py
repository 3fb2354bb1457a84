"""The rows of one numpy array in a file, read forward."""

from __future__ import annotations

import contextlib
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.errors import SourceFormatError, SourceNotFound
from rlds2buf.files.npy_header import read_npy_header

__all__ = ["NpyRows"]

_RAISES = (
    zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, ValueError, KeyError, NotImplementedError,
    RuntimeError, OverflowError, MemoryError,
)  # fmt: skip
"""What zipfile raises for damaged archives, and numpy where there is no room."""

_MOST_COMPRESSION = 1032
_SLACK = 1 << 20


class NpyRows:
    """An array ``[N, ...]`` in an .npy file or an .npz member; only its header is read at first.

    Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html

    Args:
        file: the file.
        member: the member of a zip archive, or None.
        budget: what a row, or an array without rows one behind the other, may take beyond the file's size.
        archive: the file, where somebody has it open; it is not kept.

    Attributes:
        file, member: as above.
        shape: the whole array's.
        dtype: of the columns made from it: native byte order, text as objects (bytes).
        why: why it makes no column, or None.
        row_bytes: of one row, as it is stored.

    Raises:
        SourceNotFound, SourceFormatError: it can't be read, or is cut short.
        LimitExceeded: it takes more than the `budget`.
    """

    def __init__(
        self,
        file: Path,
        member: str | None = None,
        budget: Budget = BUDGET,
        archive: zipfile.ZipFile | None = None,
    ) -> None:
        self.file = file
        self.member = member
        self._info: zipfile.ZipInfo | None = None
        with self._translated(), self._opened(archive) as stream:
            self.shape, self._fortran, stored, told = read_npy_header(stream)
            self._start = stream.tell()
            self.why = _reason(stored, told)
            self._stored = np.dtype(object) if stored is None else stored
            self.dtype = np.dtype(object) if self._stored.kind in "SU" else self._stored.newbyteorder("=")
            self.row_bytes = math.prod(self.shape[1:]) * self._stored.itemsize
            self._check_size()
        if self.why is None and self.shape:
            whole = self._fortran and len(self.shape) > 1
            size = self.row_bytes * (self.shape[0] if whole else 1)
            budget.check_bytes(size - file.stat().st_size, f"{self._name}, {'all of it' if whole else 'one row'},")

    def value(self) -> Any:
        """A single value (``[]``) as a Python value: number, flag or text."""
        with self._translated(), self._opened() as stream:
            stream.seek(self._start)
            return np.frombuffer(stream.read(self._stored.itemsize), self._stored, 1).item()

    @contextlib.contextmanager
    def reading(self, start: int, archive: zipfile.ZipFile | None = None) -> Iterator[Callable[[int], np.ndarray]]:
        """A function that gives the next n rows ``[n, ...]``, from row `start` on; until the block ends.

        Args:
            start: a row's number.
            archive: the file, where somebody has it open, and keeps it so.
        """
        if self._fortran and len(self.shape) > 1:
            yield self._whole(start)
            return
        row_bytes = self.row_bytes
        with self._translated():
            opened = contextlib.ExitStack()
            stream = opened.enter_context(self._opened(archive))
            stream.seek(self._start + start * row_bytes)

        def read(count: int) -> np.ndarray:
            with self._translated():
                data = stream.read(count * row_bytes)
                if len(data) != count * row_bytes:
                    raise SourceFormatError(f"{self._name}: cut short")
                rows = np.frombuffer(data, self._stored, count * int(np.prod(self.shape[1:], dtype=np.int64)))
            return self._as_column(rows.reshape(count, *self.shape[1:]))

        with opened:
            yield read

    def _whole(self, start: int) -> Callable[[int], np.ndarray]:
        """For arrays stored column by column, which have no rows to read one behind the other."""
        with self._translated(), self._opened() as stream:
            stream.seek(self._start)
            count = math.prod(self.shape)
            data = stream.read(count * self._stored.itemsize)
            array = np.frombuffer(data, self._stored, count).reshape(self.shape, order="F")
        here = start

        def read(count: int) -> np.ndarray:
            nonlocal here
            here += count
            return self._as_column(array[here - count : here])

        return read

    def _as_column(self, rows: np.ndarray) -> np.ndarray:
        if self._stored.kind not in "SU":
            return rows.astype(self.dtype, copy=False)
        out = np.empty(rows.size, object)
        out[:] = [text if isinstance(text, bytes) else text.encode() for text in rows.ravel().tolist()]
        return out.reshape(rows.shape)

    def _check_size(self) -> None:
        """Refuse a header that claims more than the file holds: reading would not end."""
        size = int(np.prod(self.shape, dtype=object)) * self._stored.itemsize
        if self._stored.hasobject:
            return
        info = self._info
        if info is None:
            held = self.file.stat().st_size - self._start
        else:
            held = info.file_size - self._start
            if info.file_size > info.compress_size * _MOST_COMPRESSION + _SLACK:
                raise SourceFormatError(f"{self._name}: claims {info.file_size:,} bytes of {info.compress_size:,}")
        if size > held:
            raise SourceFormatError(f"{self._name}: {self._stored}{list(self.shape)} is cut short")

    @property
    def _name(self) -> str:
        return str(self.file) if self.member is None else f"{self.file}: {self.member}"

    @contextlib.contextmanager
    def _opened(self, archive: zipfile.ZipFile | None = None) -> Iterator[IO[bytes]]:
        if self.member is None:
            with open(self.file, "rb") as stream:
                yield stream
            return
        with contextlib.ExitStack() as opened:
            archive = archive or opened.enter_context(zipfile.ZipFile(self.file))
            self._info = archive.getinfo(self.member)
            yield opened.enter_context(archive.open(self._info))

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except SourceFormatError:
            raise
        except FileNotFoundError as cause:
            raise SourceNotFound(f"{self.file}: no such file") from cause
        except _RAISES as cause:
            message = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
            raise SourceFormatError(f"{self._name}: no readable numpy array ({message[:200]})") from cause


def _reason(dtype: np.dtype | None, told: str) -> str | None:
    if dtype is not None and dtype.hasobject:
        return "holds Python objects, which are pickled and never loaded"
    if dtype is None or dtype.kind not in "biufcSU":
        return f"holds {told if dtype is None else dtype}, which is no column of steps"
    return None
