"""MessagePack, in each of its forms, and damaged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2buf import SourceFormatError
from rlds2buf.codecs.message_pack import Closed, unpack
from tests.reference.msgpack import pack

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_anything_written_is_read(value: Any) -> None:
    assert unpack(pack(value)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7f", 127), ("ff", -1), ("e0", -32), ("cc ff", 255), ("cd 0100", 256), ("ce 00010000", 65536),
        ("cf ffffffffffffffff", 2**64 - 1), ("d0 80", -128), ("d1 8000", -32768), ("d2 80000000", -(2**31)),
        ("ca 3fc00000", 1.5), ("a3 616263", "abc"), ("d9 01 61", "a"), ("da 0001 61", "a"), ("c4 01 61", b"a"),
        ("c5 0001 61", b"a"), ("90", []), ("92 01 02", [1, 2]), ("dc 0001 05", [5]), ("80", {}),
        ("81 a1 61 01", {"a": 1}), ("de 0001 a1 61 01", {"a": 1}),
    ],
)  # fmt: skip
def test_short_forms(text: str, value: Any) -> None:
    found = unpack(bytes.fromhex(text))
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize("dtype", ["<f4", ">f8", "|b1", "|u1", "<i8", "<f2"])
def test_arrays_and_numpy_numbers(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    found = unpack(pack({"a": array, "n": array[1, 2]}))
    np.testing.assert_array_equal(found["a"], array)
    assert (
        found["a"].dtype == np.dtype(dtype) and found["n"] == array[1, 2] and found["n"].dtype.kind == array.dtype.kind
    )


def test_pickles_stay_closed() -> None:
    found = unpack(pack([np.array([{}, None], object), 1]))
    assert isinstance(found[0], Closed) and found[1] == 1 and "pickle" in repr(found[0])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not MessagePack"),
        (b"\x92\x01", "not MessagePack"),
        (b"\xdd\xff\xff\xff\xff", "not MessagePack"),
        (b"\xc6\xff\xff\xff\xff12", "not MessagePack"),
        (b"\x01\x02", "not MessagePack"),
        (b"\xc1", "not MessagePack"),
        (b"\xd4\x01\x01", "the extension type 1"),
        (b"\xa1\xff", "not MessagePack"),
        (b"\x81\x90\x01", "not MessagePack"),
        (b"\x91" * 100_000 + b"\x01", "not MessagePack"),
        (pack({b"nd": True, b"type": b"<f4", b"kind": b"", b"shape": [3], b"data": b"12345678"}), "not MessagePack"),
        (
            pack({b"nd": True, b"type": b"<f4", b"kind": b"", b"shape": [2], b"data": b"1234567"}),
            "an array of <f4 in 7",
        ),
        (pack({b"nd": True, b"type": b"<f4", b"kind": b"", b"shape": [-2], b"data": b"12345678"}), "an array of shape"),
        (pack({b"nd": True, b"type": b"<f4", b"kind": b"V", b"shape": [2], b"data": b"12345678"}), "of structures"),
        (pack({b"nd": True, b"type": b"|O", b"kind": b"", b"shape": [1], b"data": b"12345678"}), r"an array of \|O"),
        (pack({b"nd": True, b"type": b"nonsense", b"kind": b"", b"shape": [1], b"data": b"12345678"}), "MessagePack"),
        (pack({b"nd": False, b"type": b"<f4", b"data": b""}), "a number of <f4 in 0 bytes"),
    ],
)
def test_what_is_none(data: bytes, message: str) -> None:
    with pytest.raises(SourceFormatError, match=message):
        unpack(data)


@given(VALUES, st.data())
def test_damage_is_a_value_or_an_error(value: Any, data: st.DataObject) -> None:
    message = bytearray(pack([value, np.arange(3.0), np.float32(1)]))
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del message[data.draw(st.integers(0, len(message))) :]
    try:
        unpack(bytes(message))
    except SourceFormatError:
        pass
