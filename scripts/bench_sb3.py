#!/usr/bin/env python3
"""Stable-Baselines3's SAC with our replay buffer in place of its own: a step's time, and memory.

Both buffers hold the same steps of an environment with 17 + 6 numbers and episodes of 1000 steps, both are full, and
the same small networks are trained: a step of learning is a step of the environment, ``add``, ``sample`` of 256 and an
update. Beside it, what ``add`` and ``sample`` take alone. Run it in the environment of scripts/test's torch part:

    .venv/torch/bin/python scripts/bench_sb3.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
from bench import ACTION, OBSERVATION, Bench, Pass, turns


def environment() -> Any:
    """Observations at random, as fast as an environment can be."""
    import gymnasium

    class Quick(gymnasium.Env):  # type: ignore[type-arg]
        observation_space = gymnasium.spaces.Box(-1, 1, (OBSERVATION,), np.float32)
        action_space = gymnasium.spaces.Box(-1, 1, (ACTION,), np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
            super().reset(seed=seed)
            self.steps = 0
            return self._seen(), {}

        def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
            self.steps += 1
            return self._seen(), 0.0, False, self.steps == 1000, {}

        def _seen(self) -> np.ndarray:
            return self.np_random.random(OBSERVATION, np.float32)

    return Quick()


def filled(buffer: Any, capacity: int) -> Any:
    """Given a pass and a half of steps."""
    rng = np.random.default_rng(0)
    rows = rng.random((10_001, 1, OBSERVATION), np.float32)
    action, reward = np.zeros((1, ACTION), np.float32), np.zeros(1, np.float32)
    for t in range(capacity + capacity // 2):
        done = np.array([t % 1000 == 999])
        i = t % 10_000
        buffer.add(rows[i], rows[i + 1], action, reward, done, [{"TimeLimit.truncated": True}])
    return buffer


def learner(buffer_class: Any, capacity: int, hidden: int) -> Any:
    """SAC over such a buffer, full."""
    from stable_baselines3 import SAC

    model = SAC(
        "MlpPolicy",
        environment(),
        replay_buffer_class=buffer_class,
        buffer_size=capacity,
        learning_starts=0,
        policy_kwargs={"net_arch": [hidden, hidden]},
        seed=0,
        device="cpu",
    )
    filled(model.replay_buffer, capacity)
    return model


def held_bytes(buffer: Any) -> int:
    """Of SB3's arrays, which it allocates at once."""
    return sum(value.nbytes for value in vars(buffer).values() if isinstance(value, np.ndarray))


def main() -> None:
    """Measure and print."""
    bench = Bench(__doc__, rounds=15, transitions=200_000, batch=256, hidden=256, steps=100)
    if not (bench.has("torch") and bench.has("stable_baselines3")):
        bench.finish()
    import torch
    from stable_baselines3.common.buffers import ReplayBuffer as Theirs

    from rlds2buf.adapters.sb3 import ReplayBuffer as Ours

    torch.set_num_threads(1)
    size, steps = bench.options.batch, bench.options.steps
    models = {
        name: learner(cls, bench.options.transitions, bench.options.hidden)
        for name, cls in (("rlds2buf", Ours), ("SB3", Theirs))
    }

    def learn(model: Any) -> Pass:
        def steps_of_it() -> int:
            model.learn(steps, reset_num_timesteps=False)
            return steps

        return steps_of_it

    def sample(model: Any) -> Pass:
        return lambda: model.replay_buffer.sample(size)

    def add(model: Any) -> Pass:
        space = model.observation_space.sample()[None]
        action, reward, done = np.zeros((1, ACTION), np.float32), np.zeros(1, np.float32), np.zeros(1, np.bool_)

        def many() -> int:
            for _ in range(2000):
                model.replay_buffer.add(space, space, action, reward, done, [{}])
            return 2000

        return many

    for work, make, unit, calls, most in (
        (f"a training step of SAC, {size} of {bench.options.transitions:,}", learn, "us", 1, 1.0),
        (f"sample, {size} of {bench.options.transitions:,}", sample, "us", 50, None),
        ("add, one environment", add, "us", 1, None),
    ):
        rates = turns({name: make(model) for name, model in models.items()}, bench.rounds, calls=calls)
        bench.show(work, rates, unit)
        bench.ratio(work, rates, "rlds2buf", "SB3", most and 0.97)
    ours, theirs = models["rlds2buf"].replay_buffer, models["SB3"].replay_buffer
    bench.figure("memory of a full buffer of states", "SB3", ours.nbytes / held_bytes(theirs), most=0.6)
    pictures(bench)
    bench.finish()


def pictures(bench: Bench) -> None:
    """Memory of stacks of four 84 x 84 frames."""
    from gymnasium import spaces
    from stable_baselines3.common.buffers import ReplayBuffer as Theirs

    from rlds2buf.adapters.sb3 import ReplayBuffer as Ours

    capacity = 2000
    box, discrete = spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(4)
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (101, 1, 4, 84, 84), np.uint8)
    held = {}
    for name, cls in (("rlds2buf", Ours), ("SB3", Theirs)):
        buffer = cls(capacity, box, discrete, device="cpu")
        for t in range(capacity + 500):
            i = t % 100
            buffer.add(frames[i], frames[i + 1], np.zeros(1, np.int64), np.zeros(1), np.array([t % 200 == 199]), [{}])
        held[name] = buffer.nbytes if name == "rlds2buf" else held_bytes(buffer)
    bench.figure("memory of a full buffer of 84 x 84 x 4 pictures", "SB3", held["rlds2buf"] / held["SB3"], most=0.6)


if __name__ == "__main__":
    main()
