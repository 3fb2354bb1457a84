"""The worked examples of n-step horizons: terminal, truncation, newest item, interleaved sources, wrap."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import FieldSpec, StepSpec
from tests.data import GOLDEN
from tests.reference.replay import ListReplay

TABLE = json.loads((GOLDEN / "nstep.json").read_text())
SPEC = StepSpec(
    observation=FieldSpec((), np.float64),
    action=FieldSpec((), np.int64),
    reward=FieldSpec((), np.float64),
    discount=FieldSpec((), np.float64),
)


def items(reward: list[float], is_done: list[int]) -> list[dict[str, Any]]:
    """Explicit transitions whose observation is their position and next observation that plus a half."""
    return [
        {"observation": float(i), "action": 0, "reward": r, "discount": 1.0, "next_observation": i + 0.5, "is_done": d}
        for i, (r, d) in enumerate(zip(reward, is_done, strict=True))
    ]


class OnTwin:
    def __init__(self, capacity: int) -> None:
        self.replay = ListReplay(capacity)

    def add(self, reward: list[float], is_done: list[int], sources: list[int]) -> list[int]:
        return self.replay.add_transitions(items(reward, is_done), sources)

    def get(self, key: Any, n: int, gamma: float) -> dict[str, Any]:
        return self.replay.transition(key, n, gamma)

    def rewards(self) -> list[float]:
        return [self.replay.transition(key)["reward"] for key in self.replay.keys()]


class OnBuffer:
    def __init__(self, capacity: int) -> None:
        self.buffer = rlds2buf.make_circular(SPEC, capacity, seed=0)

    def add(self, reward: list[float], is_done: list[int], sources: list[int]) -> np.ndarray:
        rows = items(reward, is_done)
        columns = {name: np.asarray([row[name] for row in rows]) for name in rows[0]}
        return self.buffer.add(columns, source_id=np.asarray(sources))

    def get(self, key: Any, n: int, gamma: float) -> dict[str, Any]:
        batch = self.buffer.get([key], n_step=n, gamma=gamma)
        names = ("observation", "reward", "next_observation", "is_done", "steps", "bootstrap_discount", "discount")
        assert all(getattr(batch, name).shape == (1,) for name in names)
        return {name: getattr(batch, name)[0] for name in names}

    def rewards(self) -> list[float]:
        return self.buffer.all().reward.tolist()


@pytest.fixture(params=[OnTwin, OnBuffer])
def make(request: pytest.FixtureRequest) -> Any:
    return request.param


def check(got: dict[str, Any], case: dict[str, Any], start: int, gamma: float) -> None:
    assert got["observation"] == start
    assert got["next_observation"] == case["last"] + 0.5
    assert got["steps"] == case["steps"]
    assert got["is_done"] == case["is_done"]
    assert got["reward"] == case["reward"]
    assert got["bootstrap_discount"] == case["bootstrap_discount"]
    assert got["discount"] * gamma == case["bootstrap_discount"]


@pytest.mark.parametrize("case", TABLE["cases"], ids=lambda case: f"n{case['n']}-start{case['start']}")
@pytest.mark.parametrize("capacity", [7, 8, 100])
def test_stream(make: Any, case: dict[str, Any], capacity: int) -> None:
    stream = TABLE["stream"]
    replay = make(capacity)
    keys = replay.add(stream["reward"], stream["is_done"], [0] * len(stream["reward"]))
    check(replay.get(keys[case["start"]], case["n"], stream["gamma"]), case, case["start"], stream["gamma"])


@pytest.mark.parametrize("case", TABLE["targets_with_V_of_next_10"], ids=lambda case: f"start{case['start']}")
def test_targets(make: Any, case: dict[str, Any]) -> None:
    stream = TABLE["stream"]
    replay = make(7)
    keys = replay.add(stream["reward"], stream["is_done"], [0] * len(stream["reward"]))
    got = replay.get(keys[case["start"]], case["n"], stream["gamma"])
    assert got["reward"] + got["bootstrap_discount"] * 10 == case["target"]


@pytest.mark.parametrize("case", TABLE["interleaved_sources"]["cases"], ids=lambda case: f"start{case['start']}")
@pytest.mark.parametrize("one_by_one", [False, True])
def test_interleaved_sources(make: Any, case: dict[str, Any], one_by_one: bool) -> None:
    table = TABLE["interleaved_sources"]
    replay = make(6)
    if one_by_one:
        # One call a transition; the observation is then 0 in each, so only the rest is compared.
        keys = [
            replay.add([r], [d], [s])[0]
            for r, d, s in zip(table["reward"], table["is_done"], table["source"], strict=True)
        ]
        got = replay.get(keys[case["start"]], case["n"], table["gamma"])
        got = {**got, "observation": case["start"], "next_observation": case["last"] + 0.5}
    else:
        keys = replay.add(table["reward"], table["is_done"], table["source"])
        got = replay.get(keys[case["start"]], case["n"], table["gamma"])
    check(got, case, case["start"], table["gamma"])


@pytest.mark.parametrize("one_by_one", [False, True])
def test_ring_wrap(make: Any, one_by_one: bool) -> None:
    table = TABLE["ring_wrap"]
    replay = make(table["capacity"])
    rewards = table["appended_rewards"]
    if one_by_one:
        keys = [replay.add([reward], [0], [0])[0] for reward in rewards]
    else:
        keys = list(replay.add(rewards, [0] * len(rewards), [0] * len(rewards)))
    assert replay.rewards() == table["logical_oldest_first"]
    held = keys[-table["capacity"] :]
    for case in table["expected"]:
        got = replay.get(held[case["logical_start"]], table["n"], table["gamma"])
        for name in ("reward", "steps", "is_done", "bootstrap_discount"):
            assert got[name] == case[name], case


def test_truncated_episode_does_not_spill_over() -> None:
    """TF-Agents' frames: two rewards and a boundary, then another episode (issue tensorflow/agents 939)."""
    finding = TABLE["tf_agents_to_n_step_transition"]["truncated_discounts_all_1"]["finding"]
    assert "correct: reward 2.0" in finding and "next observation 2" in finding
    first = rlds2buf.Episode(
        observation=np.array([0.0, 1.0, 2.0]),
        action=np.zeros(3, np.int64),
        reward=np.array([1.0, 2.0, 4.0]),
        discount=np.ones(3),
        is_last=[False, False, True],
    )
    second = first.replace(observation=np.array([3.0, 4.0, 5.0]), reward=np.array([8.0, 8.0, 8.0]))
    buffer = rlds2buf.make_circular(SPEC, 6, seed=0)
    keys = buffer.add(first)
    buffer.add(second)
    batch = buffer.get(keys, n_step=3, gamma=0.5)
    assert batch.reward.tolist() == [2.0, 2.0]
    assert batch.discount.tolist() == [0.5, 1.0]  # gamma ** (n used - 1)
    assert batch.bootstrap_discount.tolist() == [0.25, 0.5]
    assert batch.next_observation.tolist() == [2.0, 2.0]
    assert batch.is_done.tolist() == [2, 2]
    assert batch.truncated.all() and not batch.terminated.any()


def test_discount_after_shortened_horizon_is_of_the_steps_taken() -> None:
    assert "gamma**3 where gamma**1 or **2 is due" in TABLE["rllib_dqn"]
    buffer = rlds2buf.make_circular(SPEC, 10, seed=0)
    tail = buffer.add({name: np.asarray(column) for name, column in columns([1.0, 1.0], [0, 2]).items()})
    batch = buffer.get(tail, n_step=3, gamma=0.5)
    assert batch.bootstrap_discount.tolist() == [0.25, 0.5]


def columns(reward: list[float], is_done: list[int]) -> dict[str, list[Any]]:
    rows = items(reward, is_done)
    return {name: [row[name] for row in rows] for name in rows[0]}
