"""Values of any length: byte strings, and arrays whose shape varies, as byte strings.

A column of them is an object array of ``bytes`` in memory, so that a value is there once however
many rows, batches and threads share it, and goes when the last of them does; in a saved buffer it is
one file of bytes and one of where each value ends (see files/blob_file.py).  Nothing is ever pickled.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import SpecMismatch

__all__ = ["OBJECT", "BlobColumn", "held_bytes", "is_blob", "move_rows", "pieces", "refuse_field"]

OBJECT = np.dtype(object)


class BlobColumn(Protocol):
    """What a column of values of any length can do, an object array or not; unset values are None or empty."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype: ...
    @property
    def nbytes(self) -> int: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: Any) -> np.ndarray: ...
    def __setitem__(self, index: Any, values: Any) -> None: ...


def is_blob(field: FieldSpec) -> bool:
    """Whether a field's values are kept as byte strings of their own: pictures, and shapes that vary.

    >>> is_blob(FieldSpec((None, 2), np.float32)), is_blob(FieldSpec((), object))
    (True, False)
    """
    return field.image is not None or None in field.shape


def refuse_field(path: nest.Path, field: FieldSpec) -> None:
    """Raise if a field is of a kind that can't be kept.

    Raises:
        SpecMismatch: its dtype is one that files can't name; a varying number of pictures per step, or
            pictures that are no height, width and channels.
    """
    name = nest.path_name(path)
    if not field.is_string and not _has_name(field.dtype):
        what = f"columns of {field.dtype} can't be stored (strings are object arrays of bytes)"
        raise SpecMismatch(what, path=name)
    if field.image is None:
        return
    if None in field.shape or not field.is_string:
        raise SpecMismatch(f"pictures kept encoded are byte strings, a fixed number per step, not {field}", path=name)
    if len(field.image.shape) != 3 or field.image.shape[2] is None:
        raise SpecMismatch(f"encoded pictures need [height, width, channels], got {field.image}", path=name)


def _has_name(dtype: np.dtype) -> bool:
    """Whether numpy knows the dtype by its name, so that it can be read back from a file; byte order aside."""
    try:
        return np.dtype(dtype.name) == dtype.newbyteorder("=") and dtype.kind != "V"
    except TypeError:
        return False


def held_bytes(columns: Iterable[np.ndarray | BlobColumn]) -> int:
    """Bytes of object columns and of the distinct values in them, together; of others their own ``nbytes``."""
    total = 0
    seen: dict[int, bytes] = {}
    for column in columns:
        total += column.nbytes
        if isinstance(column, np.ndarray) and column.dtype == OBJECT:
            seen.update((id(value), value) for value in column.reshape(-1).tolist() if value)
    return total + sum(sys.getsizeof(value) for value in seen.values())


def pieces(column: np.ndarray | BlobColumn, spans: Iterable[slice], rows: int = 1024) -> Iterator[np.ndarray]:
    """The rows of some spans as object arrays of at most `rows` rows, which is all that is in memory at a time."""
    for span in spans:
        for start in range(span.start, span.stop, rows):
            yield column[start : min(start + rows, span.stop)]


def move_rows(new: Any, old: Any, spans: Iterable[tuple[slice, slice]]) -> None:
    """Copy rows of one column ``(from, to)`` another; of values in files not all at once into memory."""
    for span, run in spans:
        if old.dtype != OBJECT:
            new[run] = old[span]
            continue
        at = run.start
        for piece in pieces(old, [span]):
            new[at : at + len(piece)] = piece
            at += len(piece)
