from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rlds2buf.errors import SourceFormatError
from rlds2buf.formats.reverb.protocol.chunks import (
    TENSOR_DTYPES,
    ChunkEncoder,
    Chunks,
    decode_tensor,
    encode_varint,
    tensor_dtype,
)
from rlds2buf.formats.reverb.protocol.messages import message

NUMBERS = sorted(name for name in TENSOR_DTYPES if name != "object")


def decoded(chunk):
    return [decode_tensor(tensor, delta_encoded=chunk.delta_encoded) for tensor in chunk.data.tensors]


def chunk_of(key, episode, start, stop):
    names = (np.array([value], np.uint64) for value in (key, episode))
    return Chunks(np.array([start, stop]), *names, np.array([start]))


def one(encoder, columns):
    return encoder.encode(chunk_of(1, 2, 0, len(columns[0])), [0], columns)[0]


def tensor_of(column):
    return message("ChunkData", one(ChunkEncoder(), [column])).data.tensors[0]


@given(value=st.integers(0, 2**64 - 1))
def test_varints_are_protobufs(value):
    assert message("Uint128", b"\x08" + encode_varint(value)).high == value


@pytest.mark.parametrize("name", NUMBERS)
def test_every_dtype_comes_back(name):
    rng = np.random.default_rng(0)
    column = rng.integers(0, 2, (5, 3, 2)).astype(name)
    shift = np.zeros((32, 3, 2), column.dtype)
    chunk = message(
        "ChunkData",
        ChunkEncoder().encode(
            chunk_of(2**64 - 1, 2**63, 32, 37),
            [0],
            [np.concatenate([shift, column]), np.concatenate([shift, column])[:, 0, 0]],
        )[0],
    )
    assert (chunk.chunk_key, chunk.sequence_range.episode_id) == (2**64 - 1, 2**63)
    assert (chunk.sequence_range.start, chunk.sequence_range.end) == (32, 36)
    assert chunk.data_uncompressed_size == column.nbytes + column[:, 0, 0].nbytes
    first, second = decoded(chunk)
    np.testing.assert_array_equal(first, column, strict=True)
    np.testing.assert_array_equal(second, column[:, 0, 0], strict=True)


@given(
    column=hnp.arrays(
        st.sampled_from(NUMBERS).map(np.dtype), hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5)
    )
)
def test_any_array_comes_back(column):
    back = decode_tensor(tensor_of(column)) if len(column) else column
    assert back.dtype == column.dtype and back.shape == column.shape
    assert back.tobytes() == column.tobytes()


@pytest.mark.parametrize("size", [0, 1, 59, 60, 61, 62, 255, 256, 257, 65535, 65536, 65537, 1 << 24, (1 << 24) + 1])
def test_columns_that_are_not_worth_compressing(size):
    rng = np.random.default_rng(0)
    encoder = ChunkEncoder()
    for _ in range(3):
        column = rng.integers(0, 256, (1, size)).astype(np.uint8)
        tensor = message("ChunkData", one(encoder, [column])).data.tensors[0]
        np.testing.assert_array_equal(decode_tensor(tensor), column)
    assert len(tensor.tensor_content) <= size + 10


def test_a_column_that_becomes_compressible_is_compressed_again():
    rng = np.random.default_rng(0)
    encoder = ChunkEncoder()
    sizes = []
    for number in range(40):
        column = rng.integers(0, 256, (4, 100)).astype(np.uint8) if number < 5 else np.full((4, 100), number, np.uint8)
        tensor = message("ChunkData", one(encoder, [column])).data.tensors[0]
        np.testing.assert_array_equal(decode_tensor(tensor), column)
        sizes.append(len(tensor.tensor_content))
    assert min(sizes[:5]) > 390 and max(sizes[16:]) < 50


def test_columns_that_are_not_contiguous_come_back():
    column = np.arange(60, dtype=np.float32).reshape(10, 6)[::2, ::-3]
    np.testing.assert_array_equal(decode_tensor(tensor_of(column)), column)


@given(values=st.lists(st.binary(max_size=300), min_size=1, max_size=8))
def test_byte_strings_come_back(values):
    column = np.array([*values, None], object)[:-1]
    assert decode_tensor(tensor_of(column)).tolist() == values


def test_nested_byte_strings_keep_their_shape():
    column = np.array([[b"", b"a"], [b"bc", b"\x00" * 200]], object)
    assert decode_tensor(tensor_of(column)).tolist() == column.tolist()


@pytest.mark.parametrize("name", ["uint8", "int16", "int32", "uint64", "float32"])
def test_delta_encoded_integers_are_summed_up(name):
    column = np.random.default_rng(1).integers(0, 250, (7, 4)).astype(name)
    deltas = column.copy()
    for row in range(len(column) - 1, 0, -1):
        if column.dtype.kind in "iu":
            deltas[row] = column[row] - column[row - 1]
    np.testing.assert_array_equal(decode_tensor(tensor_of(deltas), delta_encoded=True), column)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(dtype=99), "dtype number 99"),
        (dict(tensor_content=b""), "not snappy|needs 24 bytes"),
        (dict(tensor_content=b"\x18\x04abc"), "not snappy"),
        (dict(tensor_content=b"\xff\xff\xff\xff\x0f\x00"), "needs 24 bytes and has 4294967295"),
        (dict(tensor_content=b"\x03\x08abc"), "needs 24 bytes and has 3"),
    ],
)
def test_damaged_tensors_are_refused(change, words):
    tensor = tensor_of(np.zeros((2, 3), np.float32))
    for name, value in change.items():
        setattr(tensor, name, value)
    with pytest.raises(SourceFormatError, match=words):
        decode_tensor(tensor)


def test_damaged_strings_are_refused():
    tensor = tensor_of(np.array([b"abc", b"defg"], object))
    whole = tensor.tensor_content
    for length in range(len(whole)):
        tensor.tensor_content = whole[:length]
        with pytest.raises(SourceFormatError):
            decode_tensor(tensor)


def test_dtypes_that_reverb_lacks_are_refused():
    with pytest.raises(ValueError, match="datetime64"):
        tensor_dtype(np.dtype("datetime64[s]"))


@given(data=st.data(), chunks=st.integers(1, 6))
def test_what_is_remembered_does_not_show(data, chunks):
    encoder = ChunkEncoder()
    few = st.sampled_from([np.dtype(np.int32), np.dtype(np.float32), np.dtype(np.bool_)])
    for _ in range(chunks):
        rows = data.draw(st.integers(1, 3), label="rows")
        shape = st.sampled_from([(rows,), (rows, 2), (rows, 0)])
        columns = data.draw(
            st.lists(hnp.arrays(few, shape, elements=st.just(1) | st.just(0)), min_size=1, max_size=2), label="columns"
        )
        found = decoded(message("ChunkData", one(encoder, columns)))
        for column, other in zip(columns, found, strict=True):
            np.testing.assert_array_equal(other, column, strict=True)
