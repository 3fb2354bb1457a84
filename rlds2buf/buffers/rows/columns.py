"""A buffer's rows as named columns of plain numbers, in files or in memory, and back.

A column of strings is one of codes; what they stand for is in the manifest, or, if that is much, in a
table ``strings/NAME``.  Other values of any length are a column of byte strings.  Tables and such
columns are two columns each, ``/bytes`` and ``/ends`` (see files/blob_file.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds2buf.buffers.rows.blobs import OBJECT, is_blob
from rlds2buf.buffers.rows.row_store import RowStore
from rlds2buf.buffers.rows.vocabulary import SavedTexts, TextCoder, Vocabulary
from rlds2buf.core.row_flags import BREAK, CODE, LINKED, OWN_NEXT
from rlds2buf.files.blob_file import BlobFile, SavedBlobs

if TYPE_CHECKING:
    from rlds2buf.files.column_file import ColumnFile

__all__ = ["TABLES", "MemoryColumns", "saved_columns", "small_strings", "table_of", "write_columns", "write_tables"]

TABLES = "strings/"
"""What the names of tables of strings start with, which are too large for the manifest."""


class MemoryColumns:
    """Columns that are gathered in memory, as a folder gathers them in files."""

    def __init__(self) -> None:
        self._columns: dict[str, _Growing] = {}

    def column(self, name: str, row_shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """A new one, to append to."""
        self._columns[name] = _Growing(np.empty((0, *row_shape), dtype))
        return self._columns[name]

    def arrays(self) -> dict[str, np.ndarray]:
        """All of them, copied."""
        return {name: np.concatenate(column.parts) for name, column in self._columns.items()}


class _Growing:
    def __init__(self, empty: np.ndarray) -> None:
        self.parts = [empty]
        self.rows = 0

    def append(self, rows: np.ndarray) -> None:
        self.parts.append(np.array(rows, self.parts[0].dtype))
        self.rows += len(rows)


def write_columns(store: RowStore, column: Callable[[str, tuple[int, ...], np.dtype], ColumnFile]) -> bool:
    """Write the rows held, oldest first, and the strings that are too many for a manifest.

    Args:
        store: of the rows.
        column: makes a column of a name, row shape and dtype, to append to.

    Returns:
        Whether there are byte strings among them, which format 1 did not know.
    """
    for name, blocks in store.in_order().items():
        target = column(name, blocks[0].shape[1:], blocks[0].dtype)
        for block in blocks:
            target.append(block)
    coders: dict[int, tuple[TextCoder, BlobFile]] = {}
    held = store.blobs_in_order()
    for name, (i, pieces) in held.items():
        if is_blob(store.fields[i]):
            blobs = BlobFile(name, store.row_shape(i), column)
            for piece in pieces:
                blobs.append(piece)
            continue
        if i not in coders:
            coders[i] = TextCoder(), table_of(store.names[i], column)
        coder, table = coders[i]
        codes = column(name, store.row_shape(i), np.dtype(np.int32))
        for piece in pieces:
            coded, fresh = coder.encode(piece)
            codes.append(coded)
            table.append(fresh)
    return write_tables(store, column) or bool(held)


def write_tables(store: RowStore, column: Callable[[str, tuple[int, ...], np.dtype], ColumnFile]) -> bool:
    """Write the strings that are too many for a manifest; returns whether there are any."""
    large = [(i, words) for i, words in store.vocabularies.items() if not words.fits_manifest]
    for i, vocabulary in large:
        table = BlobFile(TABLES + store.names[i], (), column)
        for part in vocabulary.parts():
            table.append(part)
    return bool(large)


def table_of(name: str, column: Callable[[str, tuple[int, ...], np.dtype], ColumnFile]) -> BlobFile:
    """The table of a column's strings, number 0 being the empty one; or the continuation of one."""
    table = BlobFile(TABLES + name, (), column)
    if not table.rows:
        empty = np.empty(1, object)
        empty[0] = b""
        table.append(empty)
    return table


def small_strings(store: RowStore) -> dict[str, list[str]]:
    """The strings of columns whose manifest holds them, by column, as latin-1 text."""
    return {
        store.names[i]: [text.decode("latin-1") for text in words.strings]
        for i, words in store.vocabularies.items()
        if isinstance(words, Vocabulary) and words.fits_manifest
    }


def saved_columns(
    store: RowStore, strings: Mapping[str, list[str]], arrays: Mapping[str, np.ndarray]
) -> tuple[dict[str, Any], dict[int, Vocabulary | SavedTexts]]:
    """What :func:`write_columns` wrote, for :meth:`RowStore.adopt`, and the vocabularies that go with it.

    Raises:
        KeyError, ValueError: something is missing or does not fit together.
    """
    columns: dict[str, Any] = {
        name: array for name, array in arrays.items() if not name.startswith(("sampler/", TABLES))
    }
    _require_places(columns)
    vocabularies: dict[int, Vocabulary | SavedTexts] = {}
    for i, (name, field) in enumerate(zip(store.names, store.fields, strict=True)):
        for place in (name, f"next_{name}") if is_blob(field) else ():
            if f"{place}/ends" in arrays:
                columns[place] = SavedBlobs(columns.pop(f"{place}/bytes"), columns.pop(f"{place}/ends"))
        if not field.is_string or columns[name].dtype == OBJECT:
            continue
        if name in strings:
            words: Vocabulary | SavedTexts = Vocabulary(text.encode("latin-1") for text in strings[name])
        else:
            words = SavedTexts(SavedBlobs(arrays[f"{TABLES}{name}/bytes"], arrays[f"{TABLES}{name}/ends"]))
        vocabularies[i] = words
        _require_codes(name, columns[name], len(words))
        if f"next_{name}" in columns:
            mine = (columns["flags"] & OWN_NEXT) != 0  # of other rows it says nothing
            _require_codes(f"next_{name}", columns[f"next_{name}"][mine], len(words))
    return columns, vocabularies


def _require_places(columns: Mapping[str, Any]) -> None:
    """Raise if rows lead to others that are not there, for whoever follows them does not look."""
    flags = columns["flags"]
    if "links" not in columns and (flags & LINKED).any():
        raise KeyError("links")
    if "links" in columns:
        # Where a chain breaks off nobody follows it; reservoirs of version 0.1.0 left their links there.
        links = columns["links"][(flags & np.uint8(LINKED | BREAK | CODE)) == LINKED]
        if links.size and not (int(links.min()) >= 0 and int(links.max()) < len(flags)):
            raise ValueError(f"links lead out of {len(flags)} slots")
    if "items" in columns and len(flags):
        items = columns["items"]
        if int(items.max()) > len(flags) or int(items.min()) < -len(flags):
            raise ValueError(f"items are longer than {len(flags)} slots")


def _require_codes(name: str, codes: np.ndarray, count: int) -> None:
    if codes.size and not (int(codes.min()) >= 0 and int(codes.max()) < count):
        raise ValueError(f"{name} has numbers of strings outside of the {count} there are")
