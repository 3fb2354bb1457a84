"""GZIP-compressed TFRecord files, as TensorFlow writes them with ``compression_type="GZIP"``.

The whole file is one gzip stream around the usual frames (:mod:`rlds2buf.codecs.tfrecord.frames`), so that
records can only be reached by decompressing all before them.
"""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO, cast

from rlds2buf.codecs.tfrecord.frames import masked_crc, open_records
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.errors import SourceFormatError

__all__ = ["is_gzip", "read_gzip_records"]

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_PIECE = 1 << 24
"""A record is read in pieces of this size, so that a length that is not there is never allocated."""


def is_gzip(path: str | os.PathLike[str]) -> bool:
    """Whether the file begins as gzip does.

    Raises:
        SourceNotFound, SourceError: it can't be read.
    """
    with open_records(os.fspath(path)) as file:
        return file.read(2) == b"\x1f\x8b"


def read_gzip_records(
    path: str | os.PathLike[str], start: int = 0, *, check_data: bool = True, budget: Budget = BUDGET
) -> Iterator[bytes]:
    """Yield the records of one file from number `start` to the end; those before are decompressed and dropped.

    Args, Raises: as :func:`rlds2buf.codecs.tfrecord.frames.read_records`; SourceFormatError also where the
        compressed data are damaged; LimitExceeded where a record takes more than the `budget`.
    """
    name = os.fspath(path)
    number = 0
    with open_records(name) as raw, gzip.GzipFile(fileobj=raw) as stream:
        file = cast(BinaryIO, stream)
        while header := _read(file, _HEADER.size, name, number):
            if len(header) < _HEADER.size:
                raise _truncated(name, number)
            length, crc = _HEADER.unpack(header)
            if crc != masked_crc(header[:8]):
                raise SourceFormatError(
                    f"{name}: record {number}: the checksum of its length does not match; "
                    "the file is damaged, or not a TFRecord file"
                )
            budget.check_bytes(length, f"{name}: record {number}")
            record = _read(file, length, name, number)
            footer = _read(file, _FOOTER.size, name, number)
            if len(record) < length or len(footer) < _FOOTER.size:
                raise _truncated(name, number)
            if number >= start:
                if check_data and _FOOTER.unpack(footer)[0] != masked_crc(record):
                    raise SourceFormatError(
                        f"{name}: record {number}: its checksum does not match; the file is damaged"
                    )
                yield record
            number += 1


def _read(file: BinaryIO, length: int, name: str, number: int) -> bytes:
    pieces = []
    left = length
    try:
        while left and (piece := file.read(min(left, _PIECE))):
            pieces.append(piece)
            left -= len(piece)
    except (EOFError, OSError, zlib.error) as cause:
        raise SourceFormatError(
            f"{name}: record {number}: the compressed data are damaged or cut short ({cause})"
        ) from cause
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _truncated(name: str, number: int) -> SourceFormatError:
    return SourceFormatError(f"{name}: record {number}: the file ends inside it; it is truncated")
