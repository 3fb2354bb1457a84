"""Plain Parquet as it is written: pyarrow reads it, and so do we."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from rlds2buf import Episode, SinkError, SnapshotExists, convert, open_source, spec_of
from rlds2buf.formats.step_log import parquet_sink as module
from rlds2buf.formats.step_log.parquet_sink import ParquetSink
from rlds2buf.io.sink import Sink
from tests.contracts.sink import PROVENANCE, SinkContract
from tests.differences import assert_only_lost


class TestContract(SinkContract):
    def make(self, folder: Path) -> Sink:
        return ParquetSink(folder / "file.parquet")

    def held(self, sink: Any, folder: Path) -> list[int] | None:
        if not (folder / "file.parquet").exists():
            return None
        if not pq.read_metadata(folder / "file.parquet").num_rows:
            return []
        return [int(n) for ep in open_source(folder / "file.parquet") for n in np.asarray(ep.observation["count"])[:-1]]


def texts(*items: bytes) -> np.ndarray:
    column = np.empty(len(items), object)
    column[:] = items
    return column


def make(rows: int, start: int = 0, end: str = "terminated", **changes: Any) -> Episode:
    number = np.arange(start, start + rows)
    last = np.arange(rows) == rows - 1
    episode = Episode(
        observation={"state": np.stack([number, -number], 1).astype(np.float32), "arm": {"q": number.astype(np.int16)}},
        action=number.astype(np.float64)[:, None, None] * np.ones((1, 2, 3)),
        reward=number * 0.25,
        discount=np.full(rows, 0.99),
        is_first=np.arange(rows) == 0,
        is_last=last & (end != "open"),
        is_terminal=last & (end == "terminated"),
        extras={"note": texts(*[b"step %d" % n for n in number]), "raw": texts(*[b"\xff\0"] * rows), "f": {"ok": last}},
    )
    return episode.replace(**changes)


def written(path: Path, episodes: list[Episode], **options: Any) -> Mapping[str, str]:
    sink = ParquetSink(path, **options)
    sink.open(spec_of(episodes[0]), PROVENANCE)
    for episode in episodes:
        assert sink.write(episode) == episode.num_transitions
    sink.commit()
    return sink.lost()


def test_a_row_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROWS", 3)
    episodes = [make(4), make(3, 10, "truncated"), make(1, 20, "open"), make(5, 30)]
    assert written(tmp_path / "a.parquet", episodes) == {}
    table = pq.read_table(tmp_path / "a.parquet")
    assert table.column_names == [
        *("episode", "observation/arm/q", "observation/state", "action", "reward", "discount"),
        *("f/ok", "note", "raw", "is_first", "is_last", "is_terminal"),
    ]
    kinds = {name: str(table.schema.field(name).type) for name in ("observation/arm/q", "note", "raw", "f/ok")}
    assert kinds == {"observation/arm/q": "int16", "note": "string", "raw": "binary", "f/ok": "bool"}
    assert table.schema.field("action").type.list_size == 2
    assert table["episode"].to_pylist() == [0] * 4 + [1] * 3 + [2] + [3] * 5
    expected = np.concatenate([episode.action for episode in episodes])
    np.testing.assert_array_equal(np.array(table["action"].to_pylist()), expected)
    assert json.loads(table.schema.metadata[b"rlds2buf"]) == PROVENANCE
    assert_only_lost(episodes, open_source(tmp_path / "a.parquet"), {})
    assert [episode.end for episode in open_source(tmp_path / "a.parquet")] == [episode.end for episode in episodes]


@pytest.mark.parametrize(
    "dtype", "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()
)
def test_every_type_comes_back(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(0)
    kind = np.dtype(dtype)
    values = rng.integers(0, 2, (6, 2)) if dtype == "bool" else np.frombuffer(rng.bytes(12 * kind.itemsize), kind)
    column = np.nan_to_num(values.astype(kind).reshape(6, 2))
    episodes = [make(6, observation=column, extras={"x": column[:, 0]})]
    assert written(tmp_path / "a.parquet", episodes) == {}
    assert_only_lost(episodes, open_source(tmp_path / "a.parquet"), {})


def test_by_its_name(tmp_path: Path) -> None:
    plain = {"extras": {}, "metadata": {}, "reward": None, "discount": None}
    report = convert([make(4, **plain), make(3, 10, **plain)], tmp_path / "a.parquet")
    assert report.written == 2 and open_source(tmp_path / "a.parquet").format == "parquet"
    assert_only_lost(
        [make(4, **plain), make(3, 10, **plain)], open_source(tmp_path / "a.parquet"), {}, added={"discount"}
    )


def test_what_has_no_place_is_listed(tmp_path: Path) -> None:
    rows = np.arange(4)
    extras = {
        "episode": rows,
        "rewards": rows,
        "wave": rows * 1j,
        "a/b": rows,
        "pair": (rows, rows),
        "terminated": rows > 2,
        "obs": rows,
        "done": rows,
    }
    episode = make(4, observation={"a.b": rows, "x": rows}, reward=None, extras=extras, metadata={"seed": 1})
    lost = dict(written(tmp_path / "a.parquet", [episode]))
    assert lost["extras/rewards"] == "by its name it would be read back as reward"
    assert lost["extras/pair/0"] == "it is read back as extras/pair/0"
    assert lost.keys() == {
        *("extras/episode", "extras/rewards", "extras/wave", "extras/a/b", "extras/pair/0", "extras/pair/1"),
        *("observation/a.b", "metadata/seed"),
    }
    named = {name: why for name, why in lost.items() if "pair" not in name}  # the same columns, no tuple any more
    assert_only_lost([episode], open_source(tmp_path / "a.parquet"), named)


def test_without_actions_it_says_how_to_read_it(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "a.parquet")
    episode = make(4, action=None)
    sink.open(spec_of(episode), PROVENANCE)
    sink.write(episode)
    sink.commit()
    assert sink.notes == ("there is no action; to read it back, drop=['action'] says so",)
    (back,) = open_source(tmp_path / "a.parquet", drop=["action"])
    assert back.action is None and len(back) == 4


def test_rewards_that_are_no_numbers(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="one number a step"):
        ParquetSink(tmp_path / "a.parquet").open(spec_of(make(4, reward=np.zeros((4, 2)))), PROVENANCE)
    assert not list(tmp_path.iterdir())


def test_overwrites_parquet_files_only(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_text("my notes")
    with pytest.raises(SnapshotExists):
        written(path, [make(4, extras={})], overwrite=True)
    path.unlink()
    written(path, [make(4, extras={})])
    written(path, [make(3, extras={})], overwrite=True)
    assert [len(episode) for episode in open_source(path)] == [3]


def test_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    episodes = [make(5, 10, extras={}), make(3, 20, "truncated", extras={}), make(6, 30, extras={})]
    first = ParquetSink(tmp_path / "a.parquet", resume=True)
    first.open(spec_of(episodes[0]), PROVENANCE)
    first.write(episodes[0])
    first.checkpoint({"read": 1})
    first.write(episodes[2])
    first.abort()
    second = ParquetSink(tmp_path / "a.parquet", resume=True)
    second.open(spec_of(episodes[0]), PROVENANCE)
    assert second.resumed() == {"read": 1}
    for episode in episodes[1:]:
        second.write(episode)
    second.commit()
    assert_only_lost(episodes, open_source(tmp_path / "a.parquet"), {})
