"""What we read from a Minari dataset is what Minari reads from it, step by step."""

from __future__ import annotations

import inspect
import io
import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import minari
import numpy as np
import pytest
from gymnasium import spaces
from minari.data_collector.episode_buffer import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage
from PIL import Image

from rlds2buf import Episode, open_source
from rlds2buf.core import nest
from rlds2buf.core.spec import FieldSpec
from rlds2buf.formats.minari.source import MinariDirSource
from rlds2buf.formats.minari.spaces import space_specs
from tests.data import MINARI
from tests.made import BOTH, MADE


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


@BOTH
@pytest.mark.parametrize("name", MINARI)
def test_folders(sets: Any, name: str, tmp_path: Path) -> None:
    folder = sets / name
    copy = tmp_path / folder.name
    shutil.copytree(folder, copy, copy_function=shutil.copyfile)
    (copy / "data").chmod(0o755)
    metadata = json.loads((copy / "data/metadata.json").read_text())
    # An older Minari refuses what a newer one wrote, though the layout is the same.
    (copy / "data/metadata.json").write_text(json.dumps({**metadata, "minari_version": minari.__version__}))
    assert assert_as_minari(copy)


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


LAYOUTS = ("hdf5", "arrow", "parquet")
CHOICE = "jpeg_encoding" in inspect.signature(minari.create_dataset_from_buffers).parameters
"""Minari 0.5.4 lets the writer choose whether pictures become JPEGs; before, all do."""


def kinds() -> Iterator[tuple[str, str, bool]]:
    """Each space in each layout, with and without JPEG where that is a choice."""
    for name, layout, jpeg in itertools.product(sorted(SPACES), LAYOUTS, [True, False] if CHOICE else [True]):
        # Minari 0.5.3 writes what looks like a picture as JPEG and does not read it as such.
        if name != "small-image" or layout != "hdf5" or CHOICE:
            yield name, layout, jpeg


def infos(steps: int) -> dict[str, Any]:
    """Of every kind that Minari reads back."""
    return {
        "speed": [0.5 * t for t in range(steps + 1)],
        "pair": np.arange(2.0 * steps + 2).reshape(-1, 2).astype(np.float32),
        "cube": np.arange(6 * steps + 6).reshape(-1, 3, 2),
        "fine": [t % 2 == 0 for t in range(steps + 1)],
    }


def write(folder: Path, space: spaces.Space, layout: str, jpeg: bool = True, **changes: Any) -> Path:
    """Three episodes of 3, 1 and 12 steps by Minari itself; `changes` are made to each episode's buffer."""
    space.seed(1)
    # Minari pads actions to the length of observations, but not JPEG ones, and fails.
    picture = isinstance(space, spaces.Box) and space.shape[:1] >= (32,)
    actions = spaces.Discrete(3) if picture and layout != "hdf5" and jpeg else space
    buffers = []
    for number, steps in enumerate([3, 1, 12]):
        given = {
            "id": number,
            "seed": 100 + number if number else None,
            "options": {"goal": {"x": 1.5}, "name": "left"} if number == 1 else None,
            "observations": columns_of(space, steps + 1),
            "actions": columns_of(actions, steps),
            "rewards": [0.25 * t for t in range(steps)],
            "terminations": [t == steps - 1 and number % 2 == 0 for t in range(steps)],
            "truncations": [t == steps - 1 and number % 3 == 1 for t in range(steps)],
            "infos": infos(steps),
        }
        buffers.append(EpisodeBuffer(**{**given, **{key: make(steps) for key, make in changes.items()}}))
    minari.create_dataset_from_buffers(
        "here/test-v0",
        buffers,
        observation_space=space,
        action_space=actions,
        algorithm_name="random",
        author="n/a",
        author_email="n/a@example.com",
        code_permalink="n/a",
        description="random",
        data_format=layout,
        **({"jpeg_encoding": jpeg} if CHOICE else {}),
    )
    return folder / "here/test-v0"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where Minari writes."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return tmp_path


@pytest.mark.filterwarnings("ignore::UserWarning:minari")  # advice on how to call it
@pytest.mark.parametrize(("name", "layout", "jpeg"), list(kinds()))
def test_every_space_as_minari_writes_it(here: Path, name: str, layout: str, jpeg: bool) -> None:
    folder = write(here, SPACES[name], layout, jpeg)
    episodes = assert_as_minari(folder)
    assert [episode.end for episode in episodes] == ["terminated", "truncated", "terminated"]
    assert episodes[1].metadata["options"] == {"goal": {"x": 1.5}, "name": "left"}
    assert episodes[1].metadata["seed"] == 101
    source = open_source(folder)
    assert (source.encoded() is not source) == (jpeg and name in ("image", "gray"))


