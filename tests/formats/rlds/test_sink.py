"""RLDS folders written, read back by our own reader; tests/full reads them with TFDS."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import (
    Episode,
    FieldSpec,
    SinkError,
    SnapshotCorrupt,
    SnapshotError,
    SnapshotExists,
    SourceFormatError,
    SpecMismatch,
    StepSpec,
    convert,
    open_source,
)
from rlds2buf.core import nest
from rlds2buf.formats.memory.source import MemorySource
from rlds2buf.formats.rlds.dataset_info import MIN_SHARD, number_of_shards, shard_lengths
from rlds2buf.formats.rlds.sink import RldsDirSink
from rlds2buf.io.sink import Sink
from tests.buffers.numbered import SPEC, episode
from tests.contracts.sink import PROVENANCE, SinkContract, numbers
from tests.data import D4RL, MINARI, RLDS, ROOT
from tests.formats.rlds.anything import ANY, anything, write
from tests.made import BOTH, MADE

HOPPER = MADE / "d4rl/hopper_medium-v2.hdf5"
BRIDGE = MADE / "rlds/bridge_dataset"


def assert_same(one: Episode, other: Episode) -> None:
    mine, theirs = dict(one.flatten()), dict(other.flatten())
    assert list(mine) == list(theirs)
    for path, column in mine.items():
        same_array(column, theirs[path], path)
    meant = dict(nest.flatten(one.metadata))
    found = dict(nest.flatten(other.metadata))
    assert set(meant) == set(found)
    for path, value in meant.items():
        assert np.array_equal(np.asarray(value), np.asarray(found[path]), equal_nan=_is_float(value)), path


def _is_float(value: Any) -> bool:
    return np.asarray(value).dtype.kind in "fc"


def same_array(one: Any, other: Any, where: Any) -> None:
    one, other = np.asarray(one), np.asarray(other)
    assert one.dtype == other.dtype and one.shape == other.shape, where
    if one.dtype != object:
        assert one.tobytes() == other.tobytes(), where
        return
    for a, b in zip(one.reshape(-1), other.reshape(-1), strict=True):
        if isinstance(a, np.ndarray):
            same_array(a, b, where)
        else:
            assert a == b, where


def back(target: Path, **options: Any) -> list[Episode]:
    with open_source(target, **options) as source:
        return list(source)


class TestContract(SinkContract):
    def make(self, folder: Path) -> Sink:
        return RldsDirSink(folder / "numbers")

    def held(self, sink: Any, folder: Path) -> list[int] | None:
        try:
            return numbers(back(folder / "numbers"))
        except rlds2buf.SourceError:
            return None

    def items_of(self, ep: Episode) -> int:
        return 1


class TestWhatComesBack:
    @pytest.mark.parametrize("images", ["png", "tensor"])
    def test_every_kind_of_field_and_of_metadata(self, tmp_path: Path, images: str) -> None:
        sink = write([anything()], tmp_path / "any", ANY, images=images)
        assert sink.lost() == {}
        (found,) = back(tmp_path / "any")
        assert_same(anything(), found)
        assert isinstance(found.observation["pair"], tuple) and isinstance(found.action, tuple)
        metadata = found.metadata
        assert (metadata["name"], metadata["pair"], metadata["tags"], metadata["sizes"]) == (
            "run",
            ("x", (1, 2.5)),
            ["a", "bc"],
            [1, 2, 3],
        )
        assert open_source(tmp_path / "any").spec == ANY

    @BOTH
    @pytest.mark.parametrize("name", D4RL)
    def test_d4rl_files(self, sets: Any, name: str, tmp_path: Path) -> None:
        path = sets / name
        report = convert(path, tmp_path / "out", to="rlds")
        assert report.lost == {} and report.read == report.episodes == report.items
        source = open_source(path)
        assert open_source(tmp_path / "out").spec == source.spec
        for one, other in zip(source, back(tmp_path / "out"), strict=True):
            assert_same(one, other)

    @BOTH
    @pytest.mark.parametrize("name", MINARI)
    def test_minari_datasets(self, sets: Any, name: str, tmp_path: Path) -> None:
        path = sets / name
        assert convert(path, tmp_path / "out", to="rlds").lost == {}
        source = open_source(path)
        assert open_source(tmp_path / "out").spec == source.spec
        for one, other in zip(source, back(tmp_path / "out"), strict=True):
            assert_same(one, other)

    @BOTH
    @pytest.mark.parametrize("name", RLDS)
    def test_rlds_datasets(self, sets: Any, name: str, tmp_path: Path) -> None:
        """Pictures are files all the way."""
        source = open_source(sets / name).encoded()
        assert write(list(source), tmp_path / "out", source.spec).lost() == {}
        copied = open_source(tmp_path / "out").encoded()
        assert copied.spec == source.spec
        for one, other in zip(source, copied, strict=True):
            assert_same(one, other)

    def test_an_rlds_folder_written_again_is_the_same_but_for_where_it_came_from(self, tmp_path: Path) -> None:
        convert(HOPPER, tmp_path / "a", to="rlds", sink_options={"name": "same"})
        convert(tmp_path / "a", tmp_path / "b", to="rlds", sink_options={"name": "same"})
        for file in ("features.json", "same-train.tfrecord-00000-of-00001"):
            assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()

    def test_texts_of_fixed_width_come_back_as_byte_strings_and_that_is_said(self, tmp_path: Path) -> None:
        one = Episode(observation=np.array(["ab", "é"]), extras={"raw": np.array([b"ab", b"c"])})
        sink = write([one], tmp_path / "out")
        assert sorted(sink.lost()) == ["extras/raw", "observation"]
        (found,) = back(tmp_path / "out")
        assert found.observation.tolist() == [b"ab", "é".encode()] and found.extras["raw"].tolist() == [b"ab", b"c"]

    def test_fields_that_rlds_lacks_are_left_out_and_that_is_said(self, tmp_path: Path) -> None:
        one = Episode(
            observation=np.zeros(2, np.float32),
            extras={
                "when": np.array([1, 2], "M8[s]"),
                "long": np.zeros(2, np.longdouble),
                "reward": np.zeros(2),
                "a/b": np.arange(2),
                "a": {"b": np.arange(2)},
            },
        )
        lost = write([one], tmp_path / "out").lost()
        assert set(lost) == {"extras/when", "extras/long", "extras/reward", "extras/a/b"}
        (found,) = back(tmp_path / "out")
        assert found.reward is None and len(found.extras) == 1


class TestMetadata:
    def test_the_first_episode_says_what_is_kept(self, tmp_path: Path) -> None:
        metadata = [
            {"seed": 1, "note": "a", "table": np.zeros((2, 2)), "more": {"x": 1}},
            {"seed": 2, "note": "b", "table": np.ones((3, 2)), "more": {"x": 2, "y": 3}, "open_tail": True},
            {"seed": "three", "table": np.ones((3, 3)), "late": 1, "more": {"x": 3, "y": 3}},
            {"seed": None, "note": "d", "table": np.ones((4, 2)), "more": 5, "what": object(), "set": {1}},
        ]
        episodes = [Episode(observation=np.arange(3), metadata=m, index=i) for i, m in enumerate(metadata)]
        lost = write(episodes, tmp_path / "out").lost()
        assert lost["metadata/late"] == "the first episode does not have it (1 episodes)"
        assert lost["metadata/more/y"] == "the first episode does not have it (2 episodes)"
        assert lost["metadata/note"] == "missing (1 episodes)"
        assert lost["metadata/table"] == "float64[3, 3] where the first episode has float64[?, 2] (1 episodes)"
        assert "string[] where the first episode has int64[]" in lost["metadata/seed"]
        assert set(lost) == {
            f"metadata/{name}" for name in ("late", "more", "more/x", "more/y", "note", "seed", "set", "table", "what")
        }
        found = [one.metadata for one in back(tmp_path / "out")]
        assert [m["seed"] for m in found] == [1, 2, 0, 0] and [m["note"] for m in found] == ["a", "b", "", "d"]
        assert [m["table"].shape for m in found] == [(2, 2), (3, 2), (0, 2), (4, 2)]
        assert ["open_tail" in m for m in found] == [False, True, False, False]
        written = json.loads((tmp_path / "out" / "metadata.json").read_text())["rlds2buf"]
        assert written["lost"] == lost and written["provenance"] == PROVENANCE

    def test_markers_are_booleans_in_every_record(self, tmp_path: Path) -> None:
        write([Episode(observation=np.arange(3), metadata={"open_tail": 1})], tmp_path / "out")
        features = json.loads((tmp_path / "out" / "features.json").read_text())["featuresDict"]["features"]
        assert {name: features[name]["tensor"]["dtype"] for name in features if name != "steps"} == {
            "open_tail": "bool",
            "placeholder_final_row": "bool",
        }

    @pytest.mark.parametrize(
        "value",
        [None, {}, (), object(), {"a": None}, [[1], [2, 3]], 2**70, np.zeros((0, 0)), "\ud800", {3: 1}, [1, "a"]],
    )
    def test_what_no_feature_can_hold_is_said(self, tmp_path: Path, value: Any) -> None:
        one = Episode(observation=np.arange(2), metadata={"odd": value, "steps": 3, "good": 1})
        lost = write([one], tmp_path / "out").lost()
        assert len(lost) == 2 and "metadata/steps" in lost and any(path.startswith("metadata/odd") for path in lost)
        assert back(tmp_path / "out")[0].metadata == {"good": 1}


class TestNamesAndShards:
    @pytest.mark.parametrize(
        ("folder", "name", "version"),
        [
            ("hopper", "hopper", "1.0.0"),
            ("hopper/2.1.0", "hopper", "2.1.0"),
            ("my-data.v2", "my_data_v2", "1.0.0"),
            ("3d", "dataset_3d", "1.0.0"),
        ],
    )
    def test_names_come_from_the_folder(self, tmp_path: Path, folder: str, name: str, version: str) -> None:
        write([episode(0, 3)], tmp_path / folder)
        details = open_source(tmp_path / folder).details()
        assert (details["dataset"], details["version"]) == (name, version)
        assert details["files"] == [f"{name}-train.tfrecord-00000-of-00001"]

    @pytest.mark.parametrize(
        "options",
        [
            {"name": "1a"},
            {"name": "a-b"},
            {"version": "1.0"},
            {"split": "all"},
            {"split": "a b"},
            {"split": "val", "val_fraction": 0.5},
            {"val_fraction": -0.1},
            {"val_fraction": 1.5},
            {"images": "jpeg"},
            {"num_shards": 0},
            {"shard_size": 0},
            {"num_shards": 1, "shard_size": 1},
        ],
        ids=str,
    )
    def test_options_that_are_wrong(self, options: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=r"."):
            RldsDirSink("out", **options)

    def test_shards_as_tfds_cuts_them(self) -> None:
        """Its own function gives the same numbers: tests/full/test_rlds_written.py."""
        assert number_of_shards(2 * MIN_SHARD, 1) == 1
        assert number_of_shards(2 * MIN_SHARD - 32, 2) == 2
        assert number_of_shards(2 * MIN_SHARD - 33, 2) == 1
        assert shard_lengths(5, 2) == [2, 3] and shard_lengths(0, 1) == [0]

    @pytest.mark.parametrize(
        "options",
        [{"num_shards": 3}, {"num_shards": 99}, {"shard_size": 700}, {"shard_size": 1}, {"shard_size": 10**9}],
    )
    @pytest.mark.parametrize("expected", [None, 0, 1, 7, 10, 11, 30])
    def test_shards_are_the_same_whatever_was_expected(
        self, tmp_path: Path, options: dict[str, int], expected: int | None
    ) -> None:
        episodes = [episode(100 * i, 2 + 5 * (i % 4)) for i in range(10)]
        sink = RldsDirSink(tmp_path / "out", **options)
        sink.expect(expected)
        sink.open(SPEC, PROVENANCE)
        for one in episodes:
            sink.write(one)
        sink.commit()
        plain = RldsDirSink(tmp_path / "plain" / "out", **options)
        plain.open(SPEC, PROVENANCE)
        for one in episodes:
            plain.write(one)
        plain.commit()
        assert files(tmp_path / "out") == files(tmp_path / "plain" / "out")
        assert numbers(back(tmp_path / "out")) == numbers(episodes)

    def test_a_share_of_the_episodes_for_validation(self, tmp_path: Path) -> None:
        episodes = [episode(100 * i, 3) for i in range(60)]
        for i, one in enumerate(episodes):
            one.index = i
        write(episodes, tmp_path / "out", val_fraction=0.25, seed=3)
        train, val = (numbers(back(tmp_path / "out", split=split)) for split in ("train", "val"))
        assert sorted(train + val) == numbers(episodes) and train == sorted(train) and val == sorted(val)
        assert 5 <= len(val) // 2 <= 25
        write(episodes[30:], tmp_path / "half", val_fraction=0.25, seed=3)
        assert numbers(back(tmp_path / "half", split="val")) == [n for n in val if n >= 3000]
        write(episodes, tmp_path / "other", val_fraction=0.25, seed=4)
        assert numbers(back(tmp_path / "other", split="val")) != val
        write(episodes, tmp_path / "everything", val_fraction=1.0)
        assert [path.name for path in (tmp_path / "everything").glob("*tfrecord*")] == [
            "everything-val.tfrecord-00000-of-00001"
        ]


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


class TestFolder:
    def test_nothing_is_there_before_commit_or_after_abort(self, tmp_path: Path) -> None:
        sink = RldsDirSink(tmp_path / "out")
        sink.open(SPEC, PROVENANCE)
        sink.write(episode(0, 3))
        assert not (tmp_path / "out").exists()
        sink.abort()
        assert list(tmp_path.iterdir()) == []

    def test_an_rlds_folder_is_replaced_only_if_asked_and_nothing_else_is(self, tmp_path: Path) -> None:
        write([episode(0, 3)], tmp_path / "out")
        with pytest.raises(SnapshotExists, match="out"):
            RldsDirSink(tmp_path / "out").open(SPEC, PROVENANCE)
        write([episode(100, 3)], tmp_path / "out", overwrite=True, num_shards=1)
        assert numbers(back(tmp_path / "out")) == [100, 101]
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "a.txt").write_text("keep")
        with pytest.raises(SnapshotExists, match="not an RLDS folder"):
            RldsDirSink(tmp_path / "mine", overwrite=True).open(SPEC, PROVENANCE)
        assert (tmp_path / "mine" / "a.txt").read_text() == "keep"

    def test_a_folder_with_files_of_others_is_not_replaced(self, tmp_path: Path) -> None:
        write([episode(0, 3)], tmp_path / "out")
        for name in ("notes.txt", "checkpoints/model.json", "other.json"):
            (tmp_path / "out" / name).parent.mkdir(exist_ok=True)
            (tmp_path / "out" / name).write_text("keep")
            with pytest.raises(SnapshotExists, match=f"holds {name}, which is not of an RLDS folder"):
                write([episode(100, 3)], tmp_path / "out", overwrite=True)
            assert (tmp_path / "out" / name).read_text() == "keep"
            (tmp_path / "out" / name).unlink()
        write([episode(100, 3)], tmp_path / "out", overwrite=True)

    def test_a_place_that_can_not_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("no folder")
        with pytest.raises(SinkError, match="file"):
            RldsDirSink(tmp_path / "file" / "out").open(SPEC, PROVENANCE)

    def test_an_episode_that_does_not_fit_is_named_and_leaves_no_trace(self, tmp_path: Path) -> None:
        spec = StepSpec(observation=FieldSpec((), object), reward=None, discount=None)
        source = MemorySource([Episode(observation=np.array([b"a", b"b"], object), index=0)])
        good = next(iter(source))
        bad = Episode(observation=np.array([b"a", 3], object), source="here", index=5, metadata={"n": 1})
        sink = RldsDirSink(tmp_path / "out")
        sink.open(spec, PROVENANCE)
        with pytest.raises(SpecMismatch, match="here, episode 5, step 1, observation: a int"):
            sink.write(bad)
        sink.write(good)
        sink.commit()
        assert len(back(tmp_path / "out")) == 1 and sink.lost() == {}

    @pytest.mark.parametrize("text", ["{", "[]", '{"rlds2buf": {}}', '{"rlds2buf": {"tuples": 3}}', '{"rlds2buf": []}'])
    def test_a_damaged_metadata_file(self, tmp_path: Path, text: str) -> None:
        write([episode(0, 3)], tmp_path / "out")
        (tmp_path / "out" / "metadata.json").write_text(text)
        if "rlds2buf" in text:
            with pytest.raises(SourceFormatError, match=r"metadata\.json"):
                open_source(tmp_path / "out")
        else:  # somebody else's
            assert numbers(back(tmp_path / "out")) == [0, 1]

    def test_paths_in_the_metadata_file_that_lead_nowhere(self, tmp_path: Path) -> None:
        write([anything()], tmp_path / "out", ANY)
        file = tmp_path / "out" / "metadata.json"
        content = json.loads(file.read_text())
        entry = content["rlds2buf"]
        for paths in (*entry["tuples"].values(), *entry["python"].values()):
            paths += [["no", "such"], [], ["reward"], ["is_first", "x"]]
        entry["limits"] += [[["nothing"], {"low": 1}], [["observation"], {"low": 1}]]
        file.write_text(json.dumps(content))
        (found,) = back(tmp_path / "out")
        assert_same(anything(), found)


class TestGoingOn:
    def resumable(self, folder: Path, **options: Any) -> RldsDirSink:
        sink = RldsDirSink(folder / "out", resume=True, **options)
        sink.open(SPEC, PROVENANCE)
        return sink

    def test_from_a_checkpoint(self, tmp_path: Path) -> None:
        episodes = TestContract.episodes
        first = self.resumable(tmp_path)
        first.write(episodes[0])
        first.write(episodes[1].replace(metadata={"new": 1}))
        first.checkpoint({"read": 2})
        first.write(episodes[3])  # behind the checkpoint: not there when going on
        first.abort()
        second = self.resumable(tmp_path)
        assert second.resumed() == {"read": 2}
        second.write(episodes[3])
        second.commit()
        assert numbers(back(tmp_path / "out")) == numbers([episodes[0], episodes[1], episodes[3]])
        assert second.lost() == {"metadata/new": "the first episode does not have it (1 episodes)"}

    def test_not_with_other_options(self, tmp_path: Path) -> None:
        first = self.resumable(tmp_path)
        first.write(TestContract.episodes[0])
        first.checkpoint({"read": 1})
        first.abort()
        with pytest.raises(SnapshotError, match="other options"):
            self.resumable(tmp_path, num_shards=2)
        second = self.resumable(tmp_path)
        assert second.resumed() == {"read": 1}
        second.abort()

    @pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
    def test_not_from_damaged_files(self, tmp_path: Path, damage: str) -> None:
        first = self.resumable(tmp_path)
        first.write(TestContract.episodes[0])
        first.checkpoint({"read": 1})
        first.abort()
        file = tmp_path / ".out.partial" / "train.records-00000"
        data = file.read_bytes()
        if damage == "gone":
            file.unlink()
        else:
            file.write_bytes(data[:-1] if damage == "cut" else b"x" + data[1:])
        with pytest.raises(SnapshotCorrupt, match="start over"):
            self.resumable(tmp_path)

    def test_after_sigkill_at_twenty_moments_every_byte_is_the_same(self, tmp_path: Path) -> None:
        write([episode(100 * i, 2 + i % 7) for i in range(10)], tmp_path / "source", shard_size=300)
        done = subprocess.run(
            [sys.executable, "-m", "tests.formats.rlds.interrupted", tmp_path / "source", tmp_path, "0", "20"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["kills"] >= 20 and found["went_on"] >= 5  # the others before there was anything to go on with
        assert "data-train.tfrecord-00002-of-00003" in found["files"]


FULL = """
import resource, signal, sys
import numpy as np
from rlds2buf import Episode, SinkError, convert
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
sys.dont_write_bytecode = True  # it would be cut short
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
episode = Episode(observation=np.zeros((4000, 30)), reward=np.zeros(4000))
try:
    convert([episode, episode], sys.argv[1], to="rlds")
except SinkError as error:
    print("refused:", error)
"""


@pytest.mark.parametrize("limit", [300, 1_000_000, 1_500_000])
def test_a_full_disk_is_a_sink_error_and_leaves_nothing(tmp_path: Path, limit: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "out"), str(limit)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.startswith("refused:") and "too large" in done.stdout and done.stderr == ""
    assert list(tmp_path.iterdir()) == []
