"""Passes without replacement: every item once, on all ranks together, and gone on with from any batch."""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlds2buf
from rlds2buf import GoalMap, NotEnoughItems, ReplayError, SnapshotError
from rlds2buf.buffers.select.shuffle import Shuffle
from tests.buffers.compare import assert_same_nest
from tests.buffers.numbered import SPEC, episode, transitions
from tests.buffers.read.test_batches import KINDS, assert_same_samples, filled, threads
from tests.reference.shuffle import shares


def keys_of(batches: Any) -> list[list[int]]:
    return [batch.info.key.tolist() for batch in batches]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_size", [1, 5, 64, 1000])
def test_every_item_once(kind: str, batch_size: int) -> None:
    buffer = filled(kind)
    epoch = buffer.epoch(batch_size, seed=1)
    batches = list(epoch)
    assert len(batches) == len(epoch) == -(-len(buffer) // batch_size)
    assert sorted(chain.from_iterable(keys_of(batches))) == sorted(buffer.keys().tolist())
    assert [len(batch.info.key) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
    for batch in batches:
        assert batch.info.table_size == len(buffer)
        assert (batch.info.probability == 1 / len(buffer)).all() and (batch.info.weight == 1).all()
        assert_same_nest(batch.data._asdict(), buffer.get(batch.info.key)._asdict())
    assert keys_of(buffer.epoch(batch_size, seed=1)) == keys_of(batches)
    assert len(buffer) < 3 or keys_of(buffer.epoch(batch_size, seed=2)) != keys_of(batches)


@given(st.data())
@settings(deadline=None)
def test_ranks_share_what_there_is(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 60))
    world_size, batch_size = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 9))
    drop_last = data.draw(st.booleans())
    buffer = rlds2buf.make_circular(SPEC, 100)
    buffer.add(transitions(0, count))

    def run(rank: int) -> list[list[int]]:
        options: dict[str, Any] = {"seed": 4, "world_size": world_size, "drop_last": drop_last}
        return keys_of(buffer.epoch(batch_size, rank=rank, **options))

    if count < world_size * (batch_size if drop_last else 1):
        with pytest.raises(NotEnoughItems, match=f"there are {count}"):
            run(0)
        return
    if batch_size == 1 and count % world_size and not drop_last:
        for rank in range(world_size):
            with pytest.raises(ValueError, match="drop_last"):
                run(rank)
        return
    order = Shuffle(count, [4, 0]).at(0, 1, count).tolist()
    assert [run(rank) for rank in range(world_size)] == shares(order, batch_size, world_size, drop_last)


VIEWS: list[dict[str, Any]] = [{}, {"n_step": 3, "gamma": 0.9}, {"sequence_length": 3, "burn_in": 2}, {"source_id": 1}]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("view", VIEWS, ids=str)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_gone_on_with_in_the_middle(kind: str, view: dict[str, Any], prefetch: int) -> None:
    expected = list(filled(kind).epoch(7, seed=5, **view))
    for taken in range(len(expected) + 1):
        epoch = filled(kind).epoch(7, seed=5, prefetch=prefetch, **view)
        got = [next(epoch) for _ in range(taken)]
        state = json.loads(json.dumps(epoch.state_dict()))
        epoch.close()
        other = filled(kind).epoch(7, seed=9, prefetch=prefetch, **view)
        if taken % 2:
            next(other)
        other.load_state_dict(state)
        assert_same_samples([*got, *other], expected)
    assert not threads()


def test_a_state_fits_every_rank() -> None:
    def epoch(rank: int) -> Any:
        return filled().epoch(5, seed=2, rank=rank, world_size=3)

    whole = [keys_of(epoch(rank)) for rank in range(3)]
    first = epoch(0)
    for _ in range(2):
        next(first)
    for rank in range(3):
        other = epoch(rank)
        other.load_state_dict(first.state_dict())
        assert keys_of(other) == whole[rank][2:]


