"""A log as a table: named columns, read forward in blocks."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import SourceFormatError, SourceNotFound
from rlds2buf.formats.step_log.column_map import natural

__all__ = ["BLOCK_BYTES", "Block", "Reader", "Table", "log_files"]

BLOCK_BYTES = 1 << 20
"""About how much of a file is read at a time."""

Block = tuple[int, dict[str, np.ndarray]]
"""The number of the first row, and some columns ``[n, ...]`` of n consecutive rows."""


class Table(abc.ABC):
    """Columns of N rows each, over one file or several.

    Attributes:
        name: the path, for messages.
        files: what it is read from, in order.
        columns: one row's shape and dtype of each column, in the log's order.
        following: columns that have a row more than the others, each with the name under which
            :meth:`blocks` gives them moved one row up (row t holds what row t+1 of the log does).
        count: N.
        borders: ``[B] int64``, ascending, the first one 0: rows that can't continue what is before
            them (another file, another line that is an episode).
        by_borders: whether what is between borders is made to be an episode each.
        notes: metadata of what begins at each border; as long as `borders`.
        unfit: columns that can't be taken, each with the reason.
        oddities: for columns of text, where they ceased to be numbers.
    """

    name: str
    files: list[Path]
    columns: dict[str, FieldSpec]
    following: Mapping[str, str]
    count: int
    borders: np.ndarray
    by_borders: bool = False
    notes: list[dict[str, Any]]
    unfit: dict[str, str]
    oddities: dict[str, str]

    @abc.abstractmethod
    def blocks(self, names: Sequence[str], start: int = 0) -> Iterator[Block]:
        """Some columns, block by block: forward, without gaps, from a block that holds row `start` on.

        Raises:
            SourceFormatError: the file's bytes can't be read, or are not what they were.
        """

    def place(self, row: int) -> str:
        """Where a row is in the log, for messages."""
        return f"row {row}"


class Reader:
    """Rows of a table by number, read forward.

    Args:
        table: what to read.
        names: which columns.
    """

    def __init__(self, table: Table, names: Sequence[str]) -> None:
        self._table = table
        self._names = list(names)
        self._blocks: Iterator[Block] = iter(())
        self._held: list[Block] = []
        self._high = -1

    @property
    def high(self) -> int:
        """The row behind those that have been read so far."""
        return self._high

    def read(self, start: int, stop: int) -> list[dict[str, np.ndarray]]:
        """Rows ``start`` up to (not with) ``stop``, in one part or several; they must not be written to.

        Raises:
            SourceFormatError: as :meth:`Table.blocks`; or the log ends early.
        """
        if not self._held or not self._held[0][0] <= start <= self._high:
            self._blocks, self._held, self._high = self._table.blocks(self._names, start), [], -1
        self._held = [held for held in self._held if held[0] + self._rows(held) > start]
        while self._high < stop:
            block = next(self._blocks, None)
            if block is None:
                raise SourceFormatError(f"{self._table.name}: ends before row {stop}; did the file change?")
            self._high = block[0] + self._rows(block)
            if self._high > start:
                self._held.append(block)
        return [
            {name: column[max(0, start - first) : stop - first] for name, column in columns.items()}
            for first, columns in self._held
            if first < stop
        ]

    def close(self) -> None:
        """Stop reading; files are closed."""
        close = getattr(self._blocks, "close", None)
        if close is not None:
            close()
        self._blocks, self._held, self._high = iter(()), [], -1

    def _rows(self, block: Block) -> int:
        return len(block[1][self._names[0]])


def log_files(path: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """The file at `path`; of a folder its files with one of the suffixes, in natural order.

    Hidden files and those that begin with an underscore (``_SUCCESS``) are passed over.

    Raises:
        SourceNotFound: nothing is there.
        SourceFormatError: a folder without such files.
    """
    if path.is_dir():
        found = [child for child in path.iterdir() if child.name[0] not in "._" and child.suffix.lower() in suffixes]
        if not found:
            raise SourceFormatError(f"{path}: a folder without a file that ends in {', '.join(suffixes)}")
        return sorted(found, key=lambda child: natural(child.name))
    if not path.exists():
        raise SourceNotFound(f"{path}: nothing is there")
    if not path.is_file():
        raise SourceFormatError(f"{path}: neither a file nor a folder")
    return [path]
