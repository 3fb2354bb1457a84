"""What a column of text cells holds."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import numpy as np

__all__ = ["Kind", "parse", "widen"]


class Kind(enum.Enum):
    """What every cell of a column can be read as, from narrow to wide; none, where there are no cells."""

    NONE = "none"
    BLANK = "blank"
    BOOL = "bool"
    INT = "int"
    FLOAT = "float"
    TEXT = "text"

    @property
    def dtype(self) -> np.dtype:
        """The column's dtype; blank cells alone are NaN."""
        return np.dtype(_DTYPES[self])


_DTYPES = {
    Kind.NONE: float,
    Kind.BLANK: float,
    Kind.BOOL: bool,
    Kind.INT: np.int64,
    Kind.FLOAT: float,
    Kind.TEXT: object,
}
_WIDER = {
    Kind.NONE: (Kind.BLANK, Kind.BOOL, Kind.INT, Kind.FLOAT),
    Kind.BLANK: (Kind.BLANK, Kind.FLOAT),  # a blank is NaN, which is no whole number
    Kind.BOOL: (Kind.BOOL,),
    Kind.INT: (Kind.INT, Kind.FLOAT),
    Kind.FLOAT: (Kind.FLOAT,),
    Kind.TEXT: (),
}
_BOOLS = {"True": True, "False": False, "true": True, "false": False, "TRUE": True, "FALSE": False}


def widen(kind: Kind, cells: Sequence[str]) -> Kind:
    """The narrowest kind that holds both what `kind` holds and these cells.

    >>> widen(Kind.NONE, ["1", "2"]), widen(Kind.INT, ["0.5", ""]), widen(Kind.INT, ["left"])
    (<Kind.INT: 'int'>, <Kind.FLOAT: 'float'>, <Kind.TEXT: 'text'>)
    """
    for wider in _WIDER[kind]:
        try:
            parse(wider, cells)
        except (ValueError, KeyError, OverflowError):
            continue
        return wider
    return Kind.TEXT


def parse(kind: Kind, cells: Sequence[str]) -> np.ndarray:
    """Cells as a column ``[N]``.

    Raises:
        ValueError, KeyError, OverflowError: a cell is not of the kind.

    >>> parse(Kind.FLOAT, ["1", "", "-inf"]).tolist()
    [1.0, nan, -inf]
    """
    if kind is Kind.TEXT:
        out = np.empty(len(cells), object)
        out[:] = [cell.encode() for cell in cells]
        return out
    if kind in (Kind.NONE, Kind.BLANK):
        if any(cells):
            raise ValueError("a cell is not blank")
        return np.full(len(cells), np.nan)
    if kind is Kind.BOOL:
        return np.array([_BOOLS[cell] for cell in cells], np.bool_)
    if "_" in "".join(cells):
        raise ValueError("Python's 1_000 is text in a file")
    if kind is Kind.INT:
        return np.array(list(map(int, cells)), np.int64)
    if "" in cells:
        return np.array([float(cell) if cell else np.nan for cell in cells])
    return np.array(list(map(float, cells)))
