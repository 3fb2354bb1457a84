"""Columns that have been read once and will be wanted again."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

__all__ = ["HELD_BYTES", "Held"]

HELD_BYTES = 1 << 26
"""How much of a log is kept from the pass that finds its types to the one that reads it: all of one that is small."""

_OBJECT_BYTES = 64


class Held:
    """Columns of blocks by the block's number, while they are few and their files unchanged.

    Behind the first `HELD_BYTES` only what tells where episodes end is kept, up to as much again.

    Args:
        cuts: whether a column of that name may tell where episodes end.
    """

    def __init__(self, cuts: Callable[[str], bool]) -> None:
        self._cuts = cuts
        self._room, self._more = HELD_BYTES, HELD_BYTES
        self._blocks: dict[int, dict[str, np.ndarray]] = {}
        self._stamps: dict[Path, tuple[int, ...]] = {}

    def begin(self, file: Path) -> None:
        """Before a file is read."""
        self._stamps[file] = _stamp(file)

    def add(self, number: int, columns: Mapping[str, np.ndarray]) -> None:
        """Keep a block's columns, those that there is room for."""
        size = _size(columns)
        if size <= self._room:
            self._room -= size
            self._blocks[number] = dict(columns)
            return
        self._room = 0
        columns = {name: column for name, column in columns.items() if self._cuts(name)}
        self._more -= _size(columns)
        if self._more >= 0:
            self._blocks[number] = {name: column.copy() for name, column in columns.items()}

    def get(self, number: int, names: Sequence[str], file: Path) -> dict[str, np.ndarray] | None:
        """A block's columns of these names; None if one is not here, or the file is not what it was."""
        block = self._blocks.get(number)
        if block is None or any(name not in block for name in names) or _stamp(file) != self._stamps[file]:
            return None
        return {name: block[name] for name in names}

    def keep(self, dtypes: Mapping[str, np.dtype]) -> None:
        """Let go of columns that are of another dtype."""
        for number, block in self._blocks.items():
            self._blocks[number] = {name: c for name, c in block.items() if c.dtype == dtypes.get(name, c.dtype)}


def _size(columns: Mapping[str, np.ndarray]) -> int:
    return sum(
        column.nbytes
        if column.dtype != object
        else sum(map(len, column.ravel().tolist())) + _OBJECT_BYTES * column.size
        for column in columns.values()
    )


def _stamp(file: Path) -> tuple[int, ...]:
    try:
        found = os.stat(file)
    except OSError:
        return ()
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino
