"""TFRecord files: framing and its checksums.

A file is a row of frames, nothing before, between or behind them::

    uint64  length                    little endian
    uint32  masked CRC32C of the length's 8 bytes
    byte    record[length]
    uint32  masked CRC32C of the record

Source: https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import BinaryIO

import crc32c
import numpy as np

from rlds2buf.errors import SourceError, SourceFormatError, SourceNotFound

__all__ = [
    "count_records",
    "fill_checksums",
    "frame",
    "frame_header",
    "masked_crc",
    "open_records",
    "read_framed",
    "read_records",
]

_LENGTH_CRC = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_HEADER, _FOOTER = _LENGTH_CRC.size, _CRC.size


def masked_crc(data: bytes | memoryview) -> int:
    """The CRC32C of `data`, rotated and shifted by a constant as TFRecord stores it.

    >>> hex(masked_crc(b"123456789"))
    '0xc78ab0e5'
    """
    crc = crc32c.crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def frame(record: bytes, crc: int | None = None) -> bytes:
    """One record as it lies in a file; `crc` is its masked checksum, if it is known.

    >>> len(frame(b"abc"))
    19
    """
    crc = masked_crc(record) if crc is None else crc
    return b"".join((frame_header(len(record)), record, _CRC.pack(crc)))


def frame_header(size: int) -> bytes:
    """What comes before a record of `size` bytes."""
    length = struct.pack("<Q", size)
    return length + _CRC.pack(masked_crc(length))


def fill_checksums(frames: bytearray, edges: np.ndarray) -> None:
    """Write behind each record the checksum of it.

    Args:
        frames: E frames, one behind the other.
        edges: ``[E + 1] int64``, where each begins, and where the last one ends.
    """
    footers = edges[1:] - _FOOTER
    with memoryview(frames) as whole:
        pairs = zip((edges[:-1] + _HEADER).tolist(), footers.tolist(), strict=True)
        crcs = np.array([crc32c.crc32c(whole[start:stop]) for start, stop in pairs], np.uint32)
        masked = ((crcs >> np.uint32(15)) | (crcs << np.uint32(17))) + np.uint32(0xA282EAD8)
        np.frombuffer(whole, np.uint8)[footers[:, None] + np.arange(_FOOTER)] = (
            masked.astype("<u4").view(np.uint8).reshape(-1, _FOOTER)
        )


def read_records(path: str | os.PathLike[str], start: int = 0, *, check_data: bool = True) -> Iterator[bytes]:
    """Yield the records of one file from number `start` to the end of the file.

    One record is held at a time, so memory does not grow with the file.  Records before `start` are
    stepped over by their lengths.

    Args:
        path: the file.
        start: number of the first record wanted, 0-based.
        check_data: compare the checksum of every record yielded; the lengths' checksums always are.

    Raises:
        SourceNotFound: there is no such file.
        SourceFormatError: the file ends inside a record, or a checksum does not match; the message
            names file, record and byte.
        SourceError: the file can't be read.
    """
    for record, _ in read_framed(path, start, check_data=check_data):
        yield record


def read_framed(
    path: str | os.PathLike[str], start: int = 0, *, check_data: bool = True
) -> Iterator[tuple[bytes, int]]:
    """As :func:`read_records`, each with its masked checksum; the right one, if that is compared.

    Raises:
        SourceNotFound, SourceFormatError, SourceError: as :func:`read_records`.
    """
    name = os.fspath(path)
    with open_records(name) as file:
        size = os.fstat(file.fileno()).st_size
        at, number = _skip(file, name, size, start)
        header = file.read(_HEADER)
        while header:
            length = _length(header, name, number, at, size)
            record = file.read(length)
            # The checksum behind a record and the header of the next one come in one read.
            tail = file.read(_FOOTER + _HEADER)
            if len(tail) < _FOOTER:
                raise _truncated(name, number, at)
            crc = _CRC.unpack_from(tail)[0]
            if check_data and crc != masked_crc(record):
                raise SourceFormatError(
                    f"{name}: record {number} at byte {at}: the checksum of its {length} bytes does not match; "
                    "the file is damaged"
                )
            yield record, crc
            header = tail[_FOOTER:]
            at += _HEADER + length + _FOOTER
            number += 1


def count_records(path: str | os.PathLike[str]) -> int:
    """How many records the file has, read off the lengths alone.

    Raises:
        SourceNotFound, SourceFormatError, SourceError: as :func:`read_records`.
    """
    name = os.fspath(path)
    with open_records(name) as file:
        return _skip(file, name, os.fstat(file.fileno()).st_size, None)[1]


def open_records(name: str) -> BinaryIO:
    """The file, for reading bytes.

    Raises:
        SourceNotFound: there is no such file.
        SourceError: it can't be read.
    """
    try:
        return open(name, "rb", buffering=1 << 16)
    except FileNotFoundError as cause:
        raise SourceNotFound(f"{name}: no such file") from cause
    except OSError as cause:
        raise SourceError(f"{name}: {cause.strerror or cause}") from cause


def _skip(file: BinaryIO, name: str, size: int, count: int | None) -> tuple[int, int]:
    """Step over `count` records (all of them for None); return the byte and the number reached."""
    at = number = 0
    while at < size and (count is None or number < count):
        file.seek(at)
        at += _HEADER + _length(file.read(_HEADER), name, number, at, size) + _FOOTER
        number += 1
    file.seek(at)
    return at, number


def _length(header: bytes, name: str, number: int, at: int, size: int) -> int:
    if len(header) < _HEADER:
        raise _truncated(name, number, at)
    length, crc = _LENGTH_CRC.unpack(header)
    if crc != masked_crc(header[:8]):
        raise SourceFormatError(
            f"{name}: record {number} at byte {at}: the checksum of its length does not match; "
            "the file is damaged, or not a TFRecord file"
        )
    # Checked against the file before anything of that size is allocated.
    if length > size - at - _HEADER - _FOOTER:
        raise _truncated(name, number, at)
    return int(length)


def _truncated(name: str, number: int, at: int) -> SourceFormatError:
    return SourceFormatError(f"{name}: record {number} at byte {at}: the file ends inside it; it is truncated")
