"""What we read from a Minari dataset is what Minari reads from it, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import minari
import numpy as np
import pytest
from gymnasium import spaces
from minari.data_collector.episode_buffer import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage

from rlds2buf import Episode, open_source
from rlds2buf.core import nest
from rlds2buf.core.spec import FieldSpec
from rlds2buf.sources.minari_dir import MinariDirSource
from rlds2buf.sources.spaces import space_specs
from tests.data import DATA

FOLDERS = sorted((DATA / "minari").glob("*/*-v0"))


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """As nest.flatten, written anew: dicts by sorted keys, tuples by position, lists of text as data."""
    if isinstance(value, dict):
        for key in sorted(value):
            yield from leaves(value[key], (*path, key))
    elif isinstance(value, tuple):
        for i, child in enumerate(value):
            yield from leaves(child, (*path, i))
    else:
        yield path, value


def as_bytes(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def assert_same_columns(ours: Any, theirs: Any, rows: int) -> None:
    """The first `rows` of ours are theirs; what is behind is zeros."""
    mine, other = dict(nest.flatten(ours)), dict(leaves(theirs))
    assert list(mine) == list(other)
    for path, column in mine.items():
        values = other[path]
        assert len(values) == rows
        if column.dtype == object:
            assert column[:rows].tolist() == [as_bytes(value) for value in values]
            assert all(value == b"" for value in column[rows:])
            continue
        assert column.dtype == np.asarray(values).dtype
        for t in range(rows):
            np.testing.assert_array_equal(column[t], values[t])
        assert not column[rows:].any()


def assert_as_minari(folder: Path) -> list[Episode]:
    theirs = minari.MinariDataset(folder / "data")
    source = open_source(folder)
    assert type(source) is MinariDirSource
    assert source.num_episodes == theirs.total_episodes
    assert source.num_steps == theirs.total_steps + theirs.total_episodes
    ours = list(source)
    metadata = theirs.storage.get_episode_metadata(range(len(ours)))
    for episode, other, facts in zip(ours, theirs.iterate_episodes(), metadata, strict=True):
        steps = len(other.rewards)
        assert episode.num_transitions == steps
        source.spec.check(episode)
        assert_same_columns(episode.observation, other.observations, steps + 1)
        assert_same_columns(episode.action, other.actions, steps)
        assert_same_columns(episode.reward, other.rewards, steps)
        if episode.extras:
            assert_same_columns(episode.extras["infos"], other.infos, steps + 1)
        else:
            assert not other.infos
        for t in range(steps):
            assert episode.is_terminal[t + 1] == other.terminations[t]
            assert episode.is_last[t + 1] == (other.terminations[t] or other.truncations[t])
        for key, value in facts.items():
            np.testing.assert_equal(episode.metadata[key], value)
    return ours


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.parent.name)
def test_real_folders(folder: Path) -> None:
    assert assert_as_minari(folder)


SPACES = {
    "box": spaces.Box(-1, np.array([1, np.inf], np.float32), (2,), np.float32),
    "double": spaces.Box(-np.inf, np.inf, (), np.float64),
    "discrete": spaces.Discrete(5, start=-2),
    "multi-discrete": spaces.MultiDiscrete([3, 4], start=[1, 0]),
    "multi-binary": spaces.MultiBinary(3),
    "multi-binary-2": spaces.MultiBinary([2, 3]),
    "text": spaces.Text(6),
    "small-image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
    "image": spaces.Box(0, 255, (40, 36, 3), np.uint8),
    "gray": spaces.Box(0, 255, (33, 40), np.uint8),
    "dict": spaces.Dict({"b": spaces.Discrete(3), "a": spaces.Tuple([spaces.Box(0, 1, (2,)), spaces.Text(3)])}),
    "tuple": spaces.Tuple([spaces.Discrete(2), spaces.Dict({"x": spaces.MultiBinary(2)})]),
}


def columns_of(space: spaces.Space, count: int) -> Any:
    """So many samples, as an EpisodeBuffer wants them: nested columns, each a list."""
    samples = [space.sample() for _ in range(count)]

    def column(path: tuple[Any, ...]) -> list[Any]:
        return [nest.get(sample, path) for sample in samples]

    found = {path: column(path) for path, _ in nest.flatten(samples[0])}
    return nest.unflatten(samples[0], iter(found.values()))


@pytest.mark.filterwarnings("ignore::UserWarning:minari")  # advice on how to call it
@pytest.mark.parametrize("name", sorted(SPACES))
@pytest.mark.parametrize("jpeg", [True, False])
def test_every_space_as_minari_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, jpeg: bool
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    space = SPACES[name]
    space.seed(1)
    buffers = [
        EpisodeBuffer(
            id=number,
            seed=100 + number if number else None,
            options={"goal": {"x": 1.5}, "name": "left"} if number == 1 else None,
            observations=columns_of(space, steps + 1),
            actions=columns_of(space, steps),
            rewards=[0.25 * t for t in range(steps)],
            terminations=[t == steps - 1 and number % 2 == 0 for t in range(steps)],
            truncations=[t == steps - 1 and number % 3 == 1 for t in range(steps)],
            infos={"speed": np.arange(steps + 1.0), "deep": {"count": np.arange(steps + 1)}},
        )
        for number, steps in enumerate([3, 1, 12])
    ]
    minari.create_dataset_from_buffers(
        "here/test-v0",
        buffers,
        observation_space=space,
        action_space=space,
        algorithm_name="random",
        author="n/a",
        author_email="n/a@example.com",
        code_permalink="n/a",
        description="random",
        jpeg_encoding=jpeg,
    )
    episodes = assert_as_minari(tmp_path / "here/test-v0")
    assert [episode.end for episode in episodes] == ["terminated", "truncated", "terminated"]
    assert episodes[1].metadata["options"] == {"goal": {"x": 1.5}, "name": "left"}
    assert episodes[1].metadata["seed"] == 101


@pytest.mark.parametrize("name", sorted(SPACES))
def test_specs_agree_with_the_space(name: str) -> None:
    """Each sample fits the spec's shape and limits."""
    space = SPACES[name]
    space.seed(0)
    specs = space_specs(minari.serialization.serialize_space(space))
    for _ in range(20):
        found, told = dict(nest.flatten(space.sample())), dict(nest.flatten(specs))
        assert found.keys() == told.keys()
        for path, value in found.items():
            spec: FieldSpec = told[path]
            if isinstance(value, str):
                assert spec.is_string
                continue
            assert spec.accepts(np.shape(value), np.asarray(value).dtype)
            assert spec.low is None or (value >= np.asarray(spec.low)).all()
            assert spec.high is None or (value <= np.asarray(spec.high)).all()
            assert spec.values is None or np.isin(value, spec.values).all()


def test_metadata_is_what_minari_reads() -> None:
    for folder in FOLDERS:
        raw = MinariStorage.read_raw_metadata(folder / "data")
        details = open_source(folder).details()
        for key in ("dataset_id", "total_episodes", "total_steps", "algorithm_name", "minari_version"):
            assert details[key] == raw[key]
