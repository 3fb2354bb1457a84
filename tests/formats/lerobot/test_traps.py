"""What goes wrong with LeRobot datasets: each is an error that names file, episode and field, or a warning."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf.errors import EpisodeError, LimitExceeded, SourceError, SourceFormatError, SourceNotFound
from tests.formats.lerobot.made import Made, write_v2, write_v3

VECTOR: dict[str, Any] = {"dtype": "float32", "shape": [3], "names": None}


def plain(*lengths: int, **columns: Callable[[int, int], Any]) -> Made:
    """Episodes of an observation and an action, some columns as told of the episode's number and length."""
    episodes: list[dict[str, Any]] = []
    for number, count in enumerate(lengths or (4, 3, 5)):
        values = np.arange(3 * count, dtype=np.float32).reshape(count, 3) + 100 * number
        told = {name.replace("__", "."): make(number, count) for name, make in columns.items()}
        episodes.append({"observation.state": values, "action": -values, **told})
    return Made(episodes, {"observation.state": VECTOR, "action": VECTOR})


def edit_info(root: Path, **changes: Any) -> Path:
    path = root / "meta/info.json"
    told = json.loads(path.read_text())
    told.update(changes)
    path.write_text(json.dumps(told))
    return root


def errors(root: Path, **options: Any) -> list[str]:
    """What is said of each episode that can't be read; the others can be."""
    with rlds2buf.open_source(root, **options) as source:
        return [str(item) for item in source.read() if isinstance(item, EpisodeError)]


