"""d3rlpy's files, laid out as its code lays them out; its own writer is tested in tests/torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from rlds2buf import Episode, EpisodeError, SourceError, SourceFormatError, SourceNotFound, open_source, transitions
from rlds2buf.formats.d3rlpy.source_v1 import D3rlpyV1Source
from rlds2buf.formats.d3rlpy.source_v2 import D3rlpyH5Source
from tests.contracts.source import MakeSource, SourceContract
from tests.formats.d3rlpy.files import episode, table, write_v1, write_v2


@pytest.fixture
def second(tmp_path: Path) -> Path:
    return write_v2(tmp_path / "replay.h5", [episode(3 + i, i % 2 == 0, i) for i in range(12)])


@pytest.fixture
def first(tmp_path: Path) -> Path:
    return write_v1(tmp_path / "dataset.h5", **table(20, [4, 9], [4, 9, 13, 19]))


class TestContractOfTheSecond(SourceContract):
    @pytest.fixture
    def make_source(self, second: Path) -> MakeSource:
        return lambda: open_source(second)

    @pytest.fixture
    def change(self, second: Path) -> Callable[[], Any]:
        def edit() -> None:
            with h5py.File(second, "a") as file:
                file["rewards_3"][0] = 7

        return edit


class TestContractOfTheFirst(SourceContract):
    @pytest.fixture
    def make_source(self, first: Path) -> MakeSource:
        return lambda: open_source(first)

    @pytest.fixture
    def change(self, first: Path) -> Callable[[], Any]:
        def edit() -> None:
            with h5py.File(first, "a") as file:
                file["rewards"][3] = 7

        return edit


class TestSecondVersion:
    def test_episodes_in_order_with_every_value(self, second: Path) -> None:
        source = D3rlpyH5Source(second)
        for i, found in enumerate(source):
            theirs = episode(3 + i, i % 2 == 0, i)
            n = 3 + i
            assert found.num_steps == n + theirs["terminated"]
            assert found.end == ("terminated" if theirs["terminated"] else "truncated")
            for mine, other in [
                (found.observation, theirs["observations"]),
                (found.action, theirs["actions"]),
                (found.reward, theirs["rewards"][:, 0]),
            ]:
                assert mine.dtype == other.dtype
                np.testing.assert_array_equal(mine[:n], other)
                assert not mine[n:].any()
            assert found.metadata == ({"placeholder_final_row": True} if theirs["terminated"] else {})
            assert transitions(found).terminated.tolist() == [False] * (n - 1) + [True] * theirs["terminated"]

    def test_tuples_and_discrete_actions(self, tmp_path: Path) -> None:
        made = [episode(4, i == 0, i, discrete=True, parts=True) for i in range(2)]
        source = D3rlpyH5Source(write_v2(tmp_path / "a.h5", made))
        assert [str(spec) for spec in source.spec.observation] == ["uint8[1, 6, 6]", "float32[3]"]
        assert str(source.spec.action) == "int64[1]"
        for found, theirs in zip(source, made, strict=True):
            for mine, other in zip(found.observation, theirs["observations"], strict=True):
                np.testing.assert_array_equal(mine[:4], other)

    def test_further_columns(self, tmp_path: Path) -> None:
        made = [{**episode(4, False, i), "costs": np.arange(4.0), "seed": np.int64(i)} for i in range(2)]
        for i, found in enumerate(D3rlpyH5Source(write_v2(tmp_path / "a.h5", made))):
            assert found.extras["costs"].tolist() == [0, 1, 2, 3]
            assert found.metadata == {"seed": np.array(i)}

    def test_details(self, second: Path) -> None:
        details = open_source(second).details()
        assert (details["version"], details["terminated"], details["truncated"]) == ("2.1", 6, 6)
        assert "the 6 terminal ones are zeros" in details["warnings"][0]
        assert "of the 6 episodes that were cut start no transition" in details["warnings"][1]

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"rewards": np.zeros((3, 1))}, "episode 1, reward: 3 rows, but 4 actions"),
            ({"observations": [np.zeros((4, 3)), np.zeros((5, 3))]}, "observation/1: 5 rows, but 4 actions"),
            ({"rewards": np.zeros((4, 2))}, r"rewards should be one number a step, got float64\[4, 2\]"),
            ({"terminated": 3}, "terminated should be one flag, got 3"),
            ({"actions": np.zeros((0, 2))}, "the episode has no steps"),
        ],
    )
    def test_one_bad_episode(self, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
        made = [episode(4, False, 0), {**episode(4, False, 1), **changes}, episode(4, False, 2)]
        before, bad, after = D3rlpyH5Source(write_v2(tmp_path / "a.h5", made)).read()
        assert isinstance(before, Episode) and isinstance(after, Episode)
        with pytest.raises(EpisodeError, match=message):
            raise bad if isinstance(bad, EpisodeError) else AssertionError(bad)

    def test_what_is_missing(self, second: Path, tmp_path: Path) -> None:
        with h5py.File(second, "a") as file:
            del file["actions_5"]
        with pytest.raises(SourceFormatError, match="`actions_5` is missing"):
            list(D3rlpyH5Source(second))
        with h5py.File(second, "a") as file:
            del file["num_episodes"]
            file["num_episodes"] = 10**12
        with pytest.raises(SourceFormatError, match="says 1000000000000, but there are only"):
            D3rlpyH5Source(second)
        with h5py.File(tmp_path / "b.h5", "w") as file:
            file["columns"] = ["observations"]
            file["num_episodes"] = 0
        with pytest.raises(SourceFormatError, match="`columns` lacks `actions`, `rewards`, `terminated`"):
            D3rlpyH5Source(tmp_path / "b.h5")
        with pytest.raises(SourceNotFound):
            D3rlpyH5Source(tmp_path / "none.h5")

    @pytest.mark.parametrize("seed", range(12))
    def test_damaged_files(self, second: Path, seed: int) -> None:
        rng = np.random.default_rng(seed)
        content = bytearray(second.read_bytes())
        if seed % 3 == 0:
            content = content[: int(rng.integers(len(content)))]
        else:
            for place in rng.integers(0, len(content), 30):
                content[place] ^= 1 << int(rng.integers(8))
        second.write_bytes(content)
        try:
            source = D3rlpyH5Source(second)
            found = list(source.read())
            source.details()
        except SourceError:
            return
        assert len(found) == source.num_episodes


class TestFirstVersion:
    def test_each_kind_of_end(self, tmp_path: Path) -> None:
        columns = table(16, [3, 9], [3, 6, 12])
        source = open_source(write_v1(tmp_path / "a.h5", **columns))
        assert source.format == "d3rlpy-v1"
        found = list(source)
        assert [(e.num_steps, e.end) for e in found] == [
            (5, "terminated"), (3, "truncated"), (4, "terminated"), (3, "truncated"), (3, "truncated")
        ]  # fmt: skip
        assert [sorted(e.metadata) for e in found] == [
            ["placeholder_final_row"], [], ["placeholder_final_row"], [], ["open_tail"]
        ]  # fmt: skip
        np.testing.assert_array_equal(found[1].observation, columns["observations"][4:7])

    def test_before_episode_terminals(self, tmp_path: Path) -> None:
        path = write_v1(tmp_path / "a.h5", **table(8, [2, 7], None))
        assert [e.num_steps for e in open_source(path)] == [4, 6]
        assert "no `episode_terminals`" in open_source(path).details()["warnings"][0]
        assert [e.num_steps for e in D3rlpyV1Source(path, max_episode_steps=4)] == [4, 4, 2]

    def test_details(self, first: Path) -> None:
        details = open_source(first).details()
        assert details["discrete_action"] is False and details["version"] == "1.0"
        assert details["episode_terminals"] is True and details["ignored"] == []
        assert (details["terminated"], details["truncated"]) == (2, 2)

    def test_a_d4rl_file_is_none(self, tmp_path: Path) -> None:
        columns = table(8, [2, 7], None)
        with h5py.File(tmp_path / "a.hdf5", "w") as file:
            for name, value in columns.items():
                if value is not None:
                    file[name] = value
        assert open_source(tmp_path / "a.hdf5").format == "d4rl"
