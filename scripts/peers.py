"""The replay buffers that scripts/bench_buffers.py measures, each behind the same four calls."""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np

import rlds2buf
from rlds2buf import FieldSpec, StepSpec

OBSERVATION, ACTION = 17, 6
ALPHA, BETA = 0.6, 0.4
SPEC = StepSpec(
    observation=FieldSpec((OBSERVATION,), np.float32),
    action=FieldSpec((ACTION,), np.float32),
    reward=FieldSpec((), np.float32),
    discount=None,
)


def columns(count: int) -> dict[str, np.ndarray]:
    """Transitions of episodes of 1000."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((count + 1, OBSERVATION), np.float32)
    done = np.zeros(count, np.float32)
    done[999::1000] = 1
    return {
        "obs": rows[:-1],
        "act": rng.standard_normal((count, ACTION), np.float32),
        "rew": rng.standard_normal(count).astype(np.float32),
        "next_obs": rows[1:],
        "done": done,
    }


class Ours:
    """rlds2buf."""

    def __init__(self, count: int, prioritized: bool) -> None:
        kwargs = {"alpha": ALPHA, "beta": BETA} if prioritized else {}
        self.buffer = (rlds2buf.make_prioritized if prioritized else rlds2buf.make_circular)(
            SPEC, count, seed=0, **kwargs
        )

    def add(self, data: dict[str, np.ndarray]) -> None:
        """All columns in one call."""
        self.buffer.add(
            {
                "observation": data["obs"],
                "action": data["act"],
                "reward": data["rew"],
                "next_observation": data["next_obs"],
                "terminated": data["done"] > 0,
            }
        )

    def step(self, data: dict[str, np.ndarray], i: int) -> None:
        """One transition, as an actor has it."""
        self.buffer.add(
            {
                "observation": data["obs"][i],
                "action": data["act"][i],
                "reward": data["rew"][i],
                "next_observation": data["next_obs"][i],
                "is_done": int(data["done"][i]),
            }
        )

    def learn(self, size: int, errors: np.ndarray) -> None:
        """A prioritized batch, and its priorities."""
        batch = self.buffer.sample(size)
        self.buffer.update_priorities(batch.info.key, errors)


class Cpprb:
    """cpprb."""

    def __init__(self, count: int, prioritized: bool) -> None:
        import cpprb

        shapes = {"obs": OBSERVATION, "act": ACTION, "rew": 1, "next_obs": OBSERVATION, "done": 1}
        fields = {name: {"shape": shape, "dtype": np.float32} for name, shape in shapes.items()}
        if prioritized:
            self.buffer = cpprb.PrioritizedReplayBuffer(count, fields, alpha=ALPHA)
        else:
            self.buffer = cpprb.ReplayBuffer(count, fields)

    def add(self, data: dict[str, np.ndarray]) -> None:
        """All columns in one call."""
        self.buffer.add(**data)

    def step(self, data: dict[str, np.ndarray], i: int) -> None:
        """One transition."""
        self.buffer.add(
            obs=data["obs"][i],
            act=data["act"][i],
            rew=data["rew"][i],
            next_obs=data["next_obs"][i],
            done=data["done"][i],
        )

    def learn(self, size: int, errors: np.ndarray) -> None:
        """A prioritized batch, and its priorities."""
        batch = self.buffer.sample(size, beta=BETA)
        self.buffer.update_priorities(batch["indexes"], errors)


class Sb3:
    """Stable-Baselines3, which adds one step at a time and has no prioritized buffer."""

    def __init__(self, count: int, prioritized: bool) -> None:
        from gymnasium.spaces import Box
        from stable_baselines3.common.buffers import ReplayBuffer

        if prioritized:
            raise NotImplementedError("it has no prioritized buffer")
        self.buffer = ReplayBuffer(
            count, Box(-1, 1, (OBSERVATION,), np.float32), Box(-1, 1, (ACTION,), np.float32), device="cpu"
        )

    def add(self, data: dict[str, np.ndarray]) -> None:
        """There is no such call."""
        raise NotImplementedError("it adds one step at a time")

    def step(self, data: dict[str, np.ndarray], i: int) -> None:
        """One transition."""
        self.buffer.add(data["obs"][i], data["next_obs"][i], data["act"][i], data["rew"][i], data["done"][i], [{}])


class Torchrl:
    """torchrl."""

    def __init__(self, count: int, prioritized: bool) -> None:
        from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer, TensorDictReplayBuffer

        storage = LazyTensorStorage(count)
        if prioritized:
            self.buffer = TensorDictPrioritizedReplayBuffer(alpha=ALPHA, beta=BETA, storage=storage, batch_size=256)
        else:
            self.buffer = TensorDictReplayBuffer(storage=storage, batch_size=256)

    def add(self, data: dict[str, np.ndarray]) -> None:
        """All columns in one call."""
        import torch
        from tensordict import TensorDict

        tensors = {name: torch.from_numpy(column) for name, column in data.items()}
        self.buffer.extend(TensorDict(tensors, batch_size=[len(data["rew"])]))

    def step(self, data: dict[str, np.ndarray], i: int) -> None:
        """One transition."""
        import torch
        from tensordict import TensorDict

        self.buffer.add(TensorDict({name: torch.as_tensor(column[i]) for name, column in data.items()}, batch_size=[]))

    def learn(self, size: int, errors: np.ndarray) -> None:
        """A prioritized batch, and its priorities."""
        import torch

        batch = self.buffer.sample(size)
        batch.set("td_error", torch.from_numpy(errors))
        self.buffer.update_tensordict_priority(batch)


CONTENDERS: dict[str, Any] = {"rlds2buf": Ours, "cpprb": Cpprb, "SB3": Sb3, "torchrl": Torchrl}


@functools.cache
def available(prioritized: bool) -> dict[str, Any]:
    """Who can be made here; the others are named on standard error."""
    there = {}
    for name, make in CONTENDERS.items():
        try:
            make(10, prioritized)
            there[name] = make
        except (ImportError, RuntimeError, NotImplementedError) as cause:
            first = (str(cause) or type(cause).__name__).splitlines()[0]
            print(f"({name}{' prioritized' if prioritized else ''} left out: {first})", file=sys.stderr)
    return there
