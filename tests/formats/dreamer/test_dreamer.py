"""Dreamer's and V-D4RL's episodes: as their own code saves them, broken ones, and written."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from rlds2buf import (
    Episode,
    EpisodeError,
    SinkError,
    SnapshotExists,
    SourceError,
    SourceFormatError,
    SourceNotFound,
    open_source,
    spec_of,
    transitions,
    validate,
)
from rlds2buf.formats.dreamer.shards import VD4rlSource
from rlds2buf.formats.dreamer.sink import DreamerSink
from rlds2buf.formats.dreamer.source import DreamerSource
from rlds2buf.io.sink import Sink
from tests.contracts.sink import PROVENANCE, SinkContract
from tests.contracts.source import MakeSource, SourceContract
from tests.differences import assert_only_lost

ENDS = ("terminated", "truncated", "terminated")
STEPS = (4, 6, 1)


def collected(steps: int, seed: int = 0, end: str = "truncated") -> list[dict[str, Any]]:
    """An episode as an actor sees it: the reset's time step, and that of each step, with the action that led there."""
    rng = np.random.default_rng(seed)
    found = []
    for t in range(steps + 1):
        found.append(
            {
                "image": rng.integers(0, 256, (8, 8, 3)).astype(np.uint8),
                "vector": rng.normal(size=3).astype(np.float32),
                "action": rng.normal(size=2).astype(np.float32) * (t > 0),
                "reward": np.float32(rng.normal() * (t > 0)),
                "discount": np.float32(not (end == "terminated" and t == steps)),
                "is_first": t == 0,
                "is_last": t == steps,
                "is_terminal": end == "terminated" and t == steps,
            }
        )
    return found


def save(
    folder: Path, episode: list[dict[str, Any]], number: int, without: tuple[str, ...] = (), **changes: Any
) -> Path:
    """As DreamerV2's save_episode."""
    folder.mkdir(exist_ok=True)
    columns = {name: np.array([step[name] for step in episode]) for name in episode[0]}
    path = folder / f"20211107T1622{number:02d}-a3f{number}-{len(episode)}.npz"
    np.savez_compressed(path, **{name: col for name, col in {**columns, **changes}.items() if name not in without})
    return path


def saved(folder: Path, seed: int = 0, without: tuple[str, ...] = ()) -> Path:
    for number, (steps, end) in enumerate(zip(STEPS, ENDS, strict=True)):
        save(folder, collected(steps, seed + number, end), number, without)
    return folder


def assert_pairs(episode: Episode, steps: list[dict[str, Any]], end: str) -> None:
    """Each transition is that of two neighbouring time steps."""
    found = transitions(episode)
    for t, (before, after) in enumerate(itertools.pairwise(steps)):
        np.testing.assert_array_equal(found.observation["image"][t], before["image"])
        np.testing.assert_array_equal(found.next_observation["image"][t], after["image"])
        np.testing.assert_array_equal(found.action[t], after["action"])
        assert found.reward[t] == after["reward"] and found.discount[t] == after["discount"]
    assert found.terminated.tolist() == [False] * (len(steps) - 2) + [end == "terminated"]
    assert episode.end == end and not episode.action[-1].any() and episode.reward[-1] == 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return saved(tmp_path / "cheetah_run")


