"""The records of one split, until all are there and it is known how many shards they make."""

from __future__ import annotations

import array
import bisect
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from rlds2buf.codecs.tfrecord.frames import masked_crc
from rlds2buf.core.records import Records
from rlds2buf.errors import SinkError, SnapshotCorrupt
from rlds2buf.files.background_file import BackgroundFile
from rlds2buf.files.copy_range import copy_range
from rlds2buf.files.durable import sync_file
from rlds2buf.formats.rlds.dataset_info import FRAME_BYTES, shard_lengths

__all__ = ["RecordSpool", "ShardRule"]

_HEADER: Final = 12

ShardRule = Callable[[int, int], int]
"""From bytes and number of records to how many shards they make."""


class RecordSpool:
    """Growing TFRecord files.

    How many shards the records make shows at the end.  Where the number of records is told
    beforehand, their size is guessed from the first ones, and a new file is begun where the next
    shard should begin.  Files that turn out right become shards by a new name; of the others the
    shards are copied.  So a wrong guess costs time, and changes nothing.

    Args:
        folder: where the files are.
        name: which they begin with.
        rule: how many shards there are to be.
        expected: how many records will come, as far as is known.
        look_at: guess when so many bytes are there.
        reached: of an interrupted run, to go on from; what is behind it is cut off.

    Attributes:
        num_bytes: of all records, without what the files have around them.

    Raises:
        SnapshotCorrupt: a file does not have what it should go on from.
        SinkError: they can't be written.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        rule: ShardRule,
        *,
        expected: int | None = None,
        look_at: int = 0,
        reached: Mapping[str, Any] | None = None,
    ) -> None:
        self._folder, self._name = folder, name
        self._rule = rule
        self._expected, self._look_at = expected, look_at
        self._sizes = array.array("Q")
        self._starts = [0]  # the first record of each file
        self._planned: list[int] | None = None if expected else []  # where further files begin
        self.num_bytes = 0
        self._file: BackgroundFile | None = None
        try:
            if reached is None:
                self._file = self._open(0)
            else:
                self._go_on(reached)
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        """How many records there are."""
        return len(self._sizes)

    @property
    def files(self) -> list[Path]:
        """Those written so far."""
        return [self._path(i) for i in range(len(self._starts))]

    def append(self, records: Records) -> None:
        """Write records.

        Raises:
            SinkError: the disk is full, for one.
        """
        while len(records):
            self._turn_over()
            assert self._file is not None
            some = records[: self._room(records.sizes)]
            self._file.write(some.whole)
            self._sizes.frombytes(some.sizes.astype(np.uint64).tobytes())
            self.num_bytes += int(some.sizes.sum())
            records = records[len(some) :]

    def checkpoint(self) -> dict[str, Any]:
        """Force what was written to the disk; what is returned is `reached` of another spool."""
        assert self._file is not None
        self._file.sync()
        try:
            for path in self.files[:-1]:
                sync_file(path)
        except OSError as cause:
            raise self._sink_error(cause) from cause
        return {
            "records": len(self._sizes),
            "bytes": self.num_bytes,
            "starts": list(self._starts),
            "planned": self._planned,
        }

    def cut(self, lengths: Sequence[int], shards: Sequence[Path]) -> Callable[[], None]:
        """Copy the shards that no file is yet; what is returned renames the others, and removes the rest.

        Args:
            lengths: records of each shard.
            shards: where they go.
        """
        assert self._file is not None and sum(lengths) == len(self) and len(lengths) == len(shards)
        self._file.close()
        try:
            edges = list(itertools.accumulate(lengths, initial=0))
            places = self._places()
            whole = {(start, stop): i for i, (start, stop) in enumerate(itertools.pairwise([*self._starts, len(self)]))}
            renamed: dict[int, Path] = {}
            kept = -1
            for shard, (start, stop) in zip(shards, itertools.pairwise(edges), strict=True):
                if (start, stop) in whole:
                    renamed[whole[(start, stop)]] = shard
                elif start == 0 and stop <= [*self._starts, len(self)][1]:
                    renamed[0], kept = shard, int(places[stop - 1]) + self._sizes[stop - 1] + FRAME_BYTES
                else:
                    self._copy(shard, start, stop, places)
        except (OSError, EOFError) as cause:
            raise self._sink_error(cause) from cause
        return lambda: self._finish(renamed, kept)

    def close(self) -> None:
        """Let go of the files; idempotent."""
        if self._file is not None:
            self._file.abandon()

    def remove(self) -> None:
        """Let go of the files, and remove them."""
        self._finish({}, -1)

    def _finish(self, renamed: Mapping[int, Path], kept: int) -> None:
        self.close()
        try:
            if kept >= 0:
                os.truncate(self._path(0), kept)
            for i, path in enumerate(self.files):
                if i in renamed:
                    os.rename(path, renamed[i])
                else:
                    path.unlink()
        except OSError as cause:
            raise self._sink_error(cause) from cause

    def _turn_over(self) -> None:
        """Guess where shards begin, once enough is there; begin a new file where one does."""
        if self._planned is None and self.num_bytes >= self._look_at and self._sizes:
            assert self._expected is not None
            total = self.num_bytes * self._expected // len(self._sizes)
            count = max(1, min(self._rule(total, self._expected), self._expected))
            starts = list(itertools.accumulate(shard_lengths(self._expected, count)))[:-1]
            self._planned = starts if not starts or starts[0] >= len(self._sizes) else []
        if not self._planned or self._planned[0] != len(self._sizes):
            return
        self._planned.pop(0)
        assert self._file is not None
        self._file.close()
        self._file = self._open(len(self._starts))
        self._starts.append(len(self._sizes))

    def _room(self, sizes: np.ndarray) -> int:
        """How many of the records that come, their sizes ``[n]``, belong into the file at hand for sure."""
        if self._planned is None:
            return int(np.searchsorted(np.cumsum(sizes), self._look_at - self.num_bytes)) + 1
        return self._planned[0] - len(self) if self._planned else len(sizes)

    def _places(self) -> np.ndarray:
        """``[n] int64``: where each record begins in its file."""
        frames = np.array(self._sizes, np.int64) + FRAME_BYTES
        places = np.cumsum(frames) - frames
        for start, stop in itertools.pairwise([*self._starts, len(self)]):
            places[start:stop] -= places[start:][:1]
        return places

    def _copy(self, shard: Path, start: int, stop: int, places: np.ndarray) -> None:
        """Records `start` up to (not with) `stop` out of the files that they are in."""
        with open(shard, "wb", buffering=0) as target:
            while start < stop:
                i = bisect.bisect_right(self._starts, start) - 1
                end = min(stop, [*self._starts[1:], len(self)][i])
                last = int(places[end - 1]) + self._sizes[end - 1] + FRAME_BYTES
                with open(self._path(i), "rb", buffering=0) as source:
                    copy_range(source.fileno(), target.fileno(), int(places[start]), last - int(places[start]))
                start = end

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._name}-{number:05d}"

    def _open(self, number: int, mode: str = "wb") -> BackgroundFile:
        return BackgroundFile(self._path(number), mode)

    def _go_on(self, reached: Mapping[str, Any]) -> None:
        """Find the records again, and cut off what is behind them."""
        self._starts = list(reached["starts"])
        self._planned = reached["planned"] if self._expected else []
        for number, (start, stop) in enumerate(itertools.pairwise([*self._starts, reached["records"]])):
            _find(self._path(number), stop - start, self._sizes)
        self.num_bytes = sum(self._sizes)
        if self.num_bytes != reached["bytes"]:
            raise SnapshotCorrupt(f"{self._path(0)}: other records than before; start over")
        self._file = self._open(len(self._starts) - 1, "ab")

    def _sink_error(self, cause: OSError | EOFError) -> SinkError:
        return SinkError(f"{self._path(len(self._starts) - 1)}: {getattr(cause, 'strerror', None) or cause}")


def _find(path: Path, count: int, sizes: array.array[int]) -> None:
    """Append the sizes of `count` records, and cut off what is behind them."""
    at = 0
    try:
        with open(path, "r+b", buffering=0) as file:
            for _ in range(count):
                header = os.pread(file.fileno(), _HEADER, at)
                if len(header) < _HEADER or masked_crc(header[:8]) != int.from_bytes(header[8:], "little"):
                    raise SnapshotCorrupt(f"{path}: damaged at byte {at}, it can't be gone on from; start over")
                sizes.append(int.from_bytes(header[:8], "little"))
                at += sizes[-1] + FRAME_BYTES
            if os.fstat(file.fileno()).st_size < at:
                raise SnapshotCorrupt(f"{path}: shorter than it was, it can't be gone on from; start over")
            file.truncate(at)
    except FileNotFoundError as cause:
        raise SnapshotCorrupt(f"{path}: missing, it can't be gone on from; start over") from cause
    except OSError as cause:
        raise SinkError(f"{path}: {cause.strerror or cause}") from cause