@pytest.mark.parametrize("version", ["v3", "v2"])
class TestEitherVersion:
    @pytest.fixture
    def write(self, version: str) -> Callable[..., Path]:
        return write_v3 if version == "v3" else write_v2

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"fps": 0}, "fps should be above 0"),
            ({"fps": "fast"}, "fps should be a finite number"),
            ({"features": {}}, "features is empty"),
            ({"features": {"action": {"dtype": "float32"}}}, "features.action.shape is missing"),
            ({"features": {"action": 3}}, "features.action should be an object"),
            ({"chunks_size": 0}, "chunks_size should be an integer of at least 1"),
            ({"data_path": "../../{video_key}.parquet"}, "data_path: .* leads out of the dataset's folder"),
            ({"data_path": "{episode_index.__class__}"}, "data_path: .* is no template"),
            ({"video_path": "{secret}"}, "video_path: .* asks for 'secret'"),
        ],
    )
    def test_info_json(self, tmp_path: Path, write: Callable[..., Path], changes: dict[str, Any], why: str) -> None:
        root = edit_info(write(tmp_path / "set", plain()), **changes)
        with pytest.raises(SourceFormatError, match=rf"meta/info\.json: {why}"):
            rlds2buf.open_source(root)

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"codebase_version": "v1.6"}, r"version 'v1\.6', and only v2\.0, v2\.1, v3\.0 are read"),
            ({"codebase_version": "v4.0"}, r"version 'v4\.0'"),
            ({"storage_format": "lance"}, r"stored as 'lance', which is not read; take its Parquet version"),
        ],
    )
    def test_other_kinds_are_refused_with_the_way_out(
        self, tmp_path: Path, write: Callable[..., Path], changes: dict[str, Any], why: str
    ) -> None:
        root = edit_info(write(tmp_path / "set", plain()), **changes)
        with pytest.raises(SourceFormatError, match=why):
            rlds2buf.open_source(root)
        with pytest.raises(SourceFormatError):
            rlds2buf.open_source(root, format="lerobot")

    def test_a_pointer_of_git_lfs(self, tmp_path: Path, write: Callable[..., Path]) -> None:
        root = write(tmp_path / "set", plain())
        file = min((root / "data").glob("*/*.parquet"))
        file.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 82515\n")
        found = errors(root)
        assert found and f"{file}: a Git LFS pointer" in found[0] and "episode 0" in found[0]
        info = root / "meta/info.json"
        info.write_bytes(file.read_bytes())
        with pytest.raises(SourceFormatError, match=r"info\.json is a Git LFS pointer"):
            rlds2buf.open_source(root)

    def test_a_footer_is_missing(self, tmp_path: Path, write: Callable[..., Path]) -> None:
        root = write(tmp_path / "set", plain())
        file = min((root / "data").glob("*/*.parquet"))
        file.write_bytes(file.read_bytes()[:-9])
        assert f"{file}: a Parquet file without its footer" in errors(root)[0]

    def test_a_file_is_gone_or_empty(self, tmp_path: Path, write: Callable[..., Path]) -> None:
        root = write(tmp_path / "set", plain())
        file = min((root / "data").glob("*/*.parquet"))
        file.write_bytes(b"")
        assert f"{file}: empty" in errors(root)[0]
        file.unlink()
        assert f"{file}: no such file" in errors(root)[0]

    def test_a_feature_that_the_parquet_lacks(self, tmp_path: Path, write: Callable[..., Path]) -> None:
        root = write(tmp_path / "set", plain())
        features = {**plain().listed(), "observation.touch": VECTOR}
        edit_info(root, features=features)
        found = errors(root)
        assert len(found) == 3
        assert "observation/touch" in found[0] and ".parquet: no column `observation.touch`" in found[0]
        assert not errors(root, drop=["observation/touch"])

    def test_values_of_another_kind(self, tmp_path: Path, write: Callable[..., Path]) -> None:
        root = write(tmp_path / "set", plain())
        for feature, why in (
            ({"dtype": "float32", "shape": [4], "names": None}, r"rows of shape [3], where info.json says [4]"),
            ({"dtype": "int64", "shape": [3], "names": None}, "where info.json says int64"),
            ({"dtype": "string", "shape": [1], "names": None}, "where info.json says"),
            ({"dtype": "image", "shape": [3, 4, 4], "names": None}, "where files of pictures should be"),
        ):
            edit_info(root, features={**plain().listed(), "action": feature})
            assert why in errors(root)[0] and "column `action`" in errors(root)[0]

    def test_rows_that_would_take_too_much_memory(self, tmp_path: Path, write: Callable[..., Path]) -> None:
        root = write(tmp_path / "set", plain())
        wide = {"dtype": "float32", "shape": [1 << 40], "names": None}
        edit_info(root, features={**plain().listed(), "action": wide})
        with rlds2buf.open_source(root) as source, pytest.raises(LimitExceeded, match=r"\.parquet: 4 rows takes"):
            list(source.read())

    def test_what_is_counted_is_no_number(self, tmp_path: Path, write: Callable[..., Path]) -> None:
        root = write(tmp_path / "set", plain())
        for name in ("episode_index", "task_index", "timestamp", "frame_index"):
            for told in ({"dtype": "thing", "shape": [1]}, {"dtype": "string", "shape": [1]}):
                edit_info(root, features={**plain().listed(), name: told})
                with rlds2buf.open_source(root) as source:
                    list(source.read())

    def test_a_timestamp_that_jumps(self, tmp_path: Path, write: Callable[..., Path]) -> None:
        def times(number: int, count: int) -> np.ndarray:
            return (np.arange(count) / 10 + (np.arange(count) > 1) * (number == 1) * 3.0).astype(np.float32)

        root = write(tmp_path / "set", plain(timestamp=times))
        (found,) = errors(root)
        assert "episode 1, step 2, extras/timestamp" in found and "timestamp is 3.2 s" in found
        assert "-O tolerance=3 takes it as it is" in found
        assert not errors(root, tolerance=3.01)
        assert not errors(root, drop=["extras/timestamp"])

    def test_rows_of_other_episodes(self, tmp_path: Path, write: Callable[..., Path]) -> None:
        root = write(tmp_path / "set", plain(episode_index=lambda number, count: np.full(count, (0, 2, 1)[number])))
        found = errors(root)
        assert len(found) == 2 and "episode 1, step 0, episode_index" in found[0]
        assert "episode_index is 2 where the metadata say 1" in found[0]

    def test_a_task_that_nobody_told(self, tmp_path: Path, write: Callable[..., Path]) -> None:
        root = write(tmp_path / "set", plain(task_index=lambda number, count: np.full(count, 7 * (number == 2))))
        (found,) = errors(root)
        assert "episode 2, step 0" in found and "has no task 7" in found and "meta/tasks." in found

    def test_ten_thousand_tasks(self, tmp_path: Path, write: Callable[..., Path]) -> None:
        made = plain(task_index=lambda number, count: np.arange(count) * 1000 + number)
        made.tasks = [f"task {number}" for number in range(10_000)]
        with rlds2buf.open_source(write(tmp_path / "set", made)) as source:
            assert list(source)[1].extras["task"].tolist() == [b"task 1", b"task 1001", b"task 2001"]

    def test_no_tasks_at_all(self, tmp_path: Path, write: Callable[..., Path]) -> None:
        made = plain()
        made.tasks = ()
        root = write(tmp_path / "set", made)
        (root / "meta/tasks.jsonl").unlink(missing_ok=True)
        with rlds2buf.open_source(root) as source:
            assert "task" not in source.spec.extras and any("texts of the tasks" in text for text in source.warnings())

    def test_counts_that_do_not_agree_are_told(self, tmp_path: Path, write: Callable[..., Path]) -> None:
        root = edit_info(write(tmp_path / "set", plain()), total_episodes=9, total_frames=1)
        with rlds2buf.open_source(root) as source:
            told = " ".join(issue.message for issue in source.findings(quick=True))
            assert "total_episodes in info.json is 9" in told and "total_frames" in told
            assert source.num_episodes == 3 == len(list(source))

    def test_features_of_unknown_kinds_are_left_out_and_told(self, tmp_path: Path, write: Callable[..., Path]) -> None:
        root = write(tmp_path / "set", plain())
        edit_info(root, features={**plain().listed(), "talk": {"dtype": "language", "shape": [1], "names": None}})
        with rlds2buf.open_source(root) as source:
            assert any("feature talk holds language" in text for text in source.warnings())
            assert source.details()["ignored"] == {"talk": "holds language, which is no column"}


