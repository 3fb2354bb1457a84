"""robomimic's files: written as its scripts do, and against the real RLDS conversion of one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from rlds2buf import (
    Episode,
    EpisodeError,
    SourceError,
    SourceFormatError,
    SourceNotFound,
    open_source,
    transitions,
    validate,
)
from rlds2buf.formats.rlds.source import RldsDirSource
from rlds2buf.formats.robomimic.source import RobomimicHdf5Source
from tests.contracts.source import MakeSource, SourceContract
from tests.data import DATA
from tests.formats.robomimic.files import ENV_ARGS, demo, write
from tests.made import BOTH, MADE

SAMPLES = {"demo_10": 4, "demo_2": 6, "demo_1": 5}
MASK = {"train": ["demo_10", "demo_1"], "valid": ["demo_2"], "20_percent": ["demo_2"]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    demos = {name: demo(samples, seed, 3) for seed, (name, samples) in enumerate(SAMPLES.items())}
    return write(tmp_path / "low_dim.hdf5", demos, MASK, compress=True)


def raw(path: Path, name: str) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    with h5py.File(path) as file:
        file[f"data/{name}"].visititems(
            lambda key, item: found.update({key: item[()]} if isinstance(item, h5py.Dataset) else {})
        )
    return found


class TestContract(SourceContract):
    @pytest.fixture
    def make_source(self, path: Path) -> MakeSource:
        return lambda: open_source(path)

    @pytest.fixture
    def change(self, path: Path) -> Callable[[], Any]:
        def edit() -> None:
            with h5py.File(path, "a") as file:
                file["data/demo_1/rewards"][0] = 7

        return edit


class TestReading:
    def test_every_value_by_hand(self, path: Path) -> None:
        episodes = list(open_source(path))
        assert [episode.metadata["demo"] for episode in episodes] == ["demo_1", "demo_2", "demo_10"]
        for episode in episodes:
            columns = raw(path, episode.metadata["demo"])
            count = len(columns["actions"])
            assert episode.num_steps == count + 1
            for key in ("object", "agentview_image"):
                column = episode.observation[key]
                assert column.dtype == columns[f"obs/{key}"].dtype
                np.testing.assert_array_equal(column[:-1], columns[f"obs/{key}"])
                np.testing.assert_array_equal(column[1:], columns[f"next_obs/{key}"])
            for mine, theirs in [
                (episode.action, columns["actions"]),
                (episode.reward, columns["rewards"]),
                (episode.extras["states"], columns["states"]),
                (episode.extras["dones"], columns["dones"]),
            ]:
                assert mine.dtype == theirs.dtype
                np.testing.assert_array_equal(mine[:-1], theirs)
                assert not mine[-1].any()
            assert episode.is_terminal.nonzero()[0].tolist() == [count]
            assert episode.discount.tolist() == [1.0] * (count - 1) + [0.0, 0.0]

    def test_metadata(self, path: Path) -> None:
        first, second, _ = open_source(path)
        assert first.metadata == {
            "demo": "demo_1",
            "model_file": "<mujoco model='demo_1'/>",
            "num_samples": 5,
            "env_args": json.dumps(ENV_ARGS, indent=4),
            "mask": {"20_percent": False, "train": True, "valid": False},
        }
        assert second.metadata["mask"] == {"20_percent": True, "train": False, "valid": True}

    def test_counts_without_reading(self, path: Path) -> None:
        source = RobomimicHdf5Source(path)
        assert (source.num_episodes, source.num_steps) == (3, 5 + 6 + 4 + 3)

    def test_details(self, path: Path) -> None:
        details = open_source(path).details()
        assert details["env_args"]["env_name"] == "Lift" and details["env_args"] == ENV_ARGS
        assert details["splits"] == {"20_percent": 1, "train": 2, "valid": 1}
        assert details["total"] == 15 and details["next_obs"] is True
        assert details["warnings"] == [
            "`dones` mark solved tasks or ends of demonstrations, not always ends of the environment"
        ]

    def test_without_states(self, path: Path) -> None:
        source = RobomimicHdf5Source(path, states=False)
        assert "states" not in source.spec.extras and source.spec != RobomimicHdf5Source(path).spec
        assert all("model_file" not in episode.metadata for episode in source)
        assert source.fingerprint() != RobomimicHdf5Source(path).fingerprint()

    @pytest.mark.parametrize(
        ("split", "demos"),
        [
            ("train", ["demo_1", "demo_10"]),
            ("20_percent", ["demo_2"]),
            ("train+valid", ["demo_1", "demo_10", "demo_2"]),
            ("train[1:]", ["demo_10"]),
            ("all[:2]", ["demo_1", "demo_2"]),
            ("all", ["demo_1", "demo_2", "demo_10"]),
        ],
    )
    def test_filter_keys_are_splits(self, path: Path, split: str, demos: list[str]) -> None:
        source = open_source(path, split=split)
        assert [episode.metadata["demo"] for episode in source] == demos
        assert source.num_episodes == len(demos)

    def test_an_unknown_split(self, path: Path) -> None:
        with pytest.raises(SourceNotFound, match="no split 'test'; there are: all, 20_percent, train, valid"):
            open_source(path, split="test")


class TestDones:
    @pytest.mark.parametrize(("terminals", "rows"), [("last", [5]), ("dones", [4, 5]), ("none", [])])
    def test_what_is_terminal(self, path: Path, terminals: str, rows: list[int]) -> None:
        episode = next(iter(RobomimicHdf5Source(path, terminals=terminals)))
        assert episode.is_terminal.nonzero()[0].tolist() == rows
        assert ("dones" in episode.extras) == (terminals != "dones")
        assert episode.end == ("truncated" if terminals == "none" else "terminated")

    def test_only_the_last_choice_needs_repair(self, path: Path) -> None:
        for terminals, ok in (("last", True), ("none", True), ("dones", False)):
            report = validate(RobomimicHdf5Source(path, terminals=terminals))
            assert report.ok is ok
            assert {issue.rule for issue in report.issues if issue.severity == "error"} == (
                set() if ok else {"terminal-inside"}
            )

    def test_an_end_that_is_not_done(self, tmp_path: Path) -> None:
        columns = {**demo(4, 0), "dones": np.zeros(4, np.int64)}
        (episode,) = RobomimicHdf5Source(write(tmp_path / "a.hdf5", {"demo_0": columns}))
        assert episode.end == "truncated" and (episode.discount == 1).all()

    def test_no_dones_and_no_rewards(self, tmp_path: Path) -> None:
        columns = {**demo(4, 0), "dones": None, "rewards": None}
        source = RobomimicHdf5Source(write(tmp_path / "a.hdf5", {"demo_0": columns}))
        (episode,) = source
        assert episode.reward is None and source.spec.reward is None
        assert "is_terminal" in episode.derived and episode.end == "truncated"
        assert "no `dones`" in source.details()["warnings"][0]

    def test_a_wrong_choice(self, path: Path) -> None:
        with pytest.raises(ValueError, match="terminals must be one of last, dones, none"):
            RobomimicHdf5Source(path, terminals="all")


@BOTH
class TestAsTfdsMadeIt:
    """Demonstrations of lift, brought back into robomimic's layout from TFDS's conversion."""

    @pytest.fixture
    def theirs(self, sets: Any) -> list[Episode]:
        return list(RldsDirSource(sets / "rlds/robomimic_ph"))

    @pytest.fixture
    def ours(self, theirs: list[Episode], tmp_path: Path) -> RobomimicHdf5Source:
        demos = {}
        for episode in theirs:
            columns = {
                "actions": episode.action[:-1],
                "rewards": episode.reward[:-1],
                "dones": episode.is_terminal[1:].astype(np.int64),
                "states": episode.extras["states"][:-1],
            }
            for key, column in episode.observation.items():
                columns |= {f"obs/{key}": column[:-1], f"next_obs/{key}": column[1:]}
            demos[episode.metadata["episode_id"].decode()] = columns
        keys = [key for key, value in theirs[0].metadata.items() if isinstance(value, np.bool_)]
        names = [episode.metadata["episode_id"].decode() for episode in theirs]
        mask = {key: [n for n, e in zip(names, theirs, strict=True) if e.metadata[key]] for key in keys}
        path = write(tmp_path / "low_dim_v141.hdf5", demos, {key: held for key, held in mask.items() if held})
        return RobomimicHdf5Source(path, terminals="dones")

    def test_every_column(self, ours: RobomimicHdf5Source, theirs: list[Episode]) -> None:
        """But for the discounts, which TFDS leaves at 1 on the step into a terminal row."""
        byname = {episode.metadata["episode_id"].decode(): episode for episode in theirs}
        assert ours.num_episodes == len(theirs) == 2
        for mine in ours:
            other = byname[mine.metadata["demo"]]
            columns, expected = dict(mine.flatten()), dict(other.flatten())
            assert columns.keys() == expected.keys()
            for path, column in expected.items():
                if path == ("discount",):
                    continue
                assert columns[path].dtype == column.dtype, path
                np.testing.assert_array_equal(columns[path], column)
            for key, told in mine.metadata["mask"].items():
                assert told == other.metadata[key]

    def test_our_choice_agrees_on_the_end(self, ours: RobomimicHdf5Source, theirs: list[Episode]) -> None:
        for mine in RobomimicHdf5Source(ours.path):
            assert mine.is_terminal.sum() == 1 and mine.end == "terminated"
            assert transitions(mine).terminated.tolist() == [False] * (mine.num_transitions - 1) + [True]


class TestWithoutNextObservations:
    @pytest.fixture
    def source(self, tmp_path: Path) -> RobomimicHdf5Source:
        columns = {key: value for key, value in demo(6, 0, 3).items() if not key.startswith("next_obs")}
        return RobomimicHdf5Source(write(tmp_path / "a.hdf5", {"demo_0": columns}))

    def test_one_transition_is_lost(self, source: RobomimicHdf5Source) -> None:
        (episode,) = source
        columns = raw(source.path, "demo_0")
        assert episode.num_steps == 6 == source.num_steps
        np.testing.assert_array_equal(episode.reward, columns["rewards"])
        np.testing.assert_array_equal(episode.action, columns["actions"])
        assert episode.is_terminal.tolist() == [False] * 5 + [True]
        assert transitions(episode).reward.tolist() == columns["rewards"][:-1].tolist()

    def test_details_say_so(self, source: RobomimicHdf5Source) -> None:
        assert source.details()["warnings"][0] == (
            "no `next_obs`: the last sample of each demonstration starts no transition"
        )


class TestWrongFiles:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"rewards": np.zeros(3)}, r"reward: 3 rows in `rewards`, but 4 actions"),
            ({"obs/object": np.zeros((5, 10))}, r"observation/object: 5 rows in `obs`, but 4 actions"),
            ({"next_obs/object": np.zeros((4, 9))}, r"observation/object: `obs` and `next_obs` differ"),
            ({"next_obs/object": None}, r"observation/object: `obs` and `next_obs` differ"),
            ({"dones": np.array([0, 2, 0, 1])}, r"step 1, is_terminal: a done should be 0 or 1, got 2"),
            ({"rewards": np.zeros((4, 2))}, r"`rewards` should hold one number a sample, got float64\[2\]"),
            ({"actions": np.zeros((0, 7))}, r"demo_1 has no samples"),
        ],
    )
    def test_one_bad_demonstration_leaves_the_others(
        self, tmp_path: Path, changes: dict[str, Any], message: str
    ) -> None:
        demos = {"demo_0": demo(4, 0), "demo_1": {**demo(4, 1), **changes}, "demo_2": demo(4, 2)}
        first, bad, last = RobomimicHdf5Source(write(tmp_path / "a.hdf5", demos)).read()
        assert isinstance(first, Episode) and isinstance(last, Episode)
        assert isinstance(bad, EpisodeError) and bad.episode == 1
        with pytest.raises(EpisodeError, match=message):
            raise bad

    def test_a_filter_key_of_unknown_demonstrations(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.hdf5", {"demo_0": demo(3, 0)}, {"train": ["demo_7"]})
        with pytest.raises(SourceFormatError, match="mask/train names demo_7"):
            RobomimicHdf5Source(path)

    def test_raw_robosuite(self) -> None:
        with pytest.raises(SourceFormatError, match=r"none of its 1 demonstrations has observations"):
            RobomimicHdf5Source(DATA / "negative/robosuite-wipe-demo.hdf5")

    def test_another_hdf5_file(self) -> None:
        with pytest.raises(SourceFormatError, match="needs demonstrations"):
            RobomimicHdf5Source(MADE / "d4rl/hopper_medium.hdf5")

    @pytest.mark.parametrize("seed", range(12))
    def test_damaged_files(self, path: Path, tmp_path: Path, seed: int) -> None:
        rng = np.random.default_rng(seed)
        content = bytearray(path.read_bytes())
        if seed % 3 == 0:
            content = content[: int(rng.integers(len(content)))]
        else:
            for place in rng.integers(0, len(content), 20):
                content[place] ^= 1 << int(rng.integers(8))
        damaged = tmp_path / "damaged.hdf5"
        shutil.copy(path, damaged)
        damaged.write_bytes(content)
        try:
            source = RobomimicHdf5Source(damaged)
            read = list(source.read())
            source.details()
        except SourceError:
            return
        assert len(read) == source.num_episodes
