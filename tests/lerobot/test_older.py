"""v2.1: lerobot's own converter brings what is written here by hand to v3.0."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.lerobot import older, sets
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
