#!/usr/bin/env python3
"""Uniform sampling and memory of a full buffer against cpprb, Stable-Baselines3 and plain numpy.

Every contender holds the same 1M transitions (17 + 6 float32, 1000-step episodes) and draws batches
of 256 of observation, action, reward, next observation and end flag, 50 in turn, so that a change of
the machine's speed meets all of them.  Peers that are not installed are left out and named.
Run it with ``pip install cpprb stable-baselines3`` beside rlds2buf.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from bench import Bench, turns

import rlds2buf

OBSERVATION, ACTION, LENGTH = 17, 6, 1000


def columns(count: int) -> dict[str, np.ndarray]:
    """Transitions of episodes of 1000, the last of each terminal."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((count + 1, OBSERVATION), np.float32)
    done = np.zeros(count, np.float32)
    done[LENGTH - 1 :: LENGTH] = 1
    return {
        "obs": rows[:-1],
        "act": rng.standard_normal((count, ACTION), np.float32),
        "rew": rng.standard_normal(count).astype(np.float32),
        "next_obs": rows[1:],
        "done": done,
    }


def filled(data: dict[str, np.ndarray]) -> rlds2buf.Buffer:
    """A circular buffer of the same transitions, as episodes."""
    count = len(data["rew"])
    buffer = None
    for start in range(0, count, LENGTH):
        stop = min(start + LENGTH, count)
        terminal = np.zeros(stop - start + 1, np.bool_)
        terminal[-1] = True

        def padded(column: np.ndarray, start: int = start, stop: int = stop) -> np.ndarray:
            return np.concatenate([column[start:stop], np.zeros_like(column[:1])])

        episode = rlds2buf.Episode(
            observation=np.concatenate([data["obs"][start:stop], data["next_obs"][stop - 1 : stop]]),
            action=padded(data["act"]),
            reward=padded(data["rew"]),
            discount=np.ones(stop - start + 1, np.float32),
            is_terminal=terminal,
        )
        if buffer is None:
            buffer = rlds2buf.make_circular(rlds2buf.spec_of(episode), count + count // LENGTH + 1, seed=0)
        buffer.add(episode)
    assert buffer is not None and len(buffer) == count
    return buffer


def ours(data: dict[str, np.ndarray]) -> tuple[Callable[[int], Any], int, int]:
    """The buffer's ``sample``, what it takes in memory, and what its rows take."""
    buffer = filled(data)
    stats = buffer.stats()
    return buffer.sample, stats["bytes"], stats["num_rows"] * (stats["row_bytes"])


def cpprb(data: dict[str, np.ndarray]) -> Callable[[int], Any]:
    """cpprb's ReplayBuffer."""
    from cpprb import ReplayBuffer

    count = len(data["rew"])
    shapes = {name: {"shape": column.shape[1:] or 1, "dtype": np.float32} for name, column in data.items()}
    buffer = ReplayBuffer(count, shapes)
    buffer.add(**data)
    return buffer.sample


def sb3(data: dict[str, np.ndarray]) -> Callable[[int], Any]:
    """Stable-Baselines3's ReplayBuffer, filled by writing its arrays."""
    from gymnasium.spaces import Box
    from stable_baselines3.common.buffers import ReplayBuffer

    count = len(data["rew"])
    buffer = ReplayBuffer(
        count,
        Box(-1, 1, (OBSERVATION,), np.float32),
        Box(-1, 1, (ACTION,), np.float32),
        device="cpu",
        handle_timeout_termination=False,
    )
    buffer.observations[:, 0] = data["obs"]
    buffer.next_observations[:, 0] = data["next_obs"]
    buffer.actions[:, 0] = data["act"]
    buffer.rewards[:, 0] = data["rew"]
    buffer.dones[:, 0] = data["done"]
    buffer.full = True
    return buffer.sample


def take(data: dict[str, np.ndarray]) -> Callable[[int], Any]:
    """``np.take`` of the same five columns at uniform indices: what gathering alone costs in numpy."""
    rng = np.random.default_rng(0)
    own = {name: column.copy() for name, column in data.items()}

    def sample(size: int) -> dict[str, np.ndarray]:
        index = rng.integers(0, len(own["rew"]), size)
        return {name: np.take(column, index, axis=0) for name, column in own.items()}

    return sample


def main() -> None:
    """Measure and print."""
    bench = Bench(__doc__, rounds=60, transitions=1_000_000, batch=256)
    data = columns(bench.options.transitions)
    sample, held, rows = ours(data)
    contenders = {"rlds2buf": sample, "np.take of five columns": take(data)}
    for name, package, make in (("cpprb", "cpprb", cpprb), ("SB3", "stable_baselines3", sb3)):
        if bench.has(package):
            contenders[name] = make(data)
    work = f"uniform sample, {bench.options.batch} of {bench.options.transitions:,}"
    draws = {name: lambda draw=draw: draw(bench.options.batch) for name, draw in contenders.items()}
    rates = turns(draws, bench.rounds, calls=50)
    bench.show(work, rates, "us")
    for name in contenders:
        if name != "rlds2buf":
            bench.ratio(work, rates, "rlds2buf", name)
    bench.figure("memory of a full buffer", "the bytes of the rows themselves", held / rows, most=1.1)
    bench.finish()


if __name__ == "__main__":
    main()
