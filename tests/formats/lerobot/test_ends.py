"""Ends of episodes, and last actions that are real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import Buffer
from tests.formats.lerobot.made import Made, write_v3

NUMBER = {"dtype": "float32", "shape": [1], "names": None}
FLAG = {"dtype": "bool", "shape": [1], "names": None}


def flagged(root: Path, **flags: list[list[bool]]) -> Path:
    """Episodes of as many rows as their flags, given by feature with ``_`` for the dot."""
    features: dict[str, Any] = {
        "observation.state": {"dtype": "float32", "shape": [2], "names": None},
        "action": NUMBER,
        "next.reward": NUMBER,
    }
    episodes: list[dict[str, Any]] = []
    for number, rows in enumerate(next(iter(flags.values()))):
        count = len(rows)
        episode: dict[str, Any] = {
            "observation.state": np.arange(2 * count, dtype=np.float32).reshape(count, 2),
            "action": np.arange(1, count + 1, dtype=np.float32),
            "next.reward": np.arange(1, count + 1, dtype=np.float32) / 2,
        }
        for name, values in flags.items():
            episode[name.replace("next_", "next.")] = np.array(values[number])
        episodes.append(episode)
    features |= {name.replace("next_", "next."): FLAG for name in flags}
    return write_v3(root, Made(episodes, features))


NO, YES = False, True


def test_done_is_terminal_unless_truncated(tmp_path: Path) -> None:
    root = flagged(
        tmp_path / "set",
        next_done=[[NO, YES], [NO, NO, YES], [NO, NO], [NO, YES, YES]],
        next_truncated=[[NO, NO], [NO, NO, YES], [NO, NO], [NO, NO, NO]],
    )
    with rlds2buf.open_source(root) as source:
        episodes = list(source)
        assert not source.warnings()
    assert [episode.end for episode in episodes] == ["terminated", "truncated", "truncated", "terminated"]
    assert [episode.is_terminal.sum() for episode in episodes] == [1, 0, 0, 1]
    # In the last one the end was reached one row before: its last action is padding.
    assert [bool(episode.metadata.get("real_final_action")) for episode in episodes] == [True, True, True, False]
    assert episodes[3].discount.tolist() == [1, 0, 0] and episodes[1].discount.tolist() == [1, 1, 1]
    assert "next" not in episodes[0].extras


def test_an_option_overrules_the_flags(tmp_path: Path) -> None:
    root = flagged(tmp_path / "set", next_done=[[NO, YES], [NO, NO]])
    for ends, expected in (("truncated", "truncated"), ("terminal", "terminated")):
        with rlds2buf.open_source(root, ends=ends) as source:
            episodes = list(source)
        assert {episode.end for episode in episodes} == {expected}
        assert episodes[0].extras["next"]["done"].tolist() == [False, True]
    with pytest.raises(ValueError, match="ends must be"):
        rlds2buf.open_source(root, ends="maybe")


def test_flags_of_rlds_are_taken_as_they_are(tmp_path: Path) -> None:
    root = flagged(
        tmp_path / "set",
        is_first=[[YES, NO], [YES, NO]],
        is_last=[[NO, YES], [NO, YES]],
        is_terminal=[[NO, YES], [NO, NO]],
        next_done=[[NO, NO], [NO, YES]],
    )
    with rlds2buf.open_source(root) as source:
        assert [episode.end for episode in source] == ["terminated", "truncated"]


def test_without_flags_nothing_is_terminal_and_that_is_said(tmp_path: Path) -> None:
    root = flagged(tmp_path / "set", next_success=[[NO, YES]])
    with rlds2buf.open_source(root) as source:
        (episode,) = source
        assert source.warnings() == ["no end flags: every episode is taken as truncated"]
    assert episode.end == "truncated" and episode.derived == {"is_terminal"}
    assert episode.extras["next"]["success"].tolist() == [False, True]


def test_a_real_last_action_goes_into_rows_as_it_is_and_into_transitions_as_asked(tmp_path: Path) -> None:
    root = flagged(tmp_path / "set", next_done=[[NO, NO, YES], [NO, NO]])
    rows: list[rlds2buf.Episode] = []
    report = rlds2buf.convert(root, rows)
    assert not report.repaired and not report.notes
    assert rows[0].action.tolist() == [1, 2, 3] and rows[0].metadata["real_final_action"]
    report = rlds2buf.convert(root, tmp_path / "rlds", to="rlds")
    assert not report.repaired and not report.lost
    with rlds2buf.open_source(tmp_path / "rlds") as source:
        assert [bool(episode.metadata["real_final_action"]) for episode in source] == [True, True]
        assert [episode.action.tolist() for episode in source] == [[1, 2, 3], [1, 2]]

    report = rlds2buf.convert(root, tmp_path / "dropped")
    assert report.items == 3 and dict(report.repaired) == {"final-transition-lost": 2}
    assert any("last action of 2 episodes is real" in note for note in report.notes)
    report = rlds2buf.convert(root, tmp_path / "kept", final_transition="keep")
    assert report.items == 4 and dict(report.repaired) == {"final-transition-kept": 1, "final-transition-lost": 1}
    held: Buffer = rlds2buf.load_buffer(tmp_path / "kept")
    assert sorted(held.sample(64).data.reward.tolist())[-1] == 1.5  # of the last row


def test_a_real_last_action_survives_a_round_trip(tmp_path: Path) -> None:
    root = flagged(tmp_path / "set", next_done=[[NO, NO, YES], [NO, NO]])
    report = rlds2buf.convert(root, tmp_path / "again", to="lerobot")
    assert not report.repaired
    with rlds2buf.open_source(root) as source, rlds2buf.open_source(tmp_path / "again") as again:
        for one, other in zip(source, again, strict=True):
            assert one.action.tolist() == other.action.tolist() and one.reward.tolist() == other.reward.tolist()
            assert one.end == other.end and one.metadata == other.metadata
