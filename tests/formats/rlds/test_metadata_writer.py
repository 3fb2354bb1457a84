"""Any metadata of any episodes: what is stored comes back, and what does not is counted."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf import Episode, EpisodeBatch, StepSpec
from rlds2buf.codecs.tfrecord.example import parse_example
from rlds2buf.core import nest
from rlds2buf.core.episode_batch import FactColumns
from rlds2buf.formats.rlds.features import parse_features
from rlds2buf.formats.rlds.features_writer import features_json
from rlds2buf.formats.rlds.leaf_reader import leaf_readers
from rlds2buf.formats.rlds.leaf_writer import example_records
from rlds2buf.formats.rlds.metadata_writer import MARKERS, MetadataWriter
from rlds2buf.formats.rlds.own_metadata import OwnMetadata, own_metadata_json, read_own_metadata

NAMES = st.sampled_from(["a", "b", "c", "steps", "open_tail", "x/y"])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**65), 2**65),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.sampled_from([np.float32(0.1), np.int8(-1), np.uint64(2**64 - 1), np.str_("é"), np.complex64(1j)]),
)
ARRAYS = st.builds(
    lambda shape, dtype: np.arange(np.prod(shape)).reshape(shape).astype(dtype),
    st.lists(st.integers(0, 2), max_size=2).map(tuple),
    st.sampled_from(["f4", "f8", "i2", "u8", "c16", "?", "S2", "U2"]),
)
LISTS = st.lists(st.one_of(st.integers(0, 3), st.text(max_size=2), st.binary(max_size=2)), max_size=3)
VALUES = st.recursive(
    st.one_of(SCALARS, ARRAYS, LISTS),
    lambda inner: st.one_of(st.dictionaries(NAMES, inner, max_size=3), st.tuples(inner), st.tuples(inner, inner)),
    max_leaves=5,
)


def record(writer: MetadataWriter, *metadata: dict[str, Any]) -> list[bytes]:
    """The records of one block of episodes."""
    batch = EpisodeBatch.of([Episode(reward=[0.0], metadata=facts) for facts in metadata])
    return [data for data, _ in example_records(writer.write(batch))]


def read_back(writer: MetadataWriter, records: list[bytes], tmp: Any) -> list[dict[str, Any]]:
    """As a reader of the folder finds it."""
    features: Any = parse_features(json.loads(json.dumps(features_json(writer.features()))))
    content = own_metadata_json(StepSpec(), writer.paths(), writer.python_kinds())
    (tmp / "metadata.json").write_text(json.dumps(content))
    own: OwnMetadata = read_own_metadata(tmp)
    readers = leaf_readers(features)
    examples = [parse_example(record) for record in records]
    return [own.metadata(nest.map_structure(lambda r, e=e: r.read(e), readers)) for e in examples]  # type: ignore[misc]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, str | bytes | list):
        return isinstance(other, str | bytes | list) and bool(one == other)
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype.kind in "SU":
        one = np.array([c.encode() if isinstance(c, str) else c for c in one.reshape(-1).tolist()], object).reshape(
            one.shape
        )
    if one.shape != other.shape or (one.dtype != other.dtype and one.dtype != object):
        return False
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))


@settings(max_examples=300, deadline=None)
@given(metadata=st.dictionaries(NAMES, VALUES, max_size=4))
def test_one_episode(metadata: dict[str, Any], tmp_path_factory: Any) -> None:
    writer = MetadataWriter()
    (found,) = read_back(writer, record(writer, metadata), tmp_path_factory.mktemp("one"))
    meant, got = dict(nest.flatten(metadata)), dict(nest.flatten(found))
    for path, value in meant.items():
        if path[0] in MARKERS:
            marker = metadata[path[0]]
            scalar = isinstance(marker, bool | np.bool_ | int | np.integer)
            assert found.get(path[0], False) == (scalar and bool(marker)) and (scalar or path[0] in writer.lost)
            got.pop((path[0],), None)
            continue
        if nest.path_name(path) in writer.lost:
            assert path not in got or nest.path_name(path).count("/") > len(path) - 1 or "steps" in path
        else:
            # A tuple that lacks something stays a dict of what is left.
            assert writer.lost or path in got
            (stored,) = (place for place in got if [*map(str, place)] == [*map(str, path)])
            assert same(value, got.pop(stored)), path
    assert set(got) <= {(name,) for name in MARKERS} | set(meant)


@settings(max_examples=200, deadline=None)
@given(episodes=st.lists(st.dictionaries(NAMES, VALUES, max_size=3), min_size=2, max_size=4))
def test_several_episodes_and_going_on(episodes: list[dict[str, Any]], tmp_path_factory: Any) -> None:
    writer = MetadataWriter()
    records = [record(writer, metadata)[0] for metadata in episodes]
    found = read_back(writer, records, tmp_path_factory.mktemp("several"))
    for metadata, got in zip(episodes, found, strict=True):
        values = dict(nest.flatten(got))
        for path, value in nest.flatten(metadata):
            if path in values and path[0] not in MARKERS and not isinstance(value, str | list):
                assert same(value, values[path]) or nest.path_name(path) in writer.lost, path
    other = MetadataWriter()
    record(other, episodes[0])
    state = json.loads(json.dumps(other.state()))
    again = MetadataWriter()
    again.go_on_from(state)
    assert [record(again, metadata)[0] for metadata in episodes[1:]] == records[1:]
    assert again.lost == writer.lost and again.features() == writer.features()
    assert again.python_kinds() == writer.python_kinds() and again.paths() == writer.paths()


CELLS = {
    "texts": st.text(max_size=3),
    "bytes": st.binary(max_size=3),
    "booleans": st.booleans(),
    "integers": st.integers(-5, 5) | st.integers(2**63 - 1, 2**63 + 1),
    "floats": st.floats(),
    "arrays": st.builds(
        lambda number, dtype: np.arange(number).astype(dtype), st.just(2), st.sampled_from(["i2", ">f4"])
    ),
    "numbers": st.sampled_from([np.float32(1.5), np.float32(-1), np.int16(3)]),
    "mixed": VALUES,
}


@st.composite
def columns(draw: Any, count: int) -> Any:
    """What is known of each of `count` episodes, in one column or a nest of some."""
    kind = draw(st.sampled_from(["array", "dict", "tuple", *CELLS]))
    if kind == "array":
        shape = (count, *draw(st.lists(st.integers(0, 2), max_size=2)))
        dtype = draw(st.sampled_from(["f4", "f8", "i2", "u8", "c16", "?", "S2", "U2", "g"]))
        return np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    if kind == "dict":
        return {name: draw(columns(count)) for name in draw(st.sets(NAMES, min_size=1, max_size=2))}
    if kind == "tuple":
        return (draw(columns(count)), draw(columns(count)))
    return draw(st.lists(CELLS[kind], min_size=count, max_size=count))


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_block_is_its_episodes_one_by_one(data: st.DataObject) -> None:
    together, listed, alone = MetadataWriter(), MetadataWriter(), MetadataWriter()
    for count in data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)):
        shared = data.draw(st.dictionaries(NAMES, VALUES, max_size=2))
        names = data.draw(st.sets(NAMES, max_size=3))
        facts = FactColumns({name: data.draw(columns(count)) for name in sorted(names)}, count)
        marks = data.draw(st.none() | st.lists(st.booleans(), min_size=count, max_size=count).map(np.array))
        rows = Episode(reward=np.zeros(count), metadata=shared)
        batch = EpisodeBatch(rows, np.arange(count), marks, metadata=facts if names else None)
        found = [data for data, _ in example_records(together.write(batch))]
        metadata = [episode.metadata for episode in batch]
        assert found == record(listed, *metadata) == [one for facts in metadata for one in record(alone, facts)]
    for writer in (together, listed):
        assert writer.lost == alone.lost and writer.features() == alone.features()
        assert writer.python_kinds() == alone.python_kinds() and writer.paths() == alone.paths()