def rewrite_episodes(root: Path, **columns: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = root / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    for name, values in columns.items():
        name = name.replace("__", "/")
        table = (
            table.drop([name])
            if values is None
            else table.set_column(table.schema.get_field_index(name), name, pa.array(values))
        )
    pq.write_table(table, path)


class TestV3:
    @pytest.mark.parametrize(
        ("columns", "why"),
        [
            ({"episode_index": [0, 2, 1]}, "entry 2: episode_index 1 stands behind episode 2, out of order"),
            ({"episode_index": [0, 0, 1]}, "entry 1: episode_index 0 stands behind episode 0"),
            ({"length": [4, 1 << 41, 5]}, "episode 1: its length is 2199023255552"),
            ({"length": [4, 0, 5]}, "episode 1: its length is 0"),
            ({"length": [4, -1, 5]}, "episode 1: its length is -1"),
            ({"length": ["a", "b", "c"]}, "column `length` holds string"),
            ({"length": None}, "no column `length`"),
            ({"data__file_index": [0, 1, 0]}, "episode 2: its data file comes before that of episode 1"),
            ({"data__chunk_index": [0, 0, -5]}, "episode 2: data/chunk_index is -5"),
        ],
    )
    def test_the_episodes_own_metadata(self, tmp_path: Path, columns: dict[str, Any], why: str) -> None:
        root = write_v3(tmp_path / "set", plain())
        rewrite_episodes(root, **columns)
        with pytest.raises(SourceFormatError, match=rf"meta/episodes/.*{why}"):
            rlds2buf.open_source(root)

    def test_metadata_that_are_broken_off(self, tmp_path: Path) -> None:
        root = write_v3(tmp_path / "set", plain())
        path = root / "meta/episodes/chunk-000/file-000.parquet"
        path.write_bytes(path.read_bytes()[:-30])
        with pytest.raises(SourceFormatError, match=r"file-000\.parquet: a Parquet file without its footer"):
            rlds2buf.open_source(root)
        path.unlink()
        with pytest.raises(SourceNotFound, match="meta/episodes: no Parquet file with the episodes"):
            rlds2buf.open_source(root)

    def test_fewer_rows_than_the_metadata_say(self, tmp_path: Path) -> None:
        root = write_v3(tmp_path / "set", plain())
        rewrite_episodes(root, length=[4, 3, 9])
        (found,) = errors(root)
        assert "file-000.parquet: has 12 rows, and the metadata say 16 at least" in found and "episode 2" in found

    def test_lengths_that_shift_the_episodes_behind(self, tmp_path: Path) -> None:
        root = write_v3(tmp_path / "set", plain())
        rewrite_episodes(root, length=[3, 4, 5])
        found = errors(root)
        assert len(found) == 1 and "episode 1, step 0, episode_index" in found[0]

    def test_a_task_twice(self, tmp_path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        root = write_v3(tmp_path / "set", plain())
        pq.write_table(pa.table({"task_index": [0, 0], "task": ["a", "b"]}), root / "meta/tasks.parquet")
        with pytest.raises(SourceFormatError, match=r"tasks\.parquet: task_index 0 stands twice"):
            rlds2buf.open_source(root)
        pq.write_table(pa.table({"other": [0, 1]}), root / "meta/tasks.parquet")
        with pytest.raises(SourceFormatError, match=r"tasks\.parquet: its columns are other"):
            rlds2buf.open_source(root)

    def test_tasks_in_any_order_with_any_name(self, tmp_path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        root = write_v3(tmp_path / "set", plain(task_index=lambda number, count: np.full(count, number)))
        for name in ("task", "__index_level_0__", "instruction"):
            pq.write_table(pa.table({"task_index": [2, 0, 1], name: ["c", "a", "b"]}), root / "meta/tasks.parquet")
            with rlds2buf.open_source(root) as source:
                assert [episode.extras["task"][0] for episode in source] == [b"a", b"b", b"c"]


class TestV2:
    @pytest.mark.parametrize(
        ("lines", "why"),
        [
            ('{"episode_index": 0, "length": 4}\n{"episode_index"', "line 2:"),
            ('{"episode_index": 0}', "line 1: length is missing"),
            ('{"episode_index": -1, "length": 2}', "line 1: episode_index should be an integer"),
            ('{"episode_index": 1, "length": 2}\n{"episode_index": 1, "length": 2}', "episode_index 1 stands behind"),
            ('{"episode_index": 0, "length": 0}', "episode 0: its length is 0"),
        ],
    )
    def test_episodes_jsonl(self, tmp_path: Path, lines: str, why: str) -> None:
        root = write_v2(tmp_path / "set", plain())
        (root / "meta/episodes.jsonl").write_text(lines)
        with pytest.raises(SourceFormatError, match=rf"meta/episodes\.jsonl.*{why}"):
            rlds2buf.open_source(root)

    def test_episodes_in_any_order_and_with_gaps(self, tmp_path: Path) -> None:
        root = write_v2(tmp_path / "set", plain())
        lines = (root / "meta/episodes.jsonl").read_text().splitlines()
        (root / "meta/episodes.jsonl").write_text("\n".join([lines[2], lines[0]]))
        with rlds2buf.open_source(root) as source:
            assert [len(episode) for episode in source] == [4, 5]
            assert any("no episode 1" in issue.message for issue in source.findings(quick=True))

    def test_another_length_than_the_file_s(self, tmp_path: Path) -> None:
        root = write_v2(tmp_path / "set", plain())
        text = (root / "meta/episodes.jsonl").read_text().replace('"length": 3', '"length": 8')
        (root / "meta/episodes.jsonl").write_text(text)
        (found,) = errors(root)
        assert "episode_000001.parquet: has 3 rows, and the metadata say 8" in found


def test_damage_anywhere_is_an_error_of_ours(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    made = plain(note=lambda number, count: [f"n{number}"] * count)
    made.features["note"] = {"dtype": "string", "shape": [1], "names": None}
    root = write_v3(tmp_path / "set", made)
    for name in ("data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-000.parquet", "meta/tasks.parquet"):
        path = root / name
        whole = path.read_bytes()
        for _ in range(25):
            broken = bytearray(whole)
            for place in rng.integers(4, len(whole) - 8, 3):
                broken[place] ^= int(rng.integers(1, 256))
            path.write_bytes(bytes(broken))
            try:
                with rlds2buf.open_source(root) as source:
                    list(source.read())
            except SourceError:
                pass
        path.write_bytes(whole)
