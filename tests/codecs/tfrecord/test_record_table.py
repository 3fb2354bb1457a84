"""Many records walked by compiled code against each of them parsed in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf.codecs.tfrecord.example import KINDS, Feature, parse_example
from rlds2buf.codecs.tfrecord.frames import frame
from rlds2buf.codecs.tfrecord.record_table import Walker
from rlds2buf.core.records import Records
from rlds2buf.errors import SourceFormatError
from tests.codecs.tfrecord.encodings import VALUES, any_encoding
from tests.formats.reverb.messages import example

KEYS = ["", "a", "steps/b", "é"]


def values(feature: Feature) -> list[Any]:
    read: Any = {"bytes": feature.strings, "float": feature.floats, "int64": feature.ints}[KINDS[feature.kind]]
    return listed(read)


def listed(read: Any) -> list[Any]:
    """What there is, floats by their bits; or that it is damaged."""
    try:
        found = read()
    except SourceFormatError:
        return ["damaged"]
    if isinstance(found, np.ndarray) and found.dtype == np.float32:
        return np.ascontiguousarray(found).view(np.int32).tolist()
    return list(found) if isinstance(found, list) else found.tolist()


@st.composite
def usual(draw: st.DrawFn) -> bytes:
    return example(draw(st.dictionaries(st.sampled_from([*KEYS, "no", "ñ"]), VALUES)), draw(st.booleans()))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(usual()))
    for at, byte in draw(st.lists(st.tuples(st.integers(0, len(data)), st.integers(0, 255)), max_size=2)):
        data[at : at + 1] = bytes([byte])
    return bytes(data[: draw(st.integers(0, len(data)))])


@settings(max_examples=300, deadline=None)
@given(records=st.lists(usual() | any_encoding() | damaged(), max_size=6), data=st.data())
def test_what_is_found_is_what_parsing_finds(records: list[bytes], data: st.DataObject) -> None:
    frames = list(map(frame, records))
    which = np.array(data.draw(st.lists(st.sampled_from(range(len(records))), unique=True) if records else st.just([])))
    which = which.astype(np.int64)
    table = Walker(KEYS).walk(Records(b"".join(frames), np.cumsum([0, *map(len, frames)])), which)
    assert len(table) == len(which)
    for i, number in enumerate(which.tolist()):
        if table.odd[i]:
            continue
        found, parsed = table.record(i, range(len(KEYS))), parse_example(records[number])
        assert found.keys() == parsed.keys() & set(KEYS)
        for key, feature in found.items():
            assert feature.kind == parsed[key].kind and values(feature) == values(parsed[key])
            k, kind = KEYS.index(key), KINDS[feature.kind]
            one = table.take(i, i + 1)
            assert one.holds(k, kind).all() and one.counts(k) in (len(values(feature)), *is_damaged(feature))
            read: Any = {"bytes": one.strings, "float": one.floats, "int64": one.ints}[kind]
            assert listed(lambda read=read, k=k: read(k)) == values(feature)
    assert not any(table.odd[i] for i, number in enumerate(which.tolist()) if is_made_as_usual(records[number]))


def is_damaged(feature: Feature) -> range:
    """Any count, where the values can't be had."""
    return range(1 << 20 if values(feature) == ["damaged"] else 0)


def made(feature: Feature) -> list[Any]:
    if KINDS[feature.kind] == "bytes":
        return feature.strings()
    return (feature.floats() if KINDS[feature.kind] == "float" else feature.ints()).tolist()


def is_made_as_usual(record: bytes) -> bool:
    """Whether it is written once more as it is."""
    try:
        parsed = {key: (KINDS[feature.kind], made(feature)) for key, feature in parse_example(record).items()}
    except (SourceFormatError, KeyError):
        return False
    if not all(key.isascii() or key in KEYS for key in parsed):
        return False
    return bool(parsed) and example(parsed) == record


@settings(deadline=None)
@given(
    kind=st.sampled_from(["float", "int64", "bytes"]),
    lists=st.lists(st.lists(st.integers(0, 1 << 40), max_size=5), min_size=1, max_size=8),
    packed=st.booleans(),
)
def test_the_values_of_all_records_behind_one_another(kind: str, lists: list[list[int]], packed: bool) -> None:
    made: list[list[Any]] = [[str(x).encode() for x in row] if kind == "bytes" else row for row in lists]
    frames = [frame(example({"a": (kind, row), "b": ("int64", [i])}, packed)) for i, row in enumerate(made)]
    table = Walker(["a", "b"]).walk(
        Records(b"".join(frames), np.cumsum([0, *map(len, frames)])), np.arange(len(frames))
    )
    assert not table.odd.any()
    assert table.counts(0).tolist() == list(map(len, made))
    assert table.ints(1, np.int16).tolist() == list(range(len(made)))
    if table.holds(0, kind).all():
        found = {"bytes": table.strings, "float": table.floats, "int64": table.ints}[kind](0)
        flat = [cell for row in made for cell in row]
        assert found.tolist() == (np.array(flat, np.float32).tolist() if kind == "float" else flat)


def test_equal_strings_of_a_record_are_one_object() -> None:
    frames = [frame(example({"a": ("bytes", [text * 9] * 4)})) for text in (b"x", b"y")]
    table = Walker(["a"]).walk(Records(b"".join(frames), np.cumsum([0, *map(len, frames)])), np.arange(2))
    assert len({id(value) for value in table.strings(0)}) == 2


def test_raw_values_of_one_size() -> None:
    frames = [frame(example({"a": ("bytes", [b"abcd", b"efgh"])})), frame(example({"a": ("bytes", [b"ijkl"])}))]
    table = Walker(["a"]).walk(Records(b"".join(frames), np.cumsum([0, *map(len, frames)])), np.arange(2))
    assert table.raw(0, 4).tobytes() == b"abcdefghijkl"
