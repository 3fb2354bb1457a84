"""Parquet files with a row group for each episode, many short ones too, encoded by the block.

Who reads episodes one by one wants each in a row group of its own.  pyarrow writes one in about 0.1 ms, whatever is
in it; of 20 rows that is more than all else that is done to them.  Here a block of episodes becomes bytes at once:
plain pages without nulls, whose levels depend on nothing but the number of rows.  What is written so far can be cut off
and continued, since everything else stands in the footer, behind it.

Source: https://github.com/apache/parquet-format (Thrift's compact protocol for headers and the footer)
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import itertools
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from rlds2buf.codecs.arrow.tables import import_pyarrow
from rlds2buf.version import __version__

__all__ = ["MAGIC", "PICTURE", "TEXT", "BINARY", "RowColumn", "RowGroups"]

MAGIC: Final = b"PAR1"
"""How a file begins, and how it ends."""

TEXT: Final = "text"
BINARY: Final = "binary"
PICTURE: Final = "picture"

_COMPRESSED_FROM: Final = 2048
"""Bytes of a page; smaller ones gain little."""

_BOOLEAN, _INT32, _INT64, _FLOAT, _DOUBLE, _BYTES = 0, 1, 2, 4, 5, 6
_PHYSICAL: Final = {
    "bool": (_BOOLEAN, "bool", None),
    "int8": (_INT32, "<i4", 15),
    "int16": (_INT32, "<i4", 16),
    "int32": (_INT32, "<i4", None),
    "int64": (_INT64, "<i8", None),
    "uint8": (_INT32, "<i4", 11),
    "uint16": (_INT32, "<i4", 12),
    "uint32": (_INT32, "<u4", 13),
    "float32": (_FLOAT, "<f4", None),
    "float64": (_DOUBLE, "<f8", None),
}
"""Of numpy's types: the one in the file, how it is laid down, what it stands for."""
_UTF8, _LIST = 0, 3
_REQUIRED, _OPTIONAL, _REPEATED = 0, 1, 2
_VARINT_BYTES: Final = 7
_HEADER_END: Final = b"\x15\x00\x15\x06\x15\x06\x00\x00"
"""Of a page's header: plain values, levels in runs."""


@dataclasses.dataclass(frozen=True)
class RowColumn:
    """A column of such a file.

    Attributes:
        name: of the column.
        kind: the name of a numpy type (bool, integers but uint64, float32, float64), TEXT, BINARY, or PICTURE: a struct
            of the file's ``bytes`` and its ``path``, which is null.
        shape: of the numbers of one row; one axis becomes lists of that length, several lists of lists.
        sorted: whether the least and largest value of each row group are noted; of int64.
    """

    name: str
    kind: str
    shape: tuple[int, ...] = ()
    sorted: bool = False


