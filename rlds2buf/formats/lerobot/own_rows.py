"""Fields that no LeRobot feature holds, as cells of bytes."""

from __future__ import annotations

import numpy as np

from rlds2buf.core.ragged import as_bytes, pack_rows, unpack_rows
from rlds2buf.formats.lerobot.own_file import OwnField

__all__ = ["cells_of", "column_of_cells"]


def cells_of(column: np.ndarray, field: OwnField) -> np.ndarray:
    """``[M] object`` of bytes, of a column ``[M, ...]`` of the field.

    Raises:
        SpecMismatch: a row does not fit the field; says which.
    """
    spec = field.spec
    if spec.is_string and not spec.shape:
        return as_bytes(column, field.path)
    if not _is_plain(field):
        return pack_rows(column, spec, field.path)
    out = np.empty(len(column), object)
    size = spec.row_bytes
    raw = np.ascontiguousarray(column, spec.dtype.newbyteorder("<")).tobytes()
    out[:] = [raw[i * size : (i + 1) * size] for i in range(len(column))]
    return out


def column_of_cells(cells: np.ndarray, field: OwnField) -> np.ndarray:
    """The inverse of :func:`cells_of`.

    Raises:
        ValueError: a cell is damaged.
    """
    spec = field.spec
    if spec.is_string and not spec.shape:
        return cells
    if not _is_plain(field):
        rows = unpack_rows(cells, spec)
        shapes = {row.shape for row in rows}
        if len(shapes) == 1 and None not in spec.shape:
            return np.stack(list(rows))
        return rows
    shape = tuple(n or 0 for n in spec.shape)
    raw = b"".join(cells.tolist())
    if len(raw) != len(cells) * spec.row_bytes:
        raise ValueError(f"cells of {len(raw)} bytes in all, and {len(cells)} rows of {spec}")
    column = np.frombuffer(raw, spec.dtype.newbyteorder("<")).astype(spec.dtype, copy=True)
    return column.reshape(len(cells), *shape)


def _is_plain(field: OwnField) -> bool:
    """Whether every row takes the same bytes."""
    return None not in field.spec.shape and field.spec.dtype.kind in "biufc"
