#!/usr/bin/env python3
"""Sampling 256 items for each of 8 policies, independently and in lockstep, against RLlib's multi-agent buffer.

Both hold the same steps of every policy (17 + 6 float32) and draw in turn, so that a change of the
machine's speed meets both.  RLlib is left out, and named, where it is not installed: run this with
``pip install "ray[rllib]==2.9.3" "numpy<2" "pyarrow<17"`` beside rlds2buf.  Its buffers draw items
and join them one by one; ours gather columns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from bench import Bench, turns

import rlds2buf

OBSERVATION, ACTION, LENGTH = 17, 6, 100


def steps(policy: int, count: int) -> dict[str, np.ndarray]:
    """Columns of `count` steps of a policy, in episodes of 100."""
    rng = np.random.default_rng(policy)
    rows = rng.standard_normal((count + 1, OBSERVATION), np.float32)
    place = np.arange(count)
    return {
        "obs": rows[:-1],
        "new_obs": rows[1:],
        "actions": rng.standard_normal((count, ACTION), np.float32),
        "rewards": rng.standard_normal(count).astype(np.float32),
        "terminateds": place % LENGTH == LENGTH - 1,
        "truncateds": np.zeros(count, np.bool_),
        "eps_id": place // LENGTH,
        "t": place % LENGTH,
        "agent_index": np.full(count, policy),
    }


def ours(mode: str, data: dict[str, dict[str, np.ndarray]]) -> tuple[Callable[[int], Any], float]:
    """A filled buffer's sample method, and how long adding took."""
    count = len(next(iter(data.values()))["t"])
    spec = rlds2buf.StepSpec(
        observation=rlds2buf.FieldSpec((OBSERVATION,), np.float32),
        action=rlds2buf.FieldSpec((ACTION,), np.float32),
        reward=rlds2buf.FieldSpec((), np.float32),
        discount=None,
    )
    buffer = rlds2buf.make_multi_agent({name: (spec, {"capacity": count}) for name in data}, mode=mode, seed=0)
    started = time.perf_counter()
    for at in range(0, count, LENGTH):
        batch, ids = {}, {name: {} for name in ("episode_id", "t", "agent_index")}
        for name, columns in data.items():
            part = {key: column[at : at + LENGTH] for key, column in columns.items()}
            batch[name] = {
                "observation": part["obs"],
                "action": part["actions"],
                "reward": part["rewards"],
                "next_observation": part["new_obs"],
                "terminated": part["terminateds"],
            }
            ids["episode_id"][name], ids["t"][name], ids["agent_index"][name] = (
                part[key] for key in ("eps_id", "t", "agent_index")
            )
        buffer.add(batch, **(ids if mode == "lockstep" else {}))
    seconds = time.perf_counter() - started
    assert len(buffer) == (count if mode == "lockstep" else count * len(data))
    return buffer.sample, seconds


def rllib(mode: str, data: dict[str, dict[str, np.ndarray]]) -> tuple[Callable[[int], Any], float]:
    """The same of RLlib's MultiAgentReplayBuffer."""
    from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
    from ray.rllib.utils.replay_buffers import MultiAgentReplayBuffer

    count = len(next(iter(data.values()))["t"])
    buffer = MultiAgentReplayBuffer(capacity=count, replay_mode=mode, storage_unit="timesteps")
    started = time.perf_counter()
    for at in range(0, count, LENGTH):
        parts = {
            name: SampleBatch({key: column[at : at + LENGTH] for key, column in columns.items()})
            for name, columns in data.items()
        }
        buffer.add(MultiAgentBatch(parts, LENGTH))
    return buffer.sample, time.perf_counter() - started


def main() -> None:
    """Measure and print."""
    bench = Bench(__doc__, rounds=20, policies=8, steps=10_000, batch=256)
    options = bench.options
    data = {f"policy_{i}": steps(i, options.steps) for i in range(options.policies)}
    makers: dict[str, Callable[..., Any]] = {"rlds2buf": ours} | ({"RLlib": rllib} if bench.has("ray") else {})
    for mode in ("independent", "lockstep"):
        made = {name: make(mode, data) for name, make in makers.items()}
        for sample, _ in made.values():
            assert len(getattr(batch := sample(options.batch), "policy_batches", batch)) == len(data)
        rates = turns(
            {name: lambda draw=draw: draw(options.batch) for name, (draw, _) in made.items()}, bench.rounds, calls=5
        )
        work = f"multi-agent sample, {options.policies} policies x {options.batch}, {mode}"
        bench.show(work, rates, "us")
        bench.ratio(work, rates, "rlds2buf", "RLlib")
        adding = {name: [options.steps * options.policies / seconds] for name, (_, seconds) in made.items()}
        bench.show(f"steps added, {mode}", adding)
    bench.finish()


if __name__ == "__main__":
    main()
