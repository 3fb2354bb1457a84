from __future__ import annotations

import json
import re

import numpy as np
import pytest

from rlds2buf import errors, open_source, spec_of, validate
from rlds2buf.check import rules
from rlds2buf.check.report import Checker, Issue, ValidationReport, issue_of
from rlds2buf.check.rules import RULES
from tests.check.episodes import Listed, flags, good
from tests.data import ROOT
from tests.made import MADE


def test_good_episodes_have_no_findings():
    items = [good(n, end, seed=n, index=i) for i, (n, end) in enumerate([(30, "truncated"), (2, "terminated")])]
    report = validate(Listed(items))
    assert (report.ok, report.episodes, report.steps, report.rejected) == (True, 2, 32, 0)
    assert report.issues == [] and report.counts == {}
    assert str(report) == "walks: valid. 2 episodes, 32 steps: 0 errors in 0 episodes, 0 warnings"


def test_every_finding_says_where():
    reward = np.zeros(30)
    reward[4] = np.nan
    (issue,) = Checker(None).check(good(reward=reward, index=12))
    assert issue == Issue("nonfinite", "error", 12, 4, "reward", "reward is not finite (NaN or infinity)", "walks")
    error = issue.error()
    assert (error.source, error.episode, error.step, error.path, error.rule) == ("walks", 12, 4, "reward", "nonfinite")
    assert str(issue) == "error nonfinite: walks, episode 12, step 4, reward: reward is not finite (NaN or infinity)"


@pytest.mark.parametrize(
    "rule, kind",
    [
        ("last-missing", errors.BoundaryError),
        ("terminal-inside", errors.BoundaryError),
        ("spec", errors.SpecMismatch),
        ("ragged-columns", errors.SpecMismatch),
        ("empty-episode", errors.EmptyEpisode),
        ("nonfinite", errors.EpisodeError),
        ("a-rule-of-tomorrow", errors.EpisodeError),
    ],
)
def test_a_finding_as_an_exception(rule, kind):
    assert type(issue_of(errors.EpisodeError("wrong", rule=rule)).error()) is kind


@pytest.mark.parametrize(
    "changes, path, message",
    [
        ({"action": np.zeros((30, 3), np.float32)}, "action", "expected float32[2], got float32[3]"),
        ({"reward": np.zeros(30)}, "reward", "expected float32[], got float64[]"),
        ({"reward": None}, "reward", "the field is missing, expected float32[]"),
        ({"extras": {"id": np.zeros(30)}}, "extras/id", "the field is not in the spec"),
        ({"action": (np.zeros((30, 2), np.float32),)}, "action/0", "the field is not in the spec"),
    ],
)
def test_shapes_dtypes_and_fields_that_change_between_episodes(changes, path, message):
    checker = Checker(None)
    assert checker.check(good(seed=1)) == []
    issues = [i for i in checker.check(good(seed=2, **changes)) if i.rule == "spec"]
    assert (path, message) in [(i.path, i.message) for i in issues]
    assert checker.check(good(seed=3)) == []
    # The same against a spec that was given.
    issues = Checker(spec_of(good())).check(good(seed=2, **changes))
    assert (path, message) in [(i.path, i.message) for i in issues if i.rule == "spec"]


def test_episodes_that_could_not_be_built_are_findings():
    empty = errors.EmptyEpisode("the episode has no steps", source="walks", episode=1, rule="empty-episode")
    other = errors.EpisodeError("cut short", source="walks", episode=2, path="reward")
    report = validate(Listed([good(index=0), empty, other, good(seed=1, index=3)]))
    assert (report.episodes, report.rejected, report.steps) == (4, 2, 60)
    assert [(i.rule, i.severity, i.episode) for i in report.issues] == [
        ("empty-episode", "error", 1),
        ("unreadable", "error", 2),
    ]
    assert type(issue_of(empty).error()) is errors.EmptyEpisode


def test_data_without_is_terminal_are_named_once():
    plain = {"is_first": None, "is_last": None, "is_terminal": None}
    report = validate(Listed([good(seed=i, **plain) for i in range(5)]))
    assert report.ok and report.counts == {"no-is-terminal": 1}
    assert report.issues[0].message == "the data have no is_terminal: every end is taken as a truncation"


def test_details_are_limited_and_counts_are_not():
    bad = [good(seed=i, index=i, is_last=np.zeros(30, bool)) for i in range(50)]
    report = validate(Listed(bad))
    assert report.counts == {"last-missing": 50} and len(report.issues) == 20 and report.rejected == 50
    assert str(report).splitlines()[-1] == "  and 45 more"
    assert len(validate(Listed(bad), max_details=3).issues) == 3
    assert validate(Listed(bad), limit=7).episodes == 7


