from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf.codecs.tfrecord.example import ExampleParser, Feature, parse_example
from tests.codecs.tfrecord.test_example import any_encoding
from tests.formats.reverb.messages import delimited, example, feature


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
        record = example({"x": ("float", [i, -i]), "flag": ("int64", [i % 2, 1])})
        features = parser.parse(record)
        assert features["x"].floats().tolist() == [i, -i]
        assert features["flag"].ints(bool).tolist() == [bool(i % 2), True]


def test_equal_lengths_with_another_name_or_order():
    parser = ExampleParser()
    one = example({"a": ("int64", [1]), "b": ("int64", [2])})
    other = example({"b": ("int64", [2]), "a": ("int64", [1])})
    renamed = example({"a": ("int64", [1]), "c": ("int64", [2])})
    for record in (one, one, other, renamed, one):
        assert places(parser.parse(record)) == places(parse_example(record))


def test_of_two_features_of_one_name_the_last_counts():
    twice = b"".join(delimited(1, delimited(1, b"x") + delimited(2, feature("int64", [value]))) for value in (1, 2))
    parser = ExampleParser()
    for _ in range(3):
        assert parser.parse(delimited(1, twice))["x"].ints().tolist() == [2]
