"""What rlds2buf writes, the real lerobot opens, iterates and trains on; v2.1 after lerobot's own converter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from tests.lerobot.opened import items, lengths, open_set, psnr, windows
from tests.lerobot.ours import columns
from tests.lerobot.test_edited import assert_edits
from tests.lerobot.theirs import converted, trained
from tests.made import BOTH, MADE

FPS = 5


@dataclass(frozen=True)
class Case:
    """A dataset to convert.

    Attributes:
        name: of it, under tests.made.MADE and tests.data.DATA.
        features: LeRobot's name of some of its fields.
        real_last: whether the last row's action and reward are real.
    """

    name: str
    features: dict[str, str]
    real_last: bool


BRIDGE = Case(
    "rlds/bridge_dataset/1.0.0",
    {
        "observation/state": "observation.state",
        **{f"observation/image_{i}": f"observation.images.image_{i}" for i in range(4)},
        "action": "action",
        "reward": "next.reward",
        "extras/language_embedding": "language_embedding",
        "extras/language_instruction": "task",
        "is_first": "is_first",
        "discount": "discount",
    },
    True,
)
HOPPER = Case(
    "d4rl/hopper_medium-v2.hdf5",
    {"observation": "observation.state", "action": "action", "reward": "next.reward"},
    False,
)
CARTPOLE = Case(
    "minari/cartpole/random-v0",
    {"observation": "observation.state", "action": "action", "reward": "next.reward"},
    False,
)
CASES = [BRIDGE, HOPPER, CARTPOLE]


def write(source: Any, folder: Path, drop: Sequence[str] = (), **options: Any) -> Path:
    """Our conversion; Bridge's episodes do not say which step is the last."""
    rlds2buf.convert(source, folder, to="lerobot", sink_options={"fps": FPS, **options}, drop=drop, on_invalid="repair")
    return folder


def as_v3(folder: Path, tmp_path: Path, version: str) -> Path:
    """A v3.0 dataset, brought there by lerobot itself if it is none."""
    return folder if version == "3.0" else converted(folder, tmp_path / "brought")


def inner(lengths: np.ndarray) -> np.ndarray:
    """All rows but the last of each episode."""
    rows = np.ones(lengths.sum(), np.bool_)
    rows[np.cumsum(lengths) - 1] = False
    return rows


def assert_as_was(case: Case, path: Path, folder: Path) -> None:
    """All that lerobot hands out against the source itself."""
    dataset, source = open_set(folder), columns(path)
    found = items(dataset)
    assert lengths(dataset) == source["lengths"].tolist()
    for field, feature in case.features.items():
        rows = slice(None) if case.real_last or field not in ("action", "reward") else inner(source["lengths"])
        one, other = found[feature][rows], source[field][rows]
        if feature in dataset.meta.video_keys:
            assert psnr(one, other) > 25, field
        else:
            # lerobot hands out a scalar as one number, and float64 as float32.
            np.testing.assert_array_equal(one.reshape(other.shape), other.astype(one.dtype), err_msg=field)
        if feature in dataset.meta.camera_keys and (folder / "meta/rlds2buf.json").exists():
            np.testing.assert_array_equal(columns(folder)[field], one, err_msg=field)
    np.testing.assert_array_equal(found["next.done"].reshape(-1), ends_of(source))
    np.testing.assert_array_equal(found["is_last"].reshape(-1), ~inner(source["lengths"]))
    np.testing.assert_allclose(found["timestamp"], found["frame_index"] / FPS, rtol=1e-6)


def ends_of(source: dict[str, np.ndarray]) -> np.ndarray:
    """Rows from which an episode ended in a terminal state, and those last rows again."""
    last = np.cumsum(source["lengths"]) - 1
    done = source["is_terminal"].copy()
    before = last[(source["lengths"] > 1)] - 1
    done[before] |= source["is_terminal"][before + 1]
    return done


