"""The demonstration dataset is what it says: CartPole, by the equations of Gymnasium's own environment."""

from __future__ import annotations

import gymnasium
import numpy as np

from rlds2buf import validate
from rlds2buf.pipeline.cartpole import cartpole_episodes


def test_gymnasium_goes_through_the_same_states() -> None:
    env = gymnasium.make("CartPole-v1").unwrapped
    for episode in cartpole_episodes(episodes=20, max_steps=60, seed=3):
        env.reset(seed=0)
        for t in range(episode.num_transitions):
            env.state = np.asarray(episode.observation[t], np.float64)
            following, reward, terminated, _, _ = env.step(int(episode.action[t]))
            np.testing.assert_allclose(episode.observation[t + 1], following, rtol=1e-5, atol=1e-6)
            assert reward == episode.reward[t]
            assert terminated == (t == episode.num_transitions - 1 and episode.end == "terminated")


def test_both_kinds_of_ends_and_the_same_every_time() -> None:
    episodes = cartpole_episodes()
    assert len(episodes) == 100 and {episode.end for episode in episodes} == {"terminated", "truncated"}
    assert all(episode.num_transitions == 200 for episode in episodes if episode.end == "truncated")
    for one, other in zip(episodes, cartpole_episodes(), strict=True):
        np.testing.assert_array_equal(one.observation, other.observation)
    assert validate(episodes).ok
