"""Columns into examples, against a writer that goes value by value, and back through our reader."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf import FieldSpec, SpecMismatch, StepSpec
from rlds2buf.codecs.images.decode import decode_image
from rlds2buf.codecs.images.png import encode_png
from rlds2buf.codecs.images.stored_image import StoredImage
from rlds2buf.codecs.tfrecord.example import parse_example
from rlds2buf.codecs.tfrecord.frames import frame
from rlds2buf.formats.rlds.features import Sequence
from rlds2buf.formats.rlds.features_writer import step_features
from rlds2buf.formats.rlds.leaf_reader import leaf_readers
from rlds2buf.formats.rlds.leaf_writer import LeafWriter, encode_varints, example_records, leaf_writers
from tests.formats.reverb.messages import varint
from tests.reference.example_writer import naive_example

INTS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64", "complex64", "complex128")


@st.composite
def columns(draw: Any) -> tuple[FieldSpec, np.ndarray]:
    """A field and a column ``[N, ...]`` for it, any bits."""
    rows = draw(st.integers(0, 5))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=2)))
    dtype = np.dtype(draw(st.sampled_from((*INTS, *FLOATS))))
    count = rows * int(np.prod(shape))
    if dtype == np.bool_:
        flat = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)), np.bool_)
    else:
        size = count * dtype.itemsize
        flat = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), dtype)
    if dtype.kind == "f":  # a NaN's other bits change when Python's floats are made of it
        flat = np.where(np.isnan(flat), dtype.type(np.nan), flat)
    if draw(st.booleans()) and dtype.kind in "iu":
        flat = flat % 100  # one byte each
    varies = draw(st.booleans())
    spec_shape = tuple(None if varies and draw(st.booleans()) else n for n in shape)
    return FieldSpec(spec_shape, dtype), flat.reshape(rows, *shape)


def written(field: FieldSpec, column: np.ndarray) -> tuple[Any, bytes]:
    """The features of a dataset with that field alone, and one record of it."""
    tree, lost = step_features(StepSpec(observation=field, reward=None, discount=None))
    assert not lost
    features = {"steps": Sequence({"observation": tree["observation"]})}
    (writer,) = leaf_writers(features).values()
    return features, record(writer, column)


def record(writer: LeafWriter, column: np.ndarray) -> bytes:
    data: bytes = example_records(writer.write(column, np.array([0, len(column)])))[0][0]
    return data


def read(features: Any, record: bytes) -> np.ndarray:
    reader = leaf_readers(features["steps"].feature, "steps", (None,))["observation"]
    array: np.ndarray = reader.read(parse_example(record))
    return array


@settings(deadline=None)
@given(columns())
def test_any_column_as_value_by_value_and_back(given_: tuple[FieldSpec, np.ndarray]) -> None:
    field, column = given_
    features, record = written(field, column)
    assert record == naive_example(features, {"steps": {"observation": column}})
    got = read(features, record)
    assert got.dtype == column.dtype and len(got) == len(column)
    if len(column):
        assert got.shape == column.shape or not column.size  # lengths behind one that is 0 are not stored
    same = np.array_equal(got, column, equal_nan=True) if column.dtype.kind in "fc" else np.array_equal(got, column)
    assert same or not column.size


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=5),
    st.sampled_from(("int64", "uint32", "float32", "float64")),
    st.sampled_from([(None, None), (None, 2)]),
)
def test_rows_whose_shapes_differ(shapes: list[tuple[int, int]], dtype: str, field: tuple[int | None, ...]) -> None:
    column = np.empty(len(shapes), object)
    for i, shape in enumerate(shapes):
        shape = tuple(n if want is None else want for n, want in zip(shape, field, strict=True))
        column[i] = np.arange(np.prod(shape), dtype=dtype).reshape(shape)
    features, record = written(FieldSpec(field, np.dtype(dtype)), column)
    if dtype != "uint32" or field[1] is not None:
        assert record == naive_example(features, {"steps": {"observation": column}})
    got = read(features, record)
    assert len(got) == len(column)
    for one, other in zip(got, column, strict=True):
        assert np.asarray(one).tolist() == other.tolist()


@given(st.lists(st.lists(st.binary(max_size=200), max_size=3), max_size=4))
def test_byte_strings_of_varying_number(rows: list[list[bytes]]) -> None:
    column = np.empty(len(rows), object)
    for i, row in enumerate(rows):
        column[i] = np.array(row, object)
    features, record = written(FieldSpec((None,), np.dtype(object)), column)
    assert record == naive_example(features, {"steps": {"observation": rows}})
    assert [list(row) for row in read(features, record)] == rows


@given(st.lists(st.one_of(st.binary(max_size=300), st.text(max_size=5)), max_size=6))
def test_texts_and_byte_strings(texts: list[bytes | str]) -> None:
    column = np.empty(len(texts), object)
    column[:] = texts
    features, record = written(FieldSpec((), np.dtype(object)), column)
    assert read(features, record).tolist() == [t.encode() if isinstance(t, str) else t for t in texts]


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300), max_size=20))
def test_varints(values: list[int]) -> None:
    assert bytes(encode_varints(np.array(values, np.int64))[0]) == b"".join(map(varint, values))


def test_varints_of_every_width() -> None:
    edges = [2**i + d for i in range(0, 64, 7) for d in (-1, 0, 1)]
    values = [v for v in edges if 0 <= v < 2**64]
    assert bytes(encode_varints(np.array(values, np.uint64))[0]) == b"".join(map(varint, values))


@settings(deadline=None)
@given(columns(), st.lists(st.integers(0, 5), max_size=4))
def test_a_block_is_its_records_one_by_one(given_: tuple[FieldSpec, np.ndarray], cuts: list[int]) -> None:
    field, column = given_
    features, _ = written(field, column)
    (writer,) = leaf_writers(features).values()
    edges = np.sort([0, *(min(cut, len(column)) for cut in cuts), len(column)])
    records = example_records(writer.write(column, edges))
    alone = [record(writer, column[start:stop]) for start, stop in itertools.pairwise(edges.tolist())]
    assert bytes(records.whole) == b"".join(map(frame, alone))


@pytest.mark.parametrize("bits", [0x7FA00001, 0xFFC12345, 0x80000000, 1])
def test_floats_keep_every_bit(bits: int) -> None:
    column = np.full(3, bits, np.uint32).view(np.float32)
    features, record = written(FieldSpec((), np.dtype("f4")), column)
    assert read(features, record).tobytes() == column.tobytes()


def test_columns_that_are_not_contiguous_or_of_another_byte_order() -> None:
    base = np.arange(24, dtype=">f4").reshape(4, 6)
    features, record = written(FieldSpec((3,), np.dtype("f4")), base[:, ::2])
    np.testing.assert_array_equal(read(features, record), base[:, ::2].astype("f4"))
    features, record = written(FieldSpec((3,), np.dtype("f8")), base[::2, ::2].astype(">f8"))
    np.testing.assert_array_equal(read(features, record), base[::2, ::2].astype("f8"))


def test_files_of_pictures_pass_untouched_and_pixels_become_png() -> None:
    image = FieldSpec((), np.dtype(object), image=FieldSpec((40, 40, 3), np.dtype("u1")))
    column = np.array([b"\xff\xd8 one", b"\xff\xd8 two!", b""], object)
    features, record = written(image, column)
    assert isinstance(features["steps"].feature["observation"], StoredImage)
    assert parse_example(record)["steps/observation"].strings() == column.tolist()
    pixels = np.random.default_rng(0).integers(0, 256, (2, 40, 40, 3), np.uint8)
    features, record = written(FieldSpec((40, 40, 3), np.dtype("u1")), pixels)
    assert isinstance(features["steps"].feature["observation"], StoredImage)
    np.testing.assert_array_equal(read(features, record), pixels)


def test_several_pictures_a_step() -> None:
    field = FieldSpec((2,), np.dtype(object), image=FieldSpec((40, 40, 3), np.dtype("u1")))
    column = np.array([[b"a", b"bc"], [b"", b"d"]], object)
    features, record = written(field, column)
    assert parse_example(record)["steps/observation/ragged_flat_values"].strings() == [b"a", b"bc", b"", b"d"]
    assert parse_example(record)["steps/observation/ragged_row_lengths_0"].ints().tolist() == [2, 2]
    assert record == naive_example(features, {"steps": {"observation": column}})


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("size", [(1, 1), (7, 5), (64, 33)])
def test_png_files_are_lossless(size: tuple[int, int], dtype: Any, channels: int) -> None:
    rng = np.random.default_rng(channels)
    pixels = rng.integers(0, np.iinfo(dtype).max, (*size, channels), dtype, endpoint=True)
    if dtype == np.uint16 and channels > 1:
        # Pillow reads only gray of sixteen bits: look at the raw rows instead.
        assert encode_png(pixels)[24:26] == bytes([16, {2: 4, 3: 2, 4: 6}[channels]])
        return
    np.testing.assert_array_equal(decode_image(encode_png(pixels), channels, dtype), pixels)


@pytest.mark.parametrize("wrong", [np.zeros((2, 2, 5), np.uint8), np.zeros((2, 2, 3)), np.zeros((0, 2, 3), np.uint8)])
def test_what_is_no_picture(wrong: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"picture|pixel"):
        encode_png(wrong)


@pytest.mark.parametrize(
    ("field", "cells", "message"),
    [
        (FieldSpec((), object), [b"a", 3], "step 1, observation: a int where a byte string"),
        (FieldSpec((None,), "f4"), [np.zeros(2, "f4"), np.zeros(2)], r"step 1, observation: an array float64\[2\]"),
        (FieldSpec((None,), "f4"), [np.zeros((2, 2), "f4")], "step 0, observation: an array"),
        (FieldSpec((None,), "u4"), [np.zeros(2, "i8")], "observation: an array of int64"),
        (FieldSpec((None,), object), [b"no row"], "observation: a bytes where"),
        (FieldSpec((None, None, 3), "u1"), [np.zeros((0, 4, 3), "u1")], "step 0, observation: a picture without"),
    ],
)
def test_cells_that_do_not_fit(field: FieldSpec, cells: list[Any], message: str) -> None:
    column = np.empty(len(cells), object)
    for i, cell in enumerate(cells):
        column[i] = cell
    with pytest.raises(SpecMismatch, match=message):
        written(field, column)