@BOTH
@pytest.mark.parametrize("version", ["3.0", "2.1"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.split("/")[0])
def test_lerobot_hands_out_what_the_source_holds(sets: Any, case: Case, version: str, tmp_path: Path) -> None:
    options = {"images": "video", "codec": "h264"} if case is BRIDGE else {}
    written = write(sets / case.name, tmp_path / "written", version=version, **options)
    assert_as_was(case, sets / case.name, as_v3(written, tmp_path, version))


@pytest.mark.parametrize("name", ["d4rl/hopper_medium-v2.hdf5", "minari/cartpole/random-v0"])
def test_windows_by_delta_timestamps(name: str, tmp_path: Path) -> None:
    written = write(MADE / name, tmp_path / "written")
    whole = items(open_set(written))
    steps = {"observation.state": [-2, -1, 0], "action": [0, 1, 2, 3]}
    dataset = open_set(written, delta_timestamps={key: [s / FPS for s in told] for key, told in steps.items()})
    rows = [dataset[i] for i in range(len(dataset))]
    for feature, told in steps.items():
        wanted, padding = windows(dataset, told)
        np.testing.assert_array_equal(np.stack([row[feature] for row in rows]), whole[feature][wanted])
        np.testing.assert_array_equal(np.stack([row[f"{feature}_is_pad"] for row in rows]), padding)


@pytest.mark.parametrize("version", ["3.0", "2.1"])
def test_statistics_are_those_of_the_rows(version: str, tmp_path: Path) -> None:
    written = write(MADE / HOPPER.name, tmp_path / "written", version=version)
    dataset = open_set(as_v3(written, tmp_path, version))
    found = items(dataset)
    for feature in ("observation.state", "action", "next.reward", "timestamp", "index"):
        rows, told = found[feature].reshape(len(dataset), -1).astype(np.float64), dataset.meta.stats[feature]
        np.testing.assert_array_equal(told["count"], [len(rows)])
        np.testing.assert_allclose(told["min"], rows.min(axis=0), rtol=1e-6)
        np.testing.assert_allclose(told["max"], rows.max(axis=0), rtol=1e-6)
        np.testing.assert_allclose(told["mean"], rows.mean(axis=0), rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(told["std"], rows.std(axis=0), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("version", ["3.0", "2.1"])
def test_episodes_of_one_and_two_rows(version: str, tmp_path: Path) -> None:
    made = [
        rlds2buf.Episode(
            observation={
                "state": np.arange(2 * n, dtype=np.float32).reshape(n, 2),
                "text": np.array([b"a"] * n, object),
            },
            action=np.ones((n, 3), np.float32),
            reward=np.arange(n, dtype=np.float32),
            is_terminal=np.arange(n) == n - 1,
        )
        for n in (1, 2, 1, 3)
    ]
    dataset = open_set(as_v3(write(made, tmp_path / "written", version=version), tmp_path, version))
    found = items(dataset)
    assert lengths(dataset) == [1, 2, 1, 3]
    np.testing.assert_array_equal(found["observation.state"], np.concatenate([e.observation["state"] for e in made]))
    assert not [name for name in dataset.features if name.startswith("observation") and "state" not in name]


def test_our_sets_after_the_tools_of_lerobot(tmp_path: Path) -> None:
    assert_edits(write(MADE / CARTPOLE.name, tmp_path / "written"), tmp_path / "edited")


@pytest.mark.parametrize("images", ["video", "png", "jpeg"])
@pytest.mark.parametrize("version", ["3.0", "2.1"])
def test_policies_train_on_a_robot_with_cameras(images: str, version: str, tmp_path: Path) -> None:
    options = {"drop": ["observation/image_2", "observation/image_3", "extras/language_embedding"]}
    written = write(MADE / BRIDGE.name, tmp_path / "written", images=images, version=version, **options)
    used = trained(as_v3(written, tmp_path, version), tmp_path / "run")
    assert {name: feature.shape for name, feature in used.items()} == {
        "observation.state": (7,),
        "observation.images.image_0": (3, 64, 64),
        "observation.images.image_1": (3, 64, 64),
        "action": (7,),
    }
