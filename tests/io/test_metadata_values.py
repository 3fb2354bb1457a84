"""Metadata as facts: which values can be kept, and that they come through JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rlds2buf import Episode, EpisodeBatch
from rlds2buf.core.episode_batch import FactColumns
from rlds2buf.io.metadata_values import SharedFacts, fact, facts_of, from_json, same_fact, to_json

NUMBERS = hnp.arrays(
    st.one_of(hnp.boolean_dtypes(), hnp.integer_dtypes(endianness="="), hnp.floating_dtypes(endianness="=")),
    hnp.array_shapes(min_dims=0, min_side=0, max_side=3),
)
TEXT = st.one_of(st.text(max_size=5), st.binary(max_size=5)).filter(
    lambda text: ("\0" if isinstance(text, str) else b"\0") not in text  # type: ignore[operator]
)
VALUES = st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), TEXT, NUMBERS)


@given(st.one_of(VALUES, st.lists(TEXT, max_size=3)))
def test_facts_come_through_json(value: Any) -> None:
    one = fact(value)
    again = from_json(json.loads(json.dumps(to_json(one))))
    assert same_fact(one, again) and same_fact(again, one)
    assert isinstance(one, type(again))


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.one_of(st.integers(0, 1), TEXT, NUMBERS)), max_size=4))
def test_shared_facts_are_those_of_all(episodes: list[dict[str, Any]]) -> None:
    shared, lost = SharedFacts(), dict[str, str]()
    for metadata in episodes:
        shared.add(metadata, lost.setdefault)
        shared = SharedFacts.from_json(json.loads(json.dumps(shared.to_json())))
    every = {name for metadata in episodes for name in metadata}
    same = {
        name
        for name in every
        if all(name in metadata for metadata in episodes)
        and all(same_fact(fact(metadata[name]), fact(episodes[0][name])) for metadata in episodes)
    }
    assert set(shared.facts or {}) == same
    assert lost.keys() == {f"metadata/{name}" for name in every - same}


COLUMNS = st.one_of(
    st.lists(st.one_of(st.integers(0, 1), st.integers(2**63, 2**70)), min_size=3, max_size=3),
    st.lists(st.sampled_from(["a", "b", "\0"]), min_size=3, max_size=3),
    st.lists(st.sampled_from([b"a", b"b", b"\0", "a", None, 0.0]), min_size=3, max_size=3),
    hnp.arrays(
        hnp.floating_dtypes(endianness="="), st.sampled_from([(3,), (3, 2)]), elements=st.sampled_from([0, np.nan])
    ),
    hnp.arrays(np.int8, 3, elements=st.integers(0, 1)),
)


@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), st.one_of(COLUMNS, st.dictionaries(st.just("in"), COLUMNS)))),
    st.none() | hnp.arrays(bool, 3),
    st.booleans(),
)
def test_a_batch_is_its_episodes_one_by_one(
    blocks: list[dict[str, Any]], marks: np.ndarray | None, listed: bool
) -> None:
    together, alone = SharedFacts(), SharedFacts()
    lost: list[set[tuple[str, str]]] = [set(), set()]
    for columns in blocks:
        facts = FactColumns(
            {name: column for name, column in columns.items() if not isinstance(column, dict) or column}, 3
        )
        rows = Episode(reward=np.zeros(3), metadata={"policy": "expert"})
        batch = EpisodeBatch(rows, np.arange(3), marks, metadata=list(facts) if listed else facts)
        together.add_batch(batch, lambda path, why: lost[0].add((path, why)))
        for episode in batch:
            alone.add(episode.metadata, lambda path, why: lost[1].add((path, why)))
    assert lost[0] == lost[1]
    assert together.to_json() == alone.to_json()


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (object(), "is a object"),
        ([1, [2, 3]], "is a list"),
        ([1, "a"], "is a list"),
        ([np.zeros((2, 3)), np.zeros((2, 4))], "is a list of unequal parts"),
        ([1, "a", None], "is a list"),
        (2**70, "is a int"),
        (np.zeros(2, [("a", int)]), "HDF5 has no type for"),
        (np.array(["2020-01-01"], "datetime64[D]"), r"is datetime64\[D\]"),
        ("a\0b", "zero bytes"),
        ([b"a", b"a\0"], "zero bytes"),
    ],
)
def test_what_can_not_be_kept(value: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        fact(value)


def test_names() -> None:
    lost: dict[str, str] = {}
    names: dict[Any, Any] = {"a": {"b": 1, "": 2}, "c/d": 3, ".": 4, 5: 6, "e": {}, "\0": 7, "f": {"g": {"h": "i"}}}
    assert facts_of(names, lost.setdefault).keys() == {"a/b", "f/g/h"}
    assert lost.keys() == {f"metadata/{name}" for name in ("a/", "c/d", ".", "5", "e", "\0")}
