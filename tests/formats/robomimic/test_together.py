"""Demonstrations that are read together are what they are when each is read alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf import Episode, EpisodeBatch, EpisodeError, Rlds2bufError
from rlds2buf.core.same import is_same
from rlds2buf.formats.robomimic import source as robomimic
from rlds2buf.formats.robomimic.demonstration import read_demo
from rlds2buf.formats.robomimic.source import RobomimicHdf5Source
from rlds2buf.formats.robomimic.together import Together
from tests.formats.robomimic.files import demo, write

Item = Episode | EpisodeError | str


def items(found: Iterator[Any], rows: int = 1 << 14) -> list[Item]:
    """All episodes and errors, and the text of what ends them."""
    flat: list[Item] = []
    try:
        for item in found:
            assert not isinstance(item, EpisodeBatch) or len(item) == 1 or item.num_steps <= rows
            flat.extend(item if isinstance(item, EpisodeBatch) else [item])
    except Rlds2bufError as error:
        flat.append(str(error))
    return flat


def one_by_one(path: Path, **options: Any) -> list[Item]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Together, "_window", lambda self, start, count: None)
        return items(RobomimicHdf5Source(path, **options).read())


def assert_same(found: list[Item], wanted: list[Item]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        if isinstance(one, Episode) and isinstance(other, Episode):
            assert is_same(one, other) and (one.index, one.source) == (other.index, other.source)
            assert list(one.extras) == list(other.extras)
        else:
            assert (type(one), str(one)) == (type(other), str(other))


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
    found = items(RobomimicHdf5Source(path, **options).read_batches(start, stop, rows=rows), rows)
    assert_same(found, one_by_one(path, **options)[start:stop])


def test_the_library_reads_the_first_of_each_make_only(tmp_path: Path, alone: list[int]) -> None:
    path = write(tmp_path / "low_dim.hdf5", {f"demo_{i}": demo(5 + i % 3, i) for i in range(60)})
    found = items(RobomimicHdf5Source(path).read_batches())
    assert len(found) == 60 and len(alone) < 6
    assert_same(found, one_by_one(path))


def test_what_is_compressed_is_read_alone(tmp_path: Path, alone: list[int]) -> None:
    path = write(tmp_path / "low_dim.hdf5", {f"demo_{i}": demo(5, i) for i in range(9)}, compress=True)
    found = items(RobomimicHdf5Source(path).read_batches())
    assert len(found) == 9 and set(alone) == set(range(9))


def test_groups_in_another_file_are_read_by_the_library(tmp_path: Path) -> None:
    write(tmp_path / "other.hdf5", {f"demo_{i}": demo(5, i) for i in range(9)})
    with h5py.File(tmp_path / "low_dim.hdf5", "w") as file:
        file["data"] = h5py.ExternalLink("other.hdf5", "data")
    found = items(RobomimicHdf5Source(tmp_path / "low_dim.hdf5").read_batches())
    assert [len(item) for item in found] == [6] * 9
    assert_same(found, one_by_one(tmp_path / "low_dim.hdf5"))


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
    wanted = one_by_one(path)
    found = items(RobomimicHdf5Source(path).read_batches())
    if all(isinstance(item, Episode) for item in wanted):
        assert_same(found, wanted)