class RowGroups:
    """Encodes blocks of episodes, and the footer behind them.

    Args:
        columns: of the file.
        metadata: further entries of its footer.

    >>> groups = RowGroups([RowColumn("index", "int64", sorted=True)])
    >>> body, sizes = groups.encode({"index": np.arange(5)}, np.array([0, 2, 5]))
    >>> file = MAGIC + body + groups.footer(sizes, np.array([2, 3]), {"index": np.array([[0, 1], [2, 4]])})
    >>> import io, pyarrow.parquet as parquet
    >>> opened = parquet.ParquetFile(io.BytesIO(file))
    >>> opened.num_row_groups, opened.read_row_group(1)["index"].to_pylist()
    (2, [2, 3, 4])
    """

    def __init__(self, columns: Sequence[RowColumn], metadata: Mapping[str, str] | None = None) -> None:
        self.columns = tuple(columns)
        self._leaves = [leaf for column in columns for leaf in _leaves_of(column)]
        self._metadata = {**(metadata or {}), "ARROW:schema": _arrow_schema(columns)}
        self._codec = import_pyarrow("Parquet").Codec("snappy")

    @property
    def num_leaves(self) -> int:
        """How many columns there are in the file: a picture has two."""
        return len(self._leaves)

    @property
    def footer_bytes(self) -> int:
        """What a row group takes in the footer."""
        return sum(leaf.footer_bytes for leaf in self._leaves) + 2 * (1 + _VARINT_BYTES) + 3

    def encode(self, columns: Mapping[str, np.ndarray], edges: np.ndarray) -> tuple[bytes, np.ndarray]:
        """Row groups of E episodes.

        Args:
            columns: by name, ``[M, ...]``; of TEXT, BINARY and PICTURE ``[M] object`` of bytes.
            edges: ``[E + 1]``, each episode's first row, and M.

        Returns:
            Their bytes, and ``[E, leaves, 2] int64``: what each column takes before it is compressed, and there.
        """
        lengths = np.diff(edges).tolist()
        pages: list[list[bytes]] = []
        sizes = np.empty((len(lengths), len(self._leaves), 2), np.int64)
        for i, leaf in enumerate(self._leaves):
            data, offsets = leaf.payload(columns[leaf.column], edges)
            made, before = self._pages(leaf, lengths, data, offsets)
            pages.append(made)
            sizes[:, i, 1] = list(map(len, made))
            sizes[:, i, 0] = sizes[:, i, 1] if before is None else before
        return b"".join(itertools.chain.from_iterable(zip(*pages, strict=True))), sizes

    def footer(self, sizes: np.ndarray, lengths: np.ndarray, limits: Mapping[str, np.ndarray]) -> bytes:
        """What stands behind the row groups of a whole file.

        Args:
            sizes: ``[E, leaves, 2]``, as :meth:`encode` gave them.
            lengths: ``[E]``, rows of each.
            limits: of the columns that are sorted, ``[E, 2] int64``: the least and the largest value.
        """
        count = len(lengths)
        ends = len(MAGIC) + np.cumsum(sizes[:, :, 1].reshape(-1)).reshape(sizes.shape[:2])
        offsets = ends - sizes[:, :, 1]
        described = _Description(count)
        described.add(b"\x19" + _list_header(len(self._leaves), 12))
        for i, leaf in enumerate(self._leaves):
            leaf.describe(described, offsets[:, i], sizes[:, i], lengths, limits.get(leaf.column))
        described.add(b"\x16", sizes[:, :, 0].sum(1))
        described.add(b"\x16", lengths)
        described.add(b"\0")
        groups = described.bytes()
        schema = list(self._schema())
        told = b"".join(b"\x18" + _text(key) + b"\x18" + _text(value) + b"\0" for key, value in self._metadata.items())
        content = b"".join(
            (
                b"\x15\x04",
                b"\x19" + _list_header(len(schema), 12) + b"".join(schema),
                b"\x16" + _varint(int(np.sum(lengths)) << 1),
                b"\x19" + _list_header(count, 12) + groups,
                b"\x19" + _list_header(len(self._metadata), 12) + told,
                b"\x18" + _text(f"rlds2buf version {__version__}"),
                b"\x19" + _list_header(len(self._leaves), 12) + b"\x1c\x00\x00" * len(self._leaves),
                b"\0",
            )
        )
        return content + struct.pack("<I", len(content)) + MAGIC

    def scan(self, body: bytes) -> tuple[np.ndarray, np.ndarray]:
        """What :meth:`encode` had told of row groups that are written.

        Args:
            body: all of them, one behind the other.

        Returns:
            ``[E, leaves, 2] int64`` sizes, and ``[E] int64`` rows.

        Raises:
            ValueError: there is something else, or less.
        """
        sizes: list[tuple[int, int]] = []
        rows: list[int] = []
        at = 0
        while at < len(body) or len(sizes) % len(self._leaves):
            leaf = self._leaves[len(sizes) % len(self._leaves)]
            head, plain, packed, values = _scanned(body, at)
            if leaf is self._leaves[0]:
                rows.append(values // leaf.per_row)
            sizes.append((head + plain, head + packed))
            at += head + packed
        if at != len(body):
            raise ValueError(f"{at - len(body)} bytes are missing")
        return np.array(sizes, np.int64).reshape(-1, len(self._leaves), 2), np.array(rows, np.int64)

    def _pages(
        self, leaf: _Leaf, lengths: list[int], data: bytes, offsets: list[int]
    ) -> tuple[list[bytes], list[int] | None]:
        """A page with its header for each episode, and how long they would be uncompressed; None if they are."""
        if leaf.is_fixed and max(lengths) * leaf.row_bytes < _COMPRESSED_FROM:
            heads = {length: self._head(leaf, length) for length in set(lengths)}
            spans = zip(lengths, itertools.pairwise(offsets), strict=True)
            return [heads[length] + data[start:stop] for length, (start, stop) in spans], None
        made = [
            self._page(leaf, length, data[start:stop])
            for length, (start, stop) in zip(lengths, itertools.pairwise(offsets), strict=True)
        ]
        return [page for page, _ in made], [before for _, before in made]

    def _head(self, leaf: _Leaf, length: int) -> bytes:
        """What stands before the values of so many rows where they are not compressed."""
        levels, values = leaf.levels(length)
        plain = len(levels) + leaf.data_bytes(length)
        return _header(plain, plain, values) + levels

    def _page(self, leaf: _Leaf, length: int, data: bytes) -> tuple[bytes, int]:
        """A page with its header, and how long it would be if it were not compressed."""
        levels, values = leaf.levels(length)
        plain = len(levels) + len(data)
        content = levels + data
        if len(data) >= _COMPRESSED_FROM:
            packed: bytes = self._codec.compress(content, asbytes=True)
            content = packed if len(packed) < plain else content
        header = _header(plain, len(content), values)
        return header + content, plain + len(header)

    def _schema(self) -> Iterator[bytes]:
        """The elements of the schema, the root first."""
        yield _element("schema", children=len(self.columns), repetition=None)
        for column in self.columns:
            if column.kind == PICTURE:
                yield _element(column.name, children=2)
                yield _element("bytes", kind=_BYTES)
                yield _element("path", kind=_BYTES, converted=_UTF8, repetition=_OPTIONAL)
                continue
            kind, converted = _kind_of(column)
            name = column.name
            for _ in column.shape:
                yield _element(name, children=1, converted=_LIST)
                yield _element("list", children=1, repetition=_REPEATED)
                name = "element"
            yield _element(name, kind=kind, converted=converted)


class _Leaf:
    """A column as the file has it.

    Attributes:
        column: whose it is.
        sorted: as of its column.
        per_row: values of a row.
        is_fixed: whether what a row takes depends on no value.
        row_bytes: that, as long as it is not packed.
    """

    def __init__(self, column: RowColumn, path: Sequence[str], kind: int, is_null: bool = False) -> None:
        self.column = column.name
        self.sorted = column.sorted
        self._kind, self._shape, self._is_null = kind, column.shape, is_null
        self.per_row = math.prod(column.shape)
        self._layout = np.dtype(_PHYSICAL[column.kind][1]) if column.kind in _PHYSICAL else None
        names = b"".join(map(_text, path))
        self._named = (
            b"\x1c\x15" + _varint(kind << 1) + b"\x19\x25\x00\x06" + b"\x19" + _list_header(len(path), 8) + names
        )
        self.is_fixed = is_null or self._layout is not None
        self.row_bytes = 0 if is_null or self._layout is None else self._layout.itemsize * self.per_row
        self.levels = functools.lru_cache(maxsize=4096)(self._levels)

    def data_bytes(self, length: int) -> int:
        """What the values of so many rows take; of numbers."""
        return -(-length * self.per_row // 8) if self._kind == _BOOLEAN else length * self.row_bytes

    def payload(self, column: np.ndarray, edges: np.ndarray) -> tuple[bytes, list[int]]:
        """The values of all rows, and where each episode's begin, and the last's end."""
        if self._is_null:
            return b"", [0] * len(edges)
        if self._layout is None:
            return _byte_arrays(column, edges)
        if self._kind == _BOOLEAN:
            return _bits(column.reshape(len(column), -1), edges)
        return column.astype(self._layout, copy=False).tobytes(), (edges * self.row_bytes).tolist()

    def describe(
        self,
        out: _Description,
        offsets: np.ndarray,
        sizes: np.ndarray,
        lengths: np.ndarray,
        limits: np.ndarray | None,
    ) -> None:
        """Add its part of what is said of E row groups."""
        out.add(b"\x26", offsets)
        out.add(self._named + b"\x15")
        out.add_bytes(np.where(sizes[:, 1] < sizes[:, 0], 2, 0).astype(np.uint8)[:, None])
        out.add(b"\x16", lengths * self.per_row)
        out.add(b"\x16", sizes[:, 0])
        out.add(b"\x16", sizes[:, 1])
        out.add(b"\x26", offsets)
        if self.sorted:
            assert limits is not None, f"no limits of {self.column}"
            for before, values in ((b"\x3c\x58\x08", limits[:, 1]), (b"\x18\x08", limits[:, 0])):
                out.add(before)
                out.add_bytes(np.ascontiguousarray(values, "<i8").view(np.uint8).reshape(-1, 8))
            out.add(b"\0")
        out.add(b"\0\0")

    @property
    def footer_bytes(self) -> int:
        """What it takes in the description of a row group."""
        return len(self._named) + 5 * (1 + _VARINT_BYTES) + 4 + (22 if self.sorted else 0)

    def _levels(self, length: int) -> tuple[bytes, int]:
        """What stands before the values of so many rows, and how many values these are."""
        count = length * self.per_row
        if self._is_null:
            return _run(count, 0), count
        if not self._shape:
            return b"", count
        width = len(self._shape).bit_length()
        return _packed(_repetition(length, self._shape), width) + _run(count, len(self._shape)), count


def _leaves_of(column: RowColumn) -> list[_Leaf]:
    if column.kind == PICTURE:
        return [_Leaf(column, (column.name, name), _BYTES, name == "path") for name in ("bytes", "path")]
    path = [column.name, *("list", "element") * len(column.shape)]
    return [_Leaf(column, path, _kind_of(column)[0])]


def _kind_of(column: RowColumn) -> tuple[int, int | None]:
    if column.kind in (TEXT, BINARY):
        return _BYTES, _UTF8 if column.kind == TEXT else None
    kind, _, converted = _PHYSICAL[column.kind]
    return kind, converted


def _arrow_schema(columns: Sequence[RowColumn]) -> str:
    """By which pyarrow gives lists of one length as such."""
    pyarrow = import_pyarrow("Parquet")
    fields = []
    for column in columns:
        if column.kind == PICTURE:
            kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
        elif column.kind in (TEXT, BINARY):
            kind = pyarrow.string() if column.kind == TEXT else pyarrow.binary()
        else:
            kind = pyarrow.from_numpy_dtype(np.dtype(column.kind))
        for _ in column.shape:
            kind = pyarrow.list_(kind, column.shape[0] if len(column.shape) == 1 else -1)
        fields.append(pyarrow.field(column.name, kind))
    return base64.b64encode(pyarrow.schema(fields).serialize().to_pybytes()).decode()


def _byte_arrays(column: np.ndarray, edges: np.ndarray) -> tuple[bytes, list[int]]:
    """Each value behind its length."""
    cells = column.tolist()
    sizes = np.fromiter(map(len, cells), "<u4", len(cells))
    heads = sizes.tobytes()
    before = (heads[i : i + 4] for i in range(0, len(heads), 4))
    ends = np.append(0, np.cumsum(sizes.astype(np.int64) + 4))
    return b"".join(itertools.chain.from_iterable(zip(before, cells, strict=True))), ends[edges].tolist()


def _bits(rows: np.ndarray, edges: np.ndarray) -> tuple[bytes, list[int]]:
    """Eight to a byte, each episode's from a byte of its own on."""
    values = edges * rows.shape[1]
    offsets = np.append(0, np.cumsum((np.diff(values) + 7) // 8))
    padded = np.zeros(int(offsets[-1]) * 8, np.bool_)
    places = np.arange(rows.size) + np.repeat(offsets[:-1] * 8 - values[:-1], np.diff(values))
    padded[places] = rows.reshape(-1)
    return np.packbits(padded, bitorder="little").tobytes(), offsets.tolist()


def _repetition(length: int, shape: tuple[int, ...]) -> np.ndarray:
    """``[length * values]``: at which depth each value goes on; 0 begins a row."""
    levels = np.full((length, *shape), len(shape), np.uint8)
    for depth in range(len(shape) - 1, -1, -1):
        begun: tuple[Any, ...] = (..., *(0,) * (len(shape) - depth))
        levels[begun] = depth
    return levels.reshape(-1)


def _packed(levels: np.ndarray, width: int) -> bytes:
    """Levels bit by bit, in groups of eight."""
    groups = -(-len(levels) // 8)
    bits = np.zeros((groups * 8, width), np.uint8)
    bits[: len(levels)] = (levels[:, None] >> np.arange(width)) & 1
    content = _varint(groups << 1 | 1) + np.packbits(bits.reshape(-1), bitorder="little").tobytes()
    return struct.pack("<I", len(content)) + content


def _run(count: int, level: int) -> bytes:
    """So many levels that are the same."""
    content = _varint(count << 1) + bytes([level])
    return struct.pack("<I", len(content)) + content


@functools.lru_cache(maxsize=1 << 16)
def _header(plain: int, packed: int, values: int) -> bytes:
    """Of a page."""
    sizes = b"\x15" + _varint(plain << 1) + b"\x15" + _varint(packed << 1)
    return b"\x15\x00" + sizes + b"\x2c\x15" + _varint(values << 1) + _HEADER_END


def _scanned(body: bytes, at: int) -> tuple[int, int, int, int]:
    """Of the header of a page: its length, the page's without and with compression, and its values.

    Raises:
        ValueError: there is none.
    """
    start = at
    found = []
    for before in (b"\x15\x00\x15", b"\x15", b"\x2c\x15"):
        if body[at : at + len(before)] != before:
            raise ValueError(f"no page begins at byte {start}")
        at += len(before)
        value = shift = 0
        while True:
            if at >= len(body):
                raise ValueError(f"the page at byte {start} is cut off")
            byte = body[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                break
        found.append(value >> 1)
    return at + len(_HEADER_END) - start, found[0], found[1], found[2]


def _element(
    name: str,
    *,
    kind: int | None = None,
    repetition: int | None = _REQUIRED,
    children: int | None = None,
    converted: int | None = None,
) -> bytes:
    """An element of the schema."""
    out, last = b"", 0
    for number, value in ((1, kind), (3, repetition), (4, name), (5, children), (6, converted)):
        if value is None:
            continue
        is_text = isinstance(value, str)
        out += bytes([(number - last) << 4 | (8 if is_text else 5)])
        out += _text(value) if isinstance(value, str) else _varint(value << 1)
        last = number
    return out + b"\0"


def _text(text: str) -> bytes:
    data = text.encode()
    return _varint(len(data)) + data


def _list_header(count: int, kind: int) -> bytes:
    return bytes([count << 4 | kind]) if count < 15 else bytes([0xF0 | kind]) + _varint(count)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class _Description:
    """What is said of each of E row groups, all in as many bytes: what they share, and numbers between."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._shared = bytearray()
        self._own: list[tuple[int, np.ndarray]] = []

    def add(self, shared: bytes, values: np.ndarray | None = None) -> None:
        """Bytes that are the same for all, and a number of each behind them."""
        self._shared += shared
        if values is not None:
            self.add_bytes(_varints(values))

    def add_bytes(self, own: np.ndarray) -> None:
        """``[E, n] uint8``."""
        self._own.append((len(self._shared), own))
        self._shared += bytes(own.shape[1])

    def bytes(self) -> bytes:
        """All of it."""
        out = np.tile(np.frombuffer(self._shared, np.uint8), (self._count, 1))
        for place, own in self._own:
            out[:, place : place + own.shape[1]] = own
        return out.tobytes()


def _varints(values: np.ndarray) -> np.ndarray:
    """``[E, n] uint8``: numbers that are not negative, zigzag, each in as many bytes, whether or not it needs them."""
    doubled = np.asarray(values, np.int64) << 1
    out = ((doubled[:, None] >> (7 * np.arange(_VARINT_BYTES))) & 0x7F).astype(np.uint8)
    out[:, :-1] |= 0x80
    return out
