"""Episodes whose files are put together are what they are when each is read alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rlds2buf import Episode, EpisodeError
from rlds2buf.formats.minari.arrow_layout import ArrowEpisodes
from rlds2buf.formats.minari.source import MinariDirSource
from tests.formats.blocks import assert_same, each_alone, together
from tests.formats.minari.arrow_folder import LAYOUTS, columns, fixed, write

COUNT = 24


def episodes() -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [columns(int(rng.integers(1, 50)), number) for number in range(COUNT)]


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many episodes were put together at a time."""
    sizes: list[int] = []
    join = ArrowEpisodes._joined

    def noted(self: ArrowEpisodes, held: list[Any]) -> Any:
        found = join(self, held)
        sizes.append(len(held) if found is not None else 0)
        return found

    monkeypatch.setattr(ArrowEpisodes, "_joined", noted)
    return sizes


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("infos", [True, False])
def test_all_of_one_schema(tmp_path: Path, layout: str, infos: bool, joined: list[int]) -> None:
    source = MinariDirSource(write(tmp_path / "data", episodes(), layout), infos=infos)
    wanted = each_alone(source, COUNT)
    joined.clear()
    assert_same(together(source), wanted)
    assert joined == [1, COUNT]
    for start, stop, rows in [(0, COUNT, 1), (5, 20, 60), (COUNT - 2, COUNT + 9, 100)]:
        assert_same(together(source, start, stop, rows), wanted[start:stop])


def texts(*words: str | None) -> Callable[[dict[str, Any]], None]:
    """Other words to be seen, for an episode of three steps."""

    def change(held: dict[str, Any]) -> None:
        state = fixed(np.zeros((4, 2, 2), np.float32))
        held["observations"] = pa.StructArray.from_arrays([state, pa.array(words, pa.string())], names=["x", "word"])

    return change


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no rewards": lambda held: held.pop("rewards"),
    "no infos": lambda held: held.pop("infos"),
    "a null": lambda held: held.update(rewards=pa.array([1.0, None, 2.0, 0.0])),
    "all null": lambda held: held.update(rewards=pa.array([None] * 4, pa.float64())),
    "a null text": texts("a", None, "b", "c"),
    "no texts": texts(None, None, None, None),
    "another type": lambda held: held.update(rewards=np.zeros(4, np.float32)),
    "no struct": lambda held: held.update(actions=pa.array([1, 2, 3, 4])),
    "odd infos": lambda held: held.update(
        infos=pa.StructArray.from_arrays([pa.array([[1], [2, 3], [], [4]])], names=["odd"])
    ),
    "infos of nothing": lambda held: held.update(infos=pa.StructArray.from_arrays([pa.nulls(4)], names=["none"])),
    "end flags of numbers": lambda held: held.update(truncations=np.zeros(4, np.int8)),
}


@pytest.mark.parametrize("change", sorted(CHANGES))
@pytest.mark.parametrize("at", [0, 13])
def test_one_that_differs(tmp_path: Path, change: str, at: int, joined: list[int]) -> None:
    held = episodes()
    held[at] = columns(3, at)
    CHANGES[change](held[at])
    source = MinariDirSource(write(tmp_path / "data", held))
    wanted = each_alone(source, COUNT)
    joined.clear()
    assert_same(together(source), wanted)
    assert max(joined) >= 5


def test_an_episode_without_rows(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", episodes())
    table = pa.table(columns(2, 9))[:0]
    with pa.OSFile(str(folder / "9/part-0.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    source = MinariDirSource(folder)
    wanted = each_alone(source, COUNT)
    assert isinstance(wanted[9], EpisodeError)
    assert_same(together(source), wanted)


@pytest.mark.parametrize("name", ["metadata.json", "part-0.arrow"])
def test_a_damaged_file_comes_in_its_place(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path / "data", episodes())
    (folder / "9" / name).write_text("{")
    source = MinariDirSource(folder)
    wanted = each_alone(source, COUNT)
    assert len(wanted) == 10 and isinstance(wanted[-1], str)
    assert_same(together(source), wanted)


def test_texts_are_padded(tmp_path: Path, joined: list[int]) -> None:
    """The last row of an action is anything, a null too."""
    held = [{**columns(2, number), "actions": pa.array(["go", f"n{number}", None])} for number in range(COUNT)]
    space = json.dumps({"type": "Text", "max_length": 5})
    source = MinariDirSource(write(tmp_path / "data", held, action_space=space))
    wanted = each_alone(source, COUNT)
    joined.clear()
    found = together(source)
    assert_same(found, wanted)
    assert joined == [1, COUNT]
    assert isinstance(found[7], Episode) and found[7].action.tolist() == [b"go", b"n7", b""]
