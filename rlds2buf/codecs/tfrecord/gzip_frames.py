"""GZIP-compressed TFRecord files, as TensorFlow writes them with ``compression_type="GZIP"``.

The whole file is one gzip stream around the usual frames (:mod:`rlds2buf.codecs.tfrecord.frames`), so that
records can only be reached by decompressing all before them.
"""

from __future__ import annotations

import gzip
import os
import zlib
from typing import BinaryIO

import numpy as np

from rlds2buf.codecs.tfrecord.frames import FrameReader, open_records
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.core.records import FOOTER_BYTES, HEADER_BYTES
from rlds2buf.errors import SourceFormatError

__all__ = ["GzipFrameReader", "is_gzip"]

_PIECE = 1 << 24
"""What is read at once at most, so that a length that is not there is never allocated."""


def is_gzip(path: str | os.PathLike[str]) -> bool:
    """Whether the file begins as gzip does.

    Raises:
        SourceNotFound, SourceError: it can't be read.
    """
    with open_records(os.fspath(path)) as file:
        return file.read(2) == b"\x1f\x8b"


class GzipFrameReader(FrameReader):
    """As :class:`FrameReader`; records before `start` are decompressed and dropped.

    Args:
        budget: for each record.

    Raises:
        SourceFormatError: also where the compressed data are damaged.
        LimitExceeded: a record takes more than the `budget`.
    """

    def __init__(
        self, path: str | os.PathLike[str], start: int = 0, *, check_data: bool = True, budget: Budget = BUDGET
    ) -> None:
        self._budget = budget
        self._held = b""  # what has been decompressed from byte `_begin` on
        self._begin = 0
        self._failure: Exception | None = None
        super().__init__(path, start, check_data=check_data)

    def _open(self) -> BinaryIO:
        file = open_records(self._name)
        self._stream = gzip.GzipFile(fileobj=file)
        return file

    def _read(self, size: int) -> bytes:
        held = self._held[max(self._at - self._begin, 0) :]
        self._drop(self._at - self._begin - len(self._held))
        pieces = [held]
        left = size - len(held)
        while left > 0 and (piece := self._decompressed(left)):
            pieces.append(piece)
            left -= len(piece)
        self._held, self._begin = b"".join(pieces), self._at
        if self._failure is not None and not self._held:
            raise self._truncated()
        return self._held[:size]

    def _drop(self, count: int) -> None:
        while count > 0 and (piece := self._decompressed(count)):
            count -= len(piece)
        if count > 0:
            self.number -= 1  # the file ends inside the one that was stepped over
            raise self._truncated()

    def _decompressed(self, size: int) -> bytes:
        """Some of the next bytes; none at the end, or where the rest can't be had."""
        if self._failure is None:
            try:
                return self._stream.read1(min(size, _PIECE))
            except (EOFError, OSError, zlib.error) as cause:
                self._failure = cause
        return b""

    def _sound(self, data: bytes, edges: np.ndarray, stored: np.ndarray) -> int:
        count = super()._sound(data, edges, stored)
        most = self._budget.max_bytes + HEADER_BYTES + FOOTER_BYTES
        return next(iter(np.flatnonzero(np.diff(edges[: count + 1]) > most).tolist()), count)

    def _check_length(self, length: int) -> None:
        self._budget.check_bytes(length, f"{self._name}: record {self.number}")

    def _truncated(self) -> SourceFormatError:
        if self._failure is None:
            return super()._truncated()
        what = f"the compressed data are damaged or cut short ({self._failure})"
        error = self._damaged(what, what)
        error.__cause__ = self._failure
        return error

    def _damaged(self, what: str, compressed: str) -> SourceFormatError:
        return SourceFormatError(f"{self._name}: record {self.number}: {compressed}")
