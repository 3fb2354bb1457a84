from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf.codecs.tfrecord.example import KINDS, ExampleParser, Feature, decode_varints, parse_example
from rlds2buf.errors import SourceFormatError
from tests.codecs.tfrecord.encodings import INT64, VALUES, any_encoding
from tests.formats.reverb import messages
from tests.reference import example as naive


def decode_all(data: bytes) -> dict[str, tuple[str, list]]:
    """As the naive twin gives it."""
    out = {}
    for key, feature in parse_example(data).items():
        kind = KINDS[feature.kind]
        read = {"no": list, "bytes": feature.strings, "float": feature.floats, "int64": feature.ints}[kind]
        values = read()
        out[key] = (kind, values if isinstance(values, list) else values.tolist())
    return out


def same(one: dict, other: dict) -> bool:
    def bits(features: dict) -> dict:
        return {
            key: (
                kind,
                [struct.pack("<f", v) if isinstance(v, float) and not math.isnan(v) else repr(v) for v in values],
            )
            for key, (kind, values) in features.items()
        }

    return bits(one) == bits(other)


@given(features=st.dictionaries(st.text(max_size=8), VALUES, max_size=5), packed=st.booleans())
def test_reads_what_was_written(features, packed):
    assert same(decode_all(messages.example(features, packed)), features)


@given(data=any_encoding())
def test_agrees_with_the_naive_twin_on_every_legal_encoding(data):
    assert same(decode_all(data), naive.decode_example(data))


@settings(max_examples=400)
@given(data=any_encoding(), at=st.integers(0, 10**6), byte=st.integers(0, 255), cut=st.booleans())
def test_agrees_with_the_naive_twin_on_damage(data, at, byte, cut):
    if data:
        at %= len(data)
        data = data[:at] if cut else data[:at] + bytes([byte]) + data[at + 1 :]
    try:
        expected = naive.decode_example(data)
    except naive.Malformed:
        with pytest.raises(SourceFormatError):
            decode_all(data)
    else:
        assert same(decode_all(data), expected)


@given(data=st.binary(max_size=40))
def test_noise_is_an_error_or_agrees_with_the_naive_twin(data):
    try:
        expected = naive.decode_example(data)
    except naive.Malformed:
        with pytest.raises(SourceFormatError):
            decode_all(data)
    else:
        assert same(decode_all(data), expected)


@given(values=st.lists(INT64))
def test_varints(values):
    data = b"".join(map(messages.varint, values))
    decoded = decode_varints(np.frombuffer(data, np.uint8))
    assert decoded.dtype == np.int64
    assert decoded.tolist() == values


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int8, np.int32, np.uint64])
def test_ints_are_cast_as_c_casts(dtype):
    values = [0, 1, 127, 128, 255, 256, -1, -(2**63)]
    feature = parse_example(messages.example({"x": ("int64", values)}))["x"]
    assert np.array_equal(feature.ints(dtype), np.array(values).astype(dtype))
    assert feature.ints(dtype).dtype == dtype


@pytest.mark.parametrize("packed", [True, False])
def test_packed_floats_are_a_view_of_the_record(packed):
    record = messages.example({"x": ("float", [1.5, -2.0])}, packed)
    values = parse_example(record)["x"].floats()
    assert values.dtype == np.float32
    assert np.shares_memory(values, np.frombuffer(record, np.uint8)) == packed


def test_equal_strings_are_one_object():
    first, second, third = parse_example(messages.example({"x": ("bytes", [b"pick up the cup"] * 3)}))["x"].strings()
    assert first is second is third


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "has no end"),
        (b"\x0a\x80", "has no end"),
        (b"\x0a\x05ab", "past the end"),
        (b"\x02\x00", "bad tag"),
        (b"\x0b\x00", "no wire type 3"),
        (b"\x0d\x00", "ends past its message"),
        (messages.delimited(1, messages.delimited(1, messages.delimited(1, b"\xff"))), "not UTF-8"),
    ],
)
def test_a_broken_message_is_named(data, message):
    with pytest.raises(SourceFormatError, match=message):
        parse_example(data)


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        (3, messages.delimited(1, b"\xff" * 20), "varint"),
        (3, messages.delimited(1, b"\x80" * 12 + b"\x01"), "has 13 bytes"),
        (3, messages.delimited(1, b"\x01\x80"), "has no end"),
        (3, b"\x0a\x7f\x01", "past the end"),
        (2, messages.delimited(1, b"\x00" * 7), "whole number of floats"),
        (2, b"\x08\x01", "bad tag"),
        (1, b"\x0a\x09short", "past the end"),
        (1, b"\x08\x01", "bad tag"),
    ],
)
def test_a_broken_list_is_named(kind, body, message):
    feature = Feature(kind, body, 0, len(body))
    read = {1: feature.strings, 2: feature.floats, 3: feature.ints}[kind]
    with pytest.raises(SourceFormatError, match=message):
        read()


def test_the_wrong_kind_is_an_error():
    feature = parse_example(messages.example({"x": ("float", [1.0])}))["x"]
    with pytest.raises(SourceFormatError, match="float values, not int64"):
        feature.ints()
    with pytest.raises(SourceFormatError, match="float values, not bytes"):
        feature.strings()


def test_a_feature_without_a_list_has_no_values_of_any_kind():
    record = messages.delimited(1, messages.delimited(1, messages.delimited(1, b"x")))
    feature = parse_example(record)["x"]
    assert feature.strings() == []
    assert feature.ints().shape == feature.floats().shape == (0,)


def places(features: dict[str, Feature]) -> dict[str, tuple[int, bytes]]:
    return {key: (f.kind, f.data[f.start : f.stop]) for key, f in features.items()}


@settings(max_examples=200)
@given(
    records=st.lists(any_encoding(), min_size=1, max_size=4),
    order=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10**6), st.integers(0, 255)), min_size=2, max_size=12),
)
def test_finds_what_a_fresh_parse_finds(records, order):
    parser = ExampleParser()
    for number, at, byte in order:
        record = bytearray(records[number % len(records)])
        if record:
            record[at % len(record)] = byte  # same length, another value or another structure
        expected, found = [], []
        for parse, out in ((parse_example, expected), (parser.parse, found)):
            try:
                out.append(places(parse(bytes(record))))
            except ValueError as error:
                out.append(str(error))
        assert found == expected


def test_records_of_one_layout():
    parser = ExampleParser()
    for i in range(5):
        record = messages.example({"x": ("float", [i, -i]), "flag": ("int64", [i % 2, 1])})
        features = parser.parse(record)
        assert features["x"].floats().tolist() == [i, -i]
        assert features["flag"].ints(bool).tolist() == [bool(i % 2), True]


def test_equal_lengths_with_another_name_or_order():
    parser = ExampleParser()
    one = messages.example({"a": ("int64", [1]), "b": ("int64", [2])})
    other = messages.example({"b": ("int64", [2]), "a": ("int64", [1])})
    renamed = messages.example({"a": ("int64", [1]), "c": ("int64", [2])})
    for record in (one, one, other, renamed, one):
        assert places(parser.parse(record)) == places(parse_example(record))


def test_of_two_features_of_one_name_the_last_counts():
    twice = b"".join(
        messages.delimited(1, messages.delimited(1, b"x") + messages.delimited(2, messages.feature("int64", [value])))
        for value in (1, 2)
    )
    parser = ExampleParser()
    for _ in range(3):
        assert parser.parse(messages.delimited(1, twice))["x"].ints().tolist() == [2]
