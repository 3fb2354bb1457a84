"""The footer of a Parquet file that was never closed, made anew from its pages.

A writer that is killed leaves whole row groups and no footer, without which nothing is known of them.  Every page
tells its length and how many values it has, so if it is known which columns there are, in which order, and how many
values each has in a row, the pages can be dealt out to columns and row groups.  It is done only where all of it fits:
a column's pages have the values of as many rows as those of the others, and a dictionary has the bytes of its type.
What does not fit, and everything behind it, is left out.

Source: https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

import io
import mmap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from rlds2buf.codecs.arrow.tables import import_pyarrow
from rlds2buf.codecs.arrow.thrift import I32, I64, LIST, STRUCT, Malformed, Struct, read_struct, write_struct

__all__ = ["WithFooter", "footer_of", "made_footer", "recovered_footer"]

_MAGIC: Final = b"PAR1"
_BOOLEAN: Final = 0
_BYTES: Final = {1: 4, 2: 8, 4: 4, 5: 8}
"""Of a value, by the number of its type: INT32, INT64, FLOAT, DOUBLE."""
_DICTIONARY: Final = 2
_DATA: Final = {0: 5, 3: 8}
"""Kind of page to the field of its header that says more: of version 1, of version 2."""


class _Page(NamedTuple):
    """A page: where it begins, the bytes it takes and would take, and its values."""

    at: int
    taken: int
    plain: int
    is_dictionary: bool
    values: int
    encoding: int
    content: int


class _Chunk(NamedTuple):
    """The pages of one column in a row group."""

    pages: list[_Page]

    @property
    def values(self) -> int:
        return sum(page.values for page in self.pages if not page.is_dictionary)


def recovered_footer(file: Path, like: bytes, widths: Mapping[str, int]) -> bytes | None:
    """What should stand at the end of a file without a footer, for the row groups of which all fits.

    Args:
        file: it begins as a Parquet file does.
        like: the footer of a file with the same columns in the same order, written alike.
        widths: values in a row by column: 1, or how many a list of fixed size has.

    Returns:
        The footer with its length and mark; None if not one row group fits.
    """
    try:
        metadata, _ = read_struct(like[:-8])
        columns = metadata[4][1][1][0][1][1][1]
        paths = [[part.decode() for part in column[3][1][3][1][1]] for column in columns]
        kinds = [int(column[3][1][1][1]) for column in columns]
        counts = [widths[path[0]] for path in paths]
    except (Malformed, KeyError, IndexError, TypeError, UnicodeDecodeError):
        return None
    groups = list(_groups(list(_pages(file)), kinds, counts))
    if not groups:
        return None
    rows = [group[0].values // counts[0] for group in groups]
    made = [_row_group(columns, chunks, count) for chunks, count in zip(groups, rows, strict=True)]
    content = write_struct({**metadata, 3: (I64, sum(rows)), 4: (LIST, (STRUCT, made))})
    return content + len(content).to_bytes(4, "little") + _MAGIC


def footer_of(file: Path) -> bytes:
    """The footer of a whole file, with its length and mark."""
    with open(file, "rb") as opened:
        size = opened.seek(0, io.SEEK_END)
        opened.seek(size - 8)
        length = min(int.from_bytes(opened.read(4), "little") + 8, size)
        opened.seek(size - length)
        return opened.read(length)


def made_footer(columns: Mapping[str, tuple[str, Sequence[int]]]) -> bytes:
    """The footer of a file that pyarrow would write, with a row group of one row.

    Args:
        columns: name to numpy's name of the type and shape of a row; ``"string"``, and ``"image"`` for a structure of
            ``bytes`` and ``path``.

    Raises:
        ValueError: a type is not known.
        MissingDependency: pyarrow is not installed.
    """
    import_pyarrow("Parquet")
    import pyarrow as pa
    import pyarrow.parquet as pq

    def kind(dtype: str, shape: Sequence[int]) -> Any:
        if dtype == "string":
            return pa.string()
        if dtype == "image":
            return pa.struct({"bytes": pa.binary(), "path": pa.string()})
        try:
            found = pa.from_numpy_dtype(dtype)
        except (TypeError, pa.ArrowException) as cause:
            raise ValueError(f"no type {dtype!r}") from cause
        for _ in shape:
            found = pa.list_(found)
        return found

    schema = pa.schema([(name, kind(dtype, shape)) for name, (dtype, shape) in columns.items()])
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([dict.fromkeys(columns)], schema=schema), out)
    content = out.getvalue()
    return content[-8 - int.from_bytes(content[-8:-4], "little") :]


class WithFooter(io.RawIOBase):
    """A file, read as if it ended in a footer."""

    def __init__(self, file: Path, footer: bytes) -> None:
        self._file = open(file, "rb")
        self._size = self._file.seek(0, io.SEEK_END)
        self._footer = footer
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size + len(self._footer)}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._size + len(self._footer)
        stop = end if size is None or size < 0 else min(self._at + size, end)
        found = b""
        if self._at < self._size:
            self._file.seek(self._at)
            found = self._file.read(min(stop, self._size) - self._at)
        if stop > self._size:
            found += self._footer[max(0, self._at - self._size) : stop - self._size]
        self._at = max(self._at, stop)
        return found

    def close(self) -> None:
        self._file.close()
        super().close()


def _pages(file: Path) -> Iterator[_Page]:
    """The pages from the start on, up to the first thing that is no whole page."""
    with open(file, "rb") as opened:
        size = opened.seek(0, io.SEEK_END)
        if size < len(_MAGIC):
            return
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            at = len(_MAGIC) if data[:4] == _MAGIC else size
            while at < size:
                try:
                    page = _page(data, at)
                except (Malformed, KeyError, TypeError):
                    return
                if page.taken <= 0 or page.at + page.taken > size:
                    return
                yield page
                at += page.taken


def _page(data: Any, at: int) -> _Page:
    header, behind = read_struct(data, at)
    kind, plain, packed = (int(header[number][1]) for number in (1, 2, 3))
    is_dictionary = kind == _DICTIONARY
    more = header[7 if is_dictionary else _DATA[kind]][1]
    # Of version 2 the encoding stands behind two more counts.
    encoding = int(more[4 if kind == 3 else 2][1])
    if min(plain, packed, int(more[1][1])) < 0:
        raise Malformed("a page of less than nothing")
    length = behind - at
    return _Page(at, length + packed, length + plain, is_dictionary, int(more[1][1]), encoding, plain)


def _groups(pages: Sequence[_Page], kinds: Sequence[int], widths: Sequence[int]) -> Iterator[list[_Chunk]]:
    """The pages dealt out: row groups of one chunk for each column."""
    at = 0
    while at < len(pages):
        chunks: list[_Chunk] = []
        rows: int | None = None
        for kind, width in zip(kinds, widths, strict=True):
            chunk = _chunk(pages, at, kind, None if rows is None else rows * width)
            if chunk is None or chunk.values % width or not chunk.values:
                return
            rows = chunk.values // width
            chunks.append(chunk)
            at += len(chunk.pages)
        yield chunks


def _chunk(pages: Sequence[_Page], at: int, kind: int, values: int | None) -> _Chunk | None:
    """The pages of a column from a place on: a dictionary, then data, up to the values or the next dictionary."""
    found: list[_Page] = []
    if kind != _BOOLEAN:
        if at >= len(pages) or not pages[at].is_dictionary:
            return None
        if kind in _BYTES and pages[at].content != pages[at].values * _BYTES[kind]:
            return None
        found.append(pages[at])
    elif values is None:  # no dictionary, and nothing tells where its pages end
        return None
    count = 0
    for page in pages[at + len(found) :]:
        if page.is_dictionary or count == values:
            break
        found.append(page)
        count += page.values
    return _Chunk(found) if values in (None, count) else None


def _row_group(columns: Sequence[Struct], chunks: Sequence[_Chunk], rows: int) -> Struct:
    made = [_column(column, chunk) for column, chunk in zip(columns, chunks, strict=True)]
    total = sum(page.plain for chunk in chunks for page in chunk.pages)
    return {1: (LIST, (STRUCT, made)), 2: (I64, total), 3: (I64, rows)}


def _column(like: Struct, chunk: _Chunk) -> Struct:
    """What the footer says of a column's pages; of the column itself what it says in `like`."""
    told = like[3][1]
    encodings = sorted({3, *(page.encoding for page in chunk.pages)})  # 3: of the levels
    data = [page for page in chunk.pages if not page.is_dictionary]
    meta: Struct = {number: told[number] for number in (1, 3, 4)}
    meta[2] = LIST, (I32, encodings)
    meta[5] = I64, chunk.values
    meta[6] = I64, sum(page.plain for page in chunk.pages)
    meta[7] = I64, sum(page.taken for page in chunk.pages)
    meta[9] = I64, data[0].at
    if chunk.pages[0].is_dictionary:
        meta[11] = I64, chunk.pages[0].at
    return {2: (I64, 0), 3: (STRUCT, meta)}
