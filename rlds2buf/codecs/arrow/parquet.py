"""Parquet files opened, and parts of them as columns of steps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.codecs.arrow.lost_footer import WithFooter
from rlds2buf.codecs.arrow.tables import arrow_errors, import_pyarrow
from rlds2buf.core.spec import FieldSpec

__all__ = ["Unfit", "column_of", "leaf_of", "leaves_of", "open_parquet", "spec_of_leaf"]

_DEPTH = 32
_BUFFER_BYTES = 1 << 20


class Unfit(Exception):
    """Values that make no column.

    Attributes:
        why: as the rest of a sentence that begins with the column.
        row: which of them, or None.
    """

    def __init__(self, why: str, row: int | None = None) -> None:
        super().__init__(why)
        self.why, self.row = why, row


@contextlib.contextmanager
def open_parquet(file: Path, footer: bytes | None = None) -> Iterator[Any]:
    """An open ``pyarrow.parquet.ParquetFile``; what pyarrow raises about it in the block is translated.

    Args:
        file: where it is.
        footer: what it is to be read with, if it has none
            (:func:`~rlds2buf.codecs.arrow.lost_footer.recovered_footer`).

    Raises:
        SourceNotFound, SourceFormatError, SourceError: it is not there, is damaged, or can't be opened.
        MissingDependency: pyarrow is not installed.
    """
    import_pyarrow(f"{file}: Parquet")
    from pyarrow.parquet import ParquetFile

    with contextlib.ExitStack() as stack:
        stack.enter_context(arrow_errors(file))
        source = file if footer is None else stack.enter_context(WithFooter(file, footer))
        # Without both options a whole row group is read before its first rows are given.
        yield stack.enter_context(ParquetFile(source, buffer_size=_BUFFER_BYTES, pre_buffer=False))


def leaves_of(field: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Path and type of each leaf of an Arrow field; structs are taken apart."""
    from pyarrow import types

    path = (*prefix, field.name)
    if types.is_struct(field.type) and len(path) < _DEPTH:
        for i in range(field.type.num_fields):
            yield from leaves_of(field.type.field(i), path)
    else:
        yield path, field.type


def leaf_of(batch: Any, path: tuple[str, ...]) -> Any:
    """The array of one leaf; what is null in a struct is null in its fields."""
    array = batch.column(path[0])
    for part in path[1:]:
        names = [array.type.field(i).name for i in range(array.type.num_fields)]
        array = array.flatten()[names.index(part)]
    return array


def spec_of_leaf(kind: Any, first: Any) -> FieldSpec:
    """One row's shape and dtype.

    Args:
        kind: the Arrow type.
        first: the first rows, which tell how long lists are; or None.

    Raises:
        Unfit: it is a type that makes no column, or its lists differ in length.
    """
    shape: list[int] = []
    while (inner := _inner(kind)) is not None:
        length = getattr(kind, "list_size", None)
        if length is None:
            length = _list_length(first)
        first = None if first is None else _flattened(first)
        shape.append(length)
        kind = inner
    return FieldSpec(tuple(shape), _dtype(kind))


def column_of(array: Any, spec: FieldSpec) -> np.ndarray:
    """An Arrow array as a column ``[N, ...]`` of that spec.

    Raises:
        Unfit: lists of another length than the first ones, or nulls where none can be.
    """
    rows = len(array)
    array = _storage(array)
    for size in spec.shape:
        lengths = _lengths(array)
        wrong = lengths != size
        if wrong.any():
            at = int(np.argmax(wrong))
            got = "null" if lengths[at] < 0 else f"a list of {lengths[at]}"
            row = at * rows // len(array) if len(array) else 0
            raise Unfit(f"holds {got}, where the first rows have lists of {size}", row)
        array = _storage(_flattened(array))
    return _numbers(array, spec, rows).reshape(rows, *spec.shape)


def _numbers(array: Any, spec: FieldSpec, rows: int) -> np.ndarray:
    import pyarrow

    if pyarrow.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if spec.is_string:
        texts = array.cast(pyarrow.large_binary())
        return np.asarray((texts.fill_null(b"") if array.null_count else texts).to_numpy(zero_copy_only=False))
    if array.null_count:
        if spec.dtype.kind != "f":
            at = int(np.argmax(np.asarray(array.is_null())))
            raise Unfit(f"holds null, which {spec.dtype} can't", at * rows // max(1, len(array)))
        array = array.fill_null(float("nan"))
    if pyarrow.types.is_temporal(array.type):
        array = array.cast(pyarrow.int64() if array.type.bit_width == 64 else pyarrow.int32())
    found = array.to_numpy(zero_copy_only=False)
    if found.dtype.kind == "f" and spec.dtype.kind in "iub":
        with np.errstate(invalid="ignore"):
            same = found.astype(spec.dtype) == found
        if not same.all():
            at = int(np.argmin(same))
            raise Unfit(f"holds {found[at]}, which {spec.dtype} can't", at * rows // len(found))
    return found.astype(spec.dtype, copy=False)


def _dtype(kind: Any) -> np.dtype:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_boolean(kind):
        return np.dtype(np.bool_)
    if types.is_integer(kind) or types.is_floating(kind):
        return np.dtype(import_pyarrow("Parquet").array([], kind).to_numpy(zero_copy_only=False).dtype)
    if any(test(kind) for test in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)):
        return np.dtype(object)
    if types.is_temporal(kind) and not types.is_interval(kind):
        return np.dtype(np.int64 if kind.bit_width == 64 else np.int32)
    raise Unfit(f"holds {kind}, which is no column of steps")


def _inner(kind: Any) -> Any:
    """What a list type holds; None for any other."""
    from pyarrow import types

    kind = getattr(kind, "storage_type", kind)
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return kind.value_type if is_list else None


def _storage(array: Any) -> Any:
    """What an extension array is stored as."""
    return getattr(array, "storage", array)


def _list_length(first: Any) -> int:
    if first is None or not len(first):
        raise Unfit("holds lists, but there are no rows to tell how long")
    lengths = _lengths(_storage(first))
    if lengths[0] < 0:
        raise Unfit("holds null where a list should be")
    if (lengths != lengths[0]).any():
        raise Unfit(f"holds lists of different lengths ({lengths.min()} to {lengths.max()})")
    return int(lengths[0])


def _lengths(array: Any) -> np.ndarray:
    """The length of each list, -1 for null."""
    size = getattr(array.type, "list_size", None)
    lengths = np.diff(np.asarray(array.offsets)) if size is None else np.full(len(array), size)
    return np.where(np.asarray(array.is_null()), -1, lengths) if array.null_count else lengths


def _flattened(array: Any) -> Any:
    return _storage(array).flatten()
