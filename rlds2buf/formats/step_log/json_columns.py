"""Columns of JSON Lines by pyarrow, with the values that Python's json module leads to."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from rlds2buf.codecs.arrow.parquet import Unfit, column_of, leaf_of, leaves_of
from rlds2buf.codecs.arrow.text import has_whole_number, json_schema, json_table
from rlds2buf.core.spec import FieldSpec
from rlds2buf.formats.step_log.json_episodes import FOLLOWING, flat_values, is_flag_name, reference_names

__all__ = ["EpisodeReader", "LineReader", "Lines", "StepReader"]


@dataclasses.dataclass(frozen=True)
class Lines:
    """Some lines.

    Attributes:
        columns: ``[N, ...]`` by ``outer/inner``.
        steps: ``[E]``, where the lines are episodes, how many steps each has.
        notes: the metadata of each of these.
    """

    columns: dict[str, np.ndarray]
    steps: np.ndarray | None = None
    notes: list[dict[str, Any]] = dataclasses.field(default_factory=list)


_KINDS: Final = {bool: np.bool_, int: np.int64, float: np.float64, str: np.object_}


class LineReader(abc.ABC):
    """Reads lines with the keys of the first one and values of the types that are told.

    Args:
        first: the first line's object.
        specs: of each column by ``outer/inner``, one row's shape and dtype.
        numbers: the dtype of every value in an object.
    """

    def __init__(
        self, first: Mapping[str, Any], specs: Mapping[str, FieldSpec], numbers: Mapping[str, np.dtype]
    ) -> None:
        self.first = first
        self.specs = dict(specs)
        self._schema = json_schema(first, numbers)
        leaves = [path for field in self._schema or () for path, _ in leaves_of(field)]
        self._paths = {"/".join(path): path for path in leaves}
        if len(self._paths) != len(leaves) or self._paths.keys() != numbers.keys():
            self._schema = None

    def widened(self, specs: Mapping[str, FieldSpec]) -> LineReader:
        """One that reads other types."""
        return type(self)(self.first, specs)  # type: ignore[call-arg]

    def read(self, data: bytes) -> Lines | None:
        """Whole lines; None where only Python's json module can say what they are."""
        table = None if self._schema is None else json_table(data, self._schema)
        if table is None:
            return None
        try:
            return self._lines({name: leaf_of(table, path) for name, path in self._paths.items()}, data)
        except Unfit:
            return None

    @abc.abstractmethod
    def _lines(self, arrays: Mapping[str, Any], data: bytes) -> Lines | None:
        """The lines from Arrow arrays, or None, or Unfit."""


class StepReader(LineReader):
    """Reads lines that are steps."""

    def __init__(self, first: Mapping[str, Any], specs: Mapping[str, FieldSpec]) -> None:
        super().__init__(first, specs, {name: spec.dtype for name, spec in specs.items()})

    def _lines(self, arrays: Mapping[str, Any], data: bytes) -> Lines | None:
        return Lines({name: column_of(array, self.specs[name]) for name, array in arrays.items()})


class EpisodeReader(LineReader):
    """Reads lines that are episodes: objects of lists, single flags and other single values."""

    def __init__(self, first: Mapping[str, Any], specs: Mapping[str, FieldSpec]) -> None:
        values = flat_values(first)
        self._lists = [name for name, value in values.items() if isinstance(value, list) and name in specs]
        numbers = {name: specs[name].dtype for name in self._lists}
        numbers |= {name: np.dtype(_KINDS[type(value)]) for name, value in values.items() if type(value) in _KINDS}
        super().__init__(first, specs, numbers)

    def _lines(self, arrays: Mapping[str, Any], data: bytes) -> Lines | None:
        lengths = {name: np.diff(np.asarray(arrays[name].offsets)) for name in self._lists}
        if not lengths:
            return None
        steps = np.min(list(lengths.values()), axis=0)
        for name in reference_names(self._lists)[:1]:
            steps = lengths[name]
        if not len(steps) or not steps.all():
            return None
        columns: dict[str, np.ndarray] = {}
        for name, length in lengths.items():
            more = length - steps
            if more.min() != more.max() or more[0] not in (0, 1):
                return None
            column = column_of(arrays[name].flatten(), self.specs[name])
            columns[name] = column if not more[0] else _without(column, np.cumsum(length) - 1)
            if more[0]:
                columns[name + FOLLOWING] = _without(column, np.cumsum(length) - length)
        notes: dict[str, list[Any]] = {}
        for name in arrays.keys() - lengths.keys():
            if _is_doubtful(name, arrays[name], data) or not _take_up(name, arrays[name], steps, columns, notes):
                return None
        if columns.keys() != self.specs.keys():
            return None
        names = [name for name in arrays if name in notes]
        told = [dict(zip(names, values, strict=True)) for values in zip(*(notes[name] for name in names), strict=True)]
        return Lines({name: columns[name] for name in self.specs}, steps, told or [{} for _ in steps])


def _take_up(
    name: str, array: Any, steps: np.ndarray, columns: dict[str, np.ndarray], notes: dict[str, list[Any]]
) -> bool:
    """Take up single values: the flags of last steps, or metadata; whether all of them are the one or the other."""
    values = array.to_pylist()
    if not is_flag_name(name):
        notes[name] = values
        return True
    if not all(value in (0, 1) for value in values):
        return False
    columns[name] = np.zeros(int(steps.sum()), np.bool_)
    columns[name][np.cumsum(steps) - 1] = np.array(values, np.bool_)
    return True


def _is_doubtful(name: str, array: Any, data: bytes) -> bool:
    """Whether whole numbers were read as floats."""
    floats = [value for value in array.to_pylist() if isinstance(value, float)]
    return any(value.is_integer() for value in floats) and has_whole_number(name.split("/")[-1], data)


def _without(column: np.ndarray, rows: np.ndarray) -> np.ndarray:
    keep = np.ones(len(column), np.bool_)
    keep[rows] = False
    return column[keep]
