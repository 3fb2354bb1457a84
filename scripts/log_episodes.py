"""Log episodes of a Gymnasium environment into an HDF5 file laid out as D4RL's.

python scripts/log_episodes.py cartpole.hdf5
python scripts/log_episodes.py pendulum.hdf5 --env Pendulum-v1 --episodes 20
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np


def log_episodes(env: gymnasium.Env[Any, Any], episodes: int, seed: int) -> dict[str, np.ndarray]:
    """Play, and return D4RL's columns, ``[steps, ...]`` each."""
    rng = np.random.default_rng(seed)
    env.action_space.seed(seed)
    rows: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for episode in range(episodes):
        observation, _ = env.reset(seed=seed + episode)
        ended = False
        while not ended:
            action = choose(env, observation, rng)
            following, reward, terminated, truncated, _ = env.step(action)
            values = (observation, action, np.float32(reward), terminated, truncated, following)
            for name, value in zip(COLUMNS, values, strict=True):
                rows[name].append(value)
            observation = following
            ended = terminated or truncated
    return {name: np.array(values) for name, values in rows.items()}


def choose(env: gymnasium.Env[Any, Any], observation: np.ndarray, rng: np.random.Generator) -> Any:
    """CartPole: push to where the pole falls, two times in three, so that some episodes last; else at random."""
    if env.spec is not None and env.spec.id.startswith("CartPole") and rng.random() < 0.67:
        return int(observation[2] + observation[3] > 0)
    return env.action_space.sample()


COLUMNS = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Log episodes of a Gymnasium environment as a D4RL HDF5 file.")
    parser.add_argument("path", type=Path)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--max-steps", type=int, default=200, help="where an episode is cut")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    env = gymnasium.make(chosen.env, max_episode_steps=chosen.max_steps)
    columns = log_episodes(env, chosen.episodes, chosen.seed)
    env.close()
    with h5py.File(chosen.path, "w") as file:
        for name, column in columns.items():
            file.create_dataset(name, data=column)
    print(f"{chosen.path}: {chosen.episodes} episodes of {chosen.env}, {len(columns['rewards'])} steps")


if __name__ == "__main__":
    main()
