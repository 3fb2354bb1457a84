"""What the examples of libraries learn from: CartPole, balanced by a hand-written policy that often slips."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium
import numpy as np

import rlds2buf

Policy = Callable[[np.ndarray], int]
"""An observation ``[4]`` to an action, 0 or 1."""


def log(steps: int = 10_000, seed: int = 0, slips: float = 0.6) -> rlds2buf.Buffer:
    """A buffer of at least so many steps; a share of the actions is drawn by chance."""
    rng = np.random.default_rng(seed)

    def act(seen: np.ndarray) -> int:
        careful = seen[2] + 0.5 * seen[3] + 0.1 * seen[0] + 0.2 * seen[1] > 0
        return int(rng.integers(2)) if rng.random() < slips else int(careful)

    episodes: list[rlds2buf.Episode] = []
    while sum(episode.num_transitions for episode in episodes) < steps:
        episodes.append(play(act, seed + len(episodes)))
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(episodes[0]), 2 * steps + 1000, seed=seed)
    buffer.add(episodes)
    return buffer


def play(act: Policy, seed: int) -> rlds2buf.Episode:
    """An episode of a policy."""
    env = gymnasium.make("CartPole-v1")
    seen, _ = env.reset(seed=seed)
    observations, actions, rewards, terminated, truncated = [seen], [], [], False, False
    while not (terminated or truncated):
        actions.append(act(seen))
        seen, reward, terminated, truncated, _ = env.step(actions[-1])
        observations.append(seen)
        rewards.append(reward)
    last = np.arange(len(observations)) == len(actions)
    return rlds2buf.Episode(
        observation=np.array(observations, np.float32),
        action=np.array([*actions, 0], np.int64),
        reward=np.array([*rewards, 0], np.float32),
        discount=np.where(last & terminated, 0, 1).astype(np.float32),
        is_last=last,
        is_terminal=last & terminated,
    )


def mean_return(act: Policy, episodes: int = 10) -> float:
    """How many steps a policy keeps the pole up, 500 at most."""
    return float(np.mean([play(act, 10_000 + i).num_transitions for i in range(episodes)]))
