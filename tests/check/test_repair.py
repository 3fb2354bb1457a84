from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2buf import Episode
from rlds2buf.check.boundaries import boundary_faults, seams
from rlds2buf.check.repair import keep_final_transition, repair
from rlds2buf.check.report import Checker
from rlds2buf.views.transitions import transitions
from tests.check.episodes import flags, good

ROWS = st.lists(st.tuples(*[st.booleans()] * 3), min_size=1, max_size=8)


def flagged(rows, **fields):
    first, last, terminal = (np.array(column) for column in zip(*rows, strict=True))
    fields.setdefault("observation", np.arange(len(rows)))
    return Episode(is_first=first, is_last=last, is_terminal=terminal, **fields)


@given(ROWS)
def test_repair_obeys_the_grammar_or_leaves_the_record_alone(rows):
    episode = flagged(rows)
    before = [episode.is_first.copy(), episode.is_last.copy(), episode.is_terminal.copy()]
    mended, changes = repair(episode)
    for old, new in zip(before, (episode.is_first, episode.is_last, episode.is_terminal), strict=True):
        np.testing.assert_array_equal(old, new)
    faults = boundary_faults(episode.is_first, episode.is_last, episode.is_terminal)
    if not faults or len(seams(episode.is_first, episode.is_last)):
        assert mended is episode and not changes
        return
    assert boundary_faults(mended.is_first, mended.is_last, mended.is_terminal) == []
    assert mended.is_terminal[-1] == before[2][-1]
    assert mended.observation is episode.observation
    # Every changed flag is in the books, under a rule that was broken.
    flips = sum(
        int(np.sum(old != new))
        for old, new in zip(before, (mended.is_first, mended.is_last, mended.is_terminal), strict=True)
    )
    assert sum(changes.values()) == flips
    assert set(changes) <= {fault.rule for fault in faults} | {"terminal-inside"}


def test_the_counts_are_rows_by_rule():
    rows = [(False, False, True), (True, False, True), (False, True, False), (False, False, True)]
    mended, changes = repair(flagged(rows))
    assert changes == {
        "first-missing": 1,
        "first-inside": 1,
        "last-inside": 1,
        "last-missing": 1,
        "terminal-inside": 2,
    }
    assert mended.end == "terminated"


def test_two_episodes_in_one_record_are_not_made_one():
    rows = [(True, False, False), (False, True, False), (True, False, False), (False, True, False)]
    episode = flagged(rows)
    assert repair(episode) == (episode, {})
    assert {i.rule for i in Checker(None).check(episode)} == {"first-inside", "last-inside"}


def test_values_are_left_for_the_caller_to_reject():
    reward = np.array([0, np.nan, 0])
    mended, changes = repair(flagged([(True, False, False)] + [(False, False, False)] * 2, reward=reward))
    assert changes == {"last-missing": 1}
    assert [i.rule for i in Checker(None).check(mended)] == ["nonfinite"]


def test_flags_that_the_data_lack_stay_derived():
    episode = Episode(observation=np.zeros(3), is_first=[True, True, False])
    mended, _ = repair(episode)
    assert "is_terminal" in mended.derived
    assert mended.is_first.tolist() == [True, False, False]


def test_keep_adds_a_row_behind_a_terminal_one_and_its_reward_reaches_the_learner():
    episode = good(
        3,
        "terminated",
        observation={"x": np.ones((3, 2), np.float32), "t": np.array([b"a", b"b", b"c"], object)},
        reward=np.array([0, 0, 5], np.float32),
        discount=np.ones(3, np.float32),
        extras={"id": np.arange(1, 4)},
        metadata={"task": "lift"},
        index=7,
    )
    kept, changes = keep_final_transition(episode)
    assert changes == {"final-transition-kept": 1}
    assert kept.metadata == {"task": "lift", "placeholder_final_row": True}
    assert (kept.source, kept.index, kept.num_steps) == ("walks", 7, 4)
    assert kept.observation["t"].tolist() == [b"a", b"b", b"c", b""]
    assert kept.observation["x"][-1].tolist() == [0, 0]
    assert kept.extras["id"].tolist() == [1, 2, 3, 0]
    assert kept.discount.tolist() == [1, 1, 0, 0]
    assert {i.rule for i in Checker(None).check(kept)} == set()
    batch = transitions(kept)
    assert batch.reward.tolist() == [0, 0, 5]
    assert batch.terminated.tolist() == [False, False, True]
    assert batch.bootstrap_discount.tolist() == [1, 1, 0]
    np.testing.assert_array_equal(batch.action, episode.action)
    # The episode itself is as it was, and a second call adds nothing.
    assert episode.num_steps == 3 and episode.discount.tolist() == [1, 1, 1]
    assert keep_final_transition(kept) == (kept, {})


@pytest.mark.parametrize("last", [True, False])
def test_keep_never_bootstraps_from_an_observation_that_was_not_logged(last):
    ends = flags(3)
    ends["is_last"][-1] = last
    episode = good(3, reward=np.array([0, 0, 5.0]), **ends)
    assert keep_final_transition(episode) == (episode, {"final-transition-lost": 1})


def test_keep_makes_a_one_row_terminal_episode_a_transition():
    kept, _ = repair(good(1, "terminated", reward=np.array([3.0])), final_transition="keep")
    assert transitions(kept).reward.tolist() == [3.0]
    assert kept.is_first.tolist() == [True, False]


def test_keep_after_repair():
    rows = [(True, False, False), (False, False, True), (False, False, True)]
    kept, changes = repair(flagged(rows, reward=np.array([0.0, 0, 1])), final_transition="keep")
    assert changes == {"last-missing": 1, "terminal-inside": 1, "final-transition-kept": 1}
    assert kept.is_terminal.tolist() == [False, False, False, True]
    seam = flagged([(True, True, True), (True, True, True)])
    assert repair(seam, final_transition="keep") == (seam, {})
    with pytest.raises(ValueError, match="final_transition"):
        repair(seam, final_transition="maybe")
