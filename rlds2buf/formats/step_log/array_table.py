"""Logs as numpy arrays: columns side by side, in one place (a file, an entry of a list) or several."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import SourceFormatError
from rlds2buf.formats.step_log.json_episodes import FOLLOWING
from rlds2buf.formats.step_log.json_values import common
from rlds2buf.formats.step_log.table import Table

__all__ = ["ArrayTable", "Part", "Rows"]


class Rows(Protocol):
    """What is told of an array ``[N, ...]``, such as :class:`~rlds2buf.codecs.npy_rows.NpyRows`.

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


_Array = TypeVar("_Array", bound=Rows)


@dataclasses.dataclass(frozen=True)
class Part(Generic[_Array]):
    """One place's arrays: how many rows its columns have, and which have one more."""

    arrays: Mapping[str, _Array]
    rows: int
    longer: frozenset[str]


class ArrayTable(Table, Generic[_Array]):
    """Arrays as columns: :meth:`add` each place's, then :meth:`finish`.

    Attributes:
        parts: what was added, place after place.
        starts: the first row of each part.

    Args:
        name: for messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.files = []
        self.following, self.oddities, self.notes = {}, {}, []
        self.columns, self.unfit = {}, {}
        self.parts: list[Part[_Array]] = []
        self.starts: list[int] = []

    def add(self, arrays: Mapping[str, _Array]) -> None:
        """Take up one place: its columns must be those of the places before.

        Raises:
            SourceFormatError: there is no array of steps, or they are not those of the places before.
        """
        where = next(iter(arrays.values())).file if arrays else Path(self.name)
        lengths = [array.shape[0] for array in arrays.values() if array.shape and array.why is None]
        if not lengths:
            reasons = "; ".join(f"`{name}` {array.why}" for name, array in arrays.items() if array.why)
            raise SourceFormatError(f"{where}: no array of steps in it{': ' + reasons if reasons else ''}")
        rows = _most_common(lengths)
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
                columns[name] = self._spec_of(name, array)
                longer.update({name} if array.shape[0] == rows + 1 else ())
        self._merge(columns, where)
        self.notes.append(notes)
        self.parts.append(Part(arrays, rows, frozenset(longer)))

    def finish(self) -> None:
        """Count the rows; arrays with one more row than there are steps get a column that is moved up."""
        counts = [part.rows for part in self.parts]
        self.borders = (np.cumsum(counts) - counts).astype(np.int64)
        self.starts = self.borders.tolist()
        self.count = sum(counts)
        for name in list(self.columns):
            if all(name in part.longer for part in self.parts):
                self.following = {**self.following, name: name + FOLLOWING}
            elif any(name in part.longer for part in self.parts):
                self.unfit[name] = "has one row more than there are steps in some files only"
                del self.columns[name]
        self.by_borders = bool(self.following)

    def origin(self, name: str) -> tuple[str, int]:
        """Which array a column is made from, and from which of its rows on."""
        return (name, 0) if name in self.columns else (name[: -len(FOLLOWING)], 1)

    def _spec_of(self, name: str, array: _Array) -> FieldSpec:
        known = self.columns.get(name)
        if known is not None and known.shape == array.shape[1:] and known.dtype == array.dtype:
            return known
        return FieldSpec(array.shape[1:], array.dtype)

    def _merge(self, columns: dict[str, FieldSpec], where: Path) -> None:
        if not self.parts:
            self.columns = columns
            return
        if columns.keys() != self.columns.keys():
            name = sorted(columns.keys() ^ self.columns.keys())[0]
            what = "is missing" if name in self.columns else "is not in the files before"
            raise SourceFormatError(f"{where}: `{name}` {what}")
        for name, spec in columns.items():
            if spec is self.columns[name]:
                continue
            both = common(self.columns[name], spec)
            if both is None:
                raise SourceFormatError(f"{where}: `{name}` is {spec}, but before it is {self.columns[name]}")
            self.columns[name] = both


def _most_common(lengths: Sequence[int]) -> int:
    """How many rows most have; one less where as many have a last observation more."""
    if min(lengths) == max(lengths):
        return lengths[0]
    counted = collections.Counter(lengths)
    rows = max(counted, key=lambda length: (counted[length], length))
    return rows - 1 if counted[rows - 1] == counted[rows] else rows
