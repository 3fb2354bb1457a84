"""Columns of CSV text by pyarrow, with the values and kinds that Python's csv module leads to."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any, Final

import numpy as np

from rlds2buf.codecs.arrow.text import bytes_of, csv_table, number_column
from rlds2buf.formats.step_log.csv_cells import Kind, parse, widen

__all__ = ["Cells", "read_cells"]

_ARROW: Final = {
    Kind.NONE: "null",
    Kind.BLANK: "null",
    Kind.BOOL: "bool",
    Kind.INT: "int",
    Kind.FLOAT: "float",
    Kind.TEXT: "string",
}


@dataclasses.dataclass(frozen=True)
class Cells:
    """Some rows.

    Attributes:
        rows: how many.
        columns: by their places.
        kinds: of each of these columns, what it holds together with what came before.
    """

    rows: int
    columns: dict[int, np.ndarray]
    kinds: dict[int, Kind]


def read_cells(
    data: bytes, delimiter: str, kinds: Sequence[Kind], wanted: Collection[int] | None = None
) -> Cells | None:
    """Rows of CSV as columns; None where only Python's csv module can say what they are.

    What is read as the kinds that are expected takes one pass; else each column is tried by itself, and one that
    pyarrow can't convert is parsed cell by cell.

    Args:
        data: whole lines of UTF-8.
        delimiter: what stands between cells.
        kinds: of each column, as told by the rows before.
        wanted: the places of the columns to read; None: all.

    >>> cells = read_cells(b"1,2.5,a\\n2,,b\\n", ",", [Kind.INT, Kind.INT, Kind.TEXT])
    >>> cells.kinds[1], cells.columns[1].tolist()
    (<Kind.FLOAT: 'float'>, [2.5, nan])
    """
    found = csv_table(data, delimiter, [_ARROW[kind] for kind in kinds], wanted)
    if found is not None:
        columns = {place: _as_expected(array, kinds[place]) for place, array in found.items()}
        if all(column is not None for column in columns.values()):
            return _cells(columns, {place: kinds[place] for place in columns})  # type: ignore[arg-type]
    found = csv_table(data, delimiter, ["string"] * len(kinds), wanted)
    if found is None:
        return None
    tried = {place: _widened(texts, kinds[place]) for place, texts in found.items()}
    return _cells({place: one[1] for place, one in tried.items()}, {place: one[0] for place, one in tried.items()})


def _cells(columns: dict[int, np.ndarray], kinds: dict[int, Kind]) -> Cells:
    return Cells(len(next(iter(columns.values()))), columns, kinds)


def _as_expected(array: Any, kind: Kind) -> np.ndarray | None:
    """An Arrow array of a kind as numpy's; None if a cell that is blank makes it another kind."""
    if kind is Kind.TEXT:
        return bytes_of(array)
    if kind in (Kind.NONE, Kind.BLANK):
        return np.full(len(array), np.nan)
    if kind is not Kind.FLOAT and array.null_count:
        return None
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _widened(texts: Any, kind: Kind) -> tuple[Kind, np.ndarray]:
    numbers = (
        number_column(texts, kind.value) if kind in (Kind.INT, Kind.FLOAT) else texts if kind is Kind.TEXT else None
    )
    column = None if numbers is None else _as_expected(numbers, kind)
    if column is not None:
        return kind, column
    cells = texts.to_pylist()
    wider = widen(kind, cells)
    return wider, parse(wider, cells)
