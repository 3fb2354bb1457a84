"""Columns from JSON values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlds2buf.core.spec import FieldSpec

__all__ = ["Misfit", "column_of", "columns_of", "common"]

_DEPTH = 32


class Misfit(Exception):
    """Values that make no column.

    Attributes:
        row: which of them.
        column: the name below which they are.
        why: as a sentence without its place.
    """

    def __init__(self, row: int, column: str, why: str) -> None:
        super().__init__(why)
        self.row, self.column, self.why = row, column, why


def columns_of(rows: Sequence[Mapping[str, Any]], prefix: str = "", depth: int = 0) -> dict[str, np.ndarray]:
    """Objects with the same keys as columns; nested ones by ``outer/inner``.

    Raises:
        Misfit: an object has other keys, or a value another type or shape, than the first.

    >>> columns_of([{"obs": {"x": [0, 1]}, "r": 0.5}, {"obs": {"x": [2, 3]}, "r": None}])
    {'obs/x': array([[0, 1],
           [2, 3]]), 'r': array([0.5, nan])}
    """
    if depth > _DEPTH:
        raise Misfit(0, prefix, "objects nest too deep")
    keys = rows[0].keys()
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise Misfit(i, prefix.rstrip("/"), f"should be an object, it is {type(row).__name__}")
        if row.keys() != keys:
            key = sorted(row.keys() ^ keys)[0]
            raise Misfit(i, prefix + key, "is missing" if key in keys else "is not in the first step")
    found: dict[str, np.ndarray] = {}
    for key in keys:
        values = [row[key] for row in rows]
        if isinstance(values[0], Mapping):
            found.update(columns_of(values, f"{prefix}{key}/", depth + 1) if values[0] else {})
        else:
            found[prefix + key] = column_of(values, prefix + key)
    return found


def column_of(values: Sequence[Any], name: str) -> np.ndarray:
    """JSON values as a column ``[N, ...]``: numbers, flags, or text as bytes; null is NaN.

    Raises:
        Misfit: they differ in type or shape, or are none of these.
    """
    if isinstance(values[0], str) or any(isinstance(value, str) for value in values):
        return _text(values, name)
    if any(value is None for value in values):
        values = [np.nan if value is None else value for value in values]
    try:
        column = np.array(values)
    except (ValueError, OverflowError):
        column = np.empty(0, object)
    if column.dtype.kind in "bif":
        return column
    if column.dtype.kind == "u":
        return column.astype(np.float64)
    if column.dtype.kind in "US" and column.ndim > 1:
        out = np.empty(column.size, object)
        out[:] = [_encoded(text) for text in column.ravel().tolist()]
        return out.reshape(column.shape)
    raise _first_misfit(values, name)


def common(one: FieldSpec, other: FieldSpec) -> FieldSpec | None:
    """The spec that holds both; None if there is none.

    >>> common(FieldSpec((2,), np.dtype(int)), FieldSpec((2,), np.dtype(float)))
    FieldSpec(float64[2])
    """
    if one == other:
        return one
    if one.shape != other.shape or one.is_string != other.is_string:
        return None
    return FieldSpec(one.shape, np.result_type(one.dtype, other.dtype))


def _text(values: Sequence[Any], name: str) -> np.ndarray:
    for i, value in enumerate(values):
        if value is not None and not isinstance(value, str):
            raise Misfit(i, name, f"is {_kind(value)}, where others are text")
    out = np.empty(len(values), object)
    out[:] = [_encoded(value or "") for value in values]
    return out


def _encoded(text: str) -> bytes:
    # JSON may hold halves of surrogate pairs, which UTF-8 can't.
    return text.encode("utf-8", "surrogatepass")


def _first_misfit(values: Sequence[Any], name: str) -> Misfit:
    """Which value differs from the first one, or is no number at all."""
    first = _kind(values[0])
    for i, value in enumerate(values):
        kind = _kind(value)
        if kind != first or "?" in kind:
            return Misfit(i, name, f"is {kind}" + (f", where the first is {first}" if kind != first else ""))
    return Misfit(0, name, "holds values that make no column of numbers")


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, str):
        return "text"
    try:
        array = np.array(value)
    except (ValueError, OverflowError):
        return "a ragged list (?)"
    if array.dtype.kind not in "biuf":
        return "a number beyond 64 bits (?)" if isinstance(value, int) else "a mixed list (?)"
    return f"a list of shape {list(array.shape)}" if array.ndim else "a number"