class TestSource(SourceContract):
    @pytest.fixture
    def make_source(self, folder: Path) -> MakeSource:
        return lambda: open_source(folder)

    @pytest.fixture
    def change(self, folder: Path) -> Callable[[], Any]:
        return lambda: saved(folder, seed=9)

    def test_transitions_are_those_that_were_collected(self, folder: Path) -> None:
        source = open_source(folder)
        assert (source.format, source.num_episodes) == ("dreamer", 3)
        for number, episode in enumerate(source):
            assert_pairs(episode, collected(STEPS[number], number, ENDS[number]), ENDS[number])
            assert set(episode.observation) == {"image", "vector"} and not episode.derived and not episode.metadata
        assert validate(source).ok

    def test_one_file(self, folder: Path) -> None:
        source = open_source(sorted(folder.iterdir())[1])
        assert source.format == "dreamer" and [len(episode) for episode in source] == [7]

    def test_older_files_tell_ends_by_the_discount(self, tmp_path: Path) -> None:
        source = open_source(saved(tmp_path / "a", without=("is_first", "is_last", "is_terminal")))
        assert [episode.end for episode in source] == list(ENDS)

    def test_without_discounts(self, tmp_path: Path) -> None:
        first, second, _ = open_source(saved(tmp_path / "a", without=("discount",)))
        assert first.discount.tolist() == [1, 1, 1, 0, 0] and second.discount.tolist() == [1] * 7
        neither = open_source(saved(tmp_path / "b", without=("discount", "is_terminal")))
        assert "neither `is_terminal` nor `discount`" in neither.warnings()[0]
        assert all(episode.derived == {"is_terminal"} for episode in neither)

    def test_an_open_end_and_what_is_logged_beside(self, tmp_path: Path) -> None:
        infos = np.array([{}] * 4, object)
        save(tmp_path / "a", collected(3), 0, is_last=np.zeros(4, bool), log_success=np.arange(4), infos=infos)
        source = open_source(tmp_path / "a")
        (episode,) = source
        assert episode.metadata == {"open_tail": True} and episode.extras["log_success"].tolist() == [0, 1, 2, 3]
        assert source.warnings() == ["`infos` holds Python objects, which are pickled and never loaded: left out"]


class TestWhereTheActionIs:
    """Checked on the data: DreamerV3 logs the action that is taken at a row."""

    def test_an_action_at_row_0(self, tmp_path: Path) -> None:
        steps = collected(4)
        taken = np.array([step["action"] for step in steps[1:]] + [np.zeros(2, np.float32)])
        save(tmp_path / "a", steps, 0, action=taken)
        (bad,) = open_source(tmp_path / "a").read()
        assert isinstance(bad, EpisodeError) and (bad.episode, bad.step, bad.path) == (0, 0, "action")
        assert "rows='taken'" in str(bad) and "20211107T162200" in str(bad)
        (episode,) = open_source(tmp_path / "a", rows="taken")
        assert_pairs(episode, steps, "truncated")

    def test_a_wrong_choice(self, folder: Path) -> None:
        with pytest.raises(ValueError, match="rows must be one of led, taken"):
            open_source(folder, rows="both")


class TestWrong:
    @pytest.mark.parametrize(
        ("changes", "without", "message"),
        [
            ({"reward": np.zeros(3)}, (), "reward: 3 rows, but `action` has 5"),
            ({"reward": np.zeros((5, 2))}, (), r"reward: should be one number a row, got float64\[5, 2\]"),
            ({}, ("reward",), "no `reward`; it holds action"),
            ({"is_first": np.arange(5) % 3 == 0}, (), "step 3, is_first: another episode begins here"),
            ({"action": np.array([None] * 5)}, (), "no `action`"),
        ],
    )
    def test_one_bad_episode_leaves_the_others(
        self, tmp_path: Path, changes: dict[str, Any], without: tuple[str, ...], message: str
    ) -> None:
        for number in range(3):
            own = number == 1
            save(tmp_path / "a", collected(4, number), number, without if own else (), **(changes if own else {}))
        first, bad, last = open_source(tmp_path / "a").read()
        assert isinstance(first, Episode) and isinstance(last, Episode) and isinstance(bad, EpisodeError)
        assert bad.episode == 1
        with pytest.raises(EpisodeError, match=message):
            raise bad

    def test_a_file_that_is_cut_short(self, folder: Path) -> None:
        path = sorted(folder.iterdir())[0]
        path.write_bytes(path.read_bytes()[:-40])
        bad, second, _ = DreamerSource(folder).read()
        assert isinstance(bad, EpisodeError) and str(path) in str(bad) and isinstance(second, Episode)
        with pytest.raises(SourceFormatError, match=r"no readable \.npz file"):
            DreamerSource(path)

    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(SourceNotFound):
            DreamerSource(tmp_path / "none")
        with pytest.raises(SourceFormatError, match="no TIMESTAMP-ID-LENGTH"):
            DreamerSource(tmp_path)

    def test_logs_are_not_dreamer_s(self, tmp_path: Path) -> None:
        np.savez(
            tmp_path / "log.npz", action=np.zeros(3), reward=np.zeros(3), observation=np.zeros(3), is_first=[1, 0, 0]
        )
        assert open_source(tmp_path / "log.npz").format == "npz"


