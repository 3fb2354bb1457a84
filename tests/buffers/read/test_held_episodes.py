"""What a buffer holds as episodes: the very transitions, in the order in which they followed one another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlds2buf
from rlds2buf import transitions
from rlds2buf.buffers.read.held_episodes import held_episodes
from rlds2buf.core import nest
from rlds2buf.core.episode_batch import EpisodeBatch
from tests.buffers.numbered import SPEC, episode, transition


def held(buffer: Any) -> EpisodeBatch | None:
    with buffer.engine.lock:
        return held_episodes(buffer.engine.reader)


def step(number: int, is_done: int = 0) -> dict[str, Any]:
    """A transition that leads to the next number."""
    after = np.int64(number + 1)
    place = np.array([number + 1, -number - 1], np.float32)
    return {**transition(number, is_done), "next_observation": {"place": place, "count": after}}


def counts(batch: EpisodeBatch) -> list[list[int]]:
    return [one.observation["count"].tolist() for one in batch]


def assert_same(buffer: Any, batch: EpisodeBatch) -> None:
    """Every transition of the buffer's own, each with as many behind it in its run as a sequence from there has."""
    mine, whole = transitions(batch), buffer.all()
    order = np.argsort(mine.observation["count"], kind="stable")
    assert len(mine.is_done) == len(whole.is_done) == len(buffer)
    wanted = np.argsort(whole.observation["count"], kind="stable")
    for name in ("observation", "action", "reward", "discount", "next_observation", "extras", "is_done"):
        pairs = zip(nest.flatten(getattr(mine, name)), nest.flatten(getattr(whole, name)), strict=True)
        for (path, column), (_, other) in pairs:
            np.testing.assert_array_equal(column[order], other[wanted], err_msg=f"{name} {path}")
    sequences = buffer.get(buffer.keys(), sequence_length=len(buffer))
    left = dict(zip(sequences.observation["count"][:, 0].tolist(), sequences.mask.sum(1).tolist(), strict=True))
    for numbers in counts(batch):
        for place, number in enumerate(numbers[:-1]):
            assert left[number] == len(numbers) - 1 - place


ENDS = ("terminated", "truncated", "open")


@given(
    st.lists(st.tuples(st.integers(2, 7), st.sampled_from(ENDS)), min_size=1, max_size=12),
    st.integers(8, 60),
    st.booleans(),
)
def test_of_episodes(lengths: list[tuple[int, str]], capacity: int, prioritized: bool) -> None:
    make = rlds2buf.make_prioritized if prioritized else rlds2buf.make_circular
    buffer, given = make(SPEC, capacity, seed=0), []
    for i, (rows, end) in enumerate(lengths):
        given.append(episode(100 * i, rows, end))
        buffer.add(given[-1])
    batch = held(buffer)
    assert batch is not None
    assert_same(buffer, batch)
    # Rows and flags of those that are whole are the very ones, final rows included.
    whole = [one for one in batch if one.is_first[0]]
    for one, other in zip(reversed(whole), reversed(given), strict=False):
        for (path, column), (_, wanted) in zip(one.flatten(), other.flatten(), strict=True):
            if path != ("discount",):
                np.testing.assert_array_equal(column, wanted, err_msg=str(path))
        assert one.end == other.end


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), min_size=1, max_size=60), st.integers(4, 40))
def test_of_sources_that_alternate(taken: list[tuple[int, int]], capacity: int) -> None:
    """Steps of three sources as they come, every now and then the end of an episode."""
    buffer, at = rlds2buf.make_circular(SPEC, capacity, seed=0), [0, 1000, 2000]
    for source, chance in taken:
        done = {0: 1, 1: 2}.get(chance, 0)
        buffer.add(step(at[source], done), source_id=source)
        at[source] += 2 if done else 1
    batch = held(buffer)
    assert batch is not None
    assert_same(buffer, batch)
    for one, facts in zip(batch, batch.facts(), strict=True):
        assert {number // 1000 for number in one.observation["count"].tolist()} == {int(facts.get("source_id", 0))}


def test_a_next_observation_that_is_nobody_else_s_ends_its_episode() -> None:
    """What a vector environment leaves that resets at once: no transition may be lost, and none made up."""
    buffer = rlds2buf.make_circular(SPEC, 100, seed=0)
    buffer.add([step(0), step(1), transition(2), step(3), step(4, 1)])
    batch = held(buffer)
    assert batch is not None
    assert counts(batch) == [[0, 1, 2, 500_002], [3, 4, 5]]
    assert [one.end for one in batch] == ["open", "terminated"]
    assert_same_transitions_in_order(buffer, batch)


def assert_same_transitions_in_order(buffer: Any, batch: EpisodeBatch) -> None:
    mine, whole = transitions(batch), buffer.all()
    for name in ("observation", "next_observation", "action", "reward", "is_done"):
        for (_, column), (_, other) in zip(
            nest.flatten(getattr(mine, name)), nest.flatten(getattr(whole, name)), strict=True
        ):
            np.testing.assert_array_equal(column, other)


@pytest.mark.parametrize("kind", ["single", "nan"])
def test_steps_one_by_one(kind: str) -> None:
    buffer = rlds2buf.make_circular(SPEC, 100, seed=0)
    for i in range(4):
        one = step(i, 2 * (i == 3))
        if kind == "nan":
            # What is not a number is equal to itself here: bits are compared.
            one["observation"]["place"][0] = one["next_observation"]["place"][0] = np.nan
        buffer.add(one)
    batch = held(buffer)
    assert batch is not None
    assert counts(batch) == [[0, 1, 2, 3, 4]] and [one.end for one in batch] == ["truncated"]
    assert batch.rows.is_first.tolist() == [True, False, False, False, False]
    assert batch.rows.action.tolist() == [0, 10, 20, 30, 0]


def test_nothing_held() -> None:
    assert held(rlds2buf.make_circular(SPEC, 100)) is None


def test_a_final_row_that_was_not_recorded_stays_marked() -> None:
    buffer = rlds2buf.make_circular(SPEC, 100, seed=0)
    buffer.add(episode(0, 4).replace(metadata={"placeholder_final_row": True}))
    buffer.add(episode(10, 4))
    batch = held(buffer)
    assert batch is not None and batch.placeholder is not None
    assert batch.placeholder.tolist() == [True, False]


def test_a_reservoir_s_transitions() -> None:
    buffer = rlds2buf.make_reservoir(SPEC, 20, seed=0)
    for i in range(12):
        buffer.add(episode(100 * i, 6, "truncated"))
    batch = held(buffer)
    assert batch is not None
    assert_same(buffer, batch)


def test_pictures_are_decoded() -> None:
    from tests.buffers.pictures import SPEC as PICTURES
    from tests.buffers.pictures import episode as pictures

    buffer = rlds2buf.make_circular(PICTURES, 50, seed=0)
    for i in range(3):
        buffer.add(pictures(i, 5))
    batch = held(buffer)
    assert batch is not None
    mine, whole = transitions(batch), buffer.all()
    for (_, column), (_, other) in zip(nest.flatten(mine.observation), nest.flatten(whole.observation), strict=True):
        np.testing.assert_array_equal(column, other)
