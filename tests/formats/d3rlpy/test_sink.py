"""d3rlpy's files as they are written: names, ends, what is lost; d3rlpy itself reads them in tests/torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from rlds2buf import Episode, SinkError, SnapshotExists, open_source, spec_of, transitions
from rlds2buf.formats.d3rlpy.sink import D3rlpySink
from rlds2buf.io.sink import Sink
from tests.contracts.sink import PROVENANCE, SinkContract
from tests.differences import assert_only_lost
from tests.formats.d3rlpy.files import episode as made
from tests.formats.d3rlpy.files import write_v2


class Counting(D3rlpySink):
    """Of the contract's nested observation only the count."""

    def open(self, spec: Any, provenance: Mapping[str, Any]) -> None:
        fields = {name: getattr(spec, name) for name in ("action", "reward", "discount", "extras")}
        super().open(type(spec)(**fields, observation=spec.observation["count"]), provenance)

    def write(self, episode: Episode) -> int:
        return super().write(episode.replace(observation=episode.observation["count"]))


class TestContract(SinkContract):
    def make(self, folder: Path) -> Sink:
        return Counting(folder / "file.h5")

    def held(self, sink: Any, folder: Path) -> list[int] | None:
        if not (folder / "file.h5").exists():
            return None
        return [int(n) for ep in open_source(folder / "file.h5") for n in np.asarray(ep.observation).ravel()[:-1]]


def make(rows: int, start: int = 0, end: str = "truncated", **changes: Any) -> Episode:
    number = np.arange(start, start + rows)
    last = np.arange(rows) == rows - 1
    padded = np.where(last & (end == "terminated"), 0, number + 1)
    discount = np.ones(rows, np.float32)
    if end == "terminated":
        discount[-2:] = 0
    episode = Episode(
        observation=np.stack([number, -number], 1).astype(np.float32),
        action=padded.astype(np.float32)[:, None],
        reward=padded * 0.5,
        discount=discount,
        is_first=np.arange(rows) == 0,
        is_last=last,
        is_terminal=last & (end == "terminated"),
    )
    return episode.replace(**changes)


def written(path: Path, episodes: list[Episode], **options: Any) -> Mapping[str, str]:
    sink = D3rlpySink(path, **options)
    sink.open(spec_of(episodes[0]), PROVENANCE)
    for episode in episodes:
        assert sink.write(episode) == episode.num_transitions
    sink.commit()
    return sink.lost()


def test_is_a_file_as_d3rlpy_dumps_it(tmp_path: Path) -> None:
    episodes = [make(4), make(5, 10, "terminated"), make(2, 20)]
    lost = written(tmp_path / "a.h5", episodes)
    assert list(lost) == ["observation"] and "no final observation" in lost["observation"]
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["columns"][:].tolist() == [b"observations", b"actions", b"rewards", b"terminated"]
        assert file["num_episodes"][()] == 3 and file["version"][()] == b"2.1"
        for number, (ep, rows) in enumerate(zip(episodes, (4, 4, 2), strict=True)):
            np.testing.assert_array_equal(file[f"observations_{number}"][:], ep.observation[:rows])
            np.testing.assert_array_equal(file[f"actions_{number}"][:], ep.action[:rows])
            assert file[f"rewards_{number}"].shape == (rows, 1)
            np.testing.assert_array_equal(file[f"rewards_{number}"][:, 0], ep.reward[:rows])
            assert bool(file[f"terminated_{number}"][()]) == (ep.end == "terminated")
    assert_only_lost(episodes, open_source(tmp_path / "a.h5"), lost, added={"metadata/placeholder_final_row"})
    for one, other in zip(episodes, open_source(tmp_path / "a.h5"), strict=True):
        mine, theirs = transitions(one), transitions(other)
        for name in ("observation", "action", "reward", "terminated", "discount"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))


def test_a_file_of_d3rlpy_s_comes_back(tmp_path: Path) -> None:
    """What was read of one, made-up final rows included, is written as it was."""
    for parts in (False, True):
        path = write_v2(tmp_path / "in.h5", [made(rows, rows % 2 == 0, rows, parts=parts) for rows in (4, 5, 6)])
        before = list(open_source(path))
        lost = written(tmp_path / "out.h5", before, overwrite=True)
        assert lost == {}
        assert_only_lost(before, open_source(tmp_path / "out.h5"), lost)
        with h5py.File(path) as one, h5py.File(tmp_path / "out.h5") as other:
            assert set(one) == set(other)
            for name in set(one) - {"columns", "version", "num_episodes"}:
                np.testing.assert_array_equal(one[name][()], other[name][()])


def test_what_has_no_place_is_listed(tmp_path: Path) -> None:
    rows = np.arange(4)
    episode = make(
        4, action=rows, reward=None, extras={"cost": rows}, metadata={"seed": 1}, discount=np.full(4, 0.5, np.float32)
    )
    lost = dict(written(tmp_path / "a.h5", [episode]))
    assert lost["action"] == "it is read back with an axis of length 1"
    assert lost.keys() == {"action", "reward", "extras/cost", "metadata/seed", "discount"}
    (back,) = open_source(tmp_path / "a.h5")
    assert back.action.tolist() == [[0], [1], [2], [3]]


def test_episodes_of_one_row_are_left_out(tmp_path: Path) -> None:
    assert written(tmp_path / "a.h5", [make(1), make(3)])["episodes"].startswith("one has one row only")
    assert [len(episode) for episode in open_source(tmp_path / "a.h5")] == [3]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"action": None}, "no action"),
        ({"observation": {"a": np.zeros(4)}}, "observation is nested"),
        ({"action": np.array([b"left"] * 4, object)}, "it is text"),
        ({"observation": np.array([b"left"] * 4, object)}, "it is text"),
        ({"reward": np.zeros((4, 2))}, "one number a step"),
    ],
)
def test_refused_before_anything_is_made(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(SinkError, match=says):
        D3rlpySink(tmp_path / "a.h5").open(spec_of(make(4, **changes)), PROVENANCE)
    assert not list(tmp_path.iterdir())


def test_overwrites_hdf5_files_only(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    path.write_text("my notes")
    with pytest.raises(SnapshotExists):
        written(path, [make(4)], overwrite=True)
    path.unlink()
    written(path, [make(4)])
    written(path, [make(3)], overwrite=True)
    assert [len(episode) for episode in open_source(path)] == [3]


def test_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    episodes = [make(5, 10), make(3, 20, "terminated"), make(6, 30)]
    written(tmp_path / "whole.h5", episodes)
    first = D3rlpySink(tmp_path / "a.h5", resume=True)
    first.open(spec_of(episodes[0]), PROVENANCE)
    first.write(episodes[0])
    first.checkpoint({"read": 1})
    first.write(episodes[2])
    first.abort()
    second = D3rlpySink(tmp_path / "a.h5", resume=True)
    second.open(spec_of(episodes[0]), PROVENANCE)
    assert second.resumed() == {"read": 1}
    for episode in episodes[1:]:
        second.write(episode)
    second.commit()
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()
