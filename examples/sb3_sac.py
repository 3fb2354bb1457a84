"""Stable-Baselines3's SAC swings Pendulum up from logged random steps: our replay buffer in place of its own.

pip install rlds2buf stable-baselines3
python examples/sb3_sac.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import gymnasium
import numpy as np
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.evaluation import evaluate_policy

import rlds2buf
from rlds2buf.adapters.sb3 import ReplayBuffer


def random_steps(episodes: int) -> list[rlds2buf.Episode]:
    """Pendulum under actions drawn by chance: 200 steps each."""
    env = gymnasium.make("Pendulum-v1")
    env.action_space.seed(0)
    made = []
    for number in range(episodes):
        observations, actions, rewards = [env.reset(seed=number)[0]], [], []
        for _ in range(200):
            actions.append(env.action_space.sample())
            observation, reward, *_ = env.step(actions[-1])
            observations.append(observation)
            rewards.append(reward)
        made.append(
            rlds2buf.Episode(
                observation=np.array(observations),
                action=np.array([*actions, actions[-1]]),
                reward=np.array([*rewards, 0.0]),
            )
        )
    return made


def main(steps: int = 4000) -> tuple[float, float]:
    """Mean returns before and after."""
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp()) / "pendulum"
    rlds2buf.convert(random_steps(20), folder)
    model = SAC(
        "MlpPolicy",
        "Pendulum-v1",
        replay_buffer_class=ReplayBuffer,
        replay_buffer_kwargs={"dataset": str(folder)},
        learning_rate=1e-3,
        learning_starts=0,
        policy_kwargs={"net_arch": [64, 64]},
        seed=0,
        device="cpu",
    )
    before = evaluate_policy(model, model.get_env(), 5)[0]
    model.learn(steps)
    after = evaluate_policy(model, model.get_env(), 5)[0]
    print(f"mean return {before:.0f} before, {after:.0f} after {steps} steps")
    return before, after


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
