"""lerobot's own tools (delete, split, merge) on its sets and on ours: what they leave is read as it is handed out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rlds2buf
from rlds2buf.errors import EpisodeError
from tests.lerobot.conftest import Made
from tests.lerobot.opened import items, lengths, open_set, psnr
from tests.lerobot.ours import INDICES, assert_read_as_handed_out
from tests.lerobot.theirs import edited

MOVED = {*INDICES, "task_index"}
"""What differs in an edited set."""


def rows_of(dataset, episodes: list[int]) -> np.ndarray:
    """The rows of these episodes, one behind the other."""
    starts = np.cumsum([0, *lengths(dataset)])
    return np.concatenate([np.arange(starts[e], starts[e + 1]) for e in episodes])


def assert_edits(folder: Path, target: Path) -> None:
    """Every edit opens, holds the episodes that it should, and is read by us as by lerobot."""
    dataset = open_set(folder)
    before = items(dataset)
    for edit, episodes in edited(folder, target).values():
        after = items(open_set(edit))
        rows = rows_of(dataset, episodes)
        for feature in before.keys() - MOVED:
            if feature in dataset.meta.video_keys:
                assert psnr(after[feature], before[feature][rows]) > 30, (edit, feature)
            else:
                np.testing.assert_array_equal(after[feature], before[feature][rows], err_msg=f"{edit} {feature}")
        assert_read_as_handed_out(edit)


@pytest.mark.parametrize("name", ["flat_files", "images", "av1", "video_files"])
def test_sets_that_lerobot_edited(made: Made, name: str, tmp_path: Path) -> None:
    assert_edits(made(name), tmp_path)


def test_what_lerobot_spoils_by_merging_is_told(made: Made, tmp_path: Path) -> None:
    """Its split encodes H.264 again as AV1; its merge then puts both into one video, which nobody can decode."""
    from lerobot.datasets.dataset_tools import merge_datasets, split_dataset

    dataset = open_set(made("h264"))
    part = split_dataset(dataset, {"part": [0, 1]}, tmp_path)["part"]
    merge_datasets([dataset, part], "test/merged", tmp_path / "merged")
    with rlds2buf.open_source(tmp_path / "merged") as source:
        found = list(source.read())
    assert [isinstance(item, EpisodeError) for item in found] == [False] * 4 + [True] * 2
    for episode, error in enumerate(found[4:], start=4):
        assert f"episode {episode}, observation/images/front: " in str(error) and "is damaged or not there" in str(
            error
        )
    report = rlds2buf.validate(tmp_path / "merged")
    assert not report.ok and report.episodes == 6
