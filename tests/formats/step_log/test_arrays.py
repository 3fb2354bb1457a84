"""Logs in .npz, .npy and Parquet files: layouts, and files that are not as they should be."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlds2buf import EpisodeBatch, SourceFormatError, open_source
from rlds2buf.formats.step_log import parquet_log as step_log_parquet


def log(count: int = 6, **more: Any) -> dict[str, Any]:
    number = np.arange(count, dtype=np.float32)
    return {
        "obs": np.stack([number, -number], 1),
        "act": np.arange(count, dtype=np.int32),
        "rew": number / 2,
        "truncated": np.arange(count) % 3 == 2,
        **more,
    }


def npz(path: Path, **columns: Any) -> Path:
    np.savez(path, **columns)
    return path


class TestNpz:
    def test_dtypes_and_shapes_stay(self, tmp_path: Path) -> None:
        image = np.arange(6 * 4 * 5 * 3, dtype=np.uint8).reshape(6, 4, 5, 3)
        path = npz(tmp_path / "a.npz", **log(obs=image, half=np.ones(6, np.float16), big=np.arange(6, dtype=">i4")))
        source = open_source(path)
        assert str(source.spec.observation) == "uint8[4, 5, 3]" and str(source.spec.action) == "int32[]"
        assert str(source.spec.extras["half"]) == "float16[]" and source.spec.extras["big"].dtype == np.dtype("i4")
        np.testing.assert_array_equal(np.concatenate([e.observation for e in source]), image)
        assert [e.extras["big"].tolist() for e in source] == [[0, 1, 2], [3, 4, 5]]

    def test_compressed_fortran_ordered_and_text(self, tmp_path: Path) -> None:
        columns = log(obs=np.asfortranarray(log()["obs"]), note=["a", "bc", "", "d", "e", "\u00e9"])
        np.savez_compressed(tmp_path / "a.npz", **columns)
        first, second = open_source(tmp_path / "a.npz")
        np.testing.assert_array_equal(second.observation, columns["obs"][3:])
        assert second.extras["note"].tolist() == [b"d", b"e", "\u00e9".encode()]
        assert first.observation.flags.c_contiguous

    def test_nested_names_and_single_values(self, tmp_path: Path) -> None:
        columns = log(**{"obs/arm": np.ones((6, 2)), "obs/light": np.zeros(6)}, seed=7, env="Hopper")
        del columns["obs"]
        for found in open_source(npz(tmp_path / "a.npz", **columns)):
            assert sorted(found.observation) == ["arm", "light"]
            assert found.metadata["seed"] == 7 and found.metadata["env"] == "Hopper"

    def test_one_episode_with_its_last_observation(self, tmp_path: Path) -> None:
        columns = {"obs": np.arange(8.0).reshape(4, 2), "act": np.arange(3), "rew": np.ones(3), "terminated": [0, 0, 1]}
        (found,) = open_source(npz(tmp_path / "a.npz", **columns))
        np.testing.assert_array_equal(found.observation, columns["obs"])
        assert found.end == "terminated" and found.metadata == {}

    def test_a_folder_of_npy(self, tmp_path: Path) -> None:
        (tmp_path / "arrays").mkdir()
        for name, column in log().items():
            np.save(tmp_path / "arrays" / f"{name}.npy", column)
        assert [e.num_steps for e in open_source(tmp_path / "arrays")] == [3, 3]

    def test_stable_baselines_demonstrations(self, tmp_path: Path) -> None:
        """The keys of its generate_expert_traj, read as a log; unasked they are ``sb2``."""
        starts = np.array([1, 0, 0, 1, 0, 0], bool)
        columns = {
            "actions": np.zeros((6, 1)),
            "obs": np.ones((6, 2)),
            "rewards": np.ones(6),
            "episode_returns": np.array([3.0, 3.0]),
            "episode_starts": starts,
        }
        source = open_source(npz(tmp_path / "a.npz", **columns), format="npz")
        assert [e.num_steps for e in source] == [3, 3]
        assert source.details()["ignored"] == {"episode_returns": "has 2 rows, where most have 6"}

    def test_objects_are_refused_with_the_reason(self, tmp_path: Path) -> None:
        infos = np.array([{"a": 1}] * 6, dtype=object)
        source = open_source(npz(tmp_path / "a.npz", **log(infos=infos)))
        assert "never loaded" in source.details()["ignored"]["infos"] and source.num_episodes == 2
        with pytest.raises(SourceFormatError, match="column `obs` holds Python objects, which are pickled and never"):
            open_source(npz(tmp_path / "b.npz", **log(obs=infos)))
        with pytest.raises(SourceFormatError, match="no array of steps in it: `x` holds Python objects"):
            open_source(npz(tmp_path / "c.npz", x=infos))

    def test_a_column_that_is_too_short(self, tmp_path: Path) -> None:
        with pytest.raises(SourceFormatError, match="column `rew` has 5 rows, where most have 6"):
            open_source(npz(tmp_path / "a.npz", **log(rew=np.zeros(5))))

    def test_a_header_that_claims_too_much(self, tmp_path: Path) -> None:
        out = io.BytesIO()
        np.lib.format.write_array_header_1_0(out, {"descr": "<f8", "fortran_order": False, "shape": (10**12, 2)})
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
            archive.writestr("obs.npy", out.getvalue())
        with pytest.raises(SourceFormatError, match=r"obs\.npy: float64\[1000000000000, 2\] is cut short"):
            open_source(tmp_path / "a.npz")

    def test_a_zip_bomb_is_read_in_blocks(self, tmp_path: Path) -> None:
        zeros = {"obs": np.zeros((4_000_000, 4), np.uint8), "rew": np.zeros(4_000_000, np.uint8)}
        zeros["truncated"] = np.arange(4_000_000) % 1000 == 999
        np.savez_compressed(tmp_path / "a.npz", **zeros)
        tracemalloc.start()
        source = open_source(tmp_path / "a.npz", drop="action")
        assert source.num_episodes == 4000
        assert next(iter(source)).num_steps == 1000
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < 10_000_000

    def test_no_arrays(self, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
            archive.writestr("readme.txt", "x")
        with pytest.raises(SourceFormatError, match="a zip archive without numpy arrays"):
            open_source(tmp_path / "a.npz")
        (tmp_path / "b.npz").write_bytes(b"PK no zip")
        with pytest.raises(SourceFormatError, match=r"no readable \.npz file"):
            open_source(tmp_path / "b.npz")

    def test_a_single_npy_is_no_log(self, tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", np.zeros(3))
        with pytest.raises(SourceFormatError, match="a single numpy array"):
            open_source(tmp_path / "a.npy")


def parquet(path: Path, table: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(table), path, **options)
    return path


COUNT = 6
STEPS: dict[str, Any] = {
    "obs": pa.array([[float(i), -float(i)] for i in range(COUNT)]),
    "action": pa.array(range(COUNT), pa.int8()),
    "reward": pa.array(np.arange(COUNT, dtype=np.float32)),
    "terminated": pa.array([i % 3 == 2 for i in range(COUNT)]),
}


class TestParquet:
    def test_every_kind_of_column(self, tmp_path: Path) -> None:
        more = {
            "fixed": pa.FixedSizeListArray.from_arrays(pa.array(range(12), pa.int32()), 2),
            "image": pa.array([[[i, 1], [2, 3]] for i in range(COUNT)], pa.list_(pa.list_(pa.uint8()))),
            "state": pa.array([{"arm": {"q": [float(i)] * 3}, "on": i % 2 == 0} for i in range(COUNT)]),
            "task": pa.array(["lift", "put"] * 3).dictionary_encode(),
            "raw": pa.array([b"\x00", b"", b"ab"] * 2),
            "time": pa.array(range(COUNT), pa.timestamp("us")),
            "cost": pa.array([1.0, None, 3.0] * 2),
            "note": pa.array(["a", None, "b"] * 2),
        }
        source = open_source(parquet(tmp_path / "a.parquet", {**STEPS, **more}))
        first, second = source
        extras = second.extras
        assert first.observation.dtype == np.float64 and first.action.dtype == np.int8
        assert extras["fixed"][:3].tolist() == [[6, 7], [8, 9], [10, 11]] and extras["fixed"].dtype == np.int32
        assert extras["image"][0].tolist() == [[3, 1], [2, 3]] and extras["image"].dtype == np.uint8
        assert extras["state"]["arm"]["q"][0].tolist() == [3, 3, 3] and extras["state"]["on"].dtype == np.bool_
        assert extras["task"].tolist() == [b"put", b"lift", b"put", b""]
        assert extras["raw"].tolist() == [b"\x00", b"", b"ab", b""]
        assert extras["time"].tolist() == [3, 4, 5, 0] and extras["note"].tolist() == [b"a", b"", b"b", b""]
        np.testing.assert_array_equal(extras["cost"], [1, np.nan, 3, 0])

    def test_structs_are_nested(self, tmp_path: Path) -> None:
        state = pa.array([{"arm": {"q": [float(i)] * 3}, "on": i % 2 == 0} for i in range(COUNT)])
        found = next(iter(open_source(parquet(tmp_path / "a.parquet", {**STEPS, "obs": state}))))
        assert found.observation["arm"]["q"].shape == (4, 3) and found.observation["on"].dtype == np.bool_

    def test_episodes_over_row_groups_and_parts(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(step_log_parquet, "_ROWS", 4)
        (tmp_path / "table").mkdir()
        number = np.arange(60)
        for part in range(12):
            own = number[part * 5 : part * 5 + 5]
            columns = {"obs": own / 2, "action": own, "reward": own, "episode_id": own // 7}
            parquet(tmp_path / "table" / f"part-{part}.parquet", columns, row_group_size=2)
        source = open_source(tmp_path / "table")
        assert [e.num_steps for e in source] == [7] * 8 + [4]
        assert np.concatenate([e.action for e in source]).tolist() == number.tolist()
        assert [e.index for e in source.read(5, 7)] == [5, 6]

    def test_a_large_row_group_is_read_in_pieces(self, tmp_path: Path) -> None:
        count = 200_000
        noise = pa.array(np.random.default_rng(0).normal(size=count * 17))
        columns = {"obs": pa.FixedSizeListArray.from_arrays(noise, 17), "truncated": np.arange(count) % 500 == 499}
        path = parquet(tmp_path / "a.parquet", columns, row_group_size=count)
        del noise, columns
        before = pa.total_allocated_bytes()
        held = [pa.total_allocated_bytes() - before for _ in open_source(path, drop="action")]
        assert len(held) == 400 and max(held) < path.stat().st_size / 2

    @pytest.mark.parametrize(
        ("name", "column", "message"),
        [
            ("obs", [[1.0, 2.0]] * 5 + [[1.0]], "column `obs` holds lists of different lengths"),
            ("obs", [[1.0, 2.0]] * 5 + [None], "column `obs` holds"),
            ("action", [1, 2, None, 4, 5, 6], r"row 2: column `action` holds null, which int64 can't"),
            ("reward", ["a"] * 6, r"reward: column `reward` should hold numbers, it holds string\[\]"),
            ("obs", [{"a": 1}] * 5 + [None], "row 5: column `obs/a` holds null"),
        ],
    )
    def test_what_makes_no_column(self, tmp_path: Path, name: str, column: list[Any], message: str) -> None:
        path = parquet(tmp_path / "a.parquet", {**STEPS, name: column})
        with pytest.raises(SourceFormatError, match=message):
            list(open_source(path))

    def test_lists_that_change_their_length_far_down(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(step_log_parquet, "_SAMPLE", 3)
        path = parquet(tmp_path / "a.parquet", {**STEPS, "obs": [[1.0, 2.0]] * 4 + [[1.0]] * 2})
        with pytest.raises(SourceFormatError, match="row 4: column `obs` holds a list of 1, where the first rows"):
            list(open_source(path))

    def test_what_precedes_an_error_is_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(step_log_parquet, "_ROWS", 7)
        number = np.arange(60)
        cost = pa.array([None if row == 38 else row for row in range(60)], pa.int64())
        columns = {"obs": number / 2, "action": number, "truncated": number % 10 == 9, "cost": cost}
        source = open_source(parquet(tmp_path / "a.parquet", columns))
        for batches, episodes in ((source.read_batches(), 3), (source.read_batches(1), 2), (source.read(2), 1)):
            seen = []
            with pytest.raises(SourceFormatError, match="row 38: column `cost` holds null"):
                for item in batches:
                    seen += list(item) if isinstance(item, EpisodeBatch) else [item]
            assert [int(episode.action[0]) for episode in seen] == [0, 10, 20][-episodes:]

    def test_other_types_are_ignored_with_the_reason(self, tmp_path: Path) -> None:
        maps = pa.array([[("a", 1)]] * COUNT, pa.map_(pa.string(), pa.int64()))
        source = open_source(parquet(tmp_path / "a.parquet", {**STEPS, "map": maps}))
        assert "which is no column of steps" in source.details()["ignored"]["map"]

    def test_no_rows(self, tmp_path: Path) -> None:
        path = parquet(
            tmp_path / "a.parquet", {"obs": pa.array([], pa.float32()), "truncated": pa.array([], pa.bool_())}
        )
        source = open_source(path, drop="action")
        assert source.num_episodes == 0 and list(source) == []
