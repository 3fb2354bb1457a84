#!/usr/bin/env python3
"""Sampling 256 items for each of 8 policies, independently and in lockstep, against RLlib's multi-agent buffer.

Both hold the same steps of every policy (17 + 6 float32) and draw in turn, so that a change of the
machine's speed meets both.  RLlib is left out, and named, where it is not installed: run this with
``pip install "ray[rllib]==2.9.3" "numpy<2" "pyarrow<17"`` beside rlds2buf.  Its buffers draw items
and join them one by one; ours gather columns.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

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


def measure(
    mode: str, makers: dict[str, Callable[..., Any]], data: dict[str, Any], batch_size: int, rounds: int
) -> dict[str, Any]:
    """Median microseconds of a batch of each contender, and seconds of adding."""
    made = {name: make(mode, data) for name, make in makers.items()}
    times: dict[str, list[float]] = {name: [] for name in made}
    for turn in range(rounds + 1):
        for name, (sample, _) in made.items():
            for _ in range(1 if name == "rllib" else 10):
                started = time.perf_counter()
                batch = sample(batch_size)
                if turn:
                    times[name].append(time.perf_counter() - started)
            assert len(batch if name == "rlds2buf" else batch.policy_batches) == len(data)
    medians = {name: statistics.median(values) * 1e6 for name, values in times.items()}
    result: dict[str, Any] = {"microseconds": medians}
    result["add_seconds"] = {name: seconds for name, (_, seconds) in made.items()}
    if "rllib" in medians:
        result["times_faster"] = medians["rllib"] / medians["rlds2buf"]
    return result


def main() -> None:
    """Print one line per mode: median time of a batch of each, and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policies", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10_000, help="of each policy")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # RLlib's notes on its own future
    data = {f"policy_{i}": steps(i, options.steps) for i in range(options.policies)}
    makers: dict[str, Callable[..., Any]] = {"rlds2buf": ours}
    if importlib.util.find_spec("ray") is not None:
        makers["rllib"] = rllib
    elif not options.json:
        print("(ray[rllib] is not installed, left out)")
    results = {mode: measure(mode, makers, data, options.batch, options.rounds) for mode in ("independent", "lockstep")}
    if options.json:
        print(json.dumps(results))
        return
    print(f"{options.batch} items of each of {options.policies} policies, {options.steps:,} steps each; medians")
    for mode, result in results.items():
        ratio = f", {result['times_faster']:.0f} times faster" if "times_faster" in result else ""
        each = ", ".join(f"{name} {value:,.0f} us" for name, value in result["microseconds"].items())
        added = ", ".join(f"{name} {value:.2f} s" for name, value in result["add_seconds"].items())
        print(f"  {mode:12s} {each}{ratio} (adding: {added})")


if __name__ == "__main__":
    main()
