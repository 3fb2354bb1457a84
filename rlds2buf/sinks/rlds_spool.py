"""The records of one split, until all are there and it is known how many shards they make."""

from __future__ import annotations

import array
import contextlib
import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from rlds2buf.errors import SinkError, SnapshotCorrupt
from rlds2buf.files.copy_range import copy_range
from rlds2buf.wire.shards import FRAME_BYTES
from rlds2buf.wire.tfrecord import masked_crc

__all__ = ["RecordSpool"]

_BUFFER: Final = 1 << 18
_HEADER: Final = 12


class RecordSpool:
    """One growing TFRecord file, which becomes the first shard; further ones are cut off its end.

    Args:
        path: the file.
        reached: ``(records, bytes)`` of an interrupted run, to go on from; what is behind them is cut off.

    Attributes:
        num_bytes: of all records, without what the file has around them.

    Raises:
        SnapshotCorrupt: the file does not have what it should go on from.
        SinkError: it can't be written.
    """

    def __init__(self, path: Path, reached: Sequence[int] | None = None) -> None:
        self._path = path
        self._sizes = array.array("Q")
        self.num_bytes = 0
        self._file: BinaryIO | None = None
        try:
            self._file = open(path, "r+b" if reached else "w+b", buffering=_BUFFER)
            if reached:
                self._go_on(self._file.fileno(), *reached)
                self._file.seek(0, os.SEEK_END)
        except FileNotFoundError as cause:
            raise SnapshotCorrupt(f"{path}: missing, it can't be gone on from; start over") from cause
        except OSError as cause:
            raise self._sink_error(cause) from cause
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        """How many records there are."""
        return len(self._sizes)

    @property
    def reached(self) -> list[int]:
        """Records and bytes, for :meth:`RecordSpool` to go on from after :meth:`sync`."""
        return [len(self._sizes), self.num_bytes]

    def append(self, record: bytes) -> None:
        """Write one record.

        Raises:
            SinkError: the disk is full, for one.
        """
        assert self._file is not None
        size = len(record).to_bytes(8, "little")
        try:
            self._file.write(size + masked_crc(size).to_bytes(4, "little"))
            self._file.write(record)
            self._file.write(masked_crc(record).to_bytes(4, "little"))
        except OSError as cause:
            raise self._sink_error(cause) from cause
        self._sizes.append(len(record))
        self.num_bytes += len(record)

    def sync(self) -> None:
        """Force what was written to the disk."""
        assert self._file is not None
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as cause:
            raise self._sink_error(cause) from cause

    def cut(self, lengths: Sequence[int], files: Sequence[Path]) -> Callable[[], None]:
        """Copy all shards but the first one off; what is returned makes the first one of what is left.

        Args:
            lengths: records of each shard.
            files: where they go.
        """
        assert self._file is not None and sum(lengths) == len(self) and len(lengths) == len(files)
        ends = list(itertools.accumulate((size + FRAME_BYTES for size in self._sizes), initial=0))
        edges = [ends[i] for i in itertools.accumulate(lengths, initial=0)]
        try:
            self._file.flush()
            for file, start, end in list(zip(files, edges, edges[1:], strict=False))[1:]:
                with open(file, "wb", buffering=0) as shard:
                    copy_range(self._file.fileno(), shard.fileno(), start, end - start)
        except (OSError, EOFError) as cause:
            raise self._sink_error(cause) from cause

        def finish() -> None:
            assert self._file is not None
            try:
                self._file.truncate(edges[1])
                self.close()
                os.rename(self._path, files[0])
            except OSError as cause:
                raise self._sink_error(cause) from cause

        return finish

    def close(self) -> None:
        """Let go of the file; idempotent."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # what could not be written is being given up
                file.close()

    def _go_on(self, handle: int, count: int, num_bytes: int) -> None:
        """Find the records again, and cut off what is behind them."""
        at = 0
        for _ in range(count):
            header = os.pread(handle, _HEADER, at)
            size = int.from_bytes(header[:8], "little")
            if len(header) < _HEADER or masked_crc(header[:8]) != int.from_bytes(header[8:], "little"):
                raise SnapshotCorrupt(f"{self._path}: damaged at byte {at}, it can't be gone on from; start over")
            self._sizes.append(size)
            at += size + FRAME_BYTES
        self.num_bytes = sum(self._sizes)
        if self.num_bytes != num_bytes or os.fstat(handle).st_size < at:
            raise SnapshotCorrupt(f"{self._path}: shorter than it was, it can't be gone on from; start over")
        os.ftruncate(handle, at)

    def _sink_error(self, cause: OSError | EOFError) -> SinkError:
        return SinkError(f"{self._path}: {getattr(cause, 'strerror', None) or cause}")
