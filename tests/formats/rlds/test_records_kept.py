"""RLDS folders whose records are written as they are, where nothing is done to the episodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2buf import Episode, convert, open_source
from rlds2buf.codecs.tfrecord.frames import read_records
from rlds2buf.formats.rlds.sink import RldsDirSink
from tests.contracts.source import assert_same_episode
from tests.made import MADE

HOPPER = MADE / "rlds/d4rl_mujoco_hopper/v2-medium/1.2.0"
CARTPOLE = MADE / "rlds/rlu_control_suite/cartpole_swingup/1.0.0"
BRIDGE = MADE / "rlds/bridge_dataset/1.0.0"


def records(folder: Path) -> list[bytes]:
    return [record for shard in sorted(folder.glob("*.tfrecord-*")) for record in read_records(shard)]


def assert_records_kept(source: Path, target: Path) -> None:
    assert records(target) == records(source)
    assert (target / "features.json").read_bytes() == (source / "features.json").read_bytes()
    with open_source(source) as one, open_source(target) as other:
        assert one.spec == other.spec
        for mine, theirs in zip(one, other, strict=True):
            assert_same_episode(mine, theirs)


def encoded_again(source: Path, target: Path, **options: Any) -> None:
    """Whether another choice leads around the records: their bytes are not the source's."""
    convert(source, target, to="rlds", **options)
    assert records(target) != records(source)


@pytest.mark.parametrize("source", [HOPPER, CARTPOLE], ids=["hopper", "cartpole"])
def test_records_of_others_are_kept(source: Path, tmp_path: Path) -> None:
    report = convert(source, tmp_path / "out", to="rlds")
    assert report.read == report.episodes == len(records(source)) and not report.lost
    assert_records_kept(source, tmp_path / "out")
    noted = json.loads((tmp_path / "out" / "metadata.json").read_text())["rlds2buf"]
    assert noted["provenance"]["format"] == "rlds" and noted["limits"] == []


def test_records_of_our_own_keep_what_is_noted_beside_them(tmp_path: Path) -> None:
    own = Episode(
        observation=(np.arange(6, dtype=np.float64).reshape(3, 2), {"x": np.arange(3)}),
        action=np.zeros(3, np.float32),
        is_terminal=[False, False, True],
        metadata={"note": "text", "numbers": [1, 2], "pair": (1.0, 2.0)},
    )
    convert([own, own], tmp_path / "one", to="rlds")
    convert(tmp_path / "one", tmp_path / "two", to="rlds")
    assert_records_kept(tmp_path / "one", tmp_path / "two")
    with open_source(tmp_path / "two") as source:
        episode = next(iter(source))
    assert isinstance(episode.observation, tuple) and episode.metadata == own.metadata


def test_pictures_shards_and_splits(tmp_path: Path) -> None:
    convert(BRIDGE, tmp_path / "flagged", to="rlds", on_invalid="repair")
    convert(tmp_path / "flagged", tmp_path / "shards", to="rlds", sink_options={"num_shards": 3})
    assert len(list((tmp_path / "shards").glob("*.tfrecord-*"))) == 3
    assert_records_kept(tmp_path / "flagged", tmp_path / "shards")
    convert(tmp_path / "flagged", tmp_path / "split", to="rlds", split="train[5:9]")
    assert records(tmp_path / "split") == records(tmp_path / "flagged")[5:9]
    options = {"val_fraction": 0.3, "seed": 1}
    convert(tmp_path / "flagged", tmp_path / "two", to="rlds", sink_options=options)
    train, val = (records_of(tmp_path / "two", name) for name in ("train", "val"))
    assert train and val and sorted(train + val) == sorted(records(tmp_path / "flagged"))
    for part, found in (("train", train), ("val", val)):
        chosen = open_source(tmp_path / "flagged", part=part, images="encoded", **options)
        numbers = [episode.index for episode in chosen if episode.index is not None]
        assert [records(tmp_path / "flagged")[number] for number in numbers] == found


def records_of(folder: Path, split: str) -> list[bytes]:
    return [record for shard in sorted(folder.glob(f"*-{split}.tfrecord-*")) for record in read_records(shard)]


def test_an_episode_that_is_left_out(tmp_path: Path) -> None:
    good = Episode(observation=np.arange(3), is_terminal=[False, False, True])
    bad = Episode(observation=np.arange(4), is_terminal=[False, True, False, False])
    sink = RldsDirSink(tmp_path / "raw")
    with open_source([good, bad, good]) as source:
        sink.open(source.spec, {"source": "memory"})
        for episode in source:
            sink.write(episode)
        sink.commit()
    report = convert(tmp_path / "raw", tmp_path / "out", to="rlds", on_invalid="skip")
    assert report.rejected == {"terminal-inside": 1}
    first, _, third = records(tmp_path / "raw")
    assert records(tmp_path / "out") == [first, third]


def test_what_changes_episodes_encodes_them(tmp_path: Path) -> None:
    encoded_again(HOPPER, tmp_path / "repair", on_invalid="repair")
    encoded_again(HOPPER, tmp_path / "keep", final_transition="keep")
    encoded_again(HOPPER, tmp_path / "add", add=["return_to_go"])
    encoded_again(HOPPER, tmp_path / "drop", drop=["extras/infos"])
    encoded_again(HOPPER, tmp_path / "filter", min_length=2)


def test_labels_beside_the_features_are_not_left_behind(tmp_path: Path) -> None:
    with_labels = tmp_path / "labelled"
    with_labels.mkdir()
    for file in HOPPER.iterdir():
        (with_labels / file.name).write_bytes(file.read_bytes())
    (with_labels / "steps-kind.labels.txt").write_text("one\ntwo\n")
    encoded_again(with_labels, tmp_path / "out")


def test_a_run_without_records_is_not_gone_on_with(tmp_path: Path) -> None:
    with open_source(HOPPER) as source:
        kept = source.with_records()
        assert kept is not None
        keeping, layout = kept
        assert all(episode.record is not None for episode in keeping)
        assert all(episode.record is None for episode in source)
        assert next(iter(keeping)).replace(metadata={}).record is None
    one, other = RldsDirSink(tmp_path / "out"), RldsDirSink(tmp_path / "out")
    assert one.adopt(layout)
    assert one._choices() != other._choices()


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    convert(BRIDGE, tmp_path / "flagged", to="rlds", on_invalid="repair")
    with open_source(tmp_path / "flagged") as source:
        kept = source.encoded().with_records()
    assert kept is not None
    keeping, layout = kept
    episodes = list(keeping)

    def opened(target: Path) -> RldsDirSink:
        sink = RldsDirSink(target, num_shards=2, resume=True)
        assert sink.adopt(layout)
        sink.expect(len(episodes))
        sink.open(keeping.spec, {"source": "flagged"})
        return sink

    whole = opened(tmp_path / "one" / "out")
    for episode in episodes:
        whole.write(episode)
    whole.commit()
    first = opened(tmp_path / "two" / "out")
    for episode in episodes[:9]:
        first.write(episode)
    first.checkpoint({"read": 9})
    for episode in episodes[9:15]:
        first.write(episode)
    first.abort()
    second = opened(tmp_path / "two" / "out")
    assert second.resumed() == {"read": 9}
    for episode in episodes[9:]:
        second.write(episode)
    second.commit()
    files = sorted(path.name for path in (tmp_path / "one" / "out").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "two" / "out").iterdir())
    for name in files:
        assert (tmp_path / "one" / "out" / name).read_bytes() == (tmp_path / "two" / "out" / name).read_bytes()
