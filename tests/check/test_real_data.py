"""What is wrong with the real datasets and with their stand-ins, and what repair makes of them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from rlds2buf import Episode, convert, make_circular, open_source, validate
from rlds2buf.check.continuity import ContinuityCheck, observation_matrix
from rlds2buf.check.repair import repair
from rlds2buf.check.report import Checker
from tests.check.episodes import jump_rows
from tests.made import BOTH

FINDINGS = {
    "rlds/bridge_dataset": {"last-missing": 25, "absent-files": 1},
    "rlds/robomimic_ph": {"terminal-inside": 2, "terminal-discount": 2},
    "rlds/rlu_control_suite": {},
    "rlds/d4rl_mujoco_hopper/v0-medium": {"zero-final-observation": 2},
    "rlds/d4rl_mujoco_hopper/v2-medium": {"same-final-observation": 1},
    # The same D4RL files by our own reader: the placeholder rows are marked, the successors each episode's own.
    "d4rl/hopper_medium.hdf5": {},
    "d4rl/hopper_medium-v2.hdf5": {},
    "d4rl/hopper_medium_replay-v1.hdf5": {},
    "d4rl/hopper_random-v1.hdf5": {},
    "d4rl/antmaze-umaze-v0.hdf5": {},
    "d4rl/pen-human-v1.hdf5": {"final-reward": 2},
    "d4rl/door-human-v0.hdf5": {"final-reward": 1, "no-reset": 1},
    "minari/cartpole/random-v0": {},
    "minari/pendulum/random-v0": {},
    "minari/dummy-dict/test-v0": {},
    "minari/blackjack/random-v0": {},
}

# Sets whose resets show in the observations (hopper's final rows by TFDS are no observations).
GLUED = [path for path in FINDINGS if path.startswith(("d4rl/hopper", "d4rl/pen", "d4rl/antmaze"))]


@BOTH
@pytest.mark.parametrize("path", FINDINGS)
def test_what_is_found(sets, path):
    with open_source(sets / path) as source:
        report = validate(source)
        assert report.counts == FINDINGS[path], str(report)
        assert report.episodes == source.num_episodes and source.num_steps in (None, report.steps)


@BOTH
@pytest.mark.parametrize(
    "path, rows", [("rlds/bridge_dataset", {"last-missing": 25}), ("rlds/robomimic_ph", {"terminal-inside": 8})]
)
def test_what_repair_makes_clean(sets, path, rows):
    with open_source(sets / path) as source:
        checker = Checker(source.spec)
        changed = sum((repair(episode)[1] for episode in source), Counter())
        assert changed == rows
        for episode in source:
            mended, _ = repair(episode)
            assert [i.rule for i in checker.check(mended) if i.severity == "error"] == []
            assert mended.end == ("truncated" if "bridge" in path else "terminated")
        buffer = make_circular(source.spec, 2000)
        report = convert(source, buffer, on_invalid="repair")
        assert (report.rejected, report.repaired) == ({}, rows)
        assert report.episodes == source.num_episodes and report.items == report.steps - report.episodes


@BOTH
def test_robomimic_is_terminal_on_the_last_rows_where_the_task_is_solved(sets):
    with open_source(sets / "rlds/robomimic_ph") as source:
        assert [np.flatnonzero(ep.is_terminal).tolist() for ep in source] == [[*range(54, 59)], [*range(55, 60)]]


@BOTH
def test_bridge_says_where_its_last_flag_should_be(sets):
    with open_source(sets / "rlds/bridge_dataset") as source:
        report = validate(source, limit=3)
    missing = [i for i in report.issues if i.rule == "last-missing"]
    assert [(i.episode, i.step, i.path) for i in missing] == [(e, 9, "is_last") for e in range(3)]
    assert all(i.source.endswith("bridge_dataset-train.tfrecord-00000-of-00001") for i in missing)


@BOTH
def test_door_is_cut_where_no_reset_took_place(sets):
    with open_source(sets / "d4rl/door-human-v0.hdf5") as source:
        issue = next(i for i in validate(source).issues if i.rule == "no-reset")
    assert (issue.episode, issue.step) == (1, 0)


@BOTH
@pytest.mark.parametrize("path", GLUED)
def test_a_reset_that_lost_its_flag_is_found(sets, path):
    with open_source(sets / path) as source:
        parts = [
            observation_matrix(ep)[:-1] if ep.metadata.get("placeholder_final_row") else observation_matrix(ep)
            for ep in source
        ]
    glued = np.concatenate(parts[:2])
    assert jump_rows(glued).tolist() == [len(parts[0])]


@BOTH
@pytest.mark.parametrize("path", ["d4rl/pen-human-v1.hdf5", "d4rl/antmaze-umaze-v0.hdf5", "minari/pendulum/random-v0"])
def test_an_episode_that_a_time_limit_cut_in_two_is_found(sets, path):
    with open_source(sets / path) as source:
        rows = observation_matrix(next(iter(source)))
    half = len(rows) * 3 // 4
    check = ContinuityCheck()
    check.faults(Episode(observation=rows[:half]))
    assert [f.rule for f in check.faults(Episode(observation=rows[half:]))] == ["no-reset"]
