"""CSV and JSON Lines taken apart by pyarrow, several rows at once, where it reads them as Python does.

pyarrow reads text fifty times as fast as the csv and json modules, and for most text to the same values.  What
tells that it might not is looked for here, beforehand in the bytes or afterwards in the values: then there is no
table, and the caller reads the text with Python's modules, whose errors name the line.

=============================================  ==============================================================
text                                           pyarrow, where Python's modules do otherwise
=============================================  ==============================================================
CSV: ``"a"b``                                  ``ab``; an error
CSV: a carriage return alone                   no line's end, or one; a line's end
CSV: a cell longer than `_LONGEST_CELL`        read; an error
CSV: ``0x1f``, ``nan(1)`` as numbers           numbers; text
JSON: two objects in a line, one over several  read; an error
JSON: a key that is missing                    null; an error
JSON: ``-Inf``, ``-NaN``                       numbers; an error
JSON: ``-0`` among floats                      -0.0; 0.0
JSON: whole numbers from 2**63 on, and floats  floats; no numbers
=============================================  ==============================================================
"""

from __future__ import annotations

import functools
import json as json_text
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np

__all__ = [
    "bytes_of",
    "csv_table",
    "has_null",
    "is_installed",
    "json_schema",
    "json_table",
    "number_column",
    "only_chunk",
]

_BOM: Final = b"\xef\xbb\xbf"
_LONGEST_CELL: Final = 131072  # csv.field_size_limit()
_MOST_BYTES: Final = (1 << 31) - 2
_MINUS_ZERO: Final = re.compile(rb"-0[,\]}\s]")
_BOOLS: Final = (["True", "true", "TRUE"], ["False", "false", "FALSE"])


@functools.cache
def is_installed() -> bool:
    """Whether there is a pyarrow that can be imported."""
    try:
        import pyarrow.csv
        import pyarrow.json  # noqa: F401
    except ImportError:
        return False
    return True


def csv_table(
    data: bytes, delimiter: str, kinds: Sequence[str], wanted: Collection[int] | None = None
) -> dict[int, Any] | None:
    """The columns of CSV rows as Arrow arrays by their places; None where Python may read them otherwise.

    Args:
        data: whole lines of UTF-8, no header.
        delimiter: what stands between cells.
        kinds: of each column ``"int"``, ``"float"``, ``"bool"``, ``"null"`` (blank) or ``"string"``; a blank cell
            is null but in a column of text.
        wanted: which columns; None: all.
    """
    import pyarrow
    from pyarrow import csv

    if not csv_reads_alike(data, delimiter):
        return None
    if ("int" in kinds and _has_hex(data)) or ("float" in kinds and b"(" in data):
        return None
    types = {
        "int": pyarrow.int64(),
        "float": pyarrow.float64(),
        "bool": pyarrow.bool_(),
        "null": pyarrow.null(),
        "string": pyarrow.string(),
    }
    names = [str(place) for place in range(len(kinds))]
    places = list(range(len(kinds))) if wanted is None else sorted(wanted)
    trues, falses = _BOOLS
    try:
        table = csv.read_csv(
            pyarrow.BufferReader(data),
            csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=names),
            csv.ParseOptions(delimiter=delimiter, newlines_in_values=b'"' in data),
            csv.ConvertOptions(
                check_utf8=False,
                column_types={name: types[kind] for name, kind in zip(names, kinds, strict=True)},
                null_values=[""],
                true_values=trues,
                false_values=falses,
                strings_can_be_null=False,
                include_columns=[names[place] for place in places],
            ),
        )
    except pyarrow.ArrowException:
        return None
    return {place: only_chunk(table.column(i)) for i, place in enumerate(places)}


def _has_hex(data: bytes) -> bool:
    # A single byte is found ten times as fast as two.
    return (b"x" in data and b"0x" in data) or (b"X" in data and b"0X" in data)


