"""v2.1 to v3.0 and back: ours against lerobot's own converter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rlds2buf
from tests.lerobot import older, sets
from tests.lerobot.conftest import Made
from tests.lerobot.opened import items, lengths, open_set, psnr
from tests.lerobot.test_sets import recorded
from tests.lerobot.theirs import converted


def test_numbers_are_converted(tmp_path: Path) -> None:
    features, columns = sets.flat()
    dataset = open_set(converted(older.write(tmp_path / "v21", features, columns), tmp_path / "new"))
    found = items(dataset)
    assert lengths(dataset) == [len(part["task"]) for part in columns]
    for feature in [*features, "task"]:
        told = recorded(columns, feature).reshape(found[feature].shape).astype(found[feature].dtype)
        np.testing.assert_array_equal(found[feature], told)


@pytest.mark.parametrize("vcodec", ["h264", "libsvtav1"])
def test_pictures_are_converted(tmp_path: Path, vcodec: str) -> None:
    features, columns = sets.pictures({"front": "video", "still": "image"})
    dataset = open_set(converted(older.write(tmp_path / "v21", features, columns, vcodec), tmp_path / "new"))
    found = items(dataset)
    for feature in dataset.meta.camera_keys:
        assert psnr(found[feature], recorded(columns, feature)) > 30


def assert_same(one: Path, other: Path) -> None:
    """lerobot hands out the same of both datasets: every number, every text, and every pixel of its decoder."""
    first, second = open_set(one), open_set(other)
    assert lengths(first) == lengths(second)
    found, told = ends_apart(items(first)), ends_apart(items(second))
    assert found.keys() == told.keys()
    for feature in found.keys() - {"task_index"}:  # each numbers the tasks in an order of its own
        np.testing.assert_array_equal(found[feature], told[feature], err_msg=feature)


def ends_apart(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """``next.done`` only where nothing was truncated, as we write it: others mean by it that the episode is over."""
    if "next.done" in columns:
        columns["next.done"] = columns["next.done"] & ~columns["next.truncated"]
    return columns


@pytest.mark.parametrize("vcodec", ["h264", "libsvtav1"])
def test_ours_is_what_the_converter_of_lerobot_makes(tmp_path: Path, vcodec: str) -> None:
    features, columns = sets.pictures({"front": "video", "wrist": "video", "still": "image"})
    old = older.write(tmp_path / "v21", features, columns, vcodec)
    report = rlds2buf.convert(old, tmp_path / "ours", to="lerobot")
    assert sum("none was encoded again" in note for note in report.notes) == 2
    assert_same(tmp_path / "ours", converted(old, tmp_path / "theirs"))


def test_ours_of_numbers_is_what_the_converter_makes(tmp_path: Path) -> None:
    old = older.write(tmp_path / "v21", *sets.flat())
    rlds2buf.convert(old, tmp_path / "ours", to="lerobot")
    assert_same(tmp_path / "ours", converted(old, tmp_path / "theirs"))


@pytest.mark.parametrize("name", ["flat_files", "images", "av1", "video_files"])
def test_down_to_v21_and_up_again_by_lerobot(made: Made, name: str, tmp_path: Path) -> None:
    report = rlds2buf.convert(made(name), tmp_path / "old", to="lerobot", sink_options={"version": "2.1"})
    assert not [note for note in report.notes if "encoded again" in note and "none was" not in note]
    assert_same(converted(tmp_path / "old", tmp_path / "up"), made(name))


@pytest.mark.parametrize("name", sets.SETS)
def test_a_copy_is_handed_out_alike(made: Made, name: str, tmp_path: Path) -> None:
    rlds2buf.convert(made(name), tmp_path / "copy", to="lerobot")
    assert_same(tmp_path / "copy", made(name))
