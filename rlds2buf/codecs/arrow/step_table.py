"""Columns of steps into a Parquet file, some rows at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.codecs.arrow.tables import import_pyarrow
from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import SinkError

__all__ = ["SIGNATURE", "write_parquet"]

SIGNATURE = b"PAR1"
"""How every Parquet file begins and ends."""


def write_parquet(
    path: Path,
    fields: Mapping[str, FieldSpec],
    blocks: Iterable[Mapping[str, np.ndarray]],
    *,
    utf8: Iterable[str] = (),
    facts: Mapping[str, str] | None = None,
) -> None:
    """A new file, a row group for each block.

    Args:
        path: of it.
        fields: each column's rows, of fixed shape: ``[k, l]`` becomes lists of fixed length of such lists.
        blocks: the columns ``[n, ...]`` by name.
        utf8: the columns of text that hold nothing but UTF-8; others are binary.
        facts: text to be kept in the file's metadata.

    Raises:
        SinkError: it can't be written.
        MissingDependency: pyarrow is not installed.
    """
    pa = import_pyarrow(f"{path}: Parquet")
    from pyarrow import parquet

    texts = set(utf8)
    schema = pa.schema(
        [(name, _type(pa, field, name in texts)) for name, field in fields.items()], metadata=dict(facts or {})
    )
    try:
        with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
            for block in blocks:
                arrays = [_array(pa, block[name], schema.field(name).type) for name in fields]
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
    except (OSError, pa.ArrowException) as cause:
        raise SinkError(f"{path}: {getattr(cause, 'strerror', None) or cause}") from cause


def _type(pa: Any, field: FieldSpec, is_utf8: bool) -> Any:
    kind = (pa.string() if is_utf8 else pa.binary()) if field.is_string else pa.from_numpy_dtype(field.dtype)
    for size in reversed(field.shape):
        kind = pa.list_(kind, size)
    return kind


def _array(pa: Any, column: np.ndarray, kind: Any) -> Any:
    """A column ``[n, ...]`` as an Arrow array."""
    sizes = column.shape[1:]
    inner = kind
    for _ in sizes:
        inner = inner.value_type
    flat = np.ascontiguousarray(column).reshape(-1)
    if flat.dtype == object:
        values = pa.array(flat.tolist(), pa.binary()).cast(inner)
    else:
        values = pa.array(flat, inner)
    for size in reversed(sizes):
        values = pa.FixedSizeListArray.from_arrays(values, size)
    return values
