"""Demonstrations that are read together are what they are when each is read alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf import Episode, Rlds2bufError
from rlds2buf.formats.robomimic import source as robomimic
from rlds2buf.formats.robomimic.demonstration import read_demo
from rlds2buf.formats.robomimic.source import RobomimicHdf5Source
from tests.formats.blocks import assert_same, together, without_blocks
from tests.formats.robomimic.files import demo, write


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the demonstrations that the library read."""
    found: list[int] = []

    def reading(*args: Any, index: int, **options: Any) -> Episode:
        found.append(index)
        return read_demo(*args, index=index, **options)

    monkeypatch.setattr(robomimic, "read_demo", reading)
    return found


def change(columns: dict[str, Any], how: str) -> None:
    """Make a demonstration another than the others."""
    samples = len(columns["actions"])
    changes: dict[str, dict[str, Any]] = {
        "short": {"obs/object": columns["obs/object"][:-1]},
        "done": {"dones": np.full(samples, 2)},
        "type": {"actions": columns["actions"].astype(np.float32)},
        "more": {"obs/extra": np.zeros((samples, 2)), "next_obs/extra": np.ones((samples, 2))},
        "no actions": {"actions": None},
        "none": {key: value[:0] for key, value in columns.items()},
        "states": {"states": np.zeros((samples + 2, 3))},
        "without": {"dones": None},
        "wide": {"rewards": np.zeros((samples, 2))},
        "group": {"rewards": None, "rewards/a": np.zeros(samples)},
    }
    columns.update(changes[how])


HOW = ("short", "done", "type", "more", "none", "states", "without", "wide", "group")


@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_any_demonstrations(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 50), min_size=1, max_size=20), "lengths")
    demos = {f"demo_{i}": demo(n, i, data.draw(st.none() | st.integers(0, 9))) for i, n in enumerate(lengths)}
    left_out = data.draw(st.sets(st.sampled_from(["next_obs", "rewards", "dones", "states"])), "left out")
    one_axis = data.draw(st.booleans(), "rewards of two axes")
    for columns in demos.values():
        for key in list(columns):
            if key.split("/")[0] in left_out:
                del columns[key]
        columns["action_dict/grip"] = np.arange(len(columns["actions"]))[:, None] > 2
        columns["note"] = np.arange(3)
        if one_axis and "rewards" in columns:
            columns["rewards"] = columns["rewards"][:, None]
        if data.draw(st.booleans(), "other types") and "next_obs/object" in columns:
            columns["next_obs/object"] = columns["next_obs/object"].astype(">f4")
    for at in data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=2, unique=True), "others"):
        if "next_obs/object" in demos[f"demo_{at}"]:
            change(demos[f"demo_{at}"], data.draw(st.sampled_from(HOW), "how"))
    path = write(tmp_path_factory.mktemp("robomimic") / "low_dim.hdf5", demos, {"train": ["demo_0"]})
    options = {
        "terminals": data.draw(st.sampled_from(["last", "dones", "none"]), "terminals"),
        "states": data.draw(st.booleans(), "states"),
    }
    start = data.draw(st.integers(0, len(lengths)), "start")
    stop = data.draw(st.none() | st.integers(0, len(lengths)), "stop")
    rows = data.draw(st.sampled_from([1, 60, 1 << 14]), "rows")
    source = RobomimicHdf5Source(path, **options)
    with without_blocks():
        wanted = together(source)
    assert_same(together(source, start, stop, rows), wanted[start:stop])


def test_the_library_reads_the_first_of_each_make_only(tmp_path: Path, alone: list[int]) -> None:
    path = write(tmp_path / "low_dim.hdf5", {f"demo_{i}": demo(5 + i % 3, i) for i in range(60)})
    found = together(RobomimicHdf5Source(path))
    assert len(found) == 60 and len(alone) < 6
    with without_blocks():
        assert_same(found, together(RobomimicHdf5Source(path)))


def test_what_is_compressed_is_read_alone(tmp_path: Path, alone: list[int]) -> None:
    path = write(tmp_path / "low_dim.hdf5", {f"demo_{i}": demo(5, i) for i in range(9)}, compress=True)
    found = together(RobomimicHdf5Source(path))
    assert len(found) == 9 and set(alone) == set(range(9))


def test_groups_in_another_file_are_read_by_the_library(tmp_path: Path) -> None:
    write(tmp_path / "other.hdf5", {f"demo_{i}": demo(5, i) for i in range(9)})
    with h5py.File(tmp_path / "low_dim.hdf5", "w") as file:
        file["data"] = h5py.ExternalLink("other.hdf5", "data")
    found = together(RobomimicHdf5Source(tmp_path / "low_dim.hdf5"))
    assert [len(item) for item in found] == [6] * 9
    with without_blocks():
        assert_same(found, together(RobomimicHdf5Source(tmp_path / "low_dim.hdf5")))


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_a_flipped_byte(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Nothing but a typed error, and never a crash; where the library reads all, the values are the same."""
    folder = tmp_path_factory.mktemp("robomimic")
    path = write(folder / "low_dim.hdf5", {f"demo_{i}": demo(1 + i % 7, i) for i in range(8)})
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3), "count")):
        raw[data.draw(st.integers(0, len(raw) - 1), "at")] ^= data.draw(st.integers(1, 255), "bits")
    path.write_bytes(raw)
    try:
        RobomimicHdf5Source(path)
    except Rlds2bufError:
        return
    with without_blocks():
        wanted = together(RobomimicHdf5Source(path))
    found = together(RobomimicHdf5Source(path))
    if all(isinstance(item, Episode) for item in wanted):
        assert_same(found, wanted)
