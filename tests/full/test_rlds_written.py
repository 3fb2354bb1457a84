"""Folders that rlds2buf wrote, read by TFDS; and its own serializer against ours."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorflow_datasets.core import example_serializer
from tensorflow_datasets.core.utils import shard_utils

from rlds2buf import Episode, StepSpec, convert, open_source, spec_of
from rlds2buf.codecs.tfrecord.example import parse_example
from rlds2buf.codecs.tfrecord.frames import read_records
from rlds2buf.formats.rlds.dataset_info import number_of_shards, shard_lengths
from rlds2buf.formats.rlds.sink import RldsDirSink
from tests.buffers.numbered import episode
from tests.data import D4RL, MINARI, RLDS
from tests.formats.rlds.anything import ANY, anything, write
from tests.full.quiet import tf, tfds
from tests.full.tfds_compare import assert_same_dataset, assert_same_value, leaves, plain
from tests.made import BOTH

MARKERS = {("open_tail",), ("placeholder_final_row",)}


def read(folder: Path, split: str = "train", **how: Any) -> Any:
    return tfds.builder_from_directory(str(folder)).as_dataset(split=split, **how)


def dicts(value: Any) -> Any:
    """Tuples as TFDS has them: dicts of numbers."""
    if isinstance(value, dict):
        return {key: dicts(child) for key, child in value.items()}
    if isinstance(value, tuple):
        return {str(i): dicts(child) for i, child in enumerate(value)}
    return value


@pytest.mark.parametrize("images", ["png", "tensor"])
def test_every_kind_of_field_and_of_metadata(tmp_path: Path, images: str) -> None:
    write([anything()], tmp_path / "any", ANY, images=images)
    (element,) = read(tmp_path / "any")
    steps = {**dicts(anything().observation), "action": dicts(anything().action), **anything().extras}
    steps |= {"reward": anything().reward, "is_terminal": anything().is_terminal}
    meant = dict(leaves(steps))
    for row, step in enumerate(element["steps"]):
        observation = step.pop("observation")
        found = dict(leaves({**step, **observation}))
        assert set(found) - {("is_first",), ("is_last",)} == set(meant)
        for path, column in meant.items():
            assert_same_value(column[row], found[path], f"step {row}, {path}")
    assert row == 1
    metadata = dict(leaves(dicts(anything().metadata)))
    found = {path: plain(value) for path, value in leaves({k: v for k, v in element.items() if k != "steps"})}
    assert set(found) == set(metadata) | MARKERS
    for path, value in metadata.items():
        want, got = np.asarray(value), np.asarray(found[path])
        if want.dtype.kind == "U":
            want = np.char.encode(want, "utf-8")
        assert want.shape == got.shape and want.tolist() == got.tolist(), path
        assert got.dtype.kind in "OS" or want.dtype == got.dtype, path


@BOTH
@pytest.mark.parametrize("name", D4RL)
def test_d4rl_files(sets: Any, name: str, tmp_path: Path) -> None:
    """What TFDS gives is what our reader gives, and that is what was in the file (tests/formats/rlds)."""
    path = sets / name
    convert(path, tmp_path / "out", to="rlds")
    source = open_source(tmp_path / "out")
    steps = 0
    for one, element in zip(source, read(tmp_path / "out"), strict=True):
        columns = {path[1:] if path[0] == "extras" else path: column for path, column in one.flatten()}
        batch = next(iter(element["steps"].batch(one.num_steps)))
        assert {path for path, _ in leaves(batch)} == set(columns)
        for place, value in leaves(batch):
            assert_same_value(columns[place], value, str(place))
        steps += one.num_steps
    assert steps == sum(one.num_steps for one in open_source(path))


@BOTH
@pytest.mark.parametrize("name", RLDS)
def test_rlds_datasets_written_again(sets: Any, name: str, tmp_path: Path) -> None:
    """Everything that TFDS reads of the one it reads of the other, the files of pictures included."""
    path = sets / name
    source = open_source(path).encoded()
    write(list(source), tmp_path / "again", source.spec)
    steps = 0
    for mine, theirs in zip(read(tmp_path / "again"), read(path), strict=True):
        for one, other in zip(mine["steps"], theirs["steps"], strict=True):
            assert_same_leaves(one, other)
            steps += 1
        assert_same_leaves(
            {key: value for key, value in mine.items() if key != "steps" and (key,) not in MARKERS},
            {key: value for key, value in theirs.items() if key != "steps"},
        )
    assert steps == sum(one.num_steps for one in source)
    raw = {"decoders": {"steps": tfds.decode.SkipDecoding()}}
    pictures = [place for place, field in source.spec.fields() if field.image is not None]
    assert len(pictures) == (4 if "bridge" in str(path) else 0)
    for mine, theirs in zip(read(tmp_path / "again", **raw), read(path, **raw), strict=True):
        one, other = dict(leaves(mine["steps"])), dict(leaves(theirs["steps"]))
        for place in pictures:
            assert one[place].numpy().tolist() == other[place].numpy().tolist()


def assert_same_leaves(mine: Any, theirs: Any) -> None:
    one, other = dict(leaves(mine)), dict(leaves(theirs))
    assert set(one) == set(other)
    for path, value in one.items():
        got = plain(value)
        assert_same_value(got if isinstance(got, list | bytes) else np.asarray(got), other[path], str(path))


@BOTH
@pytest.mark.parametrize("name", MINARI)
def test_minari_datasets(sets: Any, name: str, tmp_path: Path) -> None:
    path = sets / name
    convert(path, tmp_path / "out", to="rlds")
    builder = tfds.builder_from_directory(str(tmp_path / "out"))
    assert builder.info.metadata["rlds2buf"]["provenance"]["format"] == "minari"
    (tmp_path / "out" / "metadata.json").unlink()  # without it our reader has dicts, too
    assert assert_same_dataset(open_source(tmp_path / "out"), builder.as_dataset(split="train")) > 0


def test_order_and_names_with_many_shards_and_two_splits(tmp_path: Path) -> None:
    episodes = [episode(100 * i, 3) for i in range(50)]
    for i, one in enumerate(episodes):
        one.index = i
    write(episodes, tmp_path / "toy" / "2.0.1", num_shards=20, val_fraction=0.3)
    builder = tfds.builder_from_directory(str(tmp_path / "toy" / "2.0.1"))
    info = builder.info
    assert (info.name, str(info.version), info.disable_shuffling) == ("toy", "2.0.1", True)
    numbers: dict[str, list[int]] = {}
    for split in ("train", "val"):
        dataset = builder.as_dataset(split=split)
        numbers[split] = [int(next(iter(e["steps"]))["observation"]["count"]) for e in dataset]
        assert numbers[split] == sorted(numbers[split])
        assert info.splits[split].num_examples == len(numbers[split])
        assert info.splits[split].num_bytes == sum(
            len(record) for file in info.splits[split].filepaths for record in read_records(str(file))
        )
    assert sorted(numbers["train"] + numbers["val"]) == [100 * i for i in range(50)]
    assert builder.info.splits["train"].num_shards == 20 and len(numbers["val"]) > 5
    assert len(list(builder.as_dataset(split="train[:50%]"))) == round(len(numbers["train"]) / 2)


def test_limits_of_shards_and_their_lengths() -> None:
    rng = random.Random(0)
    for _ in range(3000):
        count = rng.choice([1, 2, 3, rng.randrange(1, 2000), rng.randrange(1, 10**6)])
        size = int(2 ** rng.uniform(0, 42))
        if (size >> 30) + count // 2**26 > 1024 and count < (size >> 30) + 2048:
            continue  # TFDS looks for a number of shards for ever
        want = shard_utils.ShardConfig.calculate_number_shards(size, count)
        assert number_of_shards(size, count) == want
        ends = np.cumsum(shard_lengths(count, want)).tolist()
        assert ends == list(shard_utils.get_shard_boundaries(count, want))


class TestAgainstTfdsOwnSerializer:
    """The same episodes through TFDS's features: records that hold the same."""

    @BOTH
    @pytest.mark.parametrize("name", D4RL[:3])
    def test_d4rl_episodes(self, sets: Any, name: str, tmp_path: Path) -> None:
        source = open_source(sets / name)
        self.compare(list(source), source.spec, tmp_path / "out")

    def test_every_kind_of_field(self, tmp_path: Path) -> None:
        self.compare([anything()], ANY, tmp_path / "out", images="tensor")

    def compare(self, episodes: list[Episode], spec: StepSpec, folder: Path, **options: Any) -> None:
        write(episodes, folder, spec, **options)
        features = tfds.builder_from_directory(str(folder)).info.features
        serializer = example_serializer.ExampleSerializer(features.get_serialized_info())
        (file,) = folder.glob("*.tfrecord-*")
        for one, record in zip(episodes, read_records(file), strict=True):
            columns = {
                **{name: dicts(getattr(one, name)) for name in ("observation", "action", "reward", "discount")},
                **{name: getattr(one, name) for name in ("is_first", "is_last", "is_terminal")},
                **one.extras,
            }
            columns = {name: column for name, column in columns.items() if column is not None}
            steps = [tf.nest.map_structure(lambda c, t=t: c[t], columns) for t in range(one.num_steps)]
            markers = {name: bool(one.metadata.get(name)) for (name,) in MARKERS}
            encoded = features.encode_example({"steps": steps, **dicts(one.metadata), **markers})
            theirs = parse_example(serializer.serialize_example(encoded))
            mine = parse_example(record)
            assert set(mine) == set(theirs)
            for key, feature in mine.items():
                assert values(feature) == values(theirs[key]), key


def values(feature: Any) -> Any:
    if feature.kind == 1:
        return feature.strings()
    return feature.floats().tobytes() if feature.kind == 2 else feature.ints().tolist()


def test_a_field_without_reward_action_or_discount(tmp_path: Path) -> None:
    one = Episode(observation=np.arange(3))
    sink = RldsDirSink(tmp_path / "out")
    sink.open(spec_of(one), {})
    sink.write(one)
    sink.commit()
    (element,) = read(tmp_path / "out")
    assert set(next(iter(element["steps"]))) == {"observation", "is_first", "is_last", "is_terminal"}
