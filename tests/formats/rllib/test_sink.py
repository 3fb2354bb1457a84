"""RLlib's columns as they are written: the names of its schema, and read back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from rlds2buf import Episode, SinkError, SnapshotExists, open_source, spec_of, transitions
from rlds2buf.formats.rllib import sink as module
from rlds2buf.formats.rllib.sink import RllibSink
from rlds2buf.io.sink import Sink
from tests.contracts.sink import PROVENANCE, SinkContract
from tests.differences import assert_only_lost


class Counting(RllibSink):
    """Of the contract's nested observation only the count."""

    def open(self, spec: Any, provenance: Mapping[str, Any]) -> None:
        fields = {name: getattr(spec, name) for name in ("action", "reward", "discount", "extras")}
        super().open(type(spec)(**fields, observation=spec.observation["count"]), provenance)

    def write(self, episode: Episode) -> int:
        return super().write(episode.replace(observation=episode.observation["count"]))


class TestContract(SinkContract):
    def make(self, folder: Path) -> Sink:
        return Counting(folder / "file.parquet")

    def held(self, sink: Any, folder: Path) -> list[int] | None:
        if not (folder / "file.parquet").exists():
            return None
        if not pq.read_metadata(folder / "file.parquet").num_rows:
            return []
        return [int(n) for ep in open_source(folder / "file.parquet") for n in np.asarray(ep.observation)[:-1]]


def make(rows: int, start: int = 0, end: str = "terminated", **changes: Any) -> Episode:
    number = np.arange(start, start + rows)
    last = np.arange(rows) == rows - 1
    padded = np.where(last, 0, number + 1)
    discount = np.ones(rows, np.float32)
    if end == "terminated":
        discount[-2:] = 0
    episode = Episode(
        observation=np.stack([number, -number], 1).astype(np.float32),
        action=padded.astype(np.int64),
        reward=padded * 0.5,
        discount=discount,
        is_first=np.arange(rows) == 0,
        is_last=last,
        is_terminal=last & (end == "terminated"),
        extras={"action_logp": padded * -0.25},
    )
    return episode.replace(**changes)


def written(path: Path, episodes: list[Episode], **options: Any) -> Mapping[str, str]:
    sink = RllibSink(path, **options)
    sink.open(spec_of(episodes[0]), PROVENANCE)
    for episode in episodes:
        assert sink.write(episode) == episode.num_transitions
    sink.commit()
    return sink.lost()


@pytest.mark.parametrize("rows", [3, 1 << 16])
def test_is_rllib_s_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(module, "_ROWS", rows)
    episodes = [make(4), make(3, 10, "truncated"), make(9, 20)]
    assert written(tmp_path / "a.parquet", episodes) == {}
    table = pq.read_table(tmp_path / "a.parquet")
    assert set(table.column_names) == {
        *("eps_id", "module_id", "t", "obs", "new_obs", "actions", "rewards", "terminateds", "truncateds"),
        "action_logp",
    }
    held = {name: table[name].to_pylist() for name in table.column_names}
    assert held["eps_id"] == ["0"] * 3 + ["1"] * 2 + ["2"] * 8 and set(held["module_id"]) == {"default_policy"}
    assert held["t"] == [0, 1, 2, 0, 1, *range(8)]
    found = [transitions(episode) for episode in episodes]
    for name, column in (("obs", "observation"), ("new_obs", "next_observation"), ("actions", "action")):
        np.testing.assert_array_equal(np.array(held[name]), np.concatenate([getattr(one, column) for one in found]))
    assert held["terminateds"] == np.concatenate([one.terminated for one in found]).tolist()
    assert np.flatnonzero(held["truncateds"]).tolist() == [4]
    assert json.loads(table.schema.metadata[b"rlds2buf"]) == PROVENANCE
    source = open_source(tmp_path / "a.parquet")
    assert source.format == "rllib"
    assert_only_lost(episodes, source, {}, added={"metadata/eps_id", "metadata/module_id"})


def test_what_has_no_place_is_listed(tmp_path: Path) -> None:
    rows = np.arange(4)
    extras = {"t": rows, "note": np.array([b"a"] * 4, object), "deep": {"x": rows}}
    episode = make(4, extras=extras, reward=rows, discount=np.full(4, 0.5, np.float32), metadata={"seed": 1})
    lost = dict(written(tmp_path / "a.parquet", [episode]))
    assert lost.keys() == {"extras/t", "extras/note", "extras/deep/x", "reward", "discount", "metadata/seed"}


def test_episodes_of_one_row_are_left_out(tmp_path: Path) -> None:
    assert written(tmp_path / "a.parquet", [make(1), make(3)])["episodes"].startswith("one has one row only")
    assert [len(episode) for episode in open_source(tmp_path / "a.parquet")] == [3]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"action": None}, "no action"),
        ({"observation": {"a": np.zeros(4)}}, "observation is nested"),
        ({"action": np.array([b"left"] * 4, object)}, "it is no number"),
        ({"reward": np.zeros((4, 2))}, "one number a step"),
    ],
)
def test_refused_before_anything_is_made(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(SinkError, match=says):
        RllibSink(tmp_path / "a.parquet").open(spec_of(make(4, **changes)), PROVENANCE)
    assert not list(tmp_path.iterdir())


def test_overwrites_parquet_files_only(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_text("my notes")
    with pytest.raises(SnapshotExists):
        written(path, [make(4)], overwrite=True)
    path.unlink()
    written(path, [make(4)])
    written(path, [make(3)], overwrite=True)
    assert [len(episode) for episode in open_source(path)] == [3]
