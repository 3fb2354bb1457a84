"""TFRecord files: framing and its checksums.

A file is a row of frames, nothing before, between or behind them::

    uint64  length                    little endian
    uint32  masked CRC32C of the length's 8 bytes
    byte    record[length]
    uint32  masked CRC32C of the record

Frames are found, and compared with their checksums, a stretch of the file at a time.

Source: https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Iterator
from typing import BinaryIO

import crc32c
import numpy as np

from rlds2buf.core.records import FOOTER_BYTES, HEADER_BYTES, Records
from rlds2buf.errors import SourceError, SourceFormatError, SourceNotFound
from rlds2buf.kernels.frames import find_frames, mask

__all__ = [
    "STRETCH_BYTES",
    "FrameReader",
    "count_records",
    "fill_checksums",
    "frame",
    "frame_header",
    "length_crcs",
    "masked_crc",
    "open_records",
    "read_records",
]

STRETCH_BYTES = 1 << 20
"""How much of a file is looked at in one go, where nothing else is asked for."""

_LENGTH_CRC = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_AROUND = HEADER_BYTES + FOOTER_BYTES


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
    footers = edges[1:] - FOOTER_BYTES
    crcs = _record_crcs(frames, edges[:-1] + HEADER_BYTES, footers).astype("<u4").view(np.uint8)
    np.frombuffer(frames, np.uint8)[footers[:, None] + np.arange(FOOTER_BYTES)] = crcs.reshape(-1, FOOTER_BYTES)


def read_records(path: str | os.PathLike[str], start: int = 0, *, check_data: bool = True) -> Iterator[bytes]:
    """Yield the records of one file from number `start` to the end of the file.

    A stretch of the file is held at a time, so memory does not grow with the file.  Records before `start`
    are stepped over by their lengths.

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
    with FrameReader(path, start, check_data=check_data) as reader:
        while len(records := reader.take()):
            yield from (record for record, _ in records)


def count_records(path: str | os.PathLike[str]) -> int:
    """How many records the file has, read off the lengths alone.

    Raises:
        SourceNotFound, SourceFormatError, SourceError: as :func:`read_records`.
    """
    with FrameReader(path) as reader:
        reader.skip(None)
        return reader.number


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


