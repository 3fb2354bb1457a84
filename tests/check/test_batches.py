"""Whole batches are checked as their episodes one after the other are."""

from __future__ import annotations

import numpy as np

from rlds2buf.check.report import Checker
from rlds2buf.core.episode_batch import EpisodeBatch
from tests.check.episodes import good


def test_a_batch_has_the_findings_of_its_episodes():
    reward = np.zeros(25, np.float32)
    reward[3] = np.nan
    episodes = [good(seed=1), good(25, seed=2, reward=reward), good(1, seed=3), good(seed=4)]
    found = Checker(None).check_batch(EpisodeBatch.of(episodes))
    one_by_one = Checker(None)
    assert found == {i: issues for i, issues in enumerate(map(one_by_one.check, episodes)) if issues}
    assert {i: [issue.rule for issue in issues] for i, issues in found.items()} == {1: ["nonfinite"], 2: ["one-step"]}
