"""What a buffer of one policy has, of several: stats, resize, all, get, check, batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import EpisodeBatch, EpisodeError, MultiAgentSample, NotEnoughItems, ReplayError, SpecMismatch, UnknownKey
from tests.buffers.compare import assert_same_nest
from tests.buffers.multi_agent.agents import assert_same_batch, two
from tests.buffers.numbered import SPEC, episode, transition, transitions

ALL_OPTIONS: list[dict[str, Any]] = [{}, {"replay_ratio": 0.5, "when_not_ready": "empty"}, {"mode": "lockstep"}]


def filled(**options: Any) -> Any:
    if options.get("mode") == "lockstep":
        given = {name: (SPEC, {"capacity": 50}) for name in "ab"}
        buffer = rlds2buf.make_multi_agent(given, **{"seed": 3, **options})
        for t in range(12):
            ids = {"episode_id": 0, "t": t, "agent_index": {"a": [0, 1], "b": 2}}
            buffer.add({"a": transitions(10 * t, 2), "b": transition(500 + t)}, **ids)
        return buffer
    buffer = two(**options)
    buffer.add({"a": episode(0, 9), "b": [episode(20, 5), episode(30, 3)]})
    return buffer


def test_everything_and_some_of_it() -> None:
    buffer = filled()
    everything = buffer.all()
    assert {name: rows.observation["count"].tolist() for name, rows in everything.items()} == {
        "a": [*range(8)],
        "b": [20, 21, 22, 23, 30, 31],
    }
    assert buffer.all(concatenate="sequence")["b"].mask.shape == (1, 6)
    keys = buffer.keys()
    got = buffer.get({"b": keys["b"][[1, 4]]}, n_step=2)
    assert list(got) == ["b"] and got["b"].observation["count"].tolist() == [21, 30]
    assert_same_nest(buffer.get(keys)["a"]._asdict(), everything["a"]._asdict())
    with pytest.raises(UnknownKey):
        buffer.get({"a": [77]})
    with pytest.raises(ReplayError, match="known: a, b"):
        buffer.get({"c": [0]})


def test_stats_of_what_left() -> None:
    """RLlib documents the argument; it was a TypeError."""
    given = {"a": (SPEC, {"capacity": 3, "count_hits": True}), "b": (SPEC, {"capacity": 3})}
    buffer = rlds2buf.make_multi_agent(given, seed=0)
    buffer.add({"a": transitions(0, 3)})
    buffer.sample(30)
    buffer.add({"a": transitions(3, 3)})
    stats = buffer.stats(debug=True)["policies"]
    assert stats["a"]["evicted_hits"]["count"] == 3 and stats["a"]["evicted_hits"]["mean"] == 10.0
    assert stats["b"]["evicted_hits"] is None
    assert "evicted_hits" not in buffer.stats()["policies"]["a"]


def test_resize() -> None:
    buffer = filled()
    buffer.resize(4)
    assert {name: rows.observation["count"].tolist() for name, rows in buffer.all().items()} == {
        "a": [5, 6, 7],
        "b": [30, 31],
    }
    buffer.resize({"a": 30})
    assert [policy.capacity for policy in buffer.policies.values()] == [30, 4]
    with pytest.raises(ReplayError, match="known: a, b"):
        buffer.resize({"a": 5, "c": 5})
    with pytest.raises(ValueError, match="capacity"):
        buffer.resize({"a": 5, "b": -1})
    assert [policy.capacity for policy in buffer.policies.values()] == [30, 4]


def test_all_are_resized_or_none() -> None:
    given = {"a": (SPEC, {"capacity": 9}), "b": (SPEC, {"kind": "reservoir", "capacity": 3})}
    buffer = rlds2buf.make_multi_agent(given, seed=0)
    buffer.add({"b": transitions(0, 8)})
    with pytest.raises(ReplayError, match="can't grow"):
        buffer.resize(20)
    assert [policy.capacity for policy in buffer.policies.values()] == [9, 3]
    buffer.resize(2)
    assert [len(policy) for policy in buffer.policies.values()] == [0, 2]


def test_check_takes_what_add_takes_and_changes_nothing() -> None:
    buffer = two(policy_mapping={"x": "a", "y": "a", 7: "b"})
    data = {"y": transitions(0, 3), 7: episode(0, 4)}
    buffer.check(data)
    assert len(buffer) == 0 and buffer.env_steps == 0 and buffer.stats()["num_items"] == 0
    assert buffer.engine.agents.numbers == {}
    wrong = {**transitions(0, 3)._asdict(), "extras": {"cost": np.ones(3)}}
    for call in (buffer.check, buffer.add):
        with pytest.raises(SpecMismatch, match="extras/"):
            call({"x": transitions(0, 3), "y": wrong})
        with pytest.raises(ReplayError, match="unknown agent"):
            call({"z": transitions(0, 3)})
        with pytest.raises(ValueError, match="columns of the transitions"):
            call(data, t=[0, 1, 2])
    assert buffer.engine.agents.numbers == {} and len(buffer) == 0  # of what was refused no agent has a number
    buffer.add(data)
    assert buffer.engine.agents.numbers == {"y": 0, 7: 1}


def test_check_in_lockstep() -> None:
    buffer = filled(mode="lockstep")
    before = buffer.state_dict()
    buffer.check({"a": transition(1)}, episode_id=0, t=12, agent_index=0)
    with pytest.raises(EpisodeError, match="two rows of agent 0"):
        buffer.check({"a": transition(1)}, episode_id=0, t=11, agent_index=0)
    with pytest.raises(SpecMismatch, match="lockstep replay needs it"):
        buffer.check({"a": transition(1)}, episode_id=0, t=12)
    assert_same_nest(buffer.state_dict()["arrays"], before["arrays"])


def test_check_of_a_batch_of_episodes() -> None:
    """Longer together than the capacity, as ``add`` takes them one by one; it was refused."""
    buffer = rlds2buf.make_circular(SPEC, 2, capacity_unit="episodes")
    batch = EpisodeBatch.of([episode(10 * i, 4) for i in range(3)])
    buffer.check(batch)
    buffer.add(batch)
    small = rlds2buf.make_circular(SPEC, 6)
    small.check(batch)
    small.add(batch)


# -- batches ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", ALL_OPTIONS, ids=str)
def test_batches_are_the_same_however_many_are_drawn_ahead(options: dict[str, Any]) -> None:
    series = []
    for prefetch, together in ((0, 1), (1, 1), (4, 2)):
        buffer = filled(**options)
        with buffer.batches(3, steps=3, prefetch=prefetch, together=together, n_step=2) as batches:
            series.append(list(batches))
    for one, *others in zip(*series, strict=True):
        assert isinstance(one, MultiAgentSample)
        for other in others:
            assert_same_batch(one, other)
            assert one.num_slots == other.num_slots and list(one.slot) == list(other.slot)
    assert all(sample.data.steps.max() <= 2 for batch in series[0] for sample in batch.values())


@pytest.mark.parametrize("options", ALL_OPTIONS[::2], ids=str)
def test_what_else_is_sampled_changes_nothing(options: dict[str, Any]) -> None:
    plain, busy = filled(**options), filled(**options)
    drawn = []
    for buffer in (plain, busy):
        with buffer.batches(4, steps=3, prefetch=0) as batches:
            mine = []
            for batch in batches:
                mine.append(batch)
                if buffer is busy:
                    buffer.sample(5)
            drawn.append(mine)
    for one, other in zip(*drawn, strict=True):
        assert_same_batch(one, other)


def test_batches_of_one_policy_and_errors() -> None:
    buffer = filled()
    assert [list(batch) for batch in buffer.batches(4, "b", steps=2, beta=1.0)] == [["b"], ["b"]]
    with pytest.raises(ReplayError, match="known: a, b"):
        buffer.batches(4, "c")
    with pytest.raises(TypeError, match="did you mean n_step"):
        buffer.batches(4, n_steps=3)
    with pytest.raises(ValueError, match="to must be"):
        buffer.batches(4, to="numbers")
    with pytest.raises(ValueError, match="in lockstep"):
        filled(mode="lockstep").batches(4, "a")
    with pytest.raises(ValueError, match="beta can't be used"):
        filled(mode="lockstep").batches(4, beta=1.0)
    with pytest.raises(NotEnoughItems), two().batches(4) as batches:
        next(batches)


def test_new_items_are_in_one_batch_only() -> None:
    buffer = two(capacity=200, replay_ratio=0.0)
    keys = buffer.add({"a": transitions(0, 40)})["a"]
    with buffer.batches(5, steps=8, prefetch=4) as batches:
        seen = [batch["a"].info.key for batch in batches]
    assert np.concatenate(seen).tolist() == keys.tolist()