def csv_reads_alike(data: bytes, delimiter: str) -> bool:
    """Whether pyarrow and the csv module surely take rows apart in the same way, errors aside.

    >>> [csv_reads_alike(data, ",") for data in (b'1,"a,""b"\\n', b'1,"a"b\\n', b"1\\r2\\n")]
    [True, False, False]
    """
    if not data or len(data) > _MOST_BYTES or b"\0" in data or data.startswith(_BOM):
        return False
    if not delimiter.isascii() or delimiter in '"\r\n':
        return False
    if b"\r" in data and data.count(b"\r") != data.count(b"\r\n"):
        return False
    # A cell that is too long fills at least one of these windows.
    half = _LONGEST_CELL // 2
    if any(data.find(b"\n", low, low + half) < 0 for low in range(0, len(data) - half, half)):
        return False
    return b'"' not in data or _quotes_cells(np.frombuffer(data, np.uint8), ord(delimiter))


def _quotes_cells(data: np.ndarray, delimiter: int) -> bool:
    """Whether double quotes stand around whole cells, and inside only in pairs."""
    places = np.flatnonzero(data == ord('"'))
    if len(places) % 2:
        return False
    opening, closing = places[::2], places[1::2]
    pairs = opening[1:] == closing[:-1] + 1
    begins, ends = opening[np.append(True, ~pairs)], closing[np.append(~pairs, True)]
    borders = np.zeros(256, np.bool_)
    borders[[delimiter, ord("\n"), ord("\r")]] = True
    before = borders[data[np.maximum(begins - 1, 0)]] | (begins == 0)
    behind = borders[data[np.minimum(ends + 1, len(data) - 1)]] | (ends == len(data) - 1)
    return bool(before.all() and behind.all() and (ends - begins).max() < _LONGEST_CELL)


def number_column(texts: Any, kind: str) -> Any | None:
    """Texts as an Arrow array, blank ones null; None where Python may read them otherwise.

    Args:
        texts: an Arrow array of them.
        kind: ``"int"`` or ``"float"``.
    """
    import pyarrow
    from pyarrow import compute

    odd = "[xX]" if kind == "int" else "[(]"
    if compute.any(compute.match_substring_regex(texts, odd)).as_py():
        return None
    blank = compute.equal(texts, "")
    try:
        numbers = compute.if_else(blank, pyarrow.scalar(None, texts.type), texts)
        return numbers.cast(pyarrow.int64() if kind == "int" else pyarrow.float64())
    except pyarrow.ArrowException:
        return None


def bytes_of(texts: Any) -> np.ndarray:
    """An Arrow array of text, nothing null, as ``[N] object``, of bytes."""
    import pyarrow

    return np.asarray(texts.cast(pyarrow.large_binary()).to_numpy(zero_copy_only=False))


def json_schema(value: Mapping[str, Any], numbers: Mapping[str, np.dtype]) -> Any | None:
    """The Arrow schema of objects such as `value`; None where there is none.

    Args:
        value: an object.
        numbers: the dtype of each column that is no text, by ``outer/inner``.
    """
    import pyarrow

    fields = _fields(value, numbers, "")
    return None if fields is None or not fields else pyarrow.schema(fields)


def _fields(value: Mapping[str, Any], numbers: Mapping[str, np.dtype], prefix: str) -> list[Any] | None:
    import pyarrow

    fields = []
    for key, child in value.items():
        if isinstance(child, Mapping):
            inner = _fields(child, numbers, f"{prefix}{key}/")
            kind = None if inner is None else pyarrow.struct(inner)
        else:
            kind = _kind(child, numbers.get(prefix + key))
        if kind is None:
            return None
        fields.append(pyarrow.field(key, kind))
    return fields


def _kind(value: Any, dtype: np.dtype | None) -> Any | None:
    import pyarrow

    if isinstance(value, list):
        inner = _kind(value[0] if value else 0.0, dtype)
        return None if inner is None else pyarrow.list_(inner)
    if dtype is None:
        return None
    return pyarrow.string() if dtype.kind == "O" else pyarrow.from_numpy_dtype(dtype)


