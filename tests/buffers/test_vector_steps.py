"""Gymnasium's vector environments: rows that only reset are no transitions, episodes end with what was seen last."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import rlds2buf
from rlds2buf import SpecMismatch

LENGTHS = (1, 2, 3, 5)


class Counting(gymnasium.Env):  # type: ignore[misc,type-arg]
    """Observations count steps, and say of which episode and environment; it ends after so many steps."""

    def __init__(self, number: int, length: int, nested: bool = False) -> None:
        self.number, self.length, self.nested = number, length, nested
        self.episode = self.time = 0
        box = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
        count = gymnasium.spaces.Discrete(1000)
        self.observation_space: Any = gymnasium.spaces.Dict({"b": box, "a": count}) if nested else box
        self.action_space = gymnasium.spaces.Discrete(1000)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.episode, self.time = self.episode + 1, 0
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        over = self.time >= self.length
        return self.seen(), 0.0, over and self.number % 2 == 0, over and self.number % 2 == 1, {}

    def seen(self) -> Any:
        numbers = np.array([self.number, self.episode, self.time], np.float64)
        return {"b": numbers, "a": self.time} if self.nested else numbers


def environments(mode: AutoresetMode, nested: bool = False, vector: Any = SyncVectorEnv) -> Any:
    makers: list[Callable[[], Any]] = [
        lambda number=number, length=length: Counting(number, length, nested) for number, length in enumerate(LENGTHS)
    ]
    return vector(makers, autoreset_mode=mode)


def run(buffer: Any, env: Any, mode: AutoresetMode, steps: int, observation: Any = None, **options: Any) -> Any:
    """Let it run; returns the last observation."""
    if observation is None:
        observation, _ = env.reset(seed=1)
    for t in range(steps):
        action = np.full(len(LENGTHS), t)
        following, reward, terminated, truncated, info = env.step(action)
        step = {"observation": observation, "action": action, "reward": reward, "next_observation": following}
        step.update(terminated=terminated, truncated=truncated, info=info)
        buffer.add(step, autoreset=mode, **options)
        observation = following
        over = terminated | truncated
        if mode == AutoresetMode.DISABLED and over.any():
            observation, _ = env.reset(options={"reset_mask": over})
    return observation


def assert_whole(buffer: Any) -> None:
    """Each transition leads from one time of an episode to the next, and episodes have all of theirs."""
    data = buffer.all()
    before, after = (
        part["b"] if isinstance(part, dict) else part for part in (data.observation, data.next_observation)
    )
    assert np.array_equal(after - before, np.tile([0.0, 0.0, 1.0], (len(before), 1)))
    if isinstance(data.observation, dict):
        assert np.array_equal(data.observation["a"], before[:, 2])
        assert np.array_equal(data.next_observation["a"], after[:, 2])
    lengths = np.array(LENGTHS)[before[:, 0].astype(int)]
    over = after[:, 2] == lengths
    assert np.array_equal(data.is_done, np.where(over, 1 + before[:, 0] % 2, 0))
    for number in range(len(LENGTHS)):
        mine = before[before[:, 0] == number]
        expected = [(number, 1 + i // LENGTHS[number], i % LENGTHS[number]) for i in range(len(mine))]
        assert np.array_equal(mine, expected)


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("make", [rlds2buf.make_circular, rlds2buf.make_prioritized])
def test_no_row_that_resets_is_a_transition(mode: AutoresetMode, nested: bool, make: Any) -> None:
    buffer = make(capacity=1000, seed=0)
    env = environments(mode, nested)
    run(buffer, env, mode, 23)
    assert_whole(buffer)
    resets = sum(23 // (length + 1) for length in LENGTHS) if mode == AutoresetMode.NEXT_STEP else 0
    assert len(buffer) == 23 * len(LENGTHS) - resets
    # Chains of steps are each environment's own: those of n steps end with the episodes.
    two = buffer.get(buffer.keys(), n_step=2)
    seen = two.observation["b"] if nested else two.observation
    last = two.next_observation["b"] if nested else two.next_observation
    assert np.array_equal(last[:, 2] - seen[:, 2], two.steps) and np.array_equal(last[:, :2], seen[:, :2])
    buffer.check_valid()


@pytest.mark.parametrize("mode", AutoresetMode)
def test_of_processes_too(mode: AutoresetMode) -> None:
    buffer = rlds2buf.make_circular(capacity=1000)
    env = environments(mode, True, AsyncVectorEnv)
    try:
        run(buffer, env, mode, 9)
    finally:
        env.close()
    assert_whole(buffer)


@pytest.mark.parametrize("at", range(2, 8))
def test_reset_by_hand(at: int) -> None:
    """Whoever resets all environments in mid-episode, or where one has just ended, loses no step behind it."""
    buffer = rlds2buf.make_circular(capacity=1000)
    env = environments(AutoresetMode.NEXT_STEP)
    run(buffer, env, AutoresetMode.NEXT_STEP, at)
    held = len(buffer)
    run(buffer, env, AutoresetMode.NEXT_STEP, 1)
    assert len(buffer) == held + len(LENGTHS)
    data = buffer.all()
    assert (data.next_observation[:, 2] - data.observation[:, 2] == 1).all()


@pytest.mark.parametrize("at", range(1, 7))
@pytest.mark.parametrize("way", ["state", "saved", "live", "full"])
def test_gone_on_with(at: int, way: str, tmp_path: Path) -> None:
    """A row that only resets is known for one by a loaded buffer, and where its episode has left already."""
    options: dict[str, Any] = {"capacity": 2 if way == "full" else 1000}
    if way == "live":
        options["directory"] = tmp_path / "live"
    buffer = rlds2buf.make_circular(**options)
    env = environments(AutoresetMode.NEXT_STEP)
    observation = run(buffer, env, AutoresetMode.NEXT_STEP, at)
    if way == "state":
        state = buffer.state_dict()
        buffer = rlds2buf.make_circular(capacity=1000)
        buffer.load_state_dict(state)
    elif way == "saved":
        buffer.save(tmp_path / "saved")
        buffer = rlds2buf.load_buffer(tmp_path / "saved")
    elif way == "live":
        buffer.save()
        buffer = rlds2buf.load_buffer(tmp_path / "live", writable=True)
    run(buffer, env, AutoresetMode.NEXT_STEP, 8, observation)
    if way == "full":
        data = buffer.all()
        assert (data.next_observation[:, 2] - data.observation[:, 2] == 1).all()
        added = sum((at + 8) - (at + 8) // (length + 1) for length in LENGTHS)
        assert buffer.stats()["added"] == added
    else:
        assert_whole(buffer)


def test_keys_priorities_and_sources() -> None:
    buffer = rlds2buf.make_prioritized(capacity=100, eps=0.0)
    step: dict[str, Any] = {
        "observation": np.array([1.0, 2.0, 3.0]),
        "action": np.zeros(3),
        "reward": np.zeros(3),
        "next_observation": np.array([4.0, 5.0, 6.0]),
        "terminated": np.array([True, False, False]),
    }
    assert buffer.add(step, autoreset="next_step", source_id=10, priorities=[1, 2, 3]).tolist() == [0, 1, 2]
    after = {**step, "observation": step["next_observation"], "terminated": np.array([False, False, True])}
    assert buffer.add(after, autoreset="NextStep", source_id=[10, 11, 12], priorities=[4, 5, 6]).tolist() == [3, 4]
    assert buffer.engine.sampler.priority_of(np.arange(5)).tolist() == [1, 2, 3, 5, 6]
    assert buffer.engine.store.source[:5].tolist() == [10, 11, 12, 11, 12]
    only = {name: value[2:] for name, value in after.items()}
    only["observation"], only["terminated"] = only["next_observation"], np.array([False])
    assert len(buffer.add(only, autoreset=AutoresetMode.NEXT_STEP, source_id=[12])) == 0  # all of it resets
    assert buffer.add(only, autoreset="next_step", source_id=[12]).tolist() == [5]


def test_wrong_ones() -> None:
    buffer = rlds2buf.make_circular(capacity=100)
    step: dict[str, Any] = {
        "observation": np.zeros((2, 3)),
        "action": np.zeros(2),
        "reward": np.zeros(2),
        "next_observation": np.ones((2, 3)),
        "terminated": np.array([False, True]),
        "truncated": np.array([False, False]),
    }
    buffer.add(step, autoreset="disabled")
    for change, options, error, words in (
        ({}, {"autoreset": "later"}, ValueError, "next_step, same_step, disabled"),
        ({}, {"autoreset": "same_step"}, SpecMismatch, "environment 1 ended.*final_obs"),
        ({"info": {"final_obs": np.array([None, None])}}, {"autoreset": "same_step"}, SpecMismatch, "environment 1"),
        ({"terminated": None, "truncated": None}, {"autoreset": "next_step"}, SpecMismatch, "is_done"),
        ({"terminated": True, "truncated": False}, {"autoreset": "next_step"}, SpecMismatch, "is_done"),
        ({}, {"autoreset": "next_step", "source_id": [3, 3]}, ValueError, "of its own"),
        ({}, {"autoreset": "next_step", "source_id": [3]}, ValueError, "of its own"),
        ({}, {"autoreset": "next_step", "priorities": [1.0]}, ValueError, "as many priorities"),
        ({"action": np.zeros(3)}, {"autoreset": "next_step"}, SpecMismatch, "action"),
    ):
        with pytest.raises(error, match=words):
            buffer.add({**step, **change}, **options)
    with pytest.raises(TypeError, match="mapping"):
        buffer.add([step], autoreset="next_step")
    assert len(buffer) == 2 and not buffer.engine.contents.ended
    stacked = {**step, "info": {"final_obs": np.full((2, 3), 7.0)}}
    buffer.add(stacked, autoreset="same_step")
    assert buffer.all().next_observation[2:, 0].tolist() == [1.0, 7.0]
    assert (step["next_observation"] == 1).all()  # what was given is as it was
