"""Rows of a dataset on their way into its Parquet files: appended by the block, cut off and continued after a kill."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from rlds2buf.codecs.arrow.row_groups import MAGIC, RowGroups
from rlds2buf.errors import SinkError, SnapshotCorrupt
from rlds2buf.files.background_file import BackgroundFile
from rlds2buf.files.durable import sync_file

__all__ = ["RowFiles"]

Limits = Callable[[int, int, np.ndarray], Mapping[str, np.ndarray]]
"""From the first episode and row of a file, and its episodes' lengths, to the limits of sorted columns."""

_WHOLE: Final = 1 << 40


class RowFiles:
    """Parquet files with a row group for each episode; a new one is begun where one would become too large.

    Args:
        place: a file's path, by its number; folders are made.
        groups: what encodes rows.
        limits: of the columns that are sorted.
        most_bytes: of a file; an episode alone may be larger.
        most_episodes: of a file.
        reached: what :meth:`checkpoint` gave an interrupted run, to go on from; what lies behind is cut off.

    Raises:
        SinkError: a file can't be written.
        SnapshotCorrupt: there is less in one than `reached` says.
    """

    def __init__(
        self,
        place: Callable[[int], Path],
        groups: RowGroups,
        limits: Limits,
        *,
        most_bytes: int = _WHOLE,
        most_episodes: int = _WHOLE,
        reached: Mapping[str, Any] | None = None,
    ) -> None:
        self._place, self._groups, self._limits = place, groups, limits
        self._most_bytes, self._most_episodes = most_bytes, most_episodes
        self._number = -1
        self._file: BackgroundFile | None = None
        self._bytes = 0
        self._sizes: list[np.ndarray] = []
        self._lengths: list[np.ndarray] = []
        self._begun = self._here = (0, 0)  # episodes and rows before the file at hand, and before what comes
        self._closed: list[Path] = []
        if reached is not None and reached["file"] >= 0:
            self._go_on(reached)

    def append(self, columns: Mapping[str, np.ndarray], edges: np.ndarray) -> np.ndarray:
        """Write the rows of E episodes.

        Args:
            columns: as :meth:`RowGroups.encode` takes them.
            edges: ``[E + 1]``, each episode's first row, and behind the last.

        Returns:
            ``[E] int64``: the number of the file that each is in.

        Raises:
            SinkError: the disk is full, for one.
        """
        body, sizes = self._groups.encode(columns, edges)
        lengths = np.diff(edges)
        ends = np.cumsum(sizes[:, :, 1].sum(1))
        numbers = np.empty(len(lengths), np.int64)
        first = 0
        while first < len(lengths):
            before = int(ends[first - 1]) if first else 0
            count = self._room(ends[first:] - before)
            if not count:
                self._turn_over()
                continue
            stop = first + count
            assert self._file is not None
            self._file.write(body[before : int(ends[stop - 1])] if count < len(lengths) else body)
            self._bytes += int(ends[stop - 1]) - before
            self._sizes.append(sizes[first:stop])
            self._lengths.append(lengths[first:stop])
            self._here = self._here[0] + count, self._here[1] + int(lengths[first:stop].sum())
            numbers[first:stop] = self._number
            first = stop
        return numbers

    def checkpoint(self) -> dict[str, Any]:
        """Force what was written to the disk; what is returned is `reached` of another one."""
        if self._file is not None:
            self._file.sync()
        try:
            for path in self._closed:
                sync_file(path)
        except OSError as cause:
            raise SinkError(f"{path}: {cause.strerror or cause}") from cause
        self._closed = []
        return {"file": self._number, "bytes": self._bytes, "begun": list(self._begun)}

    def finish(self) -> None:
        """Write the footer of the last file; of no episodes there is one with none."""
        if self._file is None:
            self._turn_over()
        self._close()

    def abandon(self) -> None:
        """Let go of the file; idempotent."""
        if self._file is not None:
            self._file.abandon()
            self._file = None

    def _room(self, ends: np.ndarray) -> int:
        """How many of the episodes that come, which end at `ends`, belong into the file at hand."""
        if self._file is None:
            return 0
        held = self._here[0] - self._begun[0]
        taken = self._bytes + held * self._groups.footer_bytes
        weight = ends + np.arange(1, len(ends) + 1) * self._groups.footer_bytes
        count = min(int(np.searchsorted(weight, self._most_bytes - taken)), self._most_episodes - held)
        return count if held else max(1, count)

    def _turn_over(self) -> None:
        if self._file is not None:
            self._close()
        self._number += 1
        self._begun = self._here
        path = self._place(self._number)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as cause:
            raise SinkError(f"{path.parent}: {cause.strerror or cause}") from cause
        self._file = BackgroundFile(path, "wb")
        self._file.write(MAGIC)
        self._bytes = len(MAGIC)

    def _close(self) -> None:
        assert self._file is not None
        none = np.empty((0, self._groups.num_leaves, 2), np.int64)
        lengths = np.concatenate([np.empty(0, np.int64), *self._lengths])
        self._file.write(
            self._groups.footer(np.concatenate([none, *self._sizes]), lengths, self._limits(*self._begun, lengths))
        )
        self._file.close()
        self._closed.append(self._file.path)
        self._file = None
        self._sizes, self._lengths = [], []

    def _go_on(self, reached: Mapping[str, Any]) -> None:
        """Find the rows again, and cut off what is behind them."""
        self._number, self._bytes = int(reached["file"]), int(reached["bytes"])
        self._begun = int(reached["begun"][0]), int(reached["begun"][1])
        path = self._place(self._number)
        try:
            with open(path, "r+b") as file:
                held = file.read(self._bytes)
                file.truncate(self._bytes)
            if len(held) < self._bytes or not held.startswith(MAGIC):
                raise SnapshotCorrupt(f"{path}: shorter than it was, it can't be gone on from; start over")
            sizes, lengths = self._groups.scan(held[len(MAGIC) :])
        except ValueError as cause:
            raise SnapshotCorrupt(f"{path}: damaged ({cause}), it can't be gone on from; start over") from cause
        except FileNotFoundError as cause:
            raise SnapshotCorrupt(f"{path}: missing, it can't be gone on from; start over") from cause
        except OSError as cause:
            raise SinkError(f"{path}: {cause.strerror or cause}") from cause
        self._sizes, self._lengths = [sizes], [lengths]
        self._here = self._begun[0] + len(lengths), self._begun[1] + int(lengths.sum())
        self._file = BackgroundFile(path, "ab")
