"""The environment itself: lerobot opens what it recorded, videos of every codec among it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.lerobot import sets
from tests.lerobot.conftest import Made
from tests.lerobot.opened import items, lengths, open_set, psnr


def recorded(columns: list[sets.Columns], name: str) -> np.ndarray:
    parts = [np.asarray(part[name], object if isinstance(part[name], list) else None) for part in columns]
    return np.concatenate(parts)


@pytest.mark.parametrize(("name", "seed"), [("numbers", 0), ("number_files", 1)])
def test_numbers_and_text_come_back(made: Made, name: str, seed: int) -> None:
    dataset = open_set(made(name))
    found = items(dataset)
    features, columns = sets.numbers(seed)
    assert lengths(dataset) == [len(part["task"]) for part in columns]
    for feature in [*features, "task"]:
        # lerobot hands out float64 as float32.
        told = recorded(columns, feature).reshape(found[feature].shape).astype(found[feature].dtype)
        np.testing.assert_array_equal(found[feature], told)


@pytest.mark.parametrize("name", ["images", "av1", "h264", "hevc", "video_files"])
def test_pictures_come_back_within_what_the_codec_says(made: Made, name: str) -> None:
    dataset = open_set(made(name))
    found = items(dataset)
    kinds = {feature.rsplit(".", 1)[1]: dataset.features[feature]["dtype"] for feature in dataset.meta.camera_keys}
    _, columns = sets.pictures(kinds, episodes=len(lengths(dataset)))
    for feature in dataset.meta.camera_keys:
        assert psnr(found[feature], recorded(columns, feature)) > (30 if feature in dataset.meta.video_keys else 1e9)


def test_sets_of_several_files_have_them(made: Made) -> None:
    assert len(list(made("number_files").glob("data/*/*.parquet"))) == 5
    assert len(list(made("video_files").glob("videos/*/*/*.mp4"))) > 1
    assert len(list(made("video_files").glob("data/*/*.parquet"))) > 1
