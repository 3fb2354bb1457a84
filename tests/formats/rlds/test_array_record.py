"""RLDS folders of ArrayRecord shards: the real TFRecord datasets, their records written anew."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from rlds2buf import SourceFormatError, SourceNotFound, open_source
from rlds2buf.codecs.tfrecord.frames import read_records
from rlds2buf.formats.rlds.dataset_info import read_dataset_info
from rlds2buf.formats.rlds.features import read_features
from rlds2buf.formats.rlds.source import RldsDirSource
from tests.contracts.source import MakeSource, SourceContract, assert_same_episode
from tests.data import DATA, RLDS, TFDS_METADATA
from tests.made import BOTH, MADE

BRIDGE = MADE / "rlds/bridge_dataset/1.0.0"


def convert(folder: Path, target: Path, shards: int = 1, options: str = "group_size:1", **info: object) -> Path:
    """The train split of a TFRecord folder as so many ArrayRecord shards, named as TFDS names them."""
    (tfrecord,) = folder.glob("*-train.tfrecord-*")
    records = list(read_records(tfrecord))
    target.mkdir(parents=True)
    shutil.copyfile(folder / "features.json", target / "features.json")
    told = json.loads((folder / "dataset_info.json").read_text())
    edges = [len(records) * i // shards for i in range(shards + 1)]
    for i in range(shards):
        name = f"{told['name']}-train.array_record-{i:05d}-of-{shards:05d}"
        writer = ArrayRecordWriter(str(target / name), options)
        for record in records[edges[i] : edges[i + 1]]:
            writer.write(record)
        writer.close()
    lengths = [str(b - a) for a, b in itertools.pairwise(edges)]
    split = {
        "name": "train",
        "shardLengths": lengths,
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
    }
    (target / "dataset_info.json").write_text(
        json.dumps({**told, "fileFormat": "array_record", "splits": [split], **info})
    )
    return target


@BOTH
@pytest.mark.parametrize("name", RLDS)
def test_equal_to_the_tfrecords(sets: Any, name: str, tmp_path: Path) -> None:
    source = open_source(convert(sets / name, tmp_path / "1.0.0"))
    assert type(source) is RldsDirSource and source.details()["file_format"] == "array_record"
    theirs = RldsDirSource(sets / name)
    assert source.spec == theirs.spec and source.num_episodes == theirs.num_episodes
    for one, other in zip(source, theirs, strict=True):
        assert_same_episode(one, other)


@pytest.mark.parametrize("options", ["group_size:1", "group_size:4"])
def test_splits_start_and_stop_anywhere(tmp_path: Path, options: str) -> None:
    folder = convert(BRIDGE, tmp_path / "1.0.0", 3, options)
    wanted = list(RldsDirSource(BRIDGE))
    for split, part in {
        "train[7:9]": slice(7, 9),
        "train[20%:]": slice(5, None),
        "train[24:]": slice(24, None),
    }.items():
        found = list(RldsDirSource(folder, split=split))
        assert [episode.num_steps for episode in found] == [10] * len(wanted[part])
        for one, other in zip(found, wanted[part], strict=True):
            assert_same_episode(one, other)


class TestContract(SourceContract):
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return convert(BRIDGE, tmp_path / "1.0.0", 2)

    @pytest.fixture
    def make_source(self, folder: Path) -> MakeSource:  # type: ignore[override]
        return lambda: RldsDirSource(folder)

    @pytest.fixture
    def change(self, folder: Path) -> Callable[[], None]:
        def change() -> None:
            shard = sorted(folder.glob("*array_record*"))[0]
            data = bytearray(shard.read_bytes())
            data[300_000:300_010] = bytes(10)
            shard.write_bytes(data)

        return change


def test_the_files_decide_between_two_formats(tmp_path: Path) -> None:
    real = BRIDGE
    both = convert(real, tmp_path / "1.0.0", alternativeFileFormats=["tfrecord"])
    assert read_dataset_info(both).file_format == "array_record"
    shutil.copy(next(real.glob("*train.tfrecord*")), both)
    assert read_dataset_info(both).file_format == "tfrecord"
    assert RldsDirSource(both).num_episodes == 25


def test_lengths_that_are_not_told_are_counted(tmp_path: Path) -> None:
    folder = convert(BRIDGE, tmp_path / "1.0.0", 2, splits=[{"name": "train"}])
    assert RldsDirSource(folder).num_episodes == 25


@pytest.mark.parametrize("said", [12, 14])
def test_record_counts_are_checked(tmp_path: Path, said: int) -> None:
    splits = [{"name": "train", "shardLengths": [str(said)]}]
    folder = convert(BRIDGE, tmp_path / "1.0.0", 1, splits=splits)
    problem = f"more records than the {said}"
    with pytest.raises(SourceFormatError, match=problem):
        list(RldsDirSource(folder))


def test_damage_names_the_shard(tmp_path: Path) -> None:
    folder = convert(BRIDGE, tmp_path / "1.0.0", 3)
    shard = sorted(folder.glob("*array_record*"))[1]
    data = bytearray(shard.read_bytes())
    data[100_000] ^= 1
    shard.write_bytes(data)
    with pytest.raises(SourceFormatError, match=r"array_record-00001-of-00003: record \d+: .*damaged"):
        list(RldsDirSource(folder))
    shard.write_bytes(data[:-70_000])
    with pytest.raises(SourceFormatError, match=r"array_record-00001-of-00003: can't be read as ArrayRecord"):
        list(RldsDirSource(folder))


def test_one_shard_that_is_too_short(tmp_path: Path) -> None:
    folder = convert(BRIDGE, tmp_path / "1.0.0", 1)
    info = json.loads((folder / "dataset_info.json").read_text())
    info["splits"][0]["shardLengths"] = ["30"]
    (folder / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(SourceFormatError, match=r"25 records, but dataset_info\.json says 30"):
        list(RldsDirSource(folder))


@pytest.mark.parametrize("name", TFDS_METADATA)
def test_published_metadata_parse(name: str) -> None:
    """Features and splits are read; without records the error names the shards that are missing."""
    folder = DATA / name
    assert "steps" in read_features(folder / "features.json")
    info = read_dataset_info(folder)
    (split,) = info.splits.values()
    assert info.file_format == "array_record" and sum(split.lengths) > 0
    count = len(split.files)
    first = rf"d4rl_mujoco_hopper-train\.array_record-00000-of-{count:05d}"
    with pytest.raises(SourceNotFound, match=f"missing {count} of the shards of 'train': {first}"):
        open_source(folder)
