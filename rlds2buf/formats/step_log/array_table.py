"""Logs as numpy arrays: columns side by side, in one place (a file, an entry of a list) or several."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import SourceFormatError
from rlds2buf.formats.step_log.json_episodes import FOLLOWING
from rlds2buf.formats.step_log.json_values import common
from rlds2buf.formats.step_log.table import BLOCK_BYTES, Block, Table

__all__ = ["ArrayTable", "Rows"]


class Rows(Protocol):
    """An array ``[N, ...]`` that is read by rows, such as :class:`~rlds2buf.codecs.npy_rows.NpyRows`.

    Attributes:
        file: where it is, for messages.
        shape: the whole array's.
        dtype: of the columns made from it: native byte order, text as objects (bytes).
        why: why it makes no column, or None.
        row_bytes: of one row, as it is stored.
    """

    file: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    why: str | None
    row_bytes: int

    def value(self) -> Any:
        """A single value (``[]``) as a Python value."""

    def reading(self, start: int) -> contextlib.AbstractContextManager[Callable[[int], np.ndarray]]:
        """A function that gives the next n rows ``[n, ...]``, from row `start` on; until the block ends."""


@dataclasses.dataclass(frozen=True)
class _Part:
    """One place's arrays: how many rows its columns have, and which have one more."""

    arrays: dict[str, Rows]
    rows: int
    longer: frozenset[str]


class ArrayTable(Table):
    """Arrays as columns: :meth:`add` each place's, then :meth:`finish`.

    Args:
        name: for messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.files = []
        self.following, self.oddities, self.notes = {}, {}, []
        self.columns, self.unfit = {}, {}
        self._parts: list[_Part] = []
        self._starts: list[int] = []

    def add(self, arrays: Mapping[str, Rows]) -> None:
        """Take up one place: its columns must be those of the places before.

        Raises:
            SourceFormatError: there is no array of steps, or they are not those of the places before.
        """
        where = next(iter(arrays.values())).file if arrays else Path(self.name)
        lengths = [array.shape[0] for array in arrays.values() if array.shape and array.why is None]
        if not lengths:
            reasons = "; ".join(f"`{name}` {array.why}" for name, array in arrays.items() if array.why)
            raise SourceFormatError(f"{where}: no array of steps in it{': ' + reasons if reasons else ''}")
        counted = collections.Counter(lengths)
        rows = max(counted, key=lambda length: (counted[length], length))
        if counted[rows - 1] == counted[rows]:
            rows -= 1  # as many with a last observation more
        columns: dict[str, FieldSpec] = {}
        notes: dict[str, Any] = {}
        longer: set[str] = set()
        for name, array in arrays.items():
            if array.why is not None:
                self.unfit[name] = array.why
            elif not array.shape:
                notes[name] = array.value()
            elif array.shape[0] not in (rows, rows + 1):
                self.unfit[name] = f"has {array.shape[0]} rows, where most have {rows}"
            else:
                columns[name] = FieldSpec(array.shape[1:], array.dtype)
                longer.update({name} if array.shape[0] == rows + 1 else ())
        self._merge(columns, where)
        self.notes.append(notes)
        self._parts.append(_Part(dict(arrays), rows, frozenset(longer)))

    def finish(self) -> None:
        """Count the rows; arrays with one more row than there are steps get a column that is moved up."""
        counts = [part.rows for part in self._parts]
        self.borders = (np.cumsum(counts) - counts).astype(np.int64)
        self._starts = self.borders.tolist()
        self.count = sum(counts)
        for name in list(self.columns):
            if all(name in part.longer for part in self._parts):
                self.following = {**self.following, name: name + FOLLOWING}
            elif any(name in part.longer for part in self._parts):
                self.unfit[name] = "has one row more than there are steps in some files only"
                del self.columns[name]
        self.by_borders = bool(self.following)

    def blocks(self, names: Sequence[str], start: int = 0) -> Iterator[Block]:
        for begin, part in zip(self._starts, self._parts, strict=True):
            if begin + part.rows <= start:
                continue
            first = max(0, start - begin)
            moved = {name for name in names if name not in self.columns and name.endswith(FOLLOWING)}
            arrays = {name: part.arrays[name[: -len(FOLLOWING)] if name in moved else name] for name in names}
            width = sum(array.row_bytes for array in arrays.values())
            step = max(1, BLOCK_BYTES // max(1, width))
            with contextlib.ExitStack() as stack:
                readers = {
                    name: stack.enter_context(array.reading(first + (name in moved))) for name, array in arrays.items()
                }
                for low in range(first, part.rows, step):
                    count = min(step, part.rows - low)
                    yield begin + low, {name: self._cast(read(count), name) for name, read in readers.items()}

    def _spec(self, name: str) -> FieldSpec:
        return self.columns[name if name in self.columns else name[: -len(FOLLOWING)]]

    def _cast(self, values: np.ndarray, name: str) -> np.ndarray:
        return values.astype(self._spec(name).dtype, copy=False)

    def _merge(self, columns: dict[str, FieldSpec], where: Path) -> None:
        if not self._parts:
            self.columns = columns
            return
        if columns.keys() != self.columns.keys():
            name = sorted(columns.keys() ^ self.columns.keys())[0]
            what = "is missing" if name in self.columns else "is not in the files before"
            raise SourceFormatError(f"{where}: `{name}` {what}")
        for name, spec in columns.items():
            both = common(self.columns[name], spec)
            if both is None:
                raise SourceFormatError(f"{where}: `{name}` is {spec}, but before it is {self.columns[name]}")
            self.columns[name] = both
