from __future__ import annotations

import io
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rlds2buf.codecs.tfrecord.example import parse_example
from rlds2buf.core import nest
from rlds2buf.errors import SourceFormatError
from rlds2buf.formats.rlds.features import parse_features
from rlds2buf.formats.rlds.leaf_reader import cut_rows, leaf_readers
from tests.formats.reverb.messages import example
from tests.formats.rlds.folder import features_dict, sequence, tensor

CORE = "tensorflow_datasets.core.features"
TEXT = {"pythonClassName": f"{CORE}.text_feature.Text", "text": {}}
PICTURE = {
    "pythonClassName": f"{CORE}.image_feature.Image",
    "image": {"shape": {"dimensions": ["-1", "-1", "3"]}, "dtype": "uint8"},
}


def png(height: int, width: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((height, width, 3), height, np.uint8)).save(file, "PNG")
    return file.getvalue()


FEATURES = parse_features(
    features_dict(
        {
            "plain": tensor((2,), "int32"),
            "float": tensor((), "float64"),
            "text": TEXT,
            "raw": tensor((2,), "int16", "bytes"),
            "zipped": tensor((-1,), "uint8", "zlib"),
            "any": tensor((-1, -1), "int8", "zlib"),
            "ragged": sequence(sequence(tensor((), "int64"))),
            "video": sequence(PICTURE),
        }
    )
)
RECORD = {
    "steps/plain": ("int64", [1, -1, 200, 3, 4, 5]),
    "steps/float": ("float", [0.5, 1.5, 2.5]),
    "steps/text": ("bytes", [b"a", b"bc", b""]),
    "steps/raw": ("bytes", [b"abcd", b"efgh", b"ijkl"]),
    "steps/zipped": ("bytes", [zlib.compress(bytes(n)) for n in range(3)]),
    "steps/any/value": ("bytes", [zlib.compress(bytes(6))] * 3),
    "steps/any/shape": ("int64", [2, 3, 3, 2, 6, 1]),
    "steps/ragged/ragged_flat_values": ("int64", [1, 2, 300]),
    "steps/ragged/ragged_row_lengths_0": ("int64", [1, 0, 2]),
    "steps/ragged/ragged_row_lengths_1": ("int64", [1, 0, 2]),
    "steps/video/ragged_flat_values": ("bytes", [png(2, 3), png(2, 3), png(4, 1)]),
    "steps/video/ragged_row_lengths_0": ("int64", [1, 1, 1]),
}
READERS = leaf_readers(FEATURES, "steps", (None,))


def read(record: bytes):
    features = parse_example(record)
    return nest.map_structure(lambda reader: reader.read(features), READERS)


def test_everything_is_read():
    columns = read(example(RECORD))
    assert {len(column) for column in columns.values()} == {3}
    assert [cell.shape for cell in columns["any"]] == [(2, 3), (3, 2), (6, 1)]
    assert [cell.shape for cell in columns["video"]] == [(1, 2, 3, 3), (1, 2, 3, 3), (1, 4, 1, 3)]
    assert [[len(inner) for inner in row] for row in columns["ragged"]] == [[1], [], [0, 2]]


@settings(max_examples=600, deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4))
def test_damage_is_read_or_a_format_error_and_nothing_else(changes):
    record = bytearray(example(RECORD))
    for at, byte in changes:
        record[at % len(record)] = byte
    try:
        columns = read(bytes(record))
    except SourceFormatError as error:
        assert str(error)
    else:
        assert all(isinstance(column, np.ndarray) for column in columns.values())


@settings(max_examples=300, deadline=None)
@given(
    key=st.sampled_from(sorted(key for key, (kind, _) in RECORD.items() if kind == "int64" and "/" in key[6:])),
    values=st.lists(
        st.one_of(st.integers(-3, 9), st.sampled_from([2**31, 2**62, 2**63 - 1, -(2**63), 2**63 - 2])),
        min_size=3,
        max_size=6,
    ),
)
def test_absurd_shapes_and_lengths(key, values):
    try:
        read(example({**RECORD, key: ("int64", values)}))
    except SourceFormatError as error:
        assert str(error)


@given(lengths=st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=4))
def test_rows_are_those_of_a_loop(lengths):
    inner = np.array([n for row in lengths for n in row], np.int64)
    outer = np.array([len(row) for row in lengths], np.int64)
    values = np.arange(inner.sum())
    at, expected = 0, []
    for row in lengths:
        expected.append([])
        for n in row:
            expected[-1].append(values[at : at + n].tolist())
            at += n
    rows = cut_rows(cut_rows(values, inner), outer)
    assert [[cell.tolist() for cell in row] for row in rows] == expected


def test_rows_that_do_not_add_up():
    for lengths in ([1, 1], [2**62, 2**62, 2**62, 2**62, 3]):
        with pytest.raises(SourceFormatError, match="3 values for rows of"):
            cut_rows(np.arange(3), np.array(lengths))


def test_tensors_of_unknown_shape_need_an_encoding():
    for lengths, shape in (((None,), (-1,)), ((), (-1, -1))):
        with pytest.raises(SourceFormatError, match="x: a tensor of unknown shape"):
            leaf_readers(parse_features(tensor(shape, "int8")), "x", lengths)


def test_a_tensor_without_values_has_no_rows_to_count():
    reader = leaf_readers(parse_features(tensor((0,), "int8")), "x", (None,))
    with pytest.raises(SourceFormatError, match="rows can't be counted"):
        reader.read(parse_example(example({"x": ("int64", [])})))
