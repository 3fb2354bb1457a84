"""Diffusion Policy's groups as they are written: read back by zarr, and by us."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from rlds2buf import Episode, SinkError, SnapshotExists, SpecMismatch, convert, open_source, spec_of
from rlds2buf.formats.zarr import sink as module
from rlds2buf.formats.zarr.sink import ZarrSink
from rlds2buf.io.sink import Sink
from tests.contracts.sink import PROVENANCE, SinkContract
from tests.data import DATA
from tests.differences import assert_only_lost
from tests.formats.zarr.groups import VERSIONS

FORMS = [(version, suffix) for version in VERSIONS for suffix in (".zarr", ".zarr.zip")]


class TestContract(SinkContract):
    version, file = 2, "out.zarr"

    @pytest.fixture(autouse=True, params=FORMS, ids=str)
    def form(self, request: pytest.FixtureRequest) -> None:
        self.version, self.file = request.param[0], f"out{request.param[1]}"

    def make(self, folder: Path) -> Sink:
        return ZarrSink(folder / self.file, zarr_format=self.version)

    def held(self, sink: Sink, folder: Path) -> list[int] | None:
        if not (folder / self.file).exists():
            return None
        source = open_source(folder / self.file)
        return [int(n) for episode in source for n in np.asarray(episode.observation["count"])[:-1]]


def make(rows: int, start: int = 0, **changes: Any) -> Episode:
    number = np.arange(start, start + rows)
    episode = Episode(
        observation={"state": np.stack([number, -number], 1).astype(np.float32), "arm": {"q": number * 0.5}},
        action=(number + 1).astype(np.int16)[:, None],
        reward=number * 0.25,
        discount=np.ones(rows, np.float32),
        is_first=np.arange(rows) == 0,
        is_last=np.arange(rows) == rows - 1,
    )
    return episode.replace(**changes)


def texts(*items: bytes) -> np.ndarray:
    column = np.empty(len(items), object)
    column[:] = items
    return column


def write(path: Path, episodes: list[Episode], **options: Any) -> tuple[ZarrSink, Mapping[str, str]]:
    sink = ZarrSink(path, **options)
    sink.open(spec_of(episodes[0]), PROVENANCE)
    for episode in episodes:
        assert sink.write(episode) == episode.num_transitions
    sink.commit()
    return sink, sink.lost()


@pytest.mark.parametrize(("version", "suffix"), FORMS)
def test_is_a_group_as_diffusion_policy_has_it(tmp_path: Path, version: int, suffix: str) -> None:
    episodes = [make(4), make(1, 100), make(7, 200)]
    path = tmp_path / f"a{suffix}"
    assert write(path, episodes, zarr_format=version)[1] == {}
    store: Any = zarr.storage.ZipStore(str(path), mode="r") if suffix.endswith("zip") else str(path)
    root = zarr.open_group(store, mode="r")
    assert root["meta/episode_ends"][:].tolist() == [4, 5, 12]
    assert root["meta/episode_ends"].dtype == np.int64
    for name, column in {
        "state": [episode.observation["state"] for episode in episodes],
        "arm/q": [episode.observation["arm"]["q"] for episode in episodes],
        "action": [episode.action for episode in episodes],
        "reward": [episode.reward for episode in episodes],
    }.items():
        written = root[f"data/{name}"]
        assert written.dtype == column[0].dtype
        np.testing.assert_array_equal(written[:], np.concatenate(column))
    assert json.loads(root.attrs["rlds2buf"]) == PROVENANCE
    assert (path / (".zgroup" if version == 2 else "zarr.json")).exists() or suffix.endswith("zip")
    assert_only_lost(episodes, open_source(path), {})
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_chunks_are_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK_BYTES", 100)
    monkeypatch.setattr("rlds2buf.io.column_spool.BLOCK_BYTES", 70)
    episodes = [make(rows, 100 * i) for i, rows in enumerate([3, 40, 9, 1, 61])]
    write(tmp_path / "a.zarr", episodes)
    assert zarr.open_group(str(tmp_path / "a.zarr"), mode="r")["data/state"].chunks == (12, 2)
    assert_only_lost(episodes, open_source(tmp_path / "a.zarr"), {})


def test_the_real_set_comes_back(tmp_path: Path) -> None:
    pusht = DATA / "zarr/pusht_4_episodes.zarr"
    for name in ("b.zarr", "c.zarr.zip"):
        report = convert(open_source(pusht), tmp_path / name)
        assert report.lost == {} and report.notes == []
        assert_only_lost(list(open_source(pusht)), open_source(tmp_path / name), {})
    first, second = (zarr.open_group(str(path), mode="r")["data"] for path in (pusht, tmp_path / "b.zarr"))
    for name in ("img", "state", "keypoint", "n_contacts", "action"):
        np.testing.assert_array_equal(first[name][:], second[name][:])


def test_what_has_no_place_is_listed(tmp_path: Path) -> None:
    terminal = np.arange(4) == 3
    ragged = np.empty(4, object)
    ragged[:] = [np.zeros(t) for t in range(4)]
    changed = make(
        4,
        is_terminal=terminal,
        discount=np.full(4, 0.5),
        extras={"note": texts(b"a", b"bcd", b"", b"e"), "action": np.ones(4), "a.b": {"c/d": np.ones(4)}},
        metadata={"task": "push"},
    )
    lost = dict(write(tmp_path / "a.zarr", [changed])[1])
    assert lost.pop("extras/note") == "it is read back as observation/note"
    assert lost.pop("extras/action") == "action is another field's"
    assert lost.pop("extras/a.b/c/d").startswith("its name can't be one")
    assert lost.pop("discount").startswith("the format has none")
    assert lost.pop("is_terminal").startswith("the format has no flag")
    assert lost.pop("metadata/task").startswith("the format has no place")
    assert not lost
    (back,) = open_source(tmp_path / "a.zarr")
    assert back.observation["note"].tolist() == [b"a", b"bcd", b"", b"e"]


def test_one_array_as_observation(tmp_path: Path) -> None:
    single = make(4, observation=np.arange(4.0))
    assert write(tmp_path / "a.zarr", [single])[1] == {}
    assert_only_lost([single], open_source(tmp_path / "a.zarr"), {})
    for name, episode in {
        "observation": single.replace(extras={"more": np.arange(4)}),
        "observation/obs": make(4, observation={"obs": np.arange(4.0)}),
    }.items():
        lost = write(tmp_path / "a.zarr", [episode], overwrite=True)[1]
        assert name in lost
        assert_only_lost([episode], open_source(tmp_path / "a.zarr"), lost)


def test_padding_is_told_and_can_be_left_out(tmp_path: Path) -> None:
    padded = [make(4, action=np.array([1, 2, 3, 0])[:, None]), make(1, action=np.array([[0]]))]
    sink, lost = write(tmp_path / "a.zarr", padded)
    assert lost == {} and sink.notes[0].startswith("2 of 2 episodes have zeros as their last action")
    sink, lost = write(tmp_path / "b.zarr", padded, final_rows=False)
    assert set(lost) == {"observation", "episodes"} and not sink.notes
    (back,) = open_source(tmp_path / "b.zarr")
    assert back.action.tolist() == [[1], [2], [3]]


def test_made_up_final_rows_are_left_out(tmp_path: Path) -> None:
    lost = write(tmp_path / "a.zarr", [make(4, metadata={"placeholder_final_row": True}), make(3)])[1]
    assert list(lost) == ["metadata/placeholder_final_row"]
    assert [len(episode) for episode in open_source(tmp_path / "a.zarr")] == [3, 3]


def test_a_text_that_ends_in_zeros_is_refused(tmp_path: Path) -> None:
    good = make(2, extras={"note": texts(b"a\0b", b"c")})
    sink = ZarrSink(tmp_path / "a.zarr")
    sink.open(spec_of(good), PROVENANCE)
    with pytest.raises(SpecMismatch, match=r"step 1, extras/note: a text that ends in zero bytes"):
        sink.write(good.replace(extras={"note": texts(b"a", b"c\0")}))
    sink.write(good)
    sink.commit()
    assert next(iter(open_source(tmp_path / "a.zarr"))).observation["note"].tolist() == [b"a\0b", b"c"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"action": (np.zeros(4), np.zeros(4))}, r"action is nested.*map=\{'action': 'action/0'\}"),
        ({"reward": np.zeros((4, 2))}, "one number a step"),
        ({"observation": None, "action": None, "reward": None}, "no field"),
    ],
)
def test_refused_before_anything_is_made(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(SinkError, match=says):
        ZarrSink(tmp_path / "a.zarr").open(spec_of(make(4, **changes)), PROVENANCE)
    assert not list(tmp_path.iterdir())


def test_overwrites_groups_only(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    path.mkdir()
    (path / "holiday.jpg").write_text("sun")
    for overwrite in (False, True):
        with pytest.raises(SnapshotExists):
            write(path, [make(4)], overwrite=overwrite)
    (path / "holiday.jpg").unlink()
    write(path, [make(4)])
    with pytest.raises(SnapshotExists):
        write(path, [make(3)])
    write(path, [make(3)], overwrite=True)
    assert [len(episode) for episode in open_source(path)] == [3]


def test_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    episodes = [make(5, 10), make(3, 20), make(6, 30)]
    first = ZarrSink(tmp_path / "a.zarr", resume=True)
    first.open(spec_of(episodes[0]), PROVENANCE)
    first.write(episodes[0])
    first.checkpoint({"read": 1})
    first.write(episodes[2])  # behind the checkpoint: not there when it is resumed
    first.abort()
    second = ZarrSink(tmp_path / "a.zarr", resume=True)
    second.open(spec_of(episodes[0]), PROVENANCE)
    assert second.resumed() == {"read": 1}
    for episode in episodes[1:]:
        second.write(episode)
    second.commit()
    assert_only_lost(episodes, open_source(tmp_path / "a.zarr"), {})
    assert [file.name for file in tmp_path.iterdir()] == ["a.zarr"]


def test_a_wrong_version() -> None:
    with pytest.raises(ValueError, match="zarr_format must be 2 or 3, got 4"):
        ZarrSink("a.zarr", zarr_format=4)