def json_table(data: bytes, schema: Any) -> Any | None:
    """JSON Lines as an Arrow table, a row a line; None where Python may read them otherwise.

    Null may be only what is said to be, of numbers that are floats and of texts (not all of them).

    Args:
        data: whole lines of UTF-8.
        schema: what each line holds, no key more.
    """
    import pyarrow
    from pyarrow import json

    if not data or len(data) > _MOST_BYTES or b"\0" in data or data.startswith(_BOM):
        return None
    try:
        table = json.read_json(
            pyarrow.BufferReader(data),
            json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            json.ParseOptions(explicit_schema=schema, newlines_in_values=False, unexpected_field_behavior="error"),
        )
    except pyarrow.ArrowException:
        return None
    if table.num_rows != _objects(data):
        return None
    arrays = [only_chunk(column) for column in table.columns]
    if not all(_nulls_are_told(field, array, schema, data) for field, array in zip(schema, arrays, strict=True)):
        return None
    if not all(_reads_alike(array, data) for array in arrays):
        return None
    return pyarrow.RecordBatch.from_arrays(arrays, schema=table.schema)


def _nulls_are_told(field: Any, array: Any, schema: Any, data: bytes) -> bool:
    """Whether all that is null in an array is a null in the text, not a key that is missing."""
    from pyarrow import types

    if not has_null(array):
        return True
    if not (types.is_floating(field.type) or (types.is_string(field.type) and array.null_count < len(array))):
        return False
    # Elsewhere the same may stand in an inner object only; in a text quotes have a backslash before them.
    if any(field.name in _inner_names(other.type) for other in schema):
        return False
    told = re.findall(rb'"' + re.escape(field.name.encode()) + rb'"\s*:\s*null\b', data)
    return len(told) == array.null_count


def _inner_names(kind: Any) -> set[str]:
    from pyarrow import types

    if not types.is_struct(kind):
        return set()
    fields = [kind.field(i) for i in range(kind.num_fields)]
    return {field.name for field in fields}.union(*(_inner_names(field.type) for field in fields))


def has_whole_number(key: str, data: bytes) -> bool:
    """Whether a key in JSON has a whole number somewhere."""
    name = re.escape(json_text.dumps(key)[1:-1].encode())
    return re.search(rb'"' + name + rb'"\s*:\s*-?\d+\s*[,}]', data) is not None


def _objects(data: bytes) -> int:
    """How many lines there are, if each begins and ends as an object does; else -1.

    Between a line that ends so and one that begins so no object goes on, so there are as many objects as lines only
    where each has a line for itself.
    """
    edge = b" \t\r\n"
    first, last = data.lstrip(edge)[:1], data.rstrip(edge)[-1:]
    lines = int(np.count_nonzero(np.frombuffer(data, np.uint8) == ord("\n"))) + (not data.endswith(b"\n"))
    borders = data.count(b"}\n{") or data.count(b"}\r\n{")
    if borders + 1 == lines and first + last == b"{}":
        return lines
    parts = [part for line in data.split(b"\n") if (part := line.strip(edge))]
    return len(parts) if all(part[:1] + part[-1:] == b"{}" for part in parts) else -1


def has_null(array: Any) -> bool:
    """Whether something in an array, a list or a field of it is null."""
    from pyarrow import types

    if array.null_count:
        return True
    if types.is_struct(array.type):
        return any(has_null(array.field(i)) for i in range(array.type.num_fields))
    return types.is_list(array.type) and has_null(array.flatten())


def _reads_alike(array: Any, data: bytes) -> bool:
    """Whether no float is one that the json module reads otherwise."""
    from pyarrow import types

    if types.is_struct(array.type):
        return all(_reads_alike(array.field(i), data) for i in range(array.type.num_fields))
    if types.is_list(array.type):
        return _reads_alike(array.flatten(), data)
    if not types.is_floating(array.type):
        return True
    values = array.drop_null().to_numpy()
    if not (np.abs(values) < 2.0**63).all():
        rest = values[~np.isnan(values)]
        if b"-NaN" in data or not (np.abs(rest) < 2.0**63).all():
            return False
    zeros = values == 0
    return not (zeros.any() and np.signbit(values[zeros]).any() and _MINUS_ZERO.search(data))


def only_chunk(column: Any) -> Any:
    """A table's column as one array."""
    import pyarrow

    chunks = column.chunks
    return chunks[0] if len(chunks) == 1 else pyarrow.concat_arrays(chunks or [pyarrow.array([], column.type)])