@pytest.mark.parametrize("prefetch", [0, 3])
def test_epochs_without_end(prefetch: int) -> None:
    buffer = filled()
    count = -(-len(buffer) // 16)
    with buffer.batches(16, order="epochs", seed=3, prefetch=prefetch) as batches:
        rounds = []
        for number in range(4):
            assert batches.epoch == number
            rounds.append(keys_of(next(batches) for _ in range(count)))
        assert all(sorted(chain.from_iterable(one)) == buffer.keys().tolist() for one in rounds)
        assert len({str(one) for one in rounds}) == 4
        state = batches.state_dict()
        assert (state["epoch"], state["batch"], state["items"]) == (4, 0, 0)
        expected = keys_of(next(batches) for _ in range(count + 2))
        middle, rest = batches.state_dict(), keys_of(next(batches) for _ in range(3))
    with filled().batches(16, order="epochs", prefetch=prefetch) as other:
        other.load_state_dict(state)
        assert keys_of(next(other) for _ in range(count + 2)) == expected
        other.load_state_dict(middle)
        assert keys_of(next(other) for _ in range(3)) == rest
    assert len(list(buffer.batches(16, order="epochs", steps=2 * count + 1, prefetch=prefetch))) == 2 * count + 1
    assert keys_of(filled().batches(16, order="epochs", steps=3)) == keys_of(
        filled().batches(16, order="epochs", steps=3)
    )
    assert not threads()


@pytest.mark.parametrize("batch_size", [100, 700, 2048, 3000])
def test_batches_that_are_read_at_once_are_apart(batch_size: int) -> None:
    buffer = rlds2buf.make_circular(SPEC, 10_000)
    buffer.add(transitions(0, 7003))
    seen = []
    for batch in buffer.epoch(batch_size, seed=2):
        assert_same_nest(batch.data._asdict(), buffer.get(batch.info.key)._asdict())
        seen += batch.info.key.tolist()
        batch.data.observation["count"][:] = -1
        batch.info.key[:] = 0
    assert sorted(seen) == list(range(7003)) and len(list(buffer.epoch(batch_size))) == -(-7003 // batch_size)


def test_what_comes_meanwhile_is_of_the_next_epoch() -> None:
    buffer = rlds2buf.make_circular(SPEC, 1000, capacity_unit="transitions")  # whose rows move when it grows
    buffer.add(transitions(0, 50))
    with buffer.batches(10, order="epochs", prefetch=0) as batches:
        seen = keys_of([next(batches)])
        buffer.add(transitions(50, 800))
        seen += keys_of(next(batches) for _ in range(4))
        assert sorted(chain.from_iterable(seen)) == list(range(50)) and batches.epoch == 1
        assert len(batches) == 85
        assert sorted(chain.from_iterable(keys_of(next(batches) for _ in range(85)))) == list(range(850))


@pytest.mark.parametrize("kind", ["circular", "prioritized", "reservoir"])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_item_that_left_is_an_error(kind: str, prefetch: int) -> None:
    buffer = KINDS[kind](SPEC, 12_000, seed=1)
    buffer.add(transitions(0, 12_000))
    epoch = buffer.epoch(300, prefetch=prefetch)
    next(epoch)
    buffer.add(transitions(100_000, 5))
    with pytest.raises(ReplayError, match="have left the buffer"):
        list(epoch)
    assert not threads()
    assert len(list(buffer.epoch(300))) == 40


def test_goals_in_hindsight_are_those_of_the_batch() -> None:
    def made() -> Any:
        def met(observation: Any, action: Any, after: Any) -> Any:
            return (after["achieved_goal"] == after["desired_goal"])[:, 0]

        buffer = rlds2buf.make_hindsight(
            rlds2buf.spec_of(goals()),
            500,
            goals=[GoalMap("achieved_goal", "desired_goal")],
            reward_fn=met,
            done_fn=met,
            strategy="future",
        )
        buffer.add(goals())
        return buffer

    def goals() -> rlds2buf.Episode:
        seen = {"achieved_goal": np.arange(40.0)[:, None], "desired_goal": np.full((40, 1), 99.0)}
        return rlds2buf.Episode(observation=seen, action=np.zeros(40), reward=np.zeros(40), discount=np.ones(40))

    whole = list(made().epoch(8, seed=1))
    assert len({float(goal) for batch in whole for goal in batch.data.observation["desired_goal"][:, 0]}) > 5
    epoch = made().epoch(8, seed=1)
    next(epoch)
    other = made().epoch(8, seed=1)
    other.load_state_dict(epoch.state_dict())
    assert_same_samples(list(other), whole[1:])


def test_a_few_items_with_all_their_steps() -> None:
    buffer = filled("episodes")
    batches = list(buffer.epoch(5))
    assert sum(int(batch.data.mask.sum()) for batch in batches) == buffer.stats()["num_transitions"]
    flat = [batch.data.reward for batch in buffer.epoch(5, concatenate=True)]
    assert len(np.concatenate(flat)) == buffer.stats()["num_transitions"]


def test_a_saved_buffer_is_gone_through_where_it_lies(tmp_path: Any) -> None:
    filled().save(tmp_path / "saved")
    opened = rlds2buf.load_buffer(tmp_path / "saved")
    assert keys_of(opened.epoch(9, seed=1)) == keys_of(filled().epoch(9, seed=1))
    assert opened.stats()["sampled"] == len(opened)


def test_wrong_arguments() -> None:
    buffer = filled()
    for kwargs, error, words in (
        ({"rank": 2, "world_size": 2}, ValueError, "rank must be from 0 to 1 in a world of 2, got 2"),
        ({"rank": -1}, ValueError, "rank"),
        ({"world_size": 0}, ValueError, "world_size"),
        ({"seed": -1}, ValueError, "seed"),
        ({"replace": False}, TypeError, "every item once"),
        ({"beta": 0.4}, TypeError, "whatever its priority"),
        ({"nonsense": 1}, TypeError, "nonsense"),
        ({"prefetch": -1}, ValueError, "prefetch"),
        ({"timeout": 0}, ValueError, "timeout"),
        ({"to": "mxnet"}, ValueError, "torch"),
    ):
        with pytest.raises(error, match=words):
            buffer.epoch(4, **kwargs)
    with pytest.raises(ValueError, match="batch_size"):
        buffer.epoch(0)
    with pytest.raises(ValueError, match="order"):
        buffer.batches(4, order="sorted")
    with pytest.raises(NotEnoughItems, match="there are 0"):
        rlds2buf.make_circular(SPEC, 10).epoch(4)
    with pytest.raises(NotEnoughItems, match="there are 0"):
        buffer.epoch(4, source_id=77)
    with pytest.raises(NotEnoughItems, match="needs at least 400"):
        buffer.epoch(200, world_size=2, drop_last=True)


def test_states_of_something_else() -> None:
    buffer = filled()
    epoch = buffer.epoch(8)
    next(epoch)
    state = epoch.state_dict()
    for change, words in (
        ({"batch_size": 9}, "batch_size 9, these have 8"),
        ({"world_size": 2}, "world_size"),
        ({"drop_last": True}, "drop_last"),
        ({"version": 2}, "version 2"),
        ({"items": 17}, "over 17 items"),
        ({"last_key": 5}, "up to key 5"),
        ({"batch": -1}, "no state of epochs"),
        ({"seed": "x"}, "no state of epochs"),
    ):
        with pytest.raises(SnapshotError, match=words):
            epoch.load_state_dict({**state, **change})
    with pytest.raises(SnapshotError, match="no state of epochs"):
        epoch.load_state_dict({})
    assert keys_of(epoch) == keys_of(buffer.epoch(8))[1:]  # nothing was changed
    buffer.add(episode(5000, 4))
    with pytest.raises(SnapshotError, match="and the buffer holds"):
        buffer.epoch(8).load_state_dict(state)
