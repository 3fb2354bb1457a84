"""robomimic's files as they are written: read by h5py as robomimic reads them, and by us."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from rlds2buf import Episode, SinkError, SnapshotExists, SourceFormatError, convert, open_source, spec_of
from rlds2buf.formats.robomimic.sink import RobomimicHdf5Sink
from rlds2buf.io.sink import Sink
from tests.contracts.sink import PROVENANCE, SinkContract
from tests.differences import assert_only_lost
from tests.formats.robomimic.files import demo
from tests.formats.robomimic.files import write as write_file


class TestContract(SinkContract):
    def make(self, folder: Path) -> Sink:
        return RobomimicHdf5Sink(folder / "file.hdf5")

    def held(self, sink: Any, folder: Path) -> list[int] | None:
        if not (folder / "file.hdf5").exists():
            return None
        try:
            source = open_source(folder / "file.hdf5", format="robomimic")
        except SourceFormatError as error:
            assert "needs demonstrations" in str(error)
            return []
        return [int(n) for ep in source for n in np.asarray(ep.observation["count"])[:-1]]


def make(rows: int, start: int = 0, end: str = "terminated", **changes: Any) -> Episode:
    """An episode whose values such a file can hold, all of them."""
    number = np.arange(start, start + rows)
    padded = np.where(np.arange(rows) < rows - 1, number + 1, 0)
    discount = np.ones(rows, np.float32)
    if end == "terminated":
        discount[-2:] = 0
    last = np.arange(rows) == rows - 1
    episode = Episode(
        observation={"state": np.stack([number, -number], 1).astype(np.float32), "deep": {"x": number}},
        action=padded.astype(np.float32)[:, None],
        reward=padded * 0.5,
        discount=discount,
        is_first=np.arange(rows) == 0,
        is_last=last,
        is_terminal=last if end == "terminated" else np.zeros(rows, bool),
        extras={"states": padded * 1.0},
    )
    return episode.replace(**changes)


def written(path: Path, episodes: list[Episode], **options: Any) -> Mapping[str, str]:
    sink = RobomimicHdf5Sink(path, **options)
    sink.open(spec_of(episodes[0]), PROVENANCE)
    for episode in episodes:
        assert sink.write(episode) == episode.num_transitions
    sink.commit()
    return sink.lost()


ADDED = {"metadata/demo", "metadata/num_samples", "metadata/env_args", "extras/dones"}


def test_is_a_file_as_robomimic_has_it(tmp_path: Path) -> None:
    episodes = [make(4), make(3, 100, "truncated"), make(2, 200)]
    assert written(tmp_path / "a.hdf5", episodes) == {}
    with h5py.File(tmp_path / "a.hdf5") as file:
        assert file["data"].attrs["total"] == 6 and json.loads(file["data"].attrs["env_args"])["type"] == 1
        assert json.loads(file.attrs["rlds2buf"]) == PROVENANCE
        for number, ep in enumerate(episodes):
            group = file[f"data/demo_{number}"]
            assert group.attrs["num_samples"] == len(ep) - 1
            np.testing.assert_array_equal(group["obs/state"][:], ep.observation["state"][:-1])
            np.testing.assert_array_equal(group["next_obs/deep/x"][:], ep.observation["deep"]["x"][1:])
            np.testing.assert_array_equal(group["actions"][:], ep.action[:-1])
            np.testing.assert_array_equal(group["rewards"][:], ep.reward[:-1])
            assert group["dones"][:].tolist() == [0] * (len(ep) - 2) + [int(ep.end == "terminated")]
    assert_only_lost(episodes, open_source(tmp_path / "a.hdf5"), {}, added=ADDED)


def test_a_file_of_robomimic_s_own_comes_back(tmp_path: Path) -> None:
    path = write_file(tmp_path / "in.hdf5", {f"demo_{i}": demo(4 + i, i) for i in range(6)}, {"train": ["demo_0"]})
    report = convert(open_source(path), tmp_path / "out.hdf5", to="robomimic")
    assert set(report.lost) == {f"metadata/{name}" for name in ("demo", "mask", "model_file", "num_samples")} | {
        "extras/dones"
    }
    with h5py.File(path) as one, h5py.File(tmp_path / "out.hdf5") as other:
        assert one["data"].attrs["env_args"] == other["data"].attrs["env_args"]
        for number in range(6):
            for name in ("obs/object", "next_obs/agentview_image", "actions", "rewards", "dones", "states"):
                first, second = (file[f"data/demo_{number}/{name}"] for file in (one, other))
                assert first.dtype == second.dtype
                np.testing.assert_array_equal(first[:], second[:])


def test_what_has_no_place_is_listed(tmp_path: Path) -> None:
    rows = np.arange(4)
    extras = {"obs": rows, "note": np.array([b"a", b"b", b"c", b""], object), "pair": (rows, rows)}
    episode = make(4, extras=extras, observation=rows * 1.0, discount=np.full(4, 0.5), metadata={"seed": 3})
    lost = dict(written(tmp_path / "a.hdf5", [episode]))
    assert lost["observation"] == "it is read back as observation/observation"
    assert lost["extras/obs"] == "obs is another field's" and "discount" in lost and "metadata/seed" in lost
    assert lost["extras/pair/0"].startswith("it is read back as extras/pair/0; the last row")
    (back,) = open_source(tmp_path / "a.hdf5")
    assert back.extras["note"].tolist() == [b"a", b"b", b"c", b""]


def test_episodes_of_one_row_and_without_next_observations(tmp_path: Path) -> None:
    lost = written(tmp_path / "a.hdf5", [make(1), make(4)], next_obs=False)
    assert (
        lost["episodes"] == "one has one row only, so no transition: left out"
        and "next_obs=False" in lost["observation"]
    )
    assert [len(episode) for episode in open_source(tmp_path / "a.hdf5")] == [3]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"action": None}, "no action"),
        ({"observation": None}, "no observation"),
        ({"reward": np.zeros((4, 2))}, "number"),
    ],
)
def test_refused_before_anything_is_made(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(SinkError, match=says):
        RobomimicHdf5Sink(tmp_path / "a.hdf5").open(spec_of(make(4, **changes)), PROVENANCE)
    assert not list(tmp_path.iterdir())


def test_overwrites_hdf5_files_only(tmp_path: Path) -> None:
    path = tmp_path / "a.hdf5"
    path.write_text("my notes")
    with pytest.raises(SnapshotExists):
        written(path, [make(4)], overwrite=True)
    path.unlink()
    written(path, [make(4)])
    written(path, [make(3)], overwrite=True)
    assert [len(episode) for episode in open_source(path)] == [3]


def test_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    episodes = [make(5, 10), make(3, 20, "truncated"), make(6, 30)]
    written(tmp_path / "whole.hdf5", episodes)
    first = RobomimicHdf5Sink(tmp_path / "a.hdf5", resume=True)
    first.open(spec_of(episodes[0]), PROVENANCE)
    first.write(episodes[0])
    first.checkpoint({"read": 1})
    first.write(episodes[2])
    first.abort()
    second = RobomimicHdf5Sink(tmp_path / "a.hdf5", resume=True)
    second.open(spec_of(episodes[0]), PROVENANCE)
    assert second.resumed() == {"read": 1}
    for episode in episodes[1:]:
        second.write(episode)
    second.commit()
    assert (tmp_path / "a.hdf5").read_bytes() == (tmp_path / "whole.hdf5").read_bytes()
