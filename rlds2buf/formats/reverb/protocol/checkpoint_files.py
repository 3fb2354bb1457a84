"""Reading the files of a Reverb checkpoint.

A checkpoint is a folder with ``tables.tfrecord`` (one ``PriorityTableCheckpoint`` per table),
``items.tfrecord`` (``PrioritizedItem``, in the order of insertion), ``chunks.tfrecord``
(``ChunkData``) and an empty ``DONE`` that is written last.  Each file is TFRecord, compressed as a
whole with zlib, or (in old checkpoints) not at all.

Source: tfrecord_checkpointer.cc in https://github.com/google-deepmind/reverb
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from rlds2buf.codecs.tfrecord.frames import masked_crc, read_records
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.errors import SourceError, SourceFormatError, SourceNotFound
from rlds2buf.formats.reverb.protocol.messages import messages

__all__ = ["is_checkpoint", "latest_checkpoint", "read_messages"]

_PIECE = 1 << 20
_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")


def is_checkpoint(folder: Path) -> bool:
    """Whether the folder is a finished checkpoint."""
    return (folder / "DONE").is_file() and (folder / "tables.tfrecord").is_file()


def latest_checkpoint(folder: Path) -> Path:
    """The checkpoint itself, or the latest one in a checkpointer's folder, as a server would choose.

    Raises:
        SourceNotFound: there is none that is finished.
    """
    if is_checkpoint(folder):
        return folder
    inside = sorted(child for child in folder.iterdir() if is_checkpoint(child)) if folder.is_dir() else []
    if not inside:
        raise SourceNotFound(f"{folder}: no finished Reverb checkpoint is there")
    return inside[-1]


def read_messages(path: Path, kind: str, budget: Budget = BUDGET) -> Iterator[Any]:
    """Every record of a file as a message of that kind.

    Raises:
        SourceNotFound: there is no such file.
        SourceFormatError: the file is damaged, or holds something else.
        SourceError: it can't be read.
        LimitExceeded: a compressed record takes more than the `budget`.
    """
    parse = messages()[kind].FromString
    for number, record in enumerate(_records(path, budget)):
        try:
            yield parse(record)
        except Exception as cause:  # protobuf's DecodeError
            raise SourceFormatError(f"{path}: record {number} is not a {kind}: {cause}") from cause


def _records(path: Path, budget: Budget) -> Iterator[bytes]:
    try:
        with open(path, "rb") as file:
            head = file.read(_HEADER.size)
            file.seek(0)
            plain = len(head) == _HEADER.size and _HEADER.unpack(head)[1] == masked_crc(head[:8])
            if head[:1] == b"\x78" and not plain:  # zlib's usual first byte
                yield from _unframe(_Inflated(file, path), path, budget)
                return
    except FileNotFoundError as cause:
        raise SourceNotFound(f"{path}: no such file") from cause
    except OSError as cause:
        raise SourceError(f"{path}: {cause.strerror or cause}") from cause
    yield from read_records(path)


class _Inflated:
    """The decompressed bytes of a zlib file, a piece at a time."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._inflate = zlib.decompressobj()
        self._buffer = bytearray()
        self.at = 0

    def read(self, size: int) -> bytes:
        """So many bytes, or fewer at the end."""
        while len(self._buffer) < size and not self._inflate.eof:
            packed = self._inflate.unconsumed_tail or self._file.read(_PIECE)
            if not packed:
                raise SourceFormatError(f"{self._path}: the compressed data end too early; the file is truncated")
            try:
                self._buffer += self._inflate.decompress(packed, _PIECE)
            except zlib.error as cause:
                raise SourceFormatError(f"{self._path}: the compressed data are damaged: {cause}") from cause
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        self.at += len(taken)
        return taken


def _unframe(stream: _Inflated, path: Path, budget: Budget) -> Iterator[bytes]:
    number = 0
    while True:
        start = stream.at
        header = stream.read(_HEADER.size)
        if not header:
            return
        where = f"{path}: record {number} at byte {start} of the decompressed data"
        if len(header) < _HEADER.size:
            raise SourceFormatError(f"{where}: the file ends inside it; it is truncated")
        length, crc = _HEADER.unpack(header)
        if crc != masked_crc(header[:8]):
            raise SourceFormatError(f"{where}: the checksum of its length does not match; the file is damaged")
        budget.check_bytes(length, where)
        record = stream.read(length)
        tail = stream.read(_CRC.size)
        if len(tail) < _CRC.size:
            raise SourceFormatError(f"{where}: the file ends inside it; it is truncated")
        if _CRC.unpack(tail)[0] != masked_crc(record):
            raise SourceFormatError(f"{where}: the checksum of its {length} bytes does not match; the file is damaged")
        yield record
        number += 1
