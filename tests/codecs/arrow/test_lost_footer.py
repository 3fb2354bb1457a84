"""Parquet files without a footer: row groups that are whole are read, and never something else."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2buf.codecs.arrow import thrift
from rlds2buf.codecs.arrow.lost_footer import WithFooter, footer_of, made_footer, recovered_footer
from rlds2buf.codecs.arrow.parquet import open_parquet

KINDS = {
    "state": ("float32", (3,)),
    "grid": ("float64", (2, 2)),
    "done": ("bool", ()),
    "index": ("int64", ()),
    "small": ("uint8", ()),
    "note": ("string", ()),
    "picture": ("image", ()),
}
WIDTHS = {"state": 3, "grid": 4, "done": 1, "index": 1, "small": 1, "note": 1, "picture": 1}


def part(first: int, rows: int) -> pa.Table:
    """Rows of every kind of column, in no way alike."""
    rng = np.random.default_rng(first)
    pictures = [{"bytes": rng.bytes(2000), "path": f"frame-{first + i}.png"} for i in range(rows)]
    return pa.table(
        {
            "state": pa.array(rng.normal(size=(rows, 3)).tolist(), pa.list_(pa.float32())),
            "grid": pa.array(rng.normal(size=(rows, 2, 2)).tolist(), pa.list_(pa.list_(pa.float64()))),
            "done": pa.array(rng.integers(0, 2, rows).astype(bool)),
            "index": pa.array(np.arange(first, first + rows)),
            "small": pa.array(rng.integers(0, 9, rows).astype(np.uint8)),
            "note": pa.array([f"note {i} é" for i in range(rows)]),
            "picture": pa.array(pictures, pa.struct({"bytes": pa.binary(), "path": pa.string()})),
        }
    )


def write(path: Path, sizes: tuple[int, ...] = (5, 400, 1), **options) -> pa.Table:
    parts = [part(sum(sizes[:i]), size) for i, size in enumerate(sizes)]
    with pq.ParquetWriter(path, parts[0].schema, **options) as writer:
        for one in parts:
            writer.write_table(one)
    return pa.concat_tables(parts)


def cut(path: Path, end: int | None = None) -> bytes:
    """Take the footer from a file, and what is behind `end`; the footer."""
    footer = footer_of(path)
    path.write_bytes(path.read_bytes()[: -len(footer)][:end])
    return footer


def read(path: Path, footer: bytes) -> pa.Table:
    with open_parquet(path, footer) as parquet:
        return parquet.read()


@pytest.mark.parametrize(
    "options",
    [{}, {"compression": "zstd"}, {"compression": "none"}, {"data_page_version": "2.0"}, {"data_page_size": 512}],
    ids=lambda options: ",".join(options) or "usual",
)
def test_all_row_groups_are_read_by_the_footer_of_a_file_alike(tmp_path, options):
    path = tmp_path / "a.parquet"
    whole = write(path, **options)
    footer = recovered_footer(path, cut(path), WIDTHS)
    assert footer is not None and read(path, footer).equals(whole)


def test_a_footer_of_another_file_does_as_well(tmp_path):
    path, other = tmp_path / "a.parquet", tmp_path / "b.parquet"
    whole = write(path)
    write(other, (7,))
    cut(path)
    assert read(path, recovered_footer(path, footer_of(other), WIDTHS)).equals(whole)


def test_a_footer_that_was_made_does_as_well(tmp_path):
    path = tmp_path / "a.parquet"
    whole = write(path)
    cut(path)
    found = read(path, recovered_footer(path, made_footer(KINDS), WIDTHS))
    assert found.to_pylist() == whole.to_pylist()


def test_a_file_that_ends_anywhere_gives_the_row_groups_before(tmp_path):
    path = tmp_path / "a.parquet"
    whole = write(path, (5, 6, 7))
    content = path.read_bytes()
    footer = cut(path)
    ends = {0: 0}
    with WithFooter(path, footer) as opened:
        metadata = pq.ParquetFile(opened).metadata
        for i, rows in enumerate((5, 11, 18)):
            last = metadata.row_group(i).column(metadata.num_columns - 1)
            start = last.dictionary_page_offset or last.data_page_offset
            ends[start + last.total_compressed_size] = rows
    for end in [*range(60), *random.Random(1).sample(range(len(content)), 60), *ends, *(e - 1 for e in ends)]:
        path.write_bytes(content[: max(end, 0)])
        found = recovered_footer(path, footer, WIDTHS)
        rows = max(count for at, count in ends.items() if at <= max(end, 0))
        assert (0 if found is None else read(path, found).num_rows) == rows, end
        assert found is None or read(path, found).equals(whole.slice(0, rows))


def test_damage_is_never_read_as_other_rows(tmp_path):
    """Bytes that are changed make fewer row groups, or pages that can't be read; counts stay those of the columns."""
    path = tmp_path / "a.parquet"
    write(path, (5, 6, 7))
    footer = cut(path)
    content = bytearray(path.read_bytes())
    rng = random.Random(2)
    for _ in range(150):
        at = rng.randrange(len(content))
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :])
        found = recovered_footer(path, footer, WIDTHS)
        if found is not None:
            with WithFooter(path, found) as opened:
                assert pq.ParquetFile(opened).metadata.num_rows in (5, 11, 18)


