"""ArrayRecord files: TFDS's other record format, read by the ``array_record`` package.

A file is a Riegeli file (compressed chunks, each with its own hash) with an index behind it, so that
any record is found at once, and damage anywhere but in the padding is noticed by the package itself.

Records are read one behind the other, on this thread: measured on records of 2 KB and of 140 KB, that
is as fast as any batch size where a chunk is a record, as TFDS writes them, much faster than picking
records singly where it holds many, and only one record is held at a time.

Source: https://github.com/google/array_record
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from rlds2buf.errors import MissingDependency, SourceError, SourceFormatError, SourceNotFound

__all__ = ["count_array_records", "read_array_records"]

_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
"""No threads of its own: they would not live on in a process that was forked."""


def read_array_records(path: str | os.PathLike[str], start: int = 0) -> Iterator[bytes]:
    """Yield the records of one file from number `start` to the end of the file.

    Args:
        path: the file.
        start: number of the first record wanted, 0-based; records before it are not read.

    Raises:
        SourceNotFound: there is no such file.
        SourceFormatError: it is no ArrayRecord file, is cut short, or a hash does not match.
        SourceError: the file can't be read.
        MissingDependency: the package array_record is not installed.
    """
    name = os.fspath(path)
    with _open(name) as reader:
        total = _count(reader, name)
        if start < total:
            with _translated(name, start):
                reader.seek(start)
        for number in range(start, total):
            with _translated(name, number):
                record = reader.read()
            yield record


def count_array_records(path: str | os.PathLike[str]) -> int:
    """How many records the file has, as its footer says.

    Raises:
        SourceNotFound, SourceFormatError, SourceError, MissingDependency: as :func:`read_array_records`.
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
