"""Batches of episodes: the same episodes, stored the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlds2buf
from rlds2buf import EmptyEpisode, Episode, EpisodeBatch, SpecMismatch, spec_of
from rlds2buf.core.episode_batch import FactColumns

ENDS = st.sampled_from(["terminated", "truncated", "open"])


def episode(number: int, steps: int, end: str) -> Episode:
    last, terminal = np.zeros((2, steps), np.bool_)
    last[-1] = end != "open"
    terminal[-1] = end == "terminated"
    value = number * 100 + np.arange(steps, dtype=np.float32)
    return Episode(
        observation={"a": value, "b": (np.stack([value, -value], 1),)},
        action=np.arange(steps, dtype=np.int64),
        reward=value / 2,
        discount=np.ones(steps, np.float32),
        is_last=last,
        is_terminal=terminal,
        extras={"text": np.array([b"%d" % number] * steps, object)},
        metadata={"placeholder_final_row": True} if end == "terminated" and steps > 1 else {},
        index=number,
    )


@st.composite
def episodes(draw: st.DrawFn) -> list[Episode]:
    shapes = draw(st.lists(st.tuples(st.integers(1, 6), ENDS), min_size=1, max_size=5))
    return [episode(i, steps, end) for i, (steps, end) in enumerate(shapes)]


def assert_same(one: Episode, other: Episode) -> None:
    assert one.index == other.index and one.metadata == other.metadata
    mine, theirs = dict(one.flatten()), dict(other.flatten())
    assert mine.keys() == theirs.keys()
    for path, column in mine.items():
        np.testing.assert_array_equal(column, theirs[path], err_msg=str(path))


@given(episodes())
def test_gives_back_what_it_was_made_of(parts: list[Episode]) -> None:
    batch = EpisodeBatch.of(parts)
    assert len(batch) == len(parts)
    assert batch.num_transitions == sum(part.num_transitions for part in parts)
    for one, other in zip(batch, parts, strict=True):
        assert_same(one, other)


@settings(deadline=None)
@given(
    st.lists(episodes(), min_size=1, max_size=4),
    st.integers(6, 20),
    st.sampled_from(["rows", "transitions", "episodes"]),
)
def test_is_stored_as_its_episodes_are(groups: list[list[Episode]], capacity: int, unit: str) -> None:
    spec = spec_of(groups[0][0])
    one, other = (rlds2buf.make_circular(spec, capacity, capacity_unit=unit, seed=0) for _ in range(2))
    for group in groups:
        keys = one.add(EpisodeBatch.of(group))
        expected = np.concatenate([other.add(part) for part in group])
        one.check_valid()
        np.testing.assert_array_equal(keys, expected)
        np.testing.assert_array_equal(one.keys(), other.keys())
        assert one.num_rows == other.num_rows
        if len(one):
            for n_step in (1, 3):
                mine = one.get(one.keys(), n_step=n_step, gamma=0.5)
                theirs = other.get(other.keys(), n_step=n_step, gamma=0.5)
                for name in ("action", "reward", "discount", "is_done", "steps", "bootstrap_discount"):
                    np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name), err_msg=name)
                np.testing.assert_array_equal(mine.next_observation["b"][0], theirs.next_observation["b"][0])
                assert mine.extras["text"].tolist() == theirs.extras["text"].tolist()


@given(episodes(), episodes())
def test_batches_are_joined_as_their_episodes_are(one: list[Episode], other: list[Episode]) -> None:
    other = [part.replace(index=10 + 2 * i, metadata={**part.metadata, "n": i}) for i, part in enumerate(other)]
    batch = EpisodeBatch.of([EpisodeBatch.of(one), *other[:1], *([EpisodeBatch.of(other[1:])] if other[1:] else [])])
    assert batch.index is not None and batch.index.tolist() == [part.index for part in one + other]
    for mine, theirs in zip(batch, one + other, strict=True):
        assert_same(mine, theirs)


def test_an_index_that_is_not_known_is_not_guessed() -> None:
    parts = [episode(0, 2, "open"), episode(1, 2, "open").replace(index=None)]
    batch = EpisodeBatch.of(parts)
    assert batch.index is None and [part.index for part in batch] == [None, None]
    assert EpisodeBatch(parts[0], np.array([0, 1])).index.tolist() == [0, 1]  # type: ignore[union-attr]


def test_flags_that_were_not_logged_stay_so() -> None:
    parts = [Episode(observation=np.zeros(steps), is_first=np.arange(steps) == 0) for steps in (2, 3)]
    batch = EpisodeBatch.of(parts)
    assert batch.derived == parts[0].derived == {"is_last", "is_terminal"}
    assert [part.derived for part in batch] == [batch.derived] * 2
    assert [part.is_last.tolist() for part in batch] == [[False, True], [False, False, True]]


@pytest.mark.parametrize("given", [{"index": np.arange(3)}, {"metadata": [{}]}, {"placeholder": np.zeros(1, bool)}])
def test_every_episode_has_its_entry(given: dict[str, Any]) -> None:
    with pytest.raises(SpecMismatch, match=f"2 episodes has . entries of `{next(iter(given))}`"):
        EpisodeBatch(Episode(observation=np.zeros(4)), np.array([0, 2]), **given)


def test_one_structure_only() -> None:
    with pytest.raises(SpecMismatch, match="one structure"):
        EpisodeBatch.of([Episode(observation={"a": np.zeros(2)}), Episode(observation={"b": np.zeros(2)})])
    with pytest.raises(rlds2buf.EmptyEpisode):
        EpisodeBatch.of([])


@pytest.mark.parametrize("starts", [[], [1], [0, 0], [0, 3], [0, 2, 1]])
def test_starts_must_fit(starts: list[int]) -> None:
    with pytest.raises(SpecMismatch, match="ascend"):
        EpisodeBatch(Episode(observation=np.zeros(3)), np.array(starts, np.int64))


def test_another_spec_is_refused() -> None:
    batch = EpisodeBatch.of([episode(0, 3, "open")])
    buffer = rlds2buf.make_circular(spec_of(Episode(observation=np.zeros(2))), 10)
    with pytest.raises(SpecMismatch):
        buffer.add(batch)
    assert buffer.num_rows == 0


def _mixed(lengths: list[int]) -> EpisodeBatch:
    rng = np.random.default_rng(0)
    count = len(lengths)
    episodes = [
        Episode(
            observation={"q": rng.normal(size=(n, 2)), "pair": (np.arange(n), np.array([b"x"] * n, object))},
            action=None,
            reward=rng.normal(size=n),
            extras={"cost": rng.normal(size=n)},
        )
        for n in lengths
    ]
    joined = EpisodeBatch.of(episodes)
    facts = FactColumns({"name": [f"e{i}" for i in range(count)], "at": {"seed": np.arange(count)}}, count)
    return EpisodeBatch(
        joined.rows, joined.starts, np.arange(count) % 2 == 1, index=10 + np.arange(count), metadata=facts
    )


@pytest.mark.parametrize(
    "which", [slice(1, 3), [3, 0, 2], np.array([True, False, True, True]), [1], slice(None), [1, 2, 3]], ids=str
)
def test_some_episodes_of_a_batch_are_the_episodes_it_has(which: Any) -> None:
    batch = _mixed([3, 1, 5, 2])
    expected = [list(batch)[i] for i in np.arange(4)[which]]
    taken = batch.take(which)
    assert taken.lengths.tolist() == [len(episode) for episode in expected]
    for one, other in zip(taken, expected, strict=True):
        assert (one.index, one.metadata, one.derived) == (other.index, other.metadata, other.derived)
        for (path, column), (other_path, other_column) in zip(one.flatten(), other.flatten(), strict=True):
            assert path == other_path
            np.testing.assert_array_equal(column, other_column)


def test_neighbours_taken_from_a_batch_share_its_memory() -> None:
    batch = _mixed([3, 1, 5, 2])
    assert np.shares_memory(batch.take(slice(1, 3)).rows.reward, batch.rows.reward)
    assert batch.take([0, 1, 2, 3]) is batch
    with pytest.raises(EmptyEpisode):
        batch.take([])


def test_facts_in_columns_are_the_dicts_they_stand_for() -> None:
    facts = FactColumns({"name": [b"a", b"b", b"c"], "at": {"seed": np.array([1, 2, 3])}}, 3)
    assert facts[2] == {"name": b"c", "at": {"seed": 3}}
    assert list(facts.take([2, 0])) == [facts[2], facts[0]]
    assert list(facts[1:]) == [facts[1], facts[2]]
    assert _mixed([1, 2]).fact_names == {"name", "at"}
    with pytest.raises(IndexError):
        facts[3]
    with pytest.raises(ValueError, match="1 values of name for 2 episodes"):
        FactColumns({"name": [1]}, 2)


def test_the_mark_of_a_placeholder_in_metadata_is_seen() -> None:
    """Files of some formats have it among what is known of their episodes, or of all of them."""
    mark = "placeholder_final_row"
    rows, starts = Episode(observation=np.arange(5)), np.array([0, 3])
    shared = Episode(observation=np.arange(5), metadata={mark: np.True_})
    for batch, wanted in [
        (EpisodeBatch(rows, starts), None),
        (EpisodeBatch(shared, starts), [True, True]),
        (EpisodeBatch(shared, starts, np.array([True, False])), [True, True]),
        (EpisodeBatch(rows, starts, metadata=[{}, {mark: True}]), [False, True]),
        (EpisodeBatch(rows, starts, metadata=FactColumns({mark: [True, False]}, 2)), [True, False]),
        (EpisodeBatch(rows, starts, metadata=FactColumns({"seed": [1, 2]}, 2)), None),
        (EpisodeBatch(rows, starts, metadata=[{mark: np.arange(3)}, {mark: False}]), None),
    ]:
        assert (None if batch.placeholder is None else batch.placeholder.tolist()) == wanted


@pytest.mark.parametrize("as_batches", [False, True])
def test_joining_keeps_types_and_their_byte_order(as_batches: bool) -> None:
    types = {"observation": ">f4", "action": ">i2", "reward": ">f8"}
    parts = [
        Episode(**{name: np.arange(steps).astype(kind) for name, kind in types.items()}, discount=np.ones(steps, ">f4"))
        for steps in (3, 1, 4)
    ]
    batch = EpisodeBatch.of([EpisodeBatch.of_one(part) for part in parts] if as_batches else parts)
    spec_of(parts[0]).check(batch.rows)
    assert {name: getattr(batch.rows, name).dtype.str for name in types} == types
    for one, other in zip(batch, parts, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("with_more_first", [False, True])
@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({}, {"reward": np.zeros(2)}),
        ({"extras": {}}, {"extras": {"depth": np.zeros(2)}}),
        ({"observation": {"a": np.zeros(2)}}, {"observation": {"a": np.zeros(2), "b": np.zeros(2)}}),
        ({"observation": (np.zeros(2),)}, {"observation": (np.zeros(2), np.zeros(2))}),
        ({"observation": np.zeros(2)}, {"observation": {"a": np.zeros(2)}}),
    ],
    ids=["no reward", "extras", "dict", "tuple", "column or dict"],
)
def test_no_column_is_lost_by_joining(less: dict[str, Any], more: dict[str, Any], with_more_first: bool) -> None:
    parts = [Episode(action=np.zeros(2), **fields) for fields in (less, more)]
    with pytest.raises(SpecMismatch, match="one structure"):
        EpisodeBatch.of(parts[::-1] if with_more_first else parts)


def test_a_mixture_of_big_endian_columns_is_written() -> None:
    parts = [Episode(observation=np.arange(steps).astype(">f4")) for steps in (3, 1, 4)]
    written: list[Episode] = []
    report = rlds2buf.convert(rlds2buf.open_mixture([parts, parts], weights=[1, 2], seed=3), written)
    assert report.episodes == len(written) == 6
    assert all(one.observation.dtype == ">f4" for one in written)
