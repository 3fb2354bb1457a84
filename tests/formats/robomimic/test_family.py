"""LIBERO's and RoboCasa's files, as their scripts write them on top of robomimic's layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from rlds2buf import open_source
from rlds2buf.formats.robomimic.source import RobomimicHdf5Source
from tests.formats.robomimic.files import demo, write


def libero(path: Path, told: Any = "put it there", convention: str | None = "opengl", demos: int = 2) -> Path:
    """As LIBERO's create_dataset.py: no next_obs, a done and a reward at the end alone."""
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["problem_info"] = json.dumps({"problem_name": "libero", "language_instruction": told})
        if convention is not None:
            data.attrs["macros_image_convention"] = convention
        data.attrs["env_args"] = json.dumps({"type": 1, "env_name": "Libero"})
        for number in range(demos):
            rng = np.random.default_rng(number)
            rows = 4 + number
            group = data.create_group(f"demo_{number}")
            for name in ("agentview_rgb", "eye_in_hand_rgb"):
                group[f"obs/{name}"] = rng.integers(0, 256, (rows, 8, 8, 3)).astype(np.uint8)
            group["obs/agentview_depth"] = rng.normal(size=(rows, 8, 8, 1)).astype(np.float32)
            group["obs/joint_states"] = rng.normal(size=(rows, 7))
            group["actions"] = rng.normal(size=(rows, 7))
            group["robot_states"] = rng.normal(size=(rows, 9))
            group["rewards"] = group["dones"] = (np.arange(rows) == rows - 1).astype(np.uint8)
            group.attrs["num_samples"] = rows
    return path


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("put the bowl on the plate", "put the bowl on the plate"),
        ('"put it down"', "put it down"),
        (["put", "it", "down"], "put it down"),
        (list("put it"), "put it"),
        ("", None),
        (3, None),
    ],
)
def test_the_instruction_of_libero(tmp_path: Path, told: Any, expected: str | None) -> None:
    for episode in open_source(libero(tmp_path / "a_demo.hdf5", told)):
        assert episode.metadata.get("language_instruction") == expected


def test_the_instruction_of_robocasa(tmp_path: Path) -> None:
    path = write(tmp_path / "a.hdf5", {f"demo_{i}": demo(4, i) for i in range(6)})
    with h5py.File(path, "a") as file:
        for number in range(6):
            file[f"data/demo_{number}"].attrs["ep_meta"] = json.dumps({"lang": f"open drawer {number}", "layout_id": 3})
    told = [episode.metadata["language_instruction"] for episode in open_source(path)]
    assert told == [f"open drawer {number}" for number in range(6)]


def test_others_have_none(tmp_path: Path) -> None:
    source = open_source(write(tmp_path / "a.hdf5", {"demo_0": demo(4, 0)}))
    assert "language_instruction" not in next(iter(source)).metadata and len(source.warnings()) == 1


@pytest.mark.parametrize("demos", [2, 9])
def test_pictures_the_other_way_up(tmp_path: Path, demos: int) -> None:
    path = libero(tmp_path / "a.hdf5", demos=demos)
    plain, turned = open_source(path), open_source(path, flip_images=True)
    assert plain.spec == turned.spec and plain.fingerprint() != turned.fingerprint()
    for one, other in zip(plain, turned, strict=True):
        assert one.index == other.index and one.metadata == other.metadata
        for name in ("agentview_rgb", "eye_in_hand_rgb", "agentview_depth"):
            np.testing.assert_array_equal(other.observation[name], one.observation[name][:, ::-1])
            assert other.observation[name].flags.c_contiguous
        np.testing.assert_array_equal(one.observation["joint_states"], other.observation["joint_states"])
        assert one.end == other.end


@pytest.mark.parametrize(
    ("convention", "flip", "warned"),
    [("opengl", False, True), (None, False, True), ("opengl", True, False), ("opencv", False, False)],
)
def test_what_is_said(tmp_path: Path, convention: str | None, flip: bool, warned: bool) -> None:
    source = RobomimicHdf5Source(libero(tmp_path / "a.hdf5", convention=convention), flip_images=flip)
    assert any("upside down" in text for text in source.warnings()) is warned
    assert any("alignment='ars'" in text for text in source.warnings())


def test_alignment_as_it_was_collected(tmp_path: Path) -> None:
    """create_dataset.py steps with actions[j] and stores what env.step returned as row j."""
    path = libero(tmp_path / "a.hdf5")
    own, moved = next(iter(open_source(path))), next(iter(open_source(path, alignment="ars")))
    np.testing.assert_array_equal(moved.action[:-1], own.action[1:])
