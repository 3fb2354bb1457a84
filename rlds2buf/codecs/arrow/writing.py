"""Small tables into Parquet files by pyarrow: a row for each episode, not for each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.codecs.arrow.tables import import_pyarrow
from rlds2buf.errors import SinkError

__all__ = ["TableFile", "cells", "lists", "text_lists", "texts", "write_table"]


def lists(values: np.ndarray) -> Any:
    """``[n, a, ...]`` numbers as a column of lists (of lists ...)."""
    pyarrow = import_pyarrow("Parquet")
    column = pyarrow.array(np.ascontiguousarray(values).reshape(-1))
    for depth in range(values.ndim - 1, 0, -1):
        count = int(np.prod(values.shape[:depth], dtype=np.int64))
        edges = pyarrow.array(np.arange(count + 1) * values.shape[depth], "int32")
        column = pyarrow.ListArray.from_arrays(edges, column)
    return column


def texts(values: Sequence[str]) -> Any:
    """A column of text."""
    pyarrow = import_pyarrow("Parquet")
    return pyarrow.array(values, pyarrow.string())


def text_lists(values: Sequence[Sequence[str]]) -> Any:
    """A column of lists of text."""
    pyarrow = import_pyarrow("Parquet")
    return pyarrow.array(values, pyarrow.list_(pyarrow.string()))


def cells(values: np.ndarray) -> Any:
    """``[n] object`` of bytes as a column; an empty one is null."""
    pyarrow = import_pyarrow("Parquet")
    return pyarrow.array([value or None for value in values.tolist()], pyarrow.binary())


def write_table(path: Path, columns: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    """A whole file.

    Args:
        path: of it.
        columns: arrays of numbers, or columns as the functions above make them.
        metadata: of the schema.

    Raises:
        SinkError: it can't be written.
    """
    table = import_pyarrow("Parquet").table(dict(columns))
    from pyarrow import parquet

    try:
        parquet.write_table(table.replace_schema_metadata(dict(metadata or {})), path)
    except OSError as cause:
        raise SinkError(f"{path}: {cause.strerror or cause}") from cause


class TableFile:
    """A file that grows by some rows at a time, all of the same columns.

    Args:
        path: of it; folders are made.

    Raises:
        SinkError: here and later, if it can't be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer: Any = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as cause:
            raise SinkError(f"{path.parent}: {cause.strerror or cause}") from cause

    def append(self, columns: Mapping[str, Any]) -> None:
        """Write rows, as :func:`write_table` takes them."""
        table = import_pyarrow("Parquet").table(dict(columns))
        from pyarrow.parquet import ParquetWriter

        try:
            if self._writer is None:
                self._writer = ParquetWriter(self.path, table.schema, use_dictionary=False, write_statistics=False)
            self._writer.write_table(table)
        except OSError as cause:
            raise SinkError(f"{self.path}: {cause.strerror or cause}") from cause

    def close(self) -> None:
        """Write the footer; idempotent."""
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.close()
            except OSError as cause:
                raise SinkError(f"{self.path}: {cause.strerror or cause}") from cause
