"""Splits that info.json names: ranges of episodes, written as TFDS writes splits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import EpisodeBatch, EpisodeError, SourceFormatError, SourceNotFound
from tests.formats.lerobot.made import vectors, write_v2, write_v3

LENGTHS = (3, 5, 1, 4, 2, 6)
SPLITS = {"train": "0:4", "test": "4:6"}


@pytest.fixture(params=[write_v3, write_v2], ids=["v3", "v2"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    made = vectors(LENGTHS)
    made.info["splits"] = SPLITS
    path: Path = request.param(tmp_path / "set", made)
    return path


def states(root: Path, split: str | None = None) -> list[Any]:
    with rlds2buf.open_source(root, split=split) as source:
        return [np.asarray(episode.observation["state"]) for episode in source]


@pytest.mark.parametrize(
    ("split", "places"),
    [
        ("train", [0, 1, 2, 3]),
        ("test", [4, 5]),
        ("train[1:3]", [1, 2]),
        ("train[:50%]", [0, 1]),
        ("test+train[:1]", [4, 5, 0]),
        ("train[2:]+train[:3]", [2, 3, 0, 1, 2]),
        ("all", [0, 1, 2, 3, 4, 5]),
    ],
)
def test_episodes_of_a_split(root: Path, split: str, places: list[int]) -> None:
    whole = states(root)
    found = states(root, split)
    assert len(found) == len(places)
    for one, place in zip(found, places, strict=True):
        np.testing.assert_array_equal(one, whole[place])
    with rlds2buf.open_source(root, split=split) as source:
        assert (source.num_episodes, source.num_steps) == (len(places), sum(LENGTHS[place] for place in places))
        numbers = [batch.index for batch in source.read_batches(rows=4) if isinstance(batch, EpisodeBatch)]
        assert np.concatenate(numbers).tolist() == [*range(len(places))]
        (last,) = source.read(len(places) - 1)
        np.testing.assert_array_equal(last.observation["state"], whole[places[-1]])
        assert last.index == len(places) - 1
        assert source.details()["split"] == split


def test_without_one_it_is_all(root: Path) -> None:
    assert len(states(root)) == len(LENGTHS)


def test_fingerprints_differ(root: Path) -> None:
    made = {split: rlds2buf.open_source(root, split=split).fingerprint() for split in (None, "train", "test")}
    assert len(set(made.values())) == 3


def test_a_damaged_episode_has_its_number_in_the_split(root: Path) -> None:
    file = sorted((root / "data").rglob("*.parquet"))[-1]
    file.write_bytes(file.read_bytes()[:-9])
    with rlds2buf.open_source(root, split="test+train[:1]") as source:
        found = list(source.read())
    wrong = [place for place, item in enumerate(found) if isinstance(item, EpisodeError)]
    assert wrong and wrong == [item.episode for item in found if isinstance(item, EpisodeError)]


def test_findings_have_the_numbers_of_the_split(root: Path) -> None:
    with rlds2buf.open_source(root, split="test") as source:
        report = rlds2buf.validate(source)
    assert not [issue for issue in report.issues if issue.episode is not None and issue.episode > 1]


def test_it_is_converted(root: Path, tmp_path: Path) -> None:
    with rlds2buf.open_source(root, split="test") as source:
        report = rlds2buf.convert(source, tmp_path / "out", to="lerobot")
    assert (report.episodes, report.read) == (2, 2)
    for one, other in zip(states(tmp_path / "out"), states(root, "test"), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("split", ["val", "train[:200%]", "train[", ""])
def test_splits_that_are_not_there(root: Path, split: str) -> None:
    with pytest.raises(SourceNotFound):
        rlds2buf.open_source(root, split=split)


@pytest.mark.parametrize("told", ["0:99", "3", "a:b", "5:2"])
def test_ranges_that_are_none(root: Path, told: str) -> None:
    info = json.loads((root / "meta/info.json").read_text())
    info["splits"] = {"train": told, "other": "0:1"}
    (root / "meta/info.json").write_text(json.dumps(info))
    assert len(states(root, "other")) == 1
    with pytest.raises(SourceFormatError, match=r"info\.json: the split 'train' is"):
        rlds2buf.open_source(root, split="train")
