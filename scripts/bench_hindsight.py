#!/usr/bin/env python3
"""Sampling with hindsight goals against Stable-Baselines3's HerReplayBuffer.

Both hold the same 200k transitions (observation 10, goal 3, action 4, float32, episodes of 50 steps)
and draw batches with the strategy "future" and 4 goals, 50 in turn, so that a change of the machine's
speed meets both.  The reward is the same numpy function; ours computes the end of each transition
beside it.  Run it with ``pip install stable-baselines3`` beside rlds2buf.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from bench import Bench, turns

import rlds2buf

OBSERVATION, GOAL, ACTION, LENGTH, GOALS = 10, 3, 4, 50, 4


def columns(count: int) -> dict[str, np.ndarray]:
    """Rows of episodes of 50 transitions (51 rows), a goal for each, the achieved one a random walk."""
    rng = np.random.default_rng(0)
    episodes = count // LENGTH
    shape = episodes, LENGTH + 1
    return {
        "observation": rng.standard_normal((*shape, OBSERVATION), np.float32),
        "achieved_goal": np.cumsum(rng.standard_normal((*shape, GOAL), np.float32), axis=1) * np.float32(0.05),
        "desired_goal": np.broadcast_to(rng.standard_normal((episodes, 1, GOAL), np.float32), (*shape, GOAL)).copy(),
        "action": rng.standard_normal((*shape, ACTION), np.float32),
    }


def far(achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
    """Which goals ``[B, 3]`` are farther away than 0.05, as in the Fetch environments."""
    gap = achieved - desired
    return np.einsum("bi,bi->b", gap, gap) > 0.05**2


def compute_reward(achieved: np.ndarray, desired: np.ndarray, info: Any = None) -> np.ndarray:
    """-1 or 0, as in the Fetch environments."""
    return -far(achieved, desired).astype(np.float32)


def ours(data: dict[str, np.ndarray], kind: str = "uniform") -> Callable[[int], Any]:
    """A hindsight buffer of the same transitions, as episodes."""

    def reward_fn(observation: Any, action: Any, after: Any) -> np.ndarray:
        return compute_reward(after["achieved_goal"], after["desired_goal"])

    def done_fn(observation: Any, action: Any, after: Any) -> np.ndarray:
        return ~far(after["achieved_goal"], after["desired_goal"])

    make: Any = {"uniform": rlds2buf.make_hindsight, "prioritized": rlds2buf.make_hindsight_prioritized}[kind]
    buffer = None
    names = ("observation", "achieved_goal", "desired_goal")
    for i in range(len(data["action"])):
        observation = {name: data[name][i] for name in names}
        reward = compute_reward(observation["achieved_goal"], observation["desired_goal"])
        episode = rlds2buf.Episode(
            observation=observation,
            action=data["action"][i],
            reward=np.append(reward[1:], np.float32(0)),
            discount=np.ones(LENGTH + 1, np.float32),
        )
        if buffer is None:
            buffer = make(
                rlds2buf.spec_of(episode),
                data["action"].shape[0] * (LENGTH + 1),
                goals=[rlds2buf.GoalMap("achieved_goal", "desired_goal")],
                reward_fn=reward_fn,
                done_fn=done_fn,
                strategy="future",
                num_goals=GOALS,
                seed=0,
            )
        buffer.add(episode)
    assert buffer is not None and len(buffer) == data["action"].shape[0] * LENGTH
    return buffer.sample


def sb3(data: dict[str, np.ndarray]) -> Callable[[int], Any]:
    """Stable-Baselines3's HerReplayBuffer, filled by writing its arrays."""
    import gymnasium
    from stable_baselines3 import HerReplayBuffer
    from stable_baselines3.common.vec_env import DummyVecEnv

    spaces = gymnasium.spaces
    names = ("observation", "achieved_goal", "desired_goal")
    space = spaces.Dict({name: spaces.Box(-100, 100, data[name].shape[2:], np.float32) for name in names})

    class Goals(gymnasium.Env):  # type: ignore[type-arg]
        """What the buffer asks for rewards."""

        observation_space = space
        action_space = spaces.Box(-100, 100, (ACTION,), np.float32)

        def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, info: Any) -> np.ndarray:
            return compute_reward(achieved, desired, info)

    count = data["action"].shape[0] * LENGTH
    buffer = HerReplayBuffer(
        count,
        space,
        Goals.action_space,
        DummyVecEnv([Goals]),
        device="cpu",
        n_sampled_goal=GOALS,
        goal_selection_strategy="future",
        handle_timeout_termination=True,
    )
    for name in names:
        buffer.observations[name][:, 0] = data[name][:, :-1].reshape(count, -1)
        buffer.next_observations[name][:, 0] = data[name][:, 1:].reshape(count, -1)
    buffer.actions[:, 0] = data["action"][:, :-1].reshape(count, -1)
    after = buffer.next_observations
    buffer.rewards[:, 0] = compute_reward(after["achieved_goal"][:, 0], after["desired_goal"][:, 0])
    buffer.dones[LENGTH - 1 :: LENGTH, 0] = 1
    buffer.timeouts[LENGTH - 1 :: LENGTH, 0] = 1
    buffer.ep_start[:, 0] = np.arange(count) // LENGTH * LENGTH
    buffer.ep_length[:, 0] = LENGTH
    buffer.full = True
    return buffer.sample


def main() -> None:
    """Measure and print."""
    bench = Bench(__doc__, rounds=20, transitions=200_000)
    data = columns(bench.options.transitions)
    contenders = {"rlds2buf": ours(data), "rlds2buf, prioritized": ours(data, "prioritized")}
    if bench.has("stable_baselines3"):
        contenders["SB3's HerReplayBuffer"] = sb3(data)
    for batch in (256, 2048):
        work = f"hindsight sample, {batch} of {bench.options.transitions:,}"
        draws = {name: lambda draw=draw, batch=batch: draw(batch) for name, draw in contenders.items()}
        rates = turns(draws, bench.rounds, calls=50)
        bench.show(work, rates, "us")
        bench.ratio(work, rates, "rlds2buf", "SB3's HerReplayBuffer")
    bench.finish()


if __name__ == "__main__":
    main()