def shard(path: Path, episodes: list[list[dict[str, Any]]], **changes: Any) -> Path:
    """As V-D4RL's conversion scripts write the 84-pixel sets."""
    steps = [step for episode in episodes for step in episode]
    kinds = [[0, *([1] * (len(episode) - 2)), 2] if len(episode) > 1 else [0] for episode in episodes]
    columns = {
        "observation": np.array([step["image"].transpose(2, 0, 1) for step in steps]),
        "action": np.array([step["action"] for step in steps]),
        "reward": np.array([step["reward"] for step in steps])[:, None],
        "discount": np.array([step["discount"] for step in steps])[:, None],
        "step_type": np.concatenate(kinds).astype(np.int64),
    }
    with h5py.File(path, "w") as file:
        for name, column in {**columns, **changes}.items():
            if column is not None:
                file.create_dataset(name, data=column)
    return path


def episodes_of(seed: int) -> list[list[dict[str, Any]]]:
    return [collected(steps, seed + i, end) for i, (steps, end) in enumerate(zip(STEPS, ENDS, strict=True))]


class TestShards(SourceContract):
    @pytest.fixture
    def shards(self, tmp_path: Path) -> Path:
        (tmp_path / "84px").mkdir()
        for number in range(2):
            shard(tmp_path / f"84px/shard_{number}.hdf5", episodes_of(10 * number))
        return tmp_path / "84px"

    @pytest.fixture
    def make_source(self, shards: Path) -> MakeSource:
        return lambda: open_source(shards)

    @pytest.fixture
    def change(self, shards: Path) -> Callable[[], Any]:
        return lambda: shard(shards / "shard_1.hdf5", episodes_of(99))

    def test_transitions_are_those_that_were_collected(self, shards: Path) -> None:
        source = open_source(shards)
        assert (source.format, source.num_episodes, source.num_steps) == ("v-d4rl", 6, 28)
        for episode, steps in zip(source, [*episodes_of(0), *episodes_of(10)], strict=True):
            hwc = episode.replace(observation={"image": episode.observation.transpose(0, 2, 3, 1)})
            assert_pairs(hwc, steps, ENDS[(episode.index or 0) % 3])
        (one, *_) = open_source(shards / "shard_0.hdf5")
        assert len(one) == 5 and validate(source).ok

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"step_type": None}, "needs `step_type`; it holds action"),
            ({"reward": np.zeros(3)}, "`reward` has 3 rows, but `step_type` has 14"),
            ({"step_type": np.full(14, 7)}, "`step_type`, row 0: 0, 1 or 2, got 7"),
            ({"step_type": np.ones(14)}, "`step_type`, row 0: no episode begins there"),
        ],
    )
    def test_wrong_files(self, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
        path = shard(tmp_path / "a.hdf5", episodes_of(0), **changes)
        with pytest.raises(SourceFormatError, match=message) as caught:
            VD4rlSource(path)
        assert str(path) in str(caught.value)

    def test_shards_that_differ(self, shards: Path) -> None:
        shard(shards / "shard_1.hdf5", episodes_of(0), action=np.zeros((14, 9)))
        with pytest.raises(SourceFormatError, match=r"shard_1\.hdf5: its columns differ .* from those of shard_0"):
            open_source(shards)

    def test_steps_out_of_order(self, shards: Path) -> None:
        actions = np.ones((14, 2), np.float32)
        shard(shards / "shard_0.hdf5", episodes_of(0), action=actions)
        items = list(open_source(shards).read())
        assert [isinstance(item, EpisodeError) for item in items] == [True] * 3 + [False] * 3
        with pytest.raises(EpisodeError, match="row 0 has an action other than zeros"):
            raise items[0]  # type: ignore[misc]

    @pytest.mark.parametrize("seed", range(6))
    def test_damaged(self, shards: Path, seed: int) -> None:
        path = shards / "shard_0.hdf5"
        rng = np.random.default_rng(seed)
        content = bytearray(path.read_bytes())
        for place in rng.integers(0, len(content), 20):
            content[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(content)
        try:
            source = VD4rlSource(path)
            assert len(list(source.read())) == source.num_episodes
        except SourceError as error:
            assert str(path) in str(error)


class Counting(DreamerSink):
    """Of the contract's nested observation what such a file holds."""

    def open(self, spec: Any, provenance: Mapping[str, Any]) -> None:
        fields = {name: getattr(spec, name) for name in ("action", "reward", "discount", "extras")}
        super().open(type(spec)(**fields, observation={"count": spec.observation["count"]}), provenance)

    def write(self, episode: Episode) -> int:
        return super().write(episode.replace(observation={"count": episode.observation["count"]}))


class TestSink(SinkContract):
    def make(self, folder: Path) -> Sink:
        return Counting(folder / "out")

    def held(self, sink: Any, folder: Path) -> list[int] | None:
        if not (folder / "out").exists():
            return None
        if not list((folder / "out").iterdir()):
            return []
        return [int(n) for ep in open_source(folder / "out") for n in np.asarray(ep.observation["count"])[:-1]]


def written(path: Path, episodes: list[Episode], **options: Any) -> Mapping[str, str]:
    sink = DreamerSink(path, **options)
    sink.open(spec_of(episodes[0]), PROVENANCE)
    for episode in episodes:
        sink.write(episode)
    sink.commit()
    return sink.lost()


def make(rows: int, start: int = 0, **changes: Any) -> Episode:
    number = np.arange(start, start + rows)
    last = np.arange(rows) == rows - 1
    padded = np.where(last, 0, number + 1)
    discount = np.ones(rows, np.float32)
    discount[-2:] = 0
    episode = Episode(
        observation={"vector": np.stack([number, -number], 1) * 0.5},
        action=padded.astype(np.float32)[:, None],
        reward=padded * 0.25,
        discount=discount,
        is_first=np.arange(rows) == 0,
        is_last=last,
        is_terminal=last,
        extras={"log_cost": number},
    )
    return episode.replace(**changes)


class TestWriting:
    def test_is_what_dreamer_saves(self, folder: Path, tmp_path: Path) -> None:
        before = list(open_source(folder))
        assert written(tmp_path / "out", before) == {}
        for one, other in zip(sorted(folder.iterdir()), sorted((tmp_path / "out").iterdir()), strict=True):
            assert int(other.name[:-4].split("-")[-1]) == len(np.load(one)["action"])  # as Dreamer reads lengths
            with np.load(one) as mine, np.load(other) as theirs:
                assert set(mine) == set(theirs)
                for name in mine:
                    assert mine[name].dtype == theirs[name].dtype, name
                    np.testing.assert_array_equal(mine[name], theirs[name])
        assert_only_lost(before, open_source(tmp_path / "out"), {})

    def test_what_has_no_place_is_listed(self, tmp_path: Path) -> None:
        rows = np.arange(4)
        extras = {"cost": rows, "note": np.array([b"a"] * 4, object), "deep": {"x": rows}}
        episode = make(4, action=rows[:, None] + 1.0, observation=rows * 1.0, extras=extras, metadata={"seed": 1})
        lost = dict(written(tmp_path / "out", [episode]))
        assert lost["extras/cost"] == "it is read back as extras/log_cost"
        assert lost["observation"] == "it is read back as observation/observation"
        assert lost.keys() == {
            *("extras/cost", "extras/note", "extras/deep/x", "observation", "action", "metadata/seed")
        }
        assert_only_lost([episode], open_source(tmp_path / "out"), lost)

    def test_without_rewards_and_discounts(self, tmp_path: Path) -> None:
        lost = written(tmp_path / "out", [make(4, reward=None, discount=None)])
        (back,) = open_source(tmp_path / "out")
        assert list(lost) == ["reward"] and not back.reward.any() and back.discount.tolist() == [1, 1, 0, 0]

    @pytest.mark.parametrize(
        ("changes", "says"), [({"action": None}, "no action"), ({"reward": np.zeros((4, 2))}, "one number a step")]
    )
    def test_refused_before_anything_is_made(self, tmp_path: Path, changes: dict[str, Any], says: str) -> None:
        with pytest.raises(SinkError, match=says):
            DreamerSink(tmp_path / "out").open(spec_of(make(4, **changes)), PROVENANCE)
        assert not list(tmp_path.iterdir())

    def test_overwrites_such_folders_only(self, tmp_path: Path) -> None:
        path = tmp_path / "out"
        path.mkdir()
        (path / "holiday.jpg").write_text("sun")
        for overwrite in (False, True):
            with pytest.raises(SnapshotExists):
                written(path, [make(4)], overwrite=overwrite)
        (path / "holiday.jpg").unlink()
        written(path, [make(4), make(4)])
        written(path, [make(3)], overwrite=True)
        assert [len(episode) for episode in open_source(path)] == [3]
