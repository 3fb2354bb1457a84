"""Rows that are to be added, compared with the limits and finite sets of their spec."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlds2buf.buffers.rows.block import Block
from rlds2buf.core import nest
from rlds2buf.core.fields import FLAG_FIELDS, TRANSITION_FIELDS
from rlds2buf.core.limits import Limits
from rlds2buf.core.ragged import unpack_rows
from rlds2buf.core.row_flags import BREAK, CODE, FINAL_ROW
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import SpecMismatch

__all__ = ["Allowed"]


class Allowed:
    """What the fields of a spec may hold.

    Args:
        spec: of the rows.
    """

    def __init__(self, spec: StepSpec) -> None:
        data = [(path, field) for path, field in spec.fields() if path[0] not in FLAG_FIELDS]
        observation = [(path, field) for path, field in data if path[0] == "observation"]
        self._columns = list(_limited(data))
        self._following = list(_limited([(("next_observation", *path[1:]), field) for path, field in observation]))

    def refuse(self, block: Block) -> None:
        """Raise if a value is not allowed.  What was only put in to fill a row is not looked at.

        Raises:
            SpecMismatch: the first such value by field and row.
        """
        final = (block.flags & CODE) == FINAL_ROW
        unrecorded = final & ((block.flags & BREAK) > 0)
        for at, path, field, limits in self._columns:
            skipped = final if path[0] in TRANSITION_FIELDS else unrecorded
            _refuse(block, path, field, limits, block.columns[at], skipped)
        for at, path, field, limits in self._following if block.own is not None else ():
            _refuse(block, path, field, limits, block.own[at], unrecorded)  # type: ignore[index]  # not None here


def _limited(
    fields: list[tuple[nest.Path, FieldSpec]],
) -> Iterator[tuple[int, nest.Path, FieldSpec, Limits]]:
    for at, (path, field) in enumerate(fields):
        limits = Limits.of(field)
        if limits is not None:
            yield at, path, field, limits


def _refuse(
    block: Block, path: nest.Path, field: FieldSpec, limits: Limits, column: np.ndarray, skipped: np.ndarray
) -> None:
    if None in field.shape:
        column = unpack_rows(column, field)
    rows = np.flatnonzero(limits.outside(column) & ~skipped)
    if len(rows):
        row = int(rows[0])
        raise SpecMismatch(
            limits.reason(column[row]),
            source=block.origin,
            episode=block.index,
            step=row,
            path=nest.path_name(path),
            rule="out-of-range",
        )
