"""The loop of CleanRL's dqn.py with our replay buffer: it starts from logged CartPole, then goes on by itself.

pip install rlds2buf torch gymnasium
python examples/cleanrl_dqn.py
"""

from __future__ import annotations

import sys

import cartpole
import gymnasium
import numpy as np
import torch

from rlds2buf.adapters.cleanrl import ReplayBuffer  # in place of cleanrl_utils.buffers


def network() -> torch.nn.Module:
    """Action values."""
    return torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))


def main(steps: int = 5000) -> tuple[float, float]:
    """Mean returns before and after."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    env = gymnasium.make("CartPole-v1")
    env.action_space.seed(0)
    replay = ReplayBuffer(50_000, env.observation_space, env.action_space, "cpu", dataset=cartpole.log(), seed=0)
    online, target = network(), network()
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), 1e-3)

    def policy(seen: np.ndarray) -> int:
        with torch.no_grad():
            return int(online(torch.from_numpy(seen)).argmax())

    before = cartpole.mean_return(policy)
    obs, _ = env.reset(seed=0)
    for _ in range(steps):
        action = env.action_space.sample() if rng.random() < 0.1 else policy(obs)
        next_obs, reward, terminated, truncated, info = env.step(action)
        replay.add(obs[None], next_obs[None], np.array([action]), np.array([reward]), np.array([terminated]), [info])
        obs = env.reset()[0] if terminated or truncated else next_obs
        batch = replay.sample(64)
        with torch.no_grad():
            best = online(batch.next_observations).argmax(1, keepdim=True)
            goal = batch.rewards + 0.99 * (1 - batch.dones) * target(batch.next_observations).gather(1, best)
        loss = torch.nn.functional.smooth_l1_loss(online(batch.observations).gather(1, batch.actions), goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
                slow.lerp_(fast, 0.01)
    after = cartpole.mean_return(policy)
    print(f"mean return {before:.0f} before, {after:.0f} after {steps} steps")
    return before, after


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
