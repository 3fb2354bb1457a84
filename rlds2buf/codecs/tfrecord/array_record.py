"""ArrayRecord files: TFDS's other record format, read by the ``array_record`` package.

A file is a Riegeli file (compressed chunks, each with its own hash) with an index behind it, so that
any record is found at once, and damage anywhere but in the padding is noticed by the package itself.

Records are read one behind the other, on this thread: measured on records of 2 KB and of 140 KB, that
is as fast as any batch size where a chunk is a record, as TFDS writes them, and much faster than picking
records singly where it holds many.

Source: https://github.com/google/array_record
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from rlds2buf.codecs.tfrecord.frames import STRETCH_BYTES, frame
from rlds2buf.core.records import Records
from rlds2buf.errors import MissingDependency, SourceError, SourceFormatError, SourceNotFound

__all__ = ["ArrayRecordReader", "count_array_records"]

_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
"""No threads of its own: they would not live on in a process that was forked."""


class ArrayRecordReader:
    """Reads one file a stretch at a time; a context manager.

    Args:
        path: the file.
        start: number of the first record wanted, 0-based; records before it are not read.

    Attributes:
        number: of the record that the next stretch begins with.

    Raises:
        SourceNotFound: there is no such file.
        SourceFormatError: it is no ArrayRecord file, is cut short, or a hash does not match.
        SourceError: the file can't be read.
        MissingDependency: the package array_record is not installed.
    """

    def __init__(self, path: str | os.PathLike[str], start: int = 0) -> None:
        self._name = os.fspath(path)
        self._closing = contextlib.ExitStack()
        self._reader = self._closing.enter_context(_open(self._name))
        try:
            self._total = _count(self._reader, self._name)
            self.number = self._reached = min(start, self._total)
            if start < self._total:
                with _translated(self._name, start):
                    self._reader.seek(start)
        except BaseException:
            self._closing.close()
            raise
        self._held: deque[bytes] = deque()  # frames that were given back
        self._error: SourceFormatError | None = None

    def take(self, size: int = STRETCH_BYTES, most: int | None = None) -> Records:
        """As :meth:`rlds2buf.codecs.tfrecord.frames.FrameReader.take`, framed as TFRecord files have them.

        Raises:
            SourceFormatError: the next record is damaged.
        """
        frames: list[bytes] = []
        left = size
        while left > 0 and (most is None or len(frames) < most):
            try:
                found = self._held.popleft() if self._held else self._read()
            except SourceFormatError as error:
                self._error = error
                if frames:
                    break
                raise
            if found is None:
                break
            frames.append(found)
            left -= len(found)
        self.number += len(frames)
        return Records(b"".join(frames), np.cumsum([0, *map(len, frames)]))

    def go_back(self, records: Records, first: int) -> None:
        """Begin the next stretch with record `first` of the last one."""
        edges = records.edges.tolist()
        self._held.extendleft(bytes(records.frames[a:b]) for a, b in reversed(list(itertools.pairwise(edges[first:]))))
        self.number -= len(records) - first

    def _read(self) -> bytes | None:
        if self._error is not None:
            raise self._error
        if self._reached >= self._total:
            return None
        with _translated(self._name, self._reached):
            record = self._reader.read()
        self._reached += 1
        return frame(record)

    def __enter__(self) -> ArrayRecordReader:
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.close()


def count_array_records(path: str | os.PathLike[str]) -> int:
    """How many records the file has, as its footer says.

    Raises:
        SourceNotFound, SourceFormatError, SourceError, MissingDependency: as :class:`ArrayRecordReader`.
    """
    name = os.fspath(path)
    with _open(name) as reader:
        return _count(reader, name)


@contextlib.contextmanager
def _open(name: str) -> Iterator[Any]:
    try:
        from array_record.python.array_record_module import ArrayRecordReader
    except ImportError as cause:
        raise MissingDependency(
            f"{name}: ArrayRecord files need array_record: pip install 'rlds2buf[array-record]'"
        ) from cause
    try:
        open(name, "rb").close()  # the package calls every failure a RuntimeError
    except FileNotFoundError as cause:
        raise SourceNotFound(f"{name}: no such file") from cause
    except OSError as cause:
        raise SourceError(f"{name}: {cause.strerror or cause}") from cause
    with _translated(name):
        reader = ArrayRecordReader(name, _OPTIONS)
        if not reader.ok():  # it would go on with no records; closing says why
            reader.close()
            raise ValueError("no footer")
    try:
        yield reader
    finally:
        # A reader that met damage says so again when it is closed.
        with contextlib.suppress(RuntimeError):
            reader.close()


def _count(reader: Any, name: str) -> int:
    with _translated(name):
        return int(reader.num_records())


@contextlib.contextmanager
def _translated(name: str, record: int | None = None) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError, IndexError, MemoryError) as cause:
        where = name if record is None else f"{name}: record {record}"
        why = str(cause).split("\n")[0][:200] or type(cause).__name__
        raise SourceFormatError(
            f"{where}: can't be read as ArrayRecord; the file is damaged or cut short ({why})"
        ) from cause
