"""Rollouts of experts as imitation and Stable-Baselines 2 saved them: real files, made ones, broken ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2buf import SourceError, SourceFormatError, SourceNotFound, open_source, transitions, validate
from rlds2buf.formats.imitation.sb2_source import Sb2Source
from rlds2buf.formats.imitation.source import ImitationSource
from tests.contracts.source import MakeSource, SourceContract
from tests.data import DATA

LENGTHS = (3, 1, 6, 2)


def imitation(path: Path, lengths: tuple[int, ...] = LENGTHS, seed: int = 0, **changes: Any) -> Path:
    """As imitation's types.save wrote them."""
    rng = np.random.default_rng(seed)
    count = sum(lengths)
    infos = np.empty(count, object)
    infos[:] = [{} for _ in range(count)]
    made = {
        "obs": rng.normal(size=(count + len(lengths), 3)).astype(np.float32),
        "acts": rng.integers(0, 4, count),
        "infos": infos,
        "terminal": rng.integers(0, 2, len(lengths)).astype(bool),
        "indices": np.cumsum(lengths[:-1], dtype=np.int64),
        "rews": rng.normal(size=count),
    }
    np.savez(path, **{name: column for name, column in {**made, **changes}.items() if column is not None})
    return path


def sb2(path: Path, lengths: tuple[int, ...] = LENGTHS, seed: int = 0, **changes: Any) -> Path:
    """As stable_baselines/gail/dataset/record_expert.py wrote them."""
    rng = np.random.default_rng(seed)
    count = sum(lengths)
    starts = np.zeros(count, bool)
    starts[np.cumsum((0, *lengths[:-1]))] = True
    made = {
        "actions": rng.normal(size=(count, 2)).astype(np.float32),
        "obs": rng.normal(size=(count, 3)).astype(np.float32),
        "rewards": rng.normal(size=count),
        "episode_returns": rng.normal(size=len(lengths)),
        "episode_starts": starts,
    }
    np.savez(path, **{name: column for name, column in {**made, **changes}.items() if column is not None})
    return path


def trajectories(path: Path) -> list[dict[str, np.ndarray]]:
    """imitation's own way to cut a file (types.py, load), by numpy.split."""
    with np.load(path) as file:
        data = {name: file[name] for name in ("obs", "acts", "rews", "terminal", "indices")}
    shifted = data["indices"] + np.arange(len(data["indices"])) + 1
    parts = zip(
        np.split(data["obs"], shifted),
        np.split(data["acts"], data["indices"]),
        np.split(data["rews"], data["indices"]),
        data["terminal"],
        strict=True,
    )
    return [dict(zip(("obs", "acts", "rews", "terminal"), part, strict=True)) for part in parts]


def assert_trajectories(path: Path) -> None:
    for episode, expected in zip(open_source(path), trajectories(path), strict=True):
        np.testing.assert_array_equal(episode.observation, expected["obs"])
        for mine, theirs in ((episode.action, expected["acts"]), (episode.reward, expected["rews"])):
            assert mine.dtype == theirs.dtype and not mine[-1].any()
            np.testing.assert_array_equal(mine[:-1], theirs)
        assert episode.end == ("terminated" if expected["terminal"] else "truncated") and not episode.derived
        assert transitions(episode).terminated.tolist() == [False] * (len(episode) - 2) + [bool(expected["terminal"])]