@pytest.mark.filterwarnings("ignore::UserWarning:minari")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_pictures_as_files(here: Path, layout: str) -> None:
    """Asked for encoded pictures, the source gives the very JPEG files whose pixels it gives else."""
    source = open_source(write(here, SPACES["image"], layout))
    encoded = source.encoded()
    assert encoded is not source and encoded.encoded() is encoded
    assert str(encoded.spec.observation) == "string[]" and str(encoded.spec.observation.image) == "uint8[40, 36, 3]"
    assert str(source.spec.observation) == "uint8[40, 36, 3]"
    assert encoded.fingerprint() != source.fingerprint()
    for one, other in zip(encoded, source, strict=True):
        encoded.spec.check(one)
        for file, pixels in zip(one.observation, other.observation, strict=True):
            assert file[:3] == b"\xff\xd8\xff"
            np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(file))), pixels)


@pytest.mark.filterwarnings("ignore::UserWarning:minari")
@pytest.mark.parametrize("name", ["image", "gray"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_pictures_resized(here: Path, layout: str, name: str) -> None:
    folder = write(here, SPACES[name], layout)
    small, whole = open_source(folder, resize=(8, 10)), open_source(folder)
    assert small.spec.observation.shape[:2] == (8, 10) and small.encoded() is small
    assert small.fingerprint() != whole.fingerprint()
    for one, other in zip(small, whole, strict=True):
        small.spec.check(one)
        wanted = [
            np.asarray(Image.fromarray(frame).resize((10, 8), Image.Resampling.BILINEAR)) for frame in other.observation
        ]
        np.testing.assert_array_equal(one.observation, wanted)
    with pytest.raises(ValueError, match="can't be resized"):
        open_source(folder, resize=8, images="encoded")


@pytest.mark.filterwarnings("ignore::UserWarning:minari")
@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_infos_that_minari_does_not_read_back(here: Path, layout: str) -> None:
    """Minari writes nested infos and arrays of one axis, and fails on them or gives rows of dicts."""

    def make(steps: int) -> dict[str, Any]:
        return {
            "flat": np.arange(steps + 1, dtype=np.int16),
            "deep": {"x": np.arange(2.0 * steps + 2).reshape(-1, 2), "y": {"z": list(range(steps + 1))}},
            "both": (np.arange(steps + 1.0), ["a"] * (steps + 1)),
            "nothing": [None] * (steps + 1),
        }

    source = open_source(write(here, SPACES["double"], layout, infos=make))
    for episode, steps in zip(source, [3, 1, 12], strict=True):
        source.spec.check(episode)
        found, wanted = episode.extras["infos"], make(steps)
        np.testing.assert_array_equal(found["flat"], wanted["flat"])
        assert found["flat"].dtype == np.int16
        np.testing.assert_array_equal(found["deep"]["x"], wanted["deep"]["x"])
        assert found["deep"]["y"]["z"].tolist() == wanted["deep"]["y"]["z"]
        assert found["both"]["0"].tolist() == wanted["both"][0].tolist()
        assert found["both"]["1"].tolist() == [b"a"] * (steps + 1)
        assert episode.metadata["infos"] == {"nothing": None}


@pytest.mark.filterwarnings("ignore::UserWarning:minari")
@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_an_episode_of_texts_without_steps(here: Path, layout: str) -> None:
    """Reset only: an action column of nothing but padding."""
    empty = {name: lambda steps: [] for name in ("actions", "rewards", "terminations", "truncations")}
    only = {"observations": lambda steps: ["word"], "infos": lambda steps: None}
    episodes = list(open_source(write(here, SPACES["text"], layout, **empty, **only)))
    assert [episode.num_steps for episode in episodes] == [1, 1, 1]
    assert episodes[0].action.tolist() == [b""] and episodes[0].observation.tolist() == [b"word"]


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
    for name in MINARI:
        folder = MADE / name
        raw = MinariStorage.read_raw_metadata(folder / "data")
        details = open_source(folder).details()
        for key in ("dataset_id", "total_episodes", "total_steps", "algorithm_name", "minari_version"):
            assert details[key] == raw[key]