def test_the_report_as_text_and_as_json():
    reward = np.zeros(30, np.float32)
    reward[-1] = 2
    report = validate(
        Listed([good(index=0), good(seed=1, index=1, reward=reward), good(1, seed=2, index=2, is_first=[False])])
    )
    assert json.loads(json.dumps(report.to_json())) == report.to_json()
    told = report.to_json()
    assert (told["ok"], told["errors"], told["warnings"], told["rejected"]) == (False, 1, 2, 1)
    assert told["issues"][0]["rule"] == "final-reward"
    lines = str(report).splitlines()
    assert lines[0] == "walks: not valid. 3 episodes, 61 steps: 1 error in 1 episode, 2 warnings"
    assert lines[1] == "error first-missing (1)"
    assert lines[2] == "  episode 2, step 0, is_first: episode does not start with is_first"


def test_the_report_names_files_inside_the_dataset_by_their_name():
    report = ValidationReport("data/set/1.0.0 [train]")
    report.add(Issue("nonfinite", "error", 3, None, "reward", "wrong", "data/set/1.0.0/a.tfrecord"))
    report.add(Issue("nonfinite", "error", 4, 1, None, "wrong", "elsewhere/b.tfrecord"))
    assert str(report).splitlines()[2:] == [
        "  a.tfrecord, episode 3, reward: wrong",
        "  elsewhere/b.tfrecord, episode 4, step 1: wrong",
    ]


def test_progress_is_told_after_every_episode():
    seen = []
    validate(Listed([good(), good(20, seed=1)]), progress=lambda *counts: seen.append(counts))
    assert seen == [(1, 30), (2, 50)]


def test_a_source_can_be_validated_twice():
    source = Listed([good(), good(30, seed=1, is_first=np.ones(30, bool))])
    assert validate(source) == validate(source)


def test_the_table_of_rules_lists_every_rule_with_its_severity():
    listed = re.findall(r"^([a-z-]+) +(error|warning|filter) ", rules.__doc__, re.M)
    assert listed == [(rule.id, rule.severity) for rule in RULES.values()]
    assert all(issubclass(rule.error, errors.EpisodeError) for rule in RULES.values())


def test_every_rule_that_an_error_names_is_in_the_table():
    sources = (ROOT / "rlds2buf").rglob("*.py")
    named = {rule for path in sources for rule in re.findall(r'rule="([a-z-]+)"', path.read_text())}
    assert "empty-episode" in named and named <= set(RULES)


def test_a_report_counts_rules_it_does_not_know_as_errors():
    report = ValidationReport("x")
    report.add(Issue("a-rule-of-tomorrow", "error", 0, None, None, "wrong"))
    assert report.count("error") == 1 and "a-rule-of-tomorrow (1)" in str(report)


def test_several_rules_in_one_episode_are_all_found():
    columns = flags(30, "terminated")
    columns["is_terminal"][20:] = True
    columns["is_first"][:] = False
    reward = np.full(30, np.inf, np.float32)
    issues = Checker(None).check(good(reward=reward, discount=np.full(30, 2.0, np.float32), **columns))
    assert [(i.rule, i.step) for i in issues] == [
        ("first-missing", 0),
        ("terminal-inside", 20),
        ("nonfinite", 0),
        ("padding-values", 29),
        ("discount-range", 0),
        ("padding-values", 29),
        ("terminal-discount", 28),
    ]


def test_whatever_opens_as_a_source_is_validated():
    path = MADE / "d4rl/hopper_medium-v2.hdf5"
    with open_source(path) as source:
        opened = validate(source)
    assert validate(path).to_json() == validate(str(path)).to_json() == opened.to_json()
    assert validate(path, limit=1).episodes == 1 and validate(path, format="d4rl", infos=False).ok
    rlds = MADE / "rlds/d4rl_mujoco_hopper/v2-medium"
    assert validate(rlds, split="train[1:]").episodes == 1
    assert validate([good(30, "terminated", seed=0)]).steps == 30
    assert len(validate([[{"observation": 0.0}, {"observation": 1.0}]]).counts) > 0


def test_validate_says_what_is_no_source():
    with pytest.raises(TypeError, match="a source is a path"):
        validate(3)
    with pytest.raises(errors.SourceNotFound, match="no such file or directory"):
        validate("no-such-file")
    with pytest.raises(TypeError, match="takes no option 'nonsense'"):
        validate(MADE / "d4rl/hopper_medium-v2.hdf5", nonsense=1)
    with open_source([good(30, "terminated", seed=0)]) as source:
        with pytest.raises(ValueError, match="not for an opened source"):
            validate(source, split="train")
        with pytest.raises(ValueError, match="limit must not be negative"):
            validate(source, limit=-1)
