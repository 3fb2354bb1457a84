"""What is written as a LeRobot dataset: files, rows, names and numbers, looked at with pyarrow."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest

from rlds2buf import Episode, EpisodeError, SnapshotExists, convert
from rlds2buf.core.row_flags import REAL_FINAL_ACTION
from rlds2buf.formats.lerobot.own_file import AS_WRITTEN, PADDING, REAL, read_own_file
from rlds2buf.formats.lerobot.own_rows import column_of_cells
from rlds2buf.formats.lerobot.sink import LeRobotDirSink

LENGTHS = (5, 1, 8)


def texts(values: Any) -> np.ndarray:
    out = np.empty(len(values), object)
    out[:] = values
    return out


def episodes(lengths: tuple[int, ...] = LENGTHS, **more: Any) -> list[Episode]:
    rng = np.random.default_rng(3)
    made = []
    for i, n in enumerate(lengths):
        last = np.arange(n) == n - 1
        action = rng.normal(size=(n, 2)).astype(np.float32)
        action[-1] = 0
        reward = rng.normal(size=n)
        reward[-1] = 0
        own = {name: value(n) if callable(value) else value for name, value in more.items()}
        made.append(
            Episode(
                **{
                    "observation": {"state": rng.normal(size=(n, 3)).astype(np.float32), "on": last},
                    "action": action,
                    "reward": reward,
                    "discount": np.ones(n, np.float32),
                    "is_first": np.arange(n) == 0,
                    "is_last": last,
                    "is_terminal": last & (i == 0),
                    "metadata": {"seed": i, "who": b"me"},
                    **own,
                }
            )
        )
    return made


def write(folder: Path, made: list[Episode], **options: Any) -> Any:
    return convert(made, LeRobotDirSink(folder, **{"fps": 10, **options}))


def rows_of(folder: Path) -> dict[str, list[Any]]:
    files = sorted(folder.glob("data/*/*.parquet"))
    return {
        name: [value for file in files for value in parquet.read_table(file)[name].to_pylist()]
        for name in parquet.read_schema(files[0]).names
    }


def info_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "meta/info.json").read_text()))


def test_rows_and_flags(tmp_path: Path) -> None:
    made = episodes()
    report = write(tmp_path / "a", made)
    assert (report.episodes, report.steps, report.items, report.lost) == (3, 14, 14, {})
    rows = rows_of(tmp_path / "a")
    assert rows["episode_index"] == np.repeat([0, 1, 2], LENGTHS).tolist()
    assert rows["index"] == list(range(14))
    assert rows["frame_index"] == [*range(5), 0, *range(8)]
    assert rows["timestamp"] == [float(np.float32(n / 10)) for n in rows["frame_index"]]
    assert rows["next.done"] == [n in (3, 4) for n in range(14)]
    assert rows["next.truncated"] == [n in (5, 12, 13) for n in range(14)]
    assert rows["is_last"] == [n in (4, 5, 13) for n in range(14)]
    assert rows["observation.on"] == [int(n in (4, 5, 13)) for n in range(14)]
    action = np.concatenate([np.asarray(ep.action) for ep in made])
    action[4], action[13] = action[3], action[12]
    assert np.array_equal(np.array(rows["action"], np.float32), action)
    assert rows["next.reward"] == np.concatenate([ep.reward for ep in made]).tolist()
    file = parquet.ParquetFile(tmp_path / "a/data/chunk-000/file-000.parquet")
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == list(LENGTHS)
    told = parquet.read_table(tmp_path / "a/meta/rlds2buf_episodes.parquet").to_pydict()
    assert told["last_row"] == [PADDING, AS_WRITTEN, PADDING]


def test_info_and_features(tmp_path: Path) -> None:
    write(tmp_path / "a", episodes(), robot_type="arm")
    info = info_of(tmp_path / "a")
    assert (info["codebase_version"], info["fps"], info["robot_type"]) == ("v3.0", 10, "arm")
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (3, 14, 1)
    assert info["splits"] == {"train": "0:3"} and info["video_path"] is None
    dtypes = {name: (feature["dtype"], feature["shape"]) for name, feature in info["features"].items()}
    assert dtypes["observation.state"] == ("float32", [3])
    assert dtypes["observation.on"] == ("uint8", [1])
    assert dtypes["next.done"] == ("bool", [1])
    assert dtypes["timestamp"] == ("float32", [1]) and dtypes["task_index"] == ("int64", [1])
    assert set(parquet.read_schema(tmp_path / "a/data/chunk-000/file-000.parquet").names) == set(dtypes)
    own = read_own_file(tmp_path / "a")
    assert own is not None and own.fits(info)


def test_statistics(tmp_path: Path) -> None:
    write(tmp_path / "a", episodes())
    rows = rows_of(tmp_path / "a")
    stats = json.loads((tmp_path / "a/meta/stats.json").read_text())
    table = parquet.read_table(tmp_path / "a/meta/episodes/chunk-000/file-000.parquet").to_pydict()
    for name in ("observation.state", "action", "next.done", "timestamp", "index"):
        values = np.array(rows[name], np.float64).reshape(14, -1)
        for part, told in [
            (values, stats[name]),
            *((values[a:b], {key: table[f"stats/{name}/{key}"][i] for key in stats[name]}) for i, a, b in SPANS),
        ]:
            assert told["count"] == [len(part)]
            np.testing.assert_array_equal(told["min"], part.min(0))
            np.testing.assert_array_equal(told["max"], part.max(0))
            np.testing.assert_allclose(told["mean"], part.mean(0), rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(told["std"], part.std(0), rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(told["q10"], np.quantile(part, 0.1, axis=0), rtol=1e-9, atol=1e-12)


SPANS = [(0, 0, 5), (1, 5, 6), (2, 6, 14)]


def test_episodes_table(tmp_path: Path) -> None:
    write(tmp_path / "a", episodes(extras=lambda n: {"task": texts([b"push"] * (n - 1) + [b"lift"])}))
    table = parquet.read_table(tmp_path / "a/meta/episodes/chunk-000/file-000.parquet").to_pydict()
    assert table["episode_index"] == [0, 1, 2] and table["length"] == list(LENGTHS)
    assert table["tasks"] == [["push", "lift"], ["lift"], ["push", "lift"]]
    assert table["dataset_from_index"] == [0, 5, 6] and table["dataset_to_index"] == [5, 6, 14]
    assert table["data/chunk_index"] == table["data/file_index"] == [0, 0, 0]
    tasks = parquet.read_table(tmp_path / "a/meta/tasks.parquet")
    assert tasks.to_pydict() == {"task_index": [0, 1], "task": ["push", "lift"]}
    assert json.loads(tasks.schema.metadata[b"pandas"])["index_columns"] == ["task"]
    assert rows_of(tmp_path / "a")["task_index"] == [0, 0, 0, 0, 1, 1, *[0] * 7, 1]


def test_names_that_mean_something_to_lerobot(tmp_path: Path) -> None:
    def fields(n: int) -> dict[str, Any]:
        return {
            "task_index": np.arange(n),
            "image_size": np.ones((n, 2)),
            "action_mask": np.ones(n),
            "index": np.ones(n),
        }

    def observation(n: int) -> dict[str, Any]:
        return {"note": texts([b"x"] * n), "deep": {"a": np.ones(n)}, "image": np.zeros((n, 8, 8, 3), np.uint8)}

    write(tmp_path / "a", episodes(observation=observation, extras=fields))
    names = set(info_of(tmp_path / "a")["features"])
    assert {"source.task_index", "img_size", "source.action_mask", "source.index"} <= names
    assert {"note", "observation.deep.a", "observation.img"} <= names


def test_joined_action_and_state(tmp_path: Path) -> None:
    def action(n: int) -> dict[str, Any]:
        return {"arm": np.ones((n, 2), np.float32), "grip": np.arange(n, dtype=np.int32), "word": texts([b"a"] * n)}

    def observation(n: int) -> dict[str, Any]:
        return {"q": np.full((n, 2), 2, np.float32), "v": np.full((n, 1, 2), 3, np.float32), "state": np.zeros(n)}

    write(tmp_path / "a", episodes(action=action, observation=observation), state="observation/v,observation/q")
    features, rows = info_of(tmp_path / "a")["features"], rows_of(tmp_path / "a")
    assert features["action"] == {"dtype": "float64", "shape": [3], "names": ["arm.0", "arm.1", "grip"]}
    assert rows["action"][2] == [1, 1, 2] and rows["source.action.word"][0] == "a"
    assert rows["observation.state"][0] == [3, 3, 2, 2] and rows["source.observation.state"][0] == 0
    own = read_own_file(tmp_path / "a")
    assert own is not None
    parts = {field.path: field.part for field in own.fields}
    assert parts[("action", "grip")] == (2, 3) and parts[("observation", "q")] == (2, 4)
    for wrong in ("observation/none", "observation/q,observation/q"):
        with pytest.raises(ValueError, match="state="):
            write(tmp_path / "b", episodes(observation=observation), state=wrong)


def test_what_no_feature_holds_stands_beside(tmp_path: Path) -> None:
    def ragged(n: int) -> np.ndarray:
        return texts([np.arange(k % 3, dtype=np.float32) for k in range(n)])

    def fields(n: int) -> dict[str, Any]:
        return {
            "big": np.arange(n, dtype=np.uint64) + np.uint64(2**63),
            "empty": np.zeros((n, 0, 2), np.float32),
            "six": np.ones((n, 1, 1, 1, 1, 1, 2)),
            "tags": np.full((n, 2), b"\xff", object),
            "complex": np.full(n, 1j),
            "depth": np.ones((n, 40, 40, 1), np.uint16),
        }

    made = episodes(extras=fields)
    report = write(tmp_path / "a", made)
    own = read_own_file(tmp_path / "a")
    assert own is not None
    table = parquet.read_table(tmp_path / "a/meta/rlds2buf_rows.parquet")
    assert table.num_rows == 14
    kept = {field.path[1]: field for field in own.fields if field.kind == "rows"}
    assert kept.keys() == fields(1).keys()
    for name, field in kept.items():
        assert field.name not in info_of(tmp_path / "a")["features"]
        found = column_of_cells(texts(table[field.name].to_pylist()), field)
        expected = np.concatenate([ep.extras[name] for ep in made])
        assert found.dtype == expected.dtype and np.array_equal(found, expected), name
        assert any(f"extras/{name} is no feature" in note for note in report.notes)


def test_last_rows(tmp_path: Path) -> None:
    made = episodes((4, 3, 3))
    made[1].action[-1] = 5
    made[1].reward[-1] = 7
    made[2].action[-1] = 0
    made[2].reward[-1] = 9
    made[2].metadata[REAL_FINAL_ACTION] = True
    write(tmp_path / "a", made)
    rows = rows_of(tmp_path / "a")
    told = parquet.read_table(tmp_path / "a/meta/rlds2buf_episodes.parquet").to_pydict()
    assert told["last_row"] == [PADDING, AS_WRITTEN, REAL]
    assert rows["action"][6] == [5, 5] and rows["action"][9] == [0, 0]
    assert rows["next.reward"][6] == 0 and rows["next.reward"][9] == 9
    assert rows["next.truncated"][7:] == [False, False, True]
    assert "reward" in told["final"][1].decode() and told["final"][0] is None and told["final"][2] is None


def test_last_rows_dropped(tmp_path: Path) -> None:
    made = episodes((4, 3, 3))
    made[2].metadata[REAL_FINAL_ACTION] = True
    report = write(tmp_path / "a", made, final_row="drop")
    rows = rows_of(tmp_path / "a")
    assert report.items == 8 and rows["frame_index"] == [0, 1, 2, 0, 1, 0, 1, 2]
    assert rows["is_last"] == [n in (2, 4, 7) for n in range(8)]
    assert rows["is_terminal"] == rows["next.done"] == [n == 2 for n in range(8)]
    told = parquet.read_table(tmp_path / "a/meta/rlds2buf_episodes.parquet").to_pydict()
    assert told["last_row"] == [REAL] * 3
    with pytest.raises(EpisodeError, match=r"episode 1.*only row"):
        write(tmp_path / "b", episodes((4, 1)), final_row="drop")


def test_rate(tmp_path: Path) -> None:
    def with_times(step: float, jitter: float = 0.0) -> list[Episode]:
        def times(n: int) -> dict[str, Any]:
            return {"timestamp": 5 + np.arange(n) * step + jitter * (np.arange(n) == 2)}

        return episodes(extras=times)

    write(tmp_path / "a", with_times(0.02), fps=None)
    assert info_of(tmp_path / "a")["fps"] == 50
    assert "source.timestamp" in info_of(tmp_path / "a")["features"]
    for made, said in (
        (with_times(0.02, 0.001), "extras/timestamp is not regular"),
        (with_times(0.03), "33.33 rows a second"),
        (episodes(), "nothing tells how many rows a second"),
    ):
        with pytest.raises(ValueError, match=rf"{said}.*-T fps=N"):
            write(tmp_path / "b", made, fps=None)
        assert not (tmp_path / "b").exists()
    write(tmp_path / "b", with_times(0.02, 0.001), fps=7)
    assert info_of(tmp_path / "b")["fps"] == 7


def test_tasks(tmp_path: Path) -> None:
    def words(n: int) -> dict[str, Any]:
        return {"goal": texts([b"go"] * n)}

    report = write(tmp_path / "sorting", episodes())
    assert any("'sorting'" in note for note in report.notes)
    write(tmp_path / "a", episodes(), task_text="sort it")
    assert parquet.read_table(tmp_path / "a/meta/tasks.parquet")["task"].to_pylist() == ["sort it"]
    write(tmp_path / "b", episodes(extras=words), task="extras/goal")
    assert parquet.read_table(tmp_path / "b/meta/tasks.parquet")["task"].to_pylist() == ["go"]
    assert "goal" not in info_of(tmp_path / "b")["features"]
    with pytest.raises(ValueError, match="task=action"):
        write(tmp_path / "c", episodes(), task="action")


def test_a_text_that_is_no_utf8_is_refused_by_name(tmp_path: Path) -> None:
    made = episodes(extras=lambda n: {"note": texts([b"a"] * n)})
    made[2].extras["note"][3] = b"\xff"
    with pytest.raises(EpisodeError, match=r"episode 2.*step 3.*extras/note.*UTF-8"):
        write(tmp_path / "a", made)
    report = convert(made, LeRobotDirSink(tmp_path / "a", fps=10), on_invalid="skip")
    assert report.episodes == 2 and info_of(tmp_path / "a")["total_episodes"] == 2


def test_new_files_are_begun_where_one_would_become_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlds2buf.formats.lerobot.sink.DATA_BYTES", 9000)
    made = episodes((9,) * 20)
    write(tmp_path / "a", made)
    files = sorted((tmp_path / "a/data/chunk-000").iterdir())
    assert len(files) > 3 and all(file.stat().st_size < 12_000 for file in files)
    table = parquet.read_table(tmp_path / "a/meta/episodes/chunk-000/file-000.parquet").to_pydict()
    for number, file in enumerate(files):
        held = parquet.read_table(file)["episode_index"].to_pylist()
        assert sorted(set(held)) == [i for i, at in enumerate(table["data/file_index"]) if at == number]


def test_v21(tmp_path: Path) -> None:
    write(tmp_path / "a", episodes(), version="2.1")
    info = info_of(tmp_path / "a")
    assert (info["codebase_version"], info["total_chunks"], info["total_videos"]) == ("v2.1", 1, 0)
    files = [f"data/chunk-000/episode_{i:06d}.parquet" for i in range(3)]
    assert [parquet.read_metadata(tmp_path / "a" / file).num_rows for file in files] == list(LENGTHS)
    lines = [json.loads(line) for line in (tmp_path / "a/meta/episodes.jsonl").read_text().splitlines()]
    assert [(line["episode_index"], line["length"]) for line in lines] == list(enumerate(LENGTHS))
    stats = [json.loads(line) for line in (tmp_path / "a/meta/episodes_stats.jsonl").read_text().splitlines()]
    assert stats[2]["stats"]["index"]["min"] == [6] and stats[2]["stats"]["action"]["count"] == [8]
    assert json.loads((tmp_path / "a/meta/tasks.jsonl").read_text()) == {"task_index": 0, "task": "a"}


def test_only_a_dataset_with_nothing_else_in_its_folder_is_overwritten(tmp_path: Path) -> None:
    """Another program's meta/info.json makes no LeRobot dataset; notes and checkpoints beside one are not lost."""
    made = episodes()[:1]
    target = tmp_path / "a"
    (target / "meta").mkdir(parents=True)
    (target / "meta/info.json").write_text('{"version": 1}')
    with pytest.raises(SnapshotExists, match="is not a LeRobot dataset"):
        convert(made, LeRobotDirSink(target, fps=5, images="png", overwrite=True))
    assert (target / "meta/info.json").read_text() == '{"version": 1}'
    shutil.rmtree(target)
    convert(made, LeRobotDirSink(target, fps=5, images="png"))
    for name in ("notes.txt", "data/chunk-000/model.safetensors"):
        (target / name).write_text("mine")
        with pytest.raises(SnapshotExists, match=f"holds {name}, which is not of a LeRobot dataset"):
            convert(made, LeRobotDirSink(target, fps=5, images="png", overwrite=True))
        assert (target / name).read_text() == "mine"
        (target / name).unlink()
    (target / "videos").mkdir()
    (target / "videos/elsewhere").symlink_to(tmp_path)
    with pytest.raises(SnapshotExists, match="holds videos/elsewhere"):
        convert(made, LeRobotDirSink(target, fps=5, images="png", overwrite=True))
    (target / "videos/elsewhere").unlink()
    convert(made, LeRobotDirSink(target, fps=5, images="png", overwrite=True))
