"""Row groups written without pyarrow are what pyarrow reads, and can be found again from their bytes alone."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rlds2buf.codecs.arrow.parquet import column_of, leaf_of, spec_of_leaf
from rlds2buf.codecs.arrow.row_groups import BINARY, MAGIC, PICTURE, TEXT, RowColumn, RowGroups

KINDS = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "float32", "float64"]


def file_of(
    groups: RowGroups, blocks: list[tuple[dict[str, np.ndarray], np.ndarray]], limits: dict[str, np.ndarray]
) -> bytes:
    made = [groups.encode(columns, edges) for columns, edges in blocks]
    body = b"".join(part for part, _ in made)
    sizes = np.concatenate([size for _, size in made])
    lengths = np.concatenate([np.diff(edges) for _, edges in blocks])
    found_sizes, found_lengths = groups.scan(body)
    assert np.array_equal(found_sizes, sizes) and np.array_equal(found_lengths, lengths)
    return MAGIC + body + groups.footer(sizes, lengths, limits)


@given(st.data())
def test_pyarrow_reads_what_was_written(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    edges = np.append(0, np.cumsum(lengths))
    count = int(edges[-1])
    shapes = st.lists(st.integers(1, 3), max_size=5).map(tuple)
    specs = data.draw(st.lists(st.tuples(st.sampled_from(KINDS), shapes), min_size=1, max_size=4))
    columns: dict[str, np.ndarray] = {"number": np.arange(count)}
    kinds = [RowColumn("number", "int64", sorted=True)]
    for i, (kind, shape) in enumerate(specs):
        kinds.append(RowColumn(f"c{i}", kind, shape))
        columns[f"c{i}"] = data.draw(arrays.arrays(kind, (count, *shape)))
    texts = np.empty(count, object)
    texts[:] = [b"x" * int(n) for n in data.draw(arrays.arrays(np.uint16, count, elements=st.integers(0, 3000)))]
    for name, kind in (("text", TEXT), ("cell", BINARY), ("picture", PICTURE)):
        kinds.append(RowColumn(name, kind))
        columns[name] = texts
    groups = RowGroups(kinds, {"note": "a"})
    middle = len(lengths) // 2
    blocks = [
        ({name: column[edges[a] : edges[b]] for name, column in columns.items()}, edges[a : b + 1] - edges[a])
        for a, b in ((0, middle), (middle, len(lengths)))
        if a < b
    ]
    file = parquet.ParquetFile(
        io.BytesIO(file_of(groups, blocks, {"number": np.stack([edges[:-1], edges[1:] - 1], 1)}))
    )
    assert file.num_row_groups == len(lengths)
    assert file.metadata.metadata[b"note"] == b"a"
    for i, length in enumerate(lengths):
        described = file.metadata.row_group(i)
        numbers = described.column(0).statistics
        assert (described.num_rows, numbers.min, numbers.max) == (length, edges[i], edges[i + 1] - 1)
        table = file.read_row_group(i)
        table.validate(full=True)
        for kind in kinds:
            same(table.combine_chunks().to_batches()[0], kind, columns[kind.name][edges[i] : edges[i + 1]])


def same(batch: Any, kind: RowColumn, expected: np.ndarray) -> None:
    if kind.kind == PICTURE:
        assert batch["picture"].to_pylist() == [{"bytes": cell, "path": None} for cell in expected.tolist()]
        return
    array = leaf_of(batch, (kind.name,))
    spec = spec_of_leaf(array.type, array)
    found = column_of(array, spec)
    assert found.dtype == expected.dtype and found.shape == expected.shape
    assert found.tolist() == expected.tolist() if expected.dtype == object else found.tobytes() == expected.tobytes()


def test_large_pages_are_compressed() -> None:
    groups = RowGroups([RowColumn("zeros", "int64"), RowColumn("noise", "int64")])
    noise = np.random.default_rng(0).integers(0, 1 << 62, 5000)
    columns = {"zeros": np.zeros(5000, np.int64), "noise": noise}
    file = parquet.ParquetFile(io.BytesIO(file_of(groups, [(columns, np.array([0, 5000]))], {})))
    zeros, other = (file.metadata.row_group(0).column(i) for i in range(2))
    assert zeros.compression == "SNAPPY" and zeros.total_compressed_size < 5000
    assert zeros.total_uncompressed_size > 40_000
    assert other.total_compressed_size <= other.total_uncompressed_size
    assert file.read()["noise"].to_numpy().tolist() == noise.tolist()


def test_what_is_cut_off_is_not_found_again() -> None:
    groups = RowGroups([RowColumn("a", "float32", (3,)), RowColumn("b", "bool")])
    body, _ = groups.encode({"a": np.ones((7, 3), np.float32), "b": np.ones(7, np.bool_)}, np.array([0, 3, 7]))
    for stop in (1, 10, len(body) // 2 + 1, len(body) - 1):
        with pytest.raises(ValueError, match=r"missing|cut off|no page"):
            groups.scan(body[:stop])
    with pytest.raises(ValueError, match=r"no page|cut off"):
        groups.scan(body + b"\x15\x00\x16")
