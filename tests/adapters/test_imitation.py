"""imitation's trajectories of ours: its own functions flatten them, and its cloning learns from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from imitation.algorithms import bc
from imitation.data import rollout, types

from rlds2buf import SpecMismatch, transitions
from rlds2buf.adapters.held import all_episodes
from rlds2buf.adapters.imitation import to_imitation
from tests.adapters.logged import EPISODES, circular, corridor, episode


def test_flattened_by_theirs_they_are_our_transitions() -> None:
    buffer = circular()
    made = to_imitation(buffer)
    assert [len(one) for one in made] == [rows - 1 for _, rows, _ in EPISODES]
    assert [one.terminal for one in made] == [end == "terminated" for _, _, end in EPISODES]
    theirs, mine = rollout.flatten_trajectories_with_rew(made), transitions(all_episodes(buffer))
    np.testing.assert_array_equal(theirs.obs, mine.observation)
    np.testing.assert_array_equal(theirs.next_obs, mine.next_observation)
    np.testing.assert_array_equal(theirs.acts, mine.action)
    np.testing.assert_array_equal(theirs.rews, mine.reward)
    np.testing.assert_array_equal(theirs.dones, mine.terminated)


def test_dicts_and_no_rewards() -> None:
    (one,) = to_imitation([episode(0, 4, "truncated", kind="dict").replace(reward=None)])
    assert type(one) is types.Trajectory and isinstance(one.obs, types.DictObs) and len(one.obs) == 4
    np.testing.assert_array_equal(one.obs.get("vector")[:, 0], range(4))


def test_cloning_of_theirs_learns() -> None:
    """Experts that always go right, of which a policy is to be made."""
    episodes = []
    for one in corridor(40):
        ahead = one.action * 0 + 0.8
        episodes.append(one.replace(action=ahead.astype(np.float32)))
    trainer = bc.BC(
        observation_space=spaces.Box(-1, 1, (1,)),
        action_space=spaces.Box(-1, 1, (1,)),
        demonstrations=rollout.flatten_trajectories(to_imitation(episodes)),
        rng=np.random.default_rng(0),
        batch_size=32,
    )
    places = np.linspace(-1, 1, 9, dtype=np.float32)[:, None]

    def error() -> float:
        return float(np.abs(trainer.policy.predict(places, deterministic=True)[0] - 0.8).mean())

    before = error()
    trainer.train(n_epochs=8, progress_bar=False)
    assert error() < 0.5 * before


def test_bad_arguments() -> None:
    with pytest.raises(SpecMismatch, match="text"):
        to_imitation([episode(0, 3, "terminated").replace(action=np.array([b"a"] * 3, object))])
    nested: Any = {"a": {"b": np.zeros((3, 2))}}
    with pytest.raises(SpecMismatch, match="nested"):
        to_imitation([episode(0, 3, "terminated").replace(observation=nested)])
