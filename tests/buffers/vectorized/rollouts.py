"""Rollouts to store, and ways of storing them."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds2buf import FieldSpec, StepSpec
from rlds2buf.buffers.vectorized.on_policy import OnPolicyBuffer

SPEC = StepSpec(observation=FieldSpec((2,), np.float32), action=FieldSpec((), np.int64))
RAW = {"standardize_reward": False, "standardize_cost": False}


def steps(reward: Any, **more: Any) -> dict[str, Any]:
    """Fields for ``store``: the observation holds the reward twice, so that rows can be told apart."""
    numbers = np.asarray(reward, np.float32)
    observation = np.stack([numbers, numbers], axis=-1)
    return {"observation": observation, "action": np.zeros(numbers.shape, np.int64), "reward": numbers, **more}


def random_rollout(rng: np.random.Generator, size: int, num_envs: int) -> dict[str, np.ndarray]:
    columns = {name: rng.normal(size=(size, num_envs)).astype(np.float32) for name in ("reward", "cost", "logp")}
    columns["value_r"], columns["value_c"] = rng.normal(size=(2, size, num_envs)).astype(np.float32)
    columns["terminated"], columns["truncated"] = rng.random((2, size, num_envs)) < 0.15
    columns["final_value_r"], columns["final_value_c"] = rng.normal(size=(2, size, num_envs)).astype(np.float32)
    columns["observation"] = rng.normal(size=(size, num_envs, 2)).astype(np.float32)
    columns["action"] = rng.integers(0, 5, (size, num_envs))
    return columns


def fill(buffer: OnPolicyBuffer, how: str, columns: dict[str, np.ndarray]) -> None:
    size, num_envs = columns["reward"].shape
    everything = (slice(None), slice(None))
    cells: dict[str, list[tuple[Any, ...]]] = {
        "table": [everything],
        "two tables": [(slice(0, size // 2), slice(None)), (slice(size // 2, size), slice(None))],
        "vector steps": [(t, slice(None)) for t in range(size)],
        "one by one": [(t, env) for env in range(num_envs) for t in range(size)],
        "env by env": [(slice(None), env) for env in reversed(range(num_envs))],
    }
    if how == "finish_path":
        fill_by_hand(buffer, columns)
    else:
        for t, env in cells[how]:
            one = env if isinstance(env, int) else None
            buffer.store(**{name: column[t, env] for name, column in columns.items()}, env=one)


def fill_by_hand(buffer: OnPolicyBuffer, columns: dict[str, np.ndarray]) -> None:
    """Paths finished as OmniSafe's adapters do; the flags themselves are not stored."""
    flags = {name: columns[name] for name in ("terminated", "truncated", "final_value_r", "final_value_c")}
    for t in range(len(columns["reward"])):
        buffer.store(**{name: column[t] for name, column in columns.items() if name not in flags})
        for env in range(buffer.num_envs):
            if flags["terminated"][t, env]:
                buffer.finish_path(env=env)
            elif flags["truncated"][t, env]:
                buffer.finish_path(flags["final_value_r"][t, env], flags["final_value_c"][t, env], env)


HOW = ["table", "two tables", "vector steps", "one by one", "env by env", "finish_path"]
