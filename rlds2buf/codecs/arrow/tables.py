"""Arrow and Parquet files as numpy columns: the one file that imports pyarrow for whole-file reads.

Source: https://arrow.apache.org/docs/format/Columnar.html
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.errors import MissingDependency, Rlds2bufError, SourceError, SourceFormatError, SourceNotFound

__all__ = [
    "MAX_DEPTH",
    "arrow_errors",
    "column_names",
    "import_pyarrow",
    "parquet_tables",
    "read_table",
    "rows_at_once",
    "table_column",
]

VARIABLE_TENSOR = b"ray.data.arrow_variable_shaped_tensor"
"""Ray Data's name for tensors of different shapes: structs of data and shape."""

MAX_DEPTH = 32
"""Structs nested deeper than this are refused."""

_BATCH_BYTES = 1 << 28


def import_pyarrow(what: str) -> Any:
    """The pyarrow module.

    Raises:
        MissingDependency: it is not installed.
    """
    try:
        import pyarrow
    except ImportError as cause:
        raise MissingDependency(f"{what} needs pyarrow: pip install 'rlds2buf[arrow]'") from cause
    return pyarrow


@contextlib.contextmanager
def arrow_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Translate what pyarrow raises about a file, where a damaged byte may come out as nearly anything.

    Raises:
        SourceNotFound: there is no such file.
        SourceFormatError: it is not of its format, is cut short, or is damaged.
        SourceError: it can't be read for another reason (permissions).
    """
    try:
        yield
    except Rlds2bufError:
        raise
    except FileNotFoundError as cause:
        raise SourceNotFound(f"{path}: no such file") from cause
    except PermissionError as cause:
        raise SourceError(f"{path}: can't be opened: {cause.strerror or cause}") from cause
    # pyarrow's own errors are of these classes: ArrowInvalid a ValueError, ArrowMemoryError a MemoryError, ...
    except (OSError, ValueError, TypeError, LookupError, MemoryError, OverflowError, RuntimeError) as cause:
        raise SourceFormatError(f"{path}: not readable, or damaged ({_first_line(cause)})") from cause
    except import_pyarrow("Parquet").ArrowException as cause:  # some are below Exception alone
        raise SourceFormatError(f"{path}: not readable ({_first_line(cause)})") from cause


def read_table(path: Path, kind: str, budget: Budget = BUDGET) -> Any:
    """A whole file as a checked ``pyarrow.Table``.

    Args:
        path: the file.
        kind: ``"arrow"`` (the IPC file format) or ``"parquet"``.
        budget: what it may take beyond its own size.

    Raises:
        SourceNotFound, SourceFormatError, SourceError: as :func:`arrow_errors`.
        MissingDependency: pyarrow is not installed.
    """
    pyarrow = import_pyarrow(f"{path}: its format")
    with arrow_errors(path):
        if kind == "parquet":
            from pyarrow.parquet import ParquetFile

            file = ParquetFile(os.fspath(path))
            size = sum(_decoded_bytes(file.metadata.row_group(i)) for i in range(file.num_row_groups))
            budget.check_bytes(size - path.stat().st_size, f"{path}, decoded,")
            table = file.read(use_threads=False)
        else:
            with pyarrow.OSFile(os.fspath(path)) as file:
                table = pyarrow.ipc.open_file(file).read_all()
        # Offsets that point outside of their buffers would be followed else.
        table.validate(full=True)
    return table


def _decoded_bytes(group: Any) -> int:
    """At least what a row group takes in memory: runs of equal values are a few bytes in the file.

    What it says of each column is not asked for: pyarrow ends the process where that is damaged.
    """
    return max(int(group.total_byte_size), 8 * group.num_rows * group.num_columns)


def rows_at_once(parquet: Any, path: Path, rows: int, budget: Budget = BUDGET) -> int:
    """How many rows of an open Parquet file to read at once: fewer where they are large.

    Args:
        parquet: the open ``ParquetFile``.
        path: its path.
        rows: the most.
        budget: what one row may take beyond the file's size.

    Raises:
        LimitExceeded: it takes more.
    """
    groups = (parquet.metadata.row_group(i) for i in range(parquet.num_row_groups))
    row = max((_decoded_bytes(group) // max(1, group.num_rows) for group in groups), default=0)
    budget.check_bytes(row - path.stat().st_size, f"{path}: one row")
    return min(rows, max(1, min(_BATCH_BYTES, budget.max_bytes) // max(1, row)))


def parquet_tables(path: Path, rows: int, budget: Budget = BUDGET) -> Iterator[Any]:
    """Yield a Parquet file as checked ``pyarrow.Table`` of at most so many rows each, one at a time.

    Raises:
        LimitExceeded: as :func:`rows_at_once`.
        SourceNotFound, SourceFormatError, SourceError, MissingDependency: as :func:`read_table`.
    """
    pyarrow = import_pyarrow(f"{path}: Parquet")
    with arrow_errors(path):
        from pyarrow.parquet import ParquetFile

        with ParquetFile(os.fspath(path)) as file:
            for batch in file.iter_batches(rows_at_once(file, path, rows, budget), use_threads=False):
                table = pyarrow.Table.from_batches([batch])
                table.validate(full=True)
                yield table


def parquet_names(path: Path) -> list[str]:
    """The names of a Parquet file's columns.

    Raises:
        SourceNotFound, SourceFormatError, SourceError, MissingDependency: as :func:`read_table`.
    """
    import_pyarrow(f"{path}: Parquet")
    with arrow_errors(path):
        from pyarrow.parquet import read_schema

        return _names(read_schema(os.fspath(path)))


def column_names(table: Any) -> list[str]:
    """The table's columns."""
    return _names(table.schema)


