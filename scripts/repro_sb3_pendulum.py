#!/usr/bin/env python3
"""How many steps of Pendulum SAC needs with 20,000 logged ones in its buffer, and from nothing.

The logged steps are those of another SAC's own training, from its first random step on; both learners are
Stable-Baselines3's with its parameters for Pendulum, but for smaller networks. A learner is there when the mean
return of ten evaluation episodes is above -200, looked at every 500 steps. Five seeds; each takes a minute or two:

    nice -n 19 .venv/torch/bin/python scripts/repro_sb3_pendulum.py
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.evaluation import evaluate_policy

import rlds2buf
from rlds2buf.adapters.sb3 import ReplayBuffer

THRESHOLD = -200.0
"""Of the mean return; swung up and held, Pendulum gives about -150, and random actions -1200."""


def learner(seed: int, dataset: Any = None) -> SAC:
    """SAC; with a dataset, from its first step on."""
    return SAC(
        "MlpPolicy",
        "Pendulum-v1",
        learning_rate=1e-3,
        learning_starts=0 if dataset else 1000,
        policy_kwargs={"net_arch": [64, 64]},
        replay_buffer_class=ReplayBuffer,
        replay_buffer_kwargs={"dataset": dataset},
        buffer_size=100_000,
        seed=seed,
        device="cpu",
    )


def logged(folder: Path, steps: int) -> Path:
    """A saved buffer of the steps that an agent took while it learned."""
    model = learner(1000)
    model.learn(steps)
    rlds2buf.convert(list(model.replay_buffer.episodes()), folder)
    return folder


def needed(model: SAC, most: int, every: int = 500) -> int:
    """Steps of the environment until the threshold."""
    env = gymnasium.make("Pendulum-v1")
    while model.num_timesteps < most:
        model.learn(every, reset_num_timesteps=False)
        mean, _ = evaluate_policy(model, env, n_eval_episodes=10, warn=False)
        if mean >= THRESHOLD:
            break
    return int(model.num_timesteps)


def main() -> None:
    """Train and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--logged", type=int, default=20_000, help="steps in the log")
    parser.add_argument("--most", type=int, default=20_000, help="steps after which a learner is given up")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="rlds2buf-pendulum-") as name:
        path = logged(Path(name) / "log", options.logged)
        print(f"logged: {len(rlds2buf.load_buffer(path)):,} steps")
        print("\n| seed | from the log | from nothing |\n|---|---|---|")
        found: list[tuple[int, int]] = []
        for seed in range(options.seeds):
            found.append((needed(learner(seed, str(path)), options.most), needed(learner(seed), options.most)))
            print(f"| {seed} | {found[-1][0]:,} | {found[-1][1]:,} |", flush=True)
    medians = [statistics.median(column) for column in zip(*found, strict=True)]
    print(f"| median | {medians[0]:,.0f} | {medians[1]:,.0f} |")
    fewer = sum(with_log < without for with_log, without in found)
    print(
        f"\nfewer steps with the log: {fewer} of {len(found)} seeds, at the median {medians[1] / medians[0]:.1f} times"
    )


if __name__ == "__main__":
    main()