@pytest.mark.parametrize("widths", [{**WIDTHS, "state": 2}, {**WIDTHS, "index": 2}, {"state": 3}])
def test_columns_that_are_not_as_told_are_not_guessed(tmp_path, widths):
    path = tmp_path / "a.parquet"
    write(path)
    assert recovered_footer(path, cut(path), widths) is None


def test_columns_of_another_type_are_not_guessed(tmp_path):
    path = tmp_path / "a.parquet"
    write(path)
    cut(path)
    assert recovered_footer(path, made_footer({**KINDS, "state": ("float64", (3,))}), WIDTHS) is None


def test_what_is_no_footer(tmp_path):
    path = tmp_path / "a.parquet"
    write(path)
    cut(path)
    for like in (b"", b"PAR1", b"\x00" * 64, b"\xff" * 64):
        assert recovered_footer(path, like, WIDTHS) is None


def test_a_type_that_numpy_does_not_have():
    with pytest.raises(ValueError, match="no type 'language'"):
        made_footer({"text": ("language", ())})


def test_a_file_with_a_footer_is_read_as_one(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"0123456789")
    with WithFooter(path, b"abc") as opened:
        assert opened.read() == b"0123456789abc" and opened.read(1) == b""
        opened.seek(-5, 2)
        assert opened.read(4) == b"89ab" and opened.tell() == 12
        opened.seek(1)
        opened.seek(2, 1)
        assert opened.read(2) == b"34"


NUMBERS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.lists(st.binary(max_size=3), max_size=20)
VALUES = st.deferred(
    lambda: st.one_of(
        st.tuples(st.just(thrift.I64), NUMBERS),
        st.tuples(st.just(thrift.BINARY), st.binary(max_size=20)),
        st.tuples(st.just(thrift.STRUCT), STRUCTS),
        st.tuples(st.just(thrift.LIST), st.tuples(st.just(thrift.I64), st.lists(NUMBERS, max_size=20))),
        st.tuples(
            st.just(thrift.LIST), st.tuples(st.just(thrift.BINARY), st.lists(st.binary(max_size=3), max_size=20))
        ),
    )
)
STRUCTS = st.dictionaries(st.integers(1, 300), VALUES, max_size=4)


@given(STRUCTS)
def test_structures_read_back(fields):
    content = thrift.write_struct(fields)
    assert thrift.read_struct(content + b"more") == (fields, len(content))


@given(st.binary(max_size=200))
def test_bytes_that_are_no_structure_are_malformed(data):
    try:
        _, end = thrift.read_struct(data)
    except thrift.Malformed:
        return
    assert 0 < end <= len(data)


def test_a_real_footer_is_written_as_it_was_read(tmp_path):
    path = tmp_path / "a.parquet"
    write(path)
    content = footer_of(path)[:-8]
    fields, end = thrift.read_struct(content)
    assert end == len(content) and thrift.write_struct(fields) == content
