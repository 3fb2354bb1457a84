"""What a source finds in its files and metadata: in validate, convert, behind filters and in mixtures."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rlds2buf import convert, errors, open_mixture, open_source, validate
from rlds2buf.check.rules import RULES
from rlds2buf.core.issue import Issue
from tests.check.episodes import Listed, good

ABSENT = Issue("absent-files", "warning", None, None, None, "not there: b.bin", "walks")
FOREIGN = Issue("unreadable", "error", 1, None, None, "its rows are those of another", "walks")
WHOLE = Issue("unreadable", "error", None, None, None, "two files claim the same rows", "walks")


class Found(Listed):
    """Episodes, and findings on the files that they might be of."""

    def __init__(self, *findings: Issue, count: int = 4, thorough: tuple[Issue, ...] = ()) -> None:
        super().__init__([good(seed=i, index=i) for i in range(count)])
        self._findings, self._thorough = findings, thorough

    def findings(self, *, quick=False):
        yield from self._findings
        yield from () if quick else self._thorough


def written(source, **options):
    episodes = []
    report = convert(source, episodes, **options)
    return [episode.index for episode in episodes], report


def test_a_finding_s_own_kind_is_that_of_its_error():
    kind = dataclasses.replace(FOREIGN, kind=errors.BoundaryError)
    assert type(kind.error()) is errors.BoundaryError and kind == FOREIGN and "kind" not in kind.to_json()


def test_validate_counts_them_with_the_episode_that_they_concern():
    report = validate(Found(ABSENT, FOREIGN))
    assert (report.ok, report.episodes, report.rejected) == (False, 4, 1)
    assert report.issues == [FOREIGN, ABSENT] and (report.count("error"), report.count("warning")) == (1, 1)
    assert validate(Found(ABSENT)).ok
    assert validate(Found(FOREIGN), limit=1).ok, "the episode was not looked at"


def test_an_error_of_the_whole_is_no_episode_s_and_makes_it_invalid():
    report = validate(Found(WHOLE))
    assert (report.ok, report.rejected, report.count("error")) == (False, 0, 1)
    assert str(report).startswith("walks: not valid. 4 episodes, 120 steps: 1 error in 0 episodes")


def test_a_rule_that_the_table_does_not_have_keeps_its_severity():
    own = Issue("of-a-plug-in", "warning", None, None, None, "odd", "walks")
    report = validate(Found(own))
    assert report.ok and report.count("warning") == 1 and "warning of-a-plug-in (1)" in str(report)


def test_an_episode_with_a_finding_beside_one_of_the_checker_is_rejected_once():
    reward = np.zeros(30, np.float32)
    reward[2] = np.nan
    source = Found(FOREIGN)
    source._items[1] = good(seed=1, index=1, reward=reward)
    report = validate(source)
    assert report.rejected == 1 and [issue.rule for issue in report.issues] == ["nonfinite", "unreadable"]


def test_what_an_unreadable_episode_says_itself_is_not_said_again():
    source = Found(FOREIGN, dataclasses.replace(FOREIGN, path="action"))
    source._items[1] = errors.EpisodeError("cut short", source="walks", episode=1)
    report = validate(source)
    assert report.rejected == 1
    assert [(issue.message, issue.path) for issue in report.issues] == [
        ("cut short", None),
        ("its rows are those of another", "action"),
    ]


def test_convert_warns_of_metadata_and_leaves_out_the_episode_that_is_wrong():
    source = Found(ABSENT, FOREIGN)
    with pytest.raises(errors.EpisodeError, match="walks, episode 1: its rows are those of another; on_invalid='skip'"):
        written(source)
    numbers, report = written(source, on_invalid="skip")
    assert numbers == [0, 2, 3] and report.rejected == {"unreadable": 1} and report.issues == [FOREIGN]
    assert report.warnings == ["walks: not there: b.bin"]
    assert written(source, on_invalid="repair")[0] == [0, 2, 3]


@pytest.mark.parametrize("how", ["raise", "skip", "repair"])
def test_convert_stops_where_nothing_that_is_read_can_be_trusted(how):
    kept = []
    with pytest.raises(errors.EpisodeError, match="walks: two files claim the same rows"):
        convert(Found(WHOLE), kept, on_invalid=how)
    assert kept == []


def test_convert_asks_for_what_is_told_without_a_pass_and_validate_for_everything():
    source = Found(ABSENT, thorough=(FOREIGN,))
    assert written(source)[0] == [0, 1, 2, 3]
    assert validate(source).rejected == 1


def test_many_warnings_of_a_rule_are_said_by_a_few():
    many = [dataclasses.replace(ABSENT, episode=i, message=f"not there: {i}") for i in range(8)]
    report = written(Found(*many, count=8))[1]
    assert len(report.warnings) == 6 and report.warnings[-1] == "and 3 more of the kind absent-files"


def test_of_episodes_that_a_filter_leaves_out_nothing_is_said():
    source = Found(ABSENT, FOREIGN, dataclasses.replace(FOREIGN, episode=3))
    found = validate(open_source(source, sample=0.5, seed=1))
    chosen = [episode.index for episode in open_source(Found(), sample=0.5, seed=1)]
    assert 0 < len(chosen) < 4
    assert [issue.episode for issue in found.issues if issue.rule == "unreadable"] == [n for n in (1, 3) if n in chosen]
    assert validate(open_source(source, where="length > 100")).counts == {"absent-files": 1}


def test_in_a_mixture_they_have_the_episode_s_place_there():
    weights = [1.0, 1.0]
    mixture = open_mixture([Found(ABSENT), Found(FOREIGN)], names=["one", "two"], weights=weights, seed=3)
    places = [e.index for e in open_mixture([Found(), Found()], weights=weights, seed=3) if e.metadata["source_id"]]
    absent, foreign = mixture.findings()
    assert (absent.episode, absent.message) == (None, "not there: b.bin (one)")
    assert (foreign.episode, foreign.message) == (places[1], "its rows are those of another (episode 1 of two)")
    report = validate(mixture)
    assert report.rejected == 1 and [issue.episode for issue in report.issues] == [places[1], None]
    assert len(written(mixture, on_invalid="skip")[0]) == 7


def test_behind_several_processes_they_are_found_once(tmp_path):
    path = tmp_path / "saved"
    convert([good(seed=i) for i in range(4)], path)
    assert validate(path, jobs=2).ok  # a source without findings stays as it is
    assert RULES["absent-files"].severity == ABSENT.severity
