"""Recordings of the real lerobot that were killed, and what rlds2buf finds in those that were not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rlds2buf import convert, errors, open_source, validate
from tests.data import ROOT
from tests.lerobot import sets
from tests.lerobot.conftest import Made
from tests.lerobot.opened import open_set
from tests.lerobot.sets import SETS

KILLED = """
import os, pathlib, sys
from lerobot.datasets.lerobot_dataset import LeRobotDataset
LeRobotDataset.finalize = lambda self: os._exit(9)
from tests.lerobot import sets
sets.make(sys.argv[1], pathlib.Path(sys.argv[2]))
"""
"""Ends without a word where a recording would be finalized: footers and the last metadata are not written."""


@pytest.mark.parametrize("name", SETS)
def test_nothing_is_found_in_what_lerobot_wrote(made: Made, name: str) -> None:
    with open_source(made(name)) as source:
        found = list(source.findings())
    # lerobot sums up uint8 as uint8: its standard deviations of such a column are those of what overflowed.
    assert all(issue.rule == "wrong-stats" and issue.path == "extras/small" for issue in found), found
    assert validate(made(name)).ok


@pytest.mark.parametrize("name", ["numbers", "images", "video_files"])
def test_a_recording_that_was_killed_before_it_was_finalized(made: Made, tmp_path: Path, name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, name, str(tmp_path)], cwd=ROOT, capture_output=True, timeout=300, check=False
    )
    assert done.returncode == 9, done.stderr.decode()
    with pytest.raises(errors.SourceError):
        open_source(tmp_path / name)
    kept = []
    report = convert(tmp_path / name, kept, on_invalid="repair")
    assert any("whole in the data" in text for text in report.warnings)
    with open_source(made(name)) as source:
        for ours, whole in zip(kept, source, strict=True):
            for (path, one), (other_path, other) in zip(ours.flatten(), whole.flatten(), strict=True):
                assert path == other_path
                if path[-1] == "task_index":  # which task has which number differs from one recording to the next
                    continue
                np.testing.assert_array_equal(np.asarray(one), np.asarray(other), err_msg=str(path))


def test_what_is_repaired_opens_in_lerobot(made: Made, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", KILLED, "video_files", str(tmp_path)], cwd=ROOT, capture_output=True, timeout=300
    )
    report = convert(tmp_path / "video_files", tmp_path / "mended", to="lerobot", on_invalid="repair")
    assert any("front: the packets of 6 episodes were copied, none was encoded again" in note for note in report.notes)
    ours, whole = open_set(tmp_path / "mended"), open_set(made("video_files"))
    assert (
        len(ours) == len(whole) == sum(len(part["task"]) for part in sets.pictures({"front": "video"}, episodes=6)[1])
    )
    for row in (0, len(whole) // 2, len(whole) - 1):
        for key in ("observation.state", "action", "observation.images.front"):
            np.testing.assert_array_equal(np.asarray(ours[row][key]), np.asarray(whole[row][key]))
