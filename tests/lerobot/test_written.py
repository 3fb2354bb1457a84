"""What rlds2buf writes, the real lerobot opens, iterates and trains on; v2.1 after lerobot's own converter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from tests.lerobot.opened import items, lengths, open_set, psnr
from tests.lerobot.ours import columns
from tests.lerobot.theirs import converted, trained
from tests.made import BOTH

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


FLAGS = {"is_first": "is_first", "is_last": "is_last", "is_terminal": "is_terminal", "discount": "discount"}
BRIDGE = Case(
    "rlds/bridge_dataset/1.0.0",
    {
        "observation/state": "observation.state",
        **{f"observation/image_{i}": f"observation.images.image_{i}" for i in range(4)},
        "action": "action",
        "reward": "next.reward",
        "extras/language_embedding": "language_embedding",
        "extras/language_instruction": "task",
        **FLAGS,
    },
    True,
)
HOPPER = Case(
    "d4rl/hopper_medium-v2.hdf5", {"observation": "observation.state", "action": "action", "reward": "next.reward"}, False
)
CARTPOLE = Case(
    "minari/cartpole/random-v0",
    {"observation": "observation.state", "action": "action", "reward": "next.reward"},
    False,
)
CASES = [BRIDGE, HOPPER, CARTPOLE]


def write(source: Any, folder: Path, **options: Any) -> Path:
    """Our conversion."""
    rlds2buf.convert(source, folder, to="lerobot", sink_options={"fps": FPS, **options}, split="train")
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
    np.testing.assert_array_equal(found["next.done"].reshape(-1), ends_of(source))
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
