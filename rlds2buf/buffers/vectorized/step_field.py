"""Steps as an agent hands them over, brought into the columns' shape and dtype."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.limits import Limits
from rlds2buf.core.ragged import as_bytes
from rlds2buf.core.row_flags import CONTINUE, TERMINATED, TRUNCATED
from rlds2buf.core.spec import FieldSpec
from rlds2buf.core.tensors import to_numpy
from rlds2buf.errors import SpecMismatch

__all__ = ["StepField", "done_code"]


class StepField:
    """One field of a step, a nest of leaves, and how to take values for it.

    Args:
        name: ``"observation"``, for messages.
        structure: a nest of :class:`FieldSpec`.

    Attributes:
        leaves: ``(path, FieldSpec)`` per leaf, in the order of :func:`rlds2buf.core.nest.flatten`.

    Raises:
        SpecMismatch: there is no such field, or an axis has no fixed length.
    """

    def __init__(self, name: str, structure: nest.Nest) -> None:
        self.name = name
        self.structure = structure
        self.leaves: list[tuple[nest.Path, FieldSpec]] = list(nest.flatten(structure, (name,)))
        for path, field in self.leaves:
            if field is None:
                raise SpecMismatch("the spec lacks the field", path=nest.path_name(path), rule="missing-field")
            if None in field.shape:
                raise SpecMismatch("an axis of varying length can't be stored in columns", path=nest.path_name(path))

    def accept(self, value: nest.Nest, lead: tuple[int, ...], check_limits: bool = False) -> list[np.ndarray]:
        """One array ``[*lead, *shape]`` per leaf; a dtype may differ from the column's, but fits into it.

        Raises:
            SpecMismatch: another structure, shape or kind of dtype; or a value outside the field's
                limits, if they are to be looked at.
        """
        arrays = self._arrays(value, lead)
        if check_limits:
            for (path, field), array in zip(self.leaves, arrays, strict=True):
                _refuse_outside(path, field, array, len(lead))
        return arrays

    def _arrays(self, value: nest.Nest, lead: tuple[int, ...]) -> list[np.ndarray]:
        if not isinstance(self.structure, Mapping | tuple):
            return [_leaf(self.leaves[0], value, lead)]
        values = list(nest.flatten(value, (self.name,)))
        if [path for path, _ in values] != [path for path, _ in self.leaves]:
            got = ", ".join(nest.path_name(path) for path, _ in values)
            expected = ", ".join(nest.path_name(path) for path, _ in self.leaves)
            raise SpecMismatch(f"expected the fields {expected}; got {got}", path=self.name, rule="spec")
        return [_leaf(leaf, item, lead) for leaf, (_, item) in zip(self.leaves, values, strict=True)]


def done_code(terminated: Any, truncated: Any, lead: tuple[int, ...]) -> np.ndarray:
    """Codes ``lead uint8``: 0 goes on, 1 terminated, 2 truncated; terminated wins.

    Raises:
        SpecMismatch: a flag has another shape.
    """
    codes = np.full(lead, CONTINUE, np.uint8)
    for name, flag, code in (("truncated", truncated, TRUNCATED), ("terminated", terminated, TERMINATED)):
        if flag is False:
            continue
        given = np.asarray(to_numpy(flag), np.bool_)
        if given.shape not in (lead, ()):
            raise SpecMismatch(f"expected shape {list(lead)}, got {list(given.shape)}", path=name, rule="spec")
        codes[np.broadcast_to(given, lead)] = code
    return codes


def _leaf(leaf: tuple[nest.Path, FieldSpec], value: Any, lead: tuple[int, ...]) -> np.ndarray:
    path, field = leaf
    try:
        array = np.asarray(to_numpy(value), object if field.is_string else None)
    except ValueError as cause:
        raise SpecMismatch(f"expected {field}, got ragged rows", path=nest.path_name(path), rule="spec") from cause
    if array.shape != (*lead, *field.shape):
        raise SpecMismatch(
            f"expected shape {[*lead, *field.shape]}, got {list(array.shape)}", path=nest.path_name(path), rule="spec"
        )
    if array.dtype != field.dtype and not _fits(array, field.dtype):
        raise SpecMismatch(f"expected {field.dtype}, got {array.dtype}", path=nest.path_name(path), rule="spec")
    return array


def _refuse_outside(path: nest.Path, field: FieldSpec, array: np.ndarray, axes: int) -> None:
    limits = Limits.of(field)
    if limits is None:
        return
    rows = array.reshape(-1, *array.shape[axes:])
    if field.is_string:
        rows = as_bytes(rows, path)
    outside = limits.outside(rows)
    if outside.any():
        row = int(outside.argmax())
        step = row if axes == 1 else None
        raise SpecMismatch(limits.reason(rows[row]), step=step, path=nest.path_name(path), rule="out-of-range")


def _fits(array: np.ndarray, dtype: np.dtype) -> bool:
    if array.dtype.kind in "iu" and dtype.kind in "iu":
        # Integers come as int64 from plain numbers, whatever the column has: look at the values.
        limits = np.iinfo(dtype)
        return not array.size or (int(array.min()) >= limits.min and int(array.max()) <= limits.max)
    return np.can_cast(array.dtype, dtype, "same_kind")
