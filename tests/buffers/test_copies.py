"""Buffers through pickle and copy."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf.errors import ReplayError, SnapshotError
from tests.buffers.numbered import SPEC, episode, transitions
from tests.buffers.one_of_each import MAKERS, change

WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda buffer: pickle.loads(pickle.dumps(buffer)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", MAKERS)
def test_a_copy_goes_on_alike_and_apart(kind: str, way: str) -> None:
    rng = np.random.default_rng(3)
    buffer = MAKERS[kind](3)
    for step in range(12):
        change(buffer, kind, rng, 100 * step)
        other = WAYS[way](buffer)
        assert other.capacity == buffer.capacity and other.kind == buffer.kind
        other.check_valid()
        if len(buffer):
            for again in (other, WAYS[way](other)):
                assert again.keys().tolist() == buffer.keys().tolist()
            assert other.sample(5).info.key.tolist() == buffer.sample(5).info.key.tolist()
        before = buffer.keys().tolist()
        state = rng.bit_generator.state
        change(other, kind, rng, 100 * step + 50)
        assert buffer.keys().tolist() == before
        rng.bit_generator.state = state
        change(buffer, kind, rng, 100 * step + 50)
        assert other.keys().tolist() == buffer.keys().tolist()
        other.check_valid()


def test_rows_that_are_not_held_are_not_pickled() -> None:
    buffer = rlds2buf.make_circular(SPEC, 1_000_000)
    buffer.add(episode(0, 10))
    assert len(pickle.dumps(buffer)) < 20_000


@pytest.mark.parametrize("way", WAYS)
def test_one_in_a_folder_goes_as_its_path(tmp_path: Path, way: str) -> None:
    live = rlds2buf.make_circular(SPEC, 5000, seed=0, directory=tmp_path / "b")
    live.add(episode(0, 4000))
    with pytest.raises(ReplayError, match=r"save\(\) first"):
        WAYS[way](live)
    live.save()
    live.sample(3)
    for buffer in (live, rlds2buf.load_buffer(tmp_path / "b")):
        assert len(pickle.dumps(buffer)) < 2000
        other = WAYS[way](buffer)
        assert other.sample(9).info.key.tolist() == buffer.sample(9).info.key.tolist()
        other.add(episode(9000, 10))
        assert len(other) == len(buffer) + 9
        again = WAYS[way](other)  # which is in memory now
        assert again.keys().tolist() == other.keys().tolist()
    live.add(episode(0, 10))
    live.save()
    assert len(rlds2buf.load_buffer(tmp_path / "b")) == len(live)


def nothing(observation: Any, action: Any, after: Any) -> Any:
    return np.zeros(len(action))


def test_functions_that_have_no_name_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("cloudpickle", "dill"):  # another test may have loaded one, and these do pickle such functions
        monkeypatch.delitem(sys.modules, package, raising=False)

    def made(done_fn: Any) -> Any:
        spec = rlds2buf.spec_of(rlds2buf.Episode(observation=np.zeros((4, 3)), action=np.zeros(4), reward=np.zeros(4)))
        goals = [rlds2buf.GoalMap(((), [1]), ((), [2]))]
        return rlds2buf.make_hindsight(spec, 100, goals=goals, reward_fn=nothing, done_fn=done_fn, vectorized=False)

    other = pickle.loads(pickle.dumps(made(nothing)))
    assert other.done_fn is nothing
    with pytest.raises(TypeError, match="done_fn can't be pickled"):
        pickle.dumps(made(lambda observation, action, after: 0))
    assert copy.deepcopy(made(lambda observation, action, after: 0)).reward_fn is nothing
    policies = {"a": rlds2buf.make_circular(SPEC, 5)}
    with pytest.raises(TypeError, match="policy_mapping can't be pickled"):
        pickle.dumps(rlds2buf.make_multi_agent(policies, policy_mapping=lambda agent: "a"))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["independent", "lockstep"])
def test_others(mode: str, way: str) -> None:
    policies = {name: rlds2buf.make_circular(SPEC, 50, seed=1) for name in "ab"}
    several = rlds2buf.make_multi_agent(policies, mode=mode, seed=5)
    ids = {"episode_id": 0, "agent_index": 0} if mode == "lockstep" else {}
    several.add({"a": episode(0, 20), "b": episode(100, 20)}, **ids)
    mixed = rlds2buf.MixedBuffers([policies["a"], policies["b"]], seed=0)
    for buffer, keys in (
        (several, lambda batch: [part.info.key.tolist() for part in batch.values()]),
        (mixed, lambda batch: [batch.info.key.tolist(), batch.info.source_id.tolist()]),
    ):
        other = WAYS[way](buffer) if way != "copy" else copy.deepcopy(buffer)
        assert keys(other.sample(9)) == keys(buffer.sample(9))


@pytest.mark.parametrize("way", ["pickle", "deepcopy"])
def test_costs_and_rollouts(way: str) -> None:
    data = transitions(0, 30)
    costs = rlds2buf.make_cost_replay(SPEC, 20, seed=1, penalty_coefficient=0.5, batch_size=4)
    fields = {
        "observation": data.observation,
        "action": data.action,
        "reward": data.reward,
        "note": data.extras["note"],
    }
    costs.store(**fields, cost=1.0, next_observation=data.next_observation)
    other = WAYS[way](costs)
    for _ in range(2):
        assert other.sample().info.key.tolist() == costs.sample().info.key.tolist()
        assert other.all().reward.tolist() == costs.all().reward.tolist()
        for one in (other, costs):
            one.store(**fields, cost=1.0, next_observation=data.next_observation)
    rollout = rlds2buf.make_on_policy(SPEC, 40, seed=1, lam=0.5)
    rollout.store(**fields, value_r=0.5)
    copies = [WAYS[way](rollout), rlds2buf.make_on_policy(SPEC, 40, seed=9, lam=0.5)]
    copies[1].load_state_dict(rollout.state_dict())
    with pytest.raises(SnapshotError, match="size"):
        rlds2buf.make_on_policy(SPEC, 41).load_state_dict(rollout.state_dict())
    expected = [batch.reward.tolist() for batch in _finished(rollout)]
    for one in copies:
        assert [batch.reward.tolist() for batch in _finished(one)] == expected


def _finished(rollout: Any) -> Any:
    rollout.finish_path(last_value_r=1.0)
    return rollout.minibatches(8)
