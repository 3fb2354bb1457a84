"""Our Dataset in place of the real lerobot's: the same frames, windows, features, and what its training reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import rlds2buf
from rlds2buf.adapters.lerobot import Dataset
from tests.lerobot.conftest import Made
from tests.lerobot.opened import open_set
from tests.lerobot.sets import FPS
from tests.lerobot.theirs import small_policy


def same(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Every key of theirs but ends, which are flags here, with the same value."""
    for name, value in theirs.items():
        if name in ("next.done", "next.truncated"):
            continue
        assert name in mine, (name, sorted(mine))
        if isinstance(value, torch.Tensor):
            assert mine[name].shape == value.shape and mine[name].dtype == value.dtype, name
            torch.testing.assert_close(mine[name], value, rtol=0, atol=1e-6, msg=name)
        else:
            assert mine[name] == value, name


DELTAS = {"observation.state": [-0.2, 0.0], "action": [i / FPS for i in range(4)]}


@pytest.mark.parametrize("name", ["numbers", "images"])
@pytest.mark.parametrize("windows", [False, True])
def test_frames_are_theirs(made: Made, name: str, windows: bool) -> None:
    folder = made(name)
    theirs = open_set(folder)
    deltas = {key: value for key, value in DELTAS.items() if key in theirs.meta.features} if windows else None
    if windows and theirs.meta.camera_keys:
        deltas = {**(deltas or {}), theirs.meta.camera_keys[0]: [-0.1, 0.0]}
    theirs = open_set(folder, delta_timestamps=deltas)
    mine = Dataset(folder, delta_timestamps=deltas)
    assert (len(mine), mine.num_frames, mine.num_episodes) == (len(theirs), theirs.num_frames, theirs.num_episodes)
    for i in [0, 1, 2, len(theirs) // 2, len(theirs) - 2, len(theirs) - 1]:
        same(mine[i], theirs[i])
    for ours, real in zip(DataLoader(mine, batch_size=5), DataLoader(theirs, batch_size=5), strict=True):
        same(ours, real)


def test_metadata_are_theirs(made: Made) -> None:
    folder = made("images")
    mine, theirs = Dataset(folder).meta, open_set(folder).meta
    assert (mine.fps, mine.total_episodes, mine.total_frames) == (
        theirs.fps,
        theirs.total_episodes,
        theirs.total_frames,
    )
    assert sorted(mine.camera_keys) == sorted(theirs.camera_keys)
    for name in ("dataset_from_index", "dataset_to_index"):
        assert list(mine.episodes[name]) == list(theirs.episodes[name])
    for name, feature in theirs.features.items():
        if not name.startswith("next."):
            assert tuple(mine.features[name]["shape"]) == tuple(feature["shape"]), name
    for key in ("min", "max", "mean", "std"):
        np.testing.assert_allclose(mine.stats["action"][key], theirs.stats["action"][key], rtol=1e-4, atol=1e-5)
    for name in mine.camera_keys:
        assert mine.stats[name]["mean"].shape == np.asarray(theirs.stats[name]["mean"]).shape == (3, 1, 1)


def test_a_saved_buffer_is_a_dataset_for_a_policy(made: Made, tmp_path: Path) -> None:
    """Converted once, opened by every worker, and a step of ACT."""
    from lerobot.configs.types import FeatureType
    from lerobot.datasets.sampler import EpisodeAwareSampler
    from lerobot.datasets.utils import dataset_to_policy_features
    from lerobot.policies.factory import make_policy

    folder = made("images")
    rlds2buf.convert(folder, tmp_path / "buffer")
    deltas = {"action": [i / FPS for i in range(4)]}
    mine, theirs = Dataset(tmp_path / "buffer", delta_timestamps=deltas), open_set(folder, delta_timestamps=deltas)
    assert len(mine) == len(theirs)
    same(mine[len(mine) - 1], theirs[len(theirs) - 1])
    features = dataset_to_policy_features(mine.meta.features)
    assert {name for name, one in features.items() if one.type is FeatureType.VISUAL} == set(theirs.meta.camera_keys)
    policy = make_policy(small_policy(), ds_meta=mine.meta)
    sampler = EpisodeAwareSampler(
        mine.meta.episodes["dataset_from_index"], mine.meta.episodes["dataset_to_index"], shuffle=True
    )
    batch = next(iter(DataLoader(mine, batch_size=4, sampler=sampler, num_workers=1)))
    loss, _ = policy.forward(batch)
    assert torch.isfinite(loss)


def test_wrong_windows_are_told(made: Made) -> None:
    folder = made("numbers")
    for deltas, message in (
        ({"actoin": [0.0]}, "no feature 'actoin'"),
        ({"action": [0.05]}, "multiples of 1/10"),
        ({"action": [50.0]}, "beyond every episode"),
    ):
        with pytest.raises(ValueError, match=message):
            Dataset(folder, delta_timestamps=deltas)
    with pytest.raises(ValueError, match="no number 77"):
        Dataset(folder, episodes=[77])
    one = Dataset(folder, episodes=[1])
    assert one.num_episodes == 1 and int(one[0]["episode_index"]) == 1
