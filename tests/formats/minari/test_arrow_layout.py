"""Minari's Arrow and Parquet layouts, written as Minari writes them, whole and damaged."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pytest

from rlds2buf import Episode, MissingDependency, SourceFormatError, SpecMismatch, open_source
from rlds2buf.errors import Rlds2bufError
from rlds2buf.formats.minari.source import MinariDirSource
from tests.contracts.source import MakeSource, SourceContract
from tests.formats.minari.arrow_folder import BOX, LAYOUTS, columns, fixed, write


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestContract(SourceContract):
    @pytest.fixture
    def path(self, tmp_path: Path, layout: str) -> Path:
        return write(tmp_path / "set/data", [columns(steps, i) for i, steps in enumerate([3, 1, 5])], layout)

    @pytest.fixture
    def make_source(self, path: Path) -> MakeSource:  # type: ignore[override]
        return lambda: MinariDirSource(path.parent)

    @pytest.fixture
    def change(self, path: Path, layout: str) -> Callable[[], None]:
        def change() -> None:
            table = pa.table({**columns(1, 1), "rewards": np.array([2.0, 0.0])})
            pa.dataset.write_dataset(table, path / "1", format=layout, existing_data_behavior="overwrite_or_ignore")

        return change


def test_values(tmp_path: Path, layout: str) -> None:
    source = open_source(write(tmp_path / "data", [columns(3, 1)], layout, total_steps=3))
    (episode,) = source
    assert source.num_episodes == 1 and source.num_steps == 4
    assert episode.observation["x"].shape == (4, 2, 2) and episode.observation["x"][0, 1].tolist() == [102, 103]
    assert episode.observation["word"].tolist() == [b"w0", b"w1", b"w2", b"w3"]
    assert episode.action[0].tolist() == [0, 1, 0, 0]
    assert episode.action[1].tolist() == [[0, 1, 0]] * 3 + [[0, 0, 0]]
    assert episode.action[1].dtype == np.int8 and episode.reward.tolist() == [0.5, 0.5, 0.5, 0]
    assert episode.end == "terminated" and episode.discount.tolist() == [1, 1, 0, 0]
    assert episode.extras["infos"]["speed"].tolist() == [0, 1.5, 3, 4.5]
    assert episode.metadata == {"id": 0, "seed": 7}
    assert source.spec.observation["x"].low == -1 and source.spec.action[0].values == (0, 1)


def test_episodes_come_by_number(tmp_path: Path, layout: str) -> None:
    folder = write(tmp_path / "data", [columns(1, i) for i in range(12)], layout)
    assert [episode.metadata["id"] for episode in MinariDirSource(folder)] == list(range(12))
    assert [episode.metadata["id"] for episode in MinariDirSource(folder).read(9, 11)] == [9, 10]


def test_several_files_of_one_episode(tmp_path: Path, layout: str) -> None:
    folder = write(tmp_path / "data", [columns(3)], layout)
    (whole,) = MinariDirSource(folder)
    (file,) = (folder / "0").glob("part*")
    table = pa.dataset.dataset(file, format=layout).to_table()
    file.unlink()
    pa.dataset.write_dataset(table, folder / "0", format=layout, max_rows_per_file=2, max_rows_per_group=2,
                             existing_data_behavior="overwrite_or_ignore")  # fmt: skip
    assert len(list((folder / "0").glob("part*"))) == 2
    (episode,) = MinariDirSource(folder)
    for (path, one), (_, other) in zip(episode.flatten(), whole.flatten(), strict=True):
        assert one.tolist() == other.tolist(), path


def test_infos_can_be_left_out(tmp_path: Path, layout: str) -> None:
    source = MinariDirSource(write(tmp_path / "data", [columns(3)], layout), infos=False)
    assert source.spec.extras == {} and next(iter(source)).extras == {}


def test_an_episode_of_a_reset_only(tmp_path: Path, layout: str) -> None:
    (episode,) = MinariDirSource(write(tmp_path / "data", [columns(0)], layout))
    assert episode.num_steps == 1 and episode.action[1].shape == (1, 3)


BROKEN = [
    ("observations", None, "0 has no `observations`|1 has no `observations`"),
    ("rewards", None, "1 has no `rewards`"),
    ("rewards", pa.array(["a", "b", "c", "d"]), "`rewards` should hold one number a step, got object"),
    ("rewards", pa.array([1.0, None, 2.0, 0.0]), "rewards: 1 of its 4 values are null"),
    ("terminations", fixed(np.zeros((4, 2))), "`terminations` should hold one number a step"),
    ("actions", pa.array([1, 2, 3, 4]), "action: the file does not hold the 2 members"),
    ("observations", pa.array([1, 2, 3, 4]), "observation: the file does not hold what the space says: x, word"),
    (
        "observations",
        pa.StructArray.from_arrays([fixed(np.zeros((4, 3))), pa.array(["a"] * 4)], names=["x", "word"]),
        r"observation/x: rows of 3 values, but the space has the shape \[2, 2\]",
    ),
    (
        "observations",
        pa.StructArray.from_arrays([fixed(np.zeros((4, 4))), pa.array(["a", None, "b", "c"])], names=["x", "word"]),
        "observation: a text is null",
    ),
    ("infos", pa.StructArray.from_arrays([pa.array([[1], [2, 3], [], [4]])], names=["odd"]), "infos/odd: rows of diff"),
    ("infos", pa.StructArray.from_arrays([pa.array([0] * 4, pa.date32())], names=["day"]), "infos/day: values of type"),
]


@pytest.mark.parametrize(("name", "column", "message"), BROKEN)
def test_one_broken_episode_leaves_the_others(
    tmp_path: Path, layout: str, name: str, column: Any, message: str
) -> None:
    broken = {**columns(3), name: column}
    source = MinariDirSource(write(tmp_path / "data", [columns(2), broken, columns(1)], layout))
    good, error, other = source.read()
    assert isinstance(good, Episode) and isinstance(other, Episode)
    assert isinstance(error, SpecMismatch) and (error.episode, error.rule) == (1, "spec")
    with pytest.raises(SpecMismatch, match=message):
        raise error


@pytest.mark.parametrize("kind", ["Sequence", "Graph", "OneOf"])
def test_spaces_without_columns_are_named(tmp_path: Path, layout: str, kind: str) -> None:
    space = {"type": "Dict", "subspaces": {"a": {"type": "Tuple", "subspaces": [BOX, {"type": kind}]}}}
    folder = write(tmp_path / "data", [columns(2)], layout, observation_space=json.dumps(space))
    with pytest.raises(SourceFormatError, match=f"observation_space: a: 1: a {kind} space has no fixed columns"):
        MinariDirSource(folder)


class TestBadFolders:
    def test_a_folder_without_a_file(self, tmp_path: Path, layout: str) -> None:
        folder = write(tmp_path / "data", [columns(2), columns(2)], layout)
        next((folder / "1").glob("part*")).unlink()
        with pytest.raises(SourceFormatError, match="data/1: no file with the episode's rows"):
            MinariDirSource(folder)

    def test_a_missing_episode(self, tmp_path: Path, layout: str) -> None:
        folder = write(tmp_path / "data", [columns(2)], layout, total_episodes=2)
        with pytest.raises(SourceFormatError, match=r"data holds 1 episodes, but metadata\.json says 2"):
            MinariDirSource(folder)

    def test_without_spaces(self, tmp_path: Path, layout: str) -> None:
        folder = write(tmp_path / "data", [columns(2)], layout, action_space=None)
        with pytest.raises(SourceFormatError, match=r"metadata\.json: no spaces, without which"):
            MinariDirSource(folder)

    @pytest.mark.parametrize("text", ["", "{", "[1]"])
    def test_odd_metadata_of_an_episode(self, tmp_path: Path, layout: str, text: str) -> None:
        folder = write(tmp_path / "data", [columns(2)], layout)
        (folder / "0/metadata.json").write_text(text)
        with pytest.raises(SourceFormatError, match=r"0/metadata\.json: (not readable as JSON|should hold)"):
            list(MinariDirSource(folder))

    def test_no_metadata_of_an_episode(self, tmp_path: Path, layout: str) -> None:
        folder = write(tmp_path / "data", [columns(2)], layout)
        (folder / "0/metadata.json").unlink()
        (episode,) = MinariDirSource(folder)
        assert episode.metadata == {}

    def test_without_pyarrow(self, tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = write(tmp_path / "data", [columns(2)], layout)
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(MissingDependency, match=r"pip install 'rlds2buf\[arrow\]'"):
            MinariDirSource(folder)

    def test_damage(self, tmp_path: Path, layout: str) -> None:
        """Cut short, or with bytes changed, a file gives a typed error or an episode; nothing else."""
        folder = write(tmp_path / "data", [columns(4)], layout)
        (file,) = (folder / "0").glob("part*")
        whole = file.read_bytes()
        rng = np.random.default_rng(0)
        refused = 0
        for trial in range(300):
            data = bytearray(whole)
            if trial % 3 == 0:
                del data[int(rng.integers(len(data))) :]
            else:
                at = int(rng.integers(len(data)))
                data[at : at + trial % 3] = rng.bytes(trial % 3)
            file.write_bytes(data)
            try:
                list(MinariDirSource(folder))
            except Rlds2bufError:
                refused += 1
        assert refused > 100