class FrameReader:
    """Reads one file a stretch at a time; a context manager.

    Args:
        path: the file.
        start: number of the first record wanted, 0-based; records before it are stepped over.
        check_data: compare the checksum of every record; the lengths' checksums always are.

    Attributes:
        number: of the record that the next stretch begins with.

    Raises:
        SourceNotFound, SourceFormatError, SourceError: as :func:`read_records`.
    """

    def __init__(self, path: str | os.PathLike[str], start: int = 0, *, check_data: bool = True) -> None:
        self._name = os.fspath(path)
        self._check_data = check_data
        self._at = self.number = 0
        self._file = self._open()
        try:
            if start:
                self.skip(start)
        except BaseException:
            self._file.close()
            raise

    def take(self, size: int = STRETCH_BYTES, most: int | None = None, *, least: int = 1) -> Records:
        """The next records: about `size` bytes, at most so many, and fewer than `least` only where there are no more.

        They are none at the file's end.

        Raises:
            SourceFormatError: the next record is damaged or cut short; those before it have been given.
        """
        size = max(size, HEADER_BYTES)
        while data := self._read(size):
            edges, stored = _frames_in(data, most)
            sound = self._sound(data, edges, stored)
            if 0 < sound < least and sound == len(edges) - 1 and len(data) == size and self._goes_on(data[edges[-1] :]):
                size *= 2
                continue
            if sound:
                records = Records(data, edges[: sound + 1])
                self._at += int(edges[sound])
                self.number += sound
                return records
            length = self._length(data[:HEADER_BYTES])
            if len(edges) > 1:
                raise self._damaged(
                    f"the checksum of its {length} bytes does not match; the file is damaged",
                    "its checksum does not match; the file is damaged",
                )
            if len(data) < size:
                raise self._truncated()
            size = max(size, length + _AROUND)  # it is longer than the stretch
        return Records(b"", np.zeros(1, np.int64))

    def go_back(self, records: Records, first: int) -> None:
        """Begin the next stretch with record `first` of the last one."""
        self._at -= int(records.edges[-1] - records.edges[first])
        self.number -= len(records) - first

    def skip(self, count: int | None) -> None:
        """Step over records by their lengths; over all for None.

        Raises:
            SourceFormatError: the file ends inside one, or a length is damaged.
        """
        while count is None or count > 0:
            header = self._read(HEADER_BYTES)
            if not header:
                return
            self._at += self._length(header) + _AROUND
            self.number += 1
            count = None if count is None else count - 1

    def __enter__(self) -> FrameReader:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def _open(self) -> BinaryIO:
        file = open_records(self._name)
        self._size = os.fstat(file.fileno()).st_size
        return file

    def _read(self, size: int) -> bytes:
        """The bytes from where the next stretch begins; fewer only at the file's end."""
        try:
            self._file.seek(self._at)
            return self._file.read(size)
        except OSError as cause:
            raise SourceError(f"{self._name}: {cause.strerror or cause}") from cause

    def _sound(self, data: bytes, edges: np.ndarray, stored: np.ndarray) -> int:
        """How many frames hold what their checksums say, from the first one on."""
        if not self._check_data:
            return len(stored)
        return _first_false(_record_crcs(data, edges[:-1] + HEADER_BYTES, edges[1:] - FOOTER_BYTES) == stored)

    def _goes_on(self, data: bytes) -> bool:
        """Whether a frame that begins so, and is not whole, may be sound."""
        if len(data) < HEADER_BYTES:
            return True
        length, crc = _LENGTH_CRC.unpack_from(data)
        try:
            self._check_length(length)
        except SourceFormatError:
            return False
        return bool(crc == masked_crc(data[:8]))

    def _length(self, header: bytes) -> int:
        """What a frame's header says.

        Raises:
            SourceFormatError: it is damaged, or the file is too short for it.
        """
        if len(header) < HEADER_BYTES:
            raise self._truncated()
        length, crc = _LENGTH_CRC.unpack(header)
        if crc != masked_crc(header[:8]):
            what = "the checksum of its length does not match; the file is damaged, or not a TFRecord file"
            raise self._damaged(what, what)
        self._check_length(length)
        return int(length)

    def _check_length(self, length: int) -> None:
        # Checked against the file before anything of that size is allocated.
        if length > self._size - self._at - _AROUND:
            raise self._truncated()

    def _truncated(self) -> SourceFormatError:
        what = "the file ends inside it; it is truncated"
        return self._damaged(what, what)

    def _damaged(self, what: str, compressed: str) -> SourceFormatError:
        """What is wrong with the next record, said of files as they are and of compressed ones."""
        return SourceFormatError(f"{self._name}: record {self.number} at byte {self._at}: {what}")


def _frames_in(data: bytes, most: int | None) -> tuple[np.ndarray, np.ndarray]:
    """The frames whose lengths are sound: where they begin, and the last one ends; and the records' checksums."""
    count = len(data) // _AROUND if most is None else min(most, len(data) // _AROUND)
    edges, stored = np.empty(count + 1, np.int64), np.empty(count, np.uint32)
    found = find_frames(np.frombuffer(data, np.uint8), count, length_crcs(), edges, stored)
    return edges[: found + 1].copy(), stored[:found]


@functools.cache
def length_crcs() -> np.ndarray:
    """``[8, 256] uint32``, what each byte of a length makes of its CRC32C: all of them, by exclusive or."""
    zero = crc32c.crc32c(bytes(8))
    changes = [[crc32c.crc32c(bytes([0] * i + [byte] + [0] * (7 - i))) ^ zero for byte in range(256)] for i in range(8)]
    return np.array(changes, np.uint32) ^ np.array([zero, *[0] * 7], np.uint32)[:, None]


def _record_crcs(data: bytes | bytearray, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """``[n] uint32``, the masked checksums of stretches of some bytes."""
    view = memoryview(data)
    crcs = [crc32c.crc32c(view[a:b]) for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]
    return mask(np.array(crcs, np.uint32))


def _first_false(values: np.ndarray) -> int:
    """Where it is; the number of values if there is none."""
    return len(values) if values.all() else int(values.argmin())