def _names(schema: Any) -> list[str]:
    """The columns that a schema has."""
    return [str(name) for name in schema.names]


def table_column(table: Any, name: str) -> nest.Nest:
    """One column of a table as a nest of columns ``[N, ...]``.

    Structs become dicts, lists of equal length further axes, texts and binaries ``[N] object`` of
    bytes; fields that record their values' ``shape`` (Minari's infos) have it.  A column of nothing
    but nulls is None.  In a text column nulls are None.

    Raises:
        SourceFormatError: its values have no fixed shape, are partly null, or of a kind that numpy
            has no columns for; the message names the field.

    >>> import pyarrow as pa
    >>> table_column(pa.table({"x": [[1, 2], [3, 4]]}), "x")
    array([[1, 2],
           [3, 4]])
    """
    field = table.schema.field(name)
    array = table.column(name).combine_chunks()
    if hasattr(array, "num_chunks"):  # newer versions may give an array of one chunk, older ones give the chunk
        array = array.chunk(0) if array.num_chunks == 1 else import_pyarrow(name).concat_arrays(array.chunks)
    return _column(array, field, name, 0)


def _column(array: Any, field: Any, name: str, depth: int) -> nest.Nest:
    types = import_pyarrow(name).types
    if depth > MAX_DEPTH:
        raise SourceFormatError(f"{name}: nested deeper than {MAX_DEPTH} levels")
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    array = getattr(array, "storage", array)
    kind = array.type
    if types.is_null(kind) or (len(array) and array.null_count == len(array) and not types.is_struct(kind)):
        return None
    if types.is_string(kind) or types.is_large_string(kind):
        return _objects(array.cast(import_pyarrow(name).large_binary()))
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return _objects(array)
    if array.null_count:
        raise SourceFormatError(f"{name}: {array.null_count} of its {len(array)} values are null")
    return _without_nulls(array, field, name, depth)


def _without_nulls(array: Any, field: Any, name: str, depth: int) -> nest.Nest:
    types = import_pyarrow(name).types
    kind = array.type
    if types.is_struct(kind):
        if (field.metadata or {}).get(b"ARROW:extension:name", b"").startswith(VARIABLE_TENSOR):
            raise SourceFormatError(f"{name}: rows of different shapes")
        children = {kind.field(i).name: (array.field(i), kind.field(i)) for i in range(kind.num_fields)}
        return {key: _column(child, told, f"{name}/{key}", depth + 1) for key, (child, told) in children.items()}
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _lists(array, field, name, depth)
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        # Copied, for what Arrow hands out is read-only.
        return np.array(array.to_numpy(zero_copy_only=False))
    raise SourceFormatError(f"{name}: values of type {kind} are not read")


def _objects(array: Any) -> np.ndarray:
    out = np.empty(len(array), object)
    out[:] = array.to_pylist()
    return out


def _lists(array: Any, field: Any, name: str, depth: int) -> np.ndarray:
    """Lists of equal length as one more axis; of the recorded shape where there is one."""
    kind = array.type
    flat = array.flatten()
    width, rest = divmod(len(flat), len(array)) if len(array) else (getattr(kind, "list_size", 0), 0)
    lengths = getattr(array, "offsets", None)
    if rest or (lengths is not None and len(array) and bool((np.diff(lengths.to_numpy()) != width).any())):
        raise SourceFormatError(f"{name}: rows of different lengths")
    inner = _column(flat, kind.value_field, name, depth + 1)
    if not isinstance(inner, np.ndarray):
        raise SourceFormatError(f"{name}: lists of {kind.value_type} are not read")
    shape = _shape(field.metadata or {}, width)
    return inner.reshape(len(array), *shape, *inner.shape[1:])


def _shape(metadata: dict[bytes, bytes], width: int) -> tuple[int, ...]:
    """The recorded shape of one row; ``(width,)`` where none is recorded.

    Minari records ``shape: 2,3`` in its fields; Ray Data gives its tensors a type of its own, which pyarrow
    alone reads as lists, with the shape as JSON.
    """
    told = metadata.get(b"shape")
    if metadata.get(b"ARROW:extension:name", b"").startswith(b"ray.data.arrow_tensor"):
        told = metadata.get(b"ARROW:extension:metadata", b"").strip(b"[]")
    if told is None:
        return (width,)
    try:
        shape = tuple(int(part) for part in told.split(b",") if part.strip())
    except ValueError:
        return (width,)
    if int(np.prod(shape, dtype=np.int64)) != width:
        raise SourceFormatError(f"rows of {width} values can't have the recorded shape {list(shape)}")
    return shape


def _first_line(cause: BaseException) -> str:
    return f"{type(cause).__name__}: {cause}".split("\n")[0][:200]