class TestImitation(SourceContract):
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return imitation(tmp_path / "final.npz")

    @pytest.fixture
    def make_source(self, path: Path) -> MakeSource:
        return lambda: open_source(path)

    @pytest.fixture
    def change(self, path: Path) -> Callable[[], Any]:
        return lambda: imitation(path, seed=1)

    def test_as_imitation_cuts_it(self, path: Path) -> None:
        assert_trajectories(path)

    def test_a_real_file(self) -> None:
        path = DATA / "npz/imitation_pendulum.npz"
        source = open_source(path)
        assert (source.format, source.num_episodes, source.num_steps) == ("imitation", 56, 56 * 201)
        assert_trajectories(path)
        assert source.warnings() == ["`infos` holds Python objects, which are pickled and never loaded: left out"]
        assert validate(source).ok

    def test_one_trajectory_without_rewards(self, tmp_path: Path) -> None:
        source = open_source(imitation(tmp_path / "a.npz", (4,), rews=None, indices=np.zeros(0)))
        (episode,) = source
        assert episode.reward is None and source.spec.reward is None and len(episode) == 5

    def test_no_trajectories(self, tmp_path: Path) -> None:
        assert list(open_source(imitation(tmp_path / "a.npz", ()))) == []

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"terminal": None}, "no `terminal`, which tells how each trajectory ends; it holds acts"),
            ({"indices": None}, "no `indices`, which tells where"),
            ({"indices": np.array([3, 4])}, "`indices` has 2 cuts for 4 values of `terminal`"),
            ({"indices": np.array([3, 3, 10])}, "episode 1 begins at row 3 of `acts` and ends at row 3"),
            ({"indices": np.array([3, 4, 99])}, "episode 2 begins at row 4 of `acts` and ends at row 99|episode 3"),
            ({"indices": np.array([3.0, 4, 10])}, "`indices` should hold row numbers, got float64"),
            ({"obs": np.zeros((12, 3))}, "`obs` has 12 rows; it should have 16"),
            ({"rews": np.zeros(3)}, "`rews` has 3 rows, it should have 12"),
            ({"rews": np.zeros((12, 2))}, "`rews` should hold one number a row"),
            ({"acts": np.array([None] * 12)}, "`acts` holds Python objects"),
        ],
    )
    def test_wrong_files(self, tmp_path: Path, given: dict[str, Any], message: str) -> None:
        path = imitation(tmp_path / "a.npz", **given)
        with pytest.raises(SourceFormatError, match=message) as caught:
            open_source(path, format="imitation")
        assert str(path) in str(caught.value)

    @pytest.mark.parametrize("seed", range(6))
    def test_damaged(self, path: Path, seed: int) -> None:
        rng = np.random.default_rng(seed)
        content = bytearray(path.read_bytes())
        for place in rng.integers(0, len(content), 5):
            content[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(content)
        try:
            source = ImitationSource(path)
            assert len(list(source.read())) == source.num_episodes
        except SourceError as error:
            assert str(path) in str(error)


class TestSb2(SourceContract):
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return sb2(tmp_path / "expert.npz")

    @pytest.fixture
    def make_source(self, path: Path) -> MakeSource:
        return lambda: open_source(path)

    @pytest.fixture
    def change(self, path: Path) -> Callable[[], Any]:
        return lambda: sb2(path, seed=1)

    def assert_read(self, path: Path, starts: list[int], count: int) -> None:
        with np.load(path) as file:
            held = dict(file)
        for number, episode in enumerate(open_source(path)):
            rows = slice(starts[number], (*starts, count)[number + 1])
            pairs = {"obs": episode.observation, "actions": episode.action, "rewards": episode.reward}
            for name, column in pairs.items():
                assert column.dtype == held[name].dtype
                np.testing.assert_array_equal(column, held[name][rows])
            assert episode.metadata == {"return": held["episode_returns"][number]}
            assert episode.end == "truncated" and episode.derived == {"is_terminal"}
        assert number + 1 == len(starts)

    def test_every_value(self, path: Path) -> None:
        self.assert_read(path, [0, 3, 4, 10], 12)

    def test_a_real_file(self) -> None:
        path = DATA / "npz/sb2_expert_pendulum.npz"
        source = open_source(path)
        assert (source.format, source.num_episodes, source.num_steps) == ("sb2", 100, 20_000)
        self.assert_read(path, list(range(0, 20_000, 200)), 20_000)
        returns = [episode.reward.sum() for episode in source]
        np.testing.assert_allclose(returns, [episode.metadata["return"] for episode in source], rtol=1e-6)
        assert "no end flags" in source.warnings()[0] and len(source.warnings()) == 1

    def test_returns_of_another_number_of_episodes(self, tmp_path: Path) -> None:
        source = open_source(sb2(tmp_path / "a.npz", episode_returns=np.zeros(3)))
        assert source.warnings()[1] == "`episode_returns` has 3 values for 4 episodes: left out"
        assert not next(iter(source)).metadata

    def test_the_first_row_begins_an_episode_whether_flagged_or_not(self, tmp_path: Path) -> None:
        starts = np.isin(np.arange(12), [4, 10])
        assert [len(ep) for ep in open_source(sb2(tmp_path / "a.npz", episode_starts=starts))] == [4, 6, 2]

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"episode_starts": None}, "no `episode_starts`, which tells where episodes begin"),
            ({"episode_starts": np.full(12, 3)}, "`episode_starts`, row 0: a flag should be 0 or 1, got 3"),
            ({"actions": np.zeros(5)}, "`actions` has 5 rows, it should have 12"),
            ({"rewards": np.zeros((12, 2))}, "`rewards` should hold one number a row"),
        ],
    )
    def test_wrong_files(self, tmp_path: Path, given: dict[str, Any], message: str) -> None:
        path = sb2(tmp_path / "a.npz", **given)
        with pytest.raises(SourceFormatError, match=message) as caught:
            open_source(path, format="sb2")
        assert str(path) in str(caught.value)

    def test_no_such_file(self, tmp_path: Path) -> None:
        with pytest.raises(SourceNotFound):
            Sb2Source(tmp_path / "none.npz")
