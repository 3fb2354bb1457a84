"""ManiSkill's trajectories as RecordEpisode writes them, and files that don't belong together."""

from __future__ import annotations

import json
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
from rlds2buf.formats.maniskill.source import ManiSkillSource
from tests.contracts.source import MakeSource, SourceContract

STEPS = {0: 3, 10: 5, 2: 1}


def columns(steps: int, seed: int, end: str = "truncated") -> dict[str, Any]:
    """A trajectory with state and a camera, as ``obs_mode="rgb+state"`` has them."""
    rng = np.random.default_rng(seed)
    last = np.arange(steps) == steps - 1
    return {
        "obs/agent/qpos": rng.normal(size=(steps + 1, 9)).astype(np.float32),
        "obs/sensor_data/base_camera/rgb": rng.integers(0, 256, (steps + 1, 8, 8, 3)).astype(np.uint8),
        "actions": rng.normal(size=(steps, 7)).astype(np.float32),
        "terminated": last & (end == "terminated"),
        "truncated": last & (end == "truncated"),
        "success": last & (end == "terminated"),
        "env_states/actors/cube": rng.normal(size=(steps + 1, 13)).astype(np.float32),
        "rewards": rng.normal(size=steps).astype(np.float32),
    }


def write(path: Path, trajectories: dict[int, dict[str, Any]], *, info: bool = True) -> Path:
    """As mani_skill/utils/wrappers/record.py."""
    told = {"env_info": {"env_id": "PickCube-v1", "max_episode_steps": 50, "env_kwargs": {}}, "episodes": []}
    with h5py.File(path, "w") as file:
        for number, held in trajectories.items():
            group = file.create_group(f"traj_{number}", track_order=True)
            for name, column in held.items():
                if column is not None:
                    packed = {"compression": "gzip", "compression_opts": 5} if name.endswith("rgb") else {}
                    group.create_dataset(name, data=column, **packed)
            steps = len(held["actions"]) if held["actions"] is not None else 0
            entry = {"episode_id": number, "episode_seed": 7 + number, "control_mode": "pd_joint_delta_pos"}
            told["episodes"].append({**entry, "elapsed_steps": steps, "reset_kwargs": {"seed": number}})
    if info:
        path.with_suffix(".json").write_text(json.dumps(told, indent=2))
    return path


def made(seed: int = 0) -> dict[int, dict[str, Any]]:
    ends = {0: "terminated", 10: "truncated", 2: "open"}
    return {number: columns(steps, seed + number, ends[number]) for number, steps in STEPS.items()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "trajectory.rgb.pd_joint_delta_pos.physx_cpu.h5", made())


class TestContract(SourceContract):
    @pytest.fixture
    def make_source(self, path: Path) -> MakeSource:
        return lambda: open_source(path)

    @pytest.fixture
    def change(self, path: Path) -> Callable[[], Any]:
        return lambda: write(path, made(seed=5))


class TestReading:
    def test_every_value(self, path: Path) -> None:
        source = open_source(path)
        assert (source.format, source.num_episodes, source.num_steps) == ("maniskill", 3, 12)
        for number, episode in zip(sorted(STEPS), source, strict=True):
            held, steps = made()[number], STEPS[number]
            pairs = {
                "obs/agent/qpos": episode.observation["agent"]["qpos"],
                "obs/sensor_data/base_camera/rgb": episode.observation["sensor_data"]["base_camera"]["rgb"],
                "env_states/actors/cube": episode.extras["env_states"]["actors"]["cube"],
                "actions": episode.action,
                "rewards": episode.reward,
                **{name: episode.extras[name] for name in ("terminated", "truncated", "success")},
            }
            assert pairs.keys() == held.keys()
            for name, column in pairs.items():
                assert column.dtype == held[name].dtype and len(column) == steps + 1
                np.testing.assert_array_equal(column[: len(held[name])], held[name])
                assert not column[len(held[name]) :].any()
        assert validate(source).ok

    def test_ends(self, path: Path) -> None:
        first, second, third = open_source(path)
        assert [one.end for one in (first, second, third)] == ["terminated", "truncated", "truncated"]
        assert [one.metadata.get("open_tail") for one in (first, second, third)] == [None, True, None]
        assert first.discount.tolist() == [1, 1, 0, 0]
        assert transitions(first).terminated.tolist() == [False, False, True]
        assert not any(one.derived for one in (first, second, third))

    def test_what_the_json_tells(self, path: Path) -> None:
        _, second, _ = open_source(path)
        assert second.metadata == {
            "episode_id": 2,
            "episode_seed": 9,
            "control_mode": "pd_joint_delta_pos",
            "elapsed_steps": 1,
            "reset_kwargs": {"seed": 2},
            "env_id": "PickCube-v1",
            "open_tail": True,
        }
        details = open_source(path).details()
        assert details["env_info"]["max_episode_steps"] == 50 and details["control_modes"] == ["pd_joint_delta_pos"]
        assert not details["warnings"]
        with pytest.raises(SourceFormatError, match=r"name trajectory\.rgb.*\.h5"):
            open_source(path.with_suffix(".json"))

    def test_a_success_before_the_end_is_no_end(self, tmp_path: Path) -> None:
        held = columns(5, 0)
        held["terminated"] = held["success"] = np.arange(5) >= 2
        (episode,) = open_source(write(tmp_path / "a.h5", {0: held}))
        assert episode.is_terminal.nonzero()[0].tolist() == [5]
        assert episode.extras["terminated"].tolist() == [False, False, True, True, True, False]

    def test_without_states(self, path: Path) -> None:
        assert "env_states" not in open_source(path, states=False).spec.extras

    def test_without_observations_rewards_and_json(self, tmp_path: Path) -> None:
        held = {name: column for name, column in columns(3, 0).items() if not name.startswith(("obs", "rewards"))}
        source = open_source(write(tmp_path / "a.h5", {0: held}, info=False))
        assert source.spec.observation is None and source.spec.reward is None
        assert [text.split(" ")[1] for text in source.warnings()] == ["observations", "rewards", "a.json"]
        mapped = open_source(tmp_path / "a.h5", map={"observation": "extras/env_states/actors/cube"})
        np.testing.assert_array_equal(next(iter(mapped)).observation, held["env_states/actors/cube"])

    def test_actions_nest(self, tmp_path: Path) -> None:
        held = columns(3, 0)
        held["actions/arm"], held["actions/hand"] = held.pop("actions"), np.zeros((3, 2), np.float32)
        path = tmp_path / "a.h5"
        write(path, {0: {**held, "actions": None}}, info=False)
        (episode,) = open_source(path)
        assert set(episode.action) == {"arm", "hand"} and len(episode) == 4


class TestWrong:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"obs/agent/qpos": np.zeros((4, 9))}, r"observation/agent/qpos: 4 rows in `obs`, but 4 actions"),
            ({"rewards": np.zeros(3)}, "reward: 3 rows in `rewards`, but 4 actions"),
            ({"rewards": np.zeros((4, 2))}, "`rewards` should hold one number a step"),
            ({"terminated": np.array([0, 2, 0, 1])}, "step 1, extras/terminated: a flag should be 0 or 1, got 2"),
            ({"truncated": np.zeros((4, 2))}, "`truncated` should hold one flag a step"),
            ({"actions": np.zeros((0, 7))}, "traj_1 has no actions"),
            ({"env_states/actors/cube": np.zeros((9, 2))}, r"extras/env_states/actors/cube: 9 rows"),
        ],
    )
    def test_one_bad_trajectory_leaves_the_others(self, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
        held = {0: columns(4, 0), 1: {**columns(4, 1), **changes}, 2: columns(4, 2)}
        first, bad, last = open_source(write(tmp_path / "a.h5", held)).read()
        assert isinstance(first, Episode) and isinstance(last, Episode)
        assert isinstance(bad, EpisodeError) and bad.episode == 1
        with pytest.raises(EpisodeError, match=message):
            raise bad

    def edited(self, path: Path, edit: Callable[[dict[str, Any]], Any]) -> Path:
        told = json.loads(path.with_suffix(".json").read_text())
        edit(told)
        path.with_suffix(".json").write_text(json.dumps(told))
        return path

    def test_a_json_of_another_file(self, path: Path) -> None:
        self.edited(path, lambda told: told["episodes"].pop())
        with pytest.raises(SourceFormatError, match=r"\.json: has no episode 2, but .*info=False reads the file"):
            open_source(path)
        assert len(list(open_source(path, info=False))) == 3
        self.edited(path, lambda told: told["episodes"].extend([{"episode_id": 2}, {"episode_id": 77}]))
        with pytest.raises(SourceFormatError, match=r"\.h5: has no traj_77, but"):
            open_source(path)

    def test_steps_that_differ(self, path: Path) -> None:
        self.edited(path, lambda told: told["episodes"][0].update(elapsed_steps=99))
        bad, *others = open_source(path).read()
        assert isinstance(bad, EpisodeError) and "traj_0 has 3 actions, but" in str(bad) and "99" in str(bad)
        assert all(isinstance(other, Episode) for other in others)

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"episodes": 3}', '{"episodes": [{"episode_id": "x"}]}'])
    def test_a_damaged_json(self, path: Path, text: str) -> None:
        path.with_suffix(".json").write_text(text)
        with pytest.raises(SourceFormatError, match=r"\.json: not what ManiSkill tells"):
            open_source(path)

    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(SourceNotFound):
            ManiSkillSource(tmp_path / "none.h5")
        h5py.File(tmp_path / "a.h5", "w").close()
        with pytest.raises(SourceFormatError, match="needs trajectories"):
            ManiSkillSource(tmp_path / "a.h5")

    @pytest.mark.parametrize("seed", range(8))
    def test_damaged(self, path: Path, seed: int) -> None:
        rng = np.random.default_rng(seed)
        content = bytearray(path.read_bytes())
        for place in rng.integers(0, len(content), 20):
            content[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(content)
        try:
            source = ManiSkillSource(path)
            assert len(list(source.read())) == source.num_episodes
        except SourceError as error:
            assert str(path) in str(error)


@pytest.mark.parametrize("text", ["1.5", '[{"a": 1}]', '"env_info"', "null"])
def test_a_json_of_anything_else_is_not_taken_for_its(tmp_path: Path, text: str) -> None:
    (tmp_path / "trajectory.json").write_text(text)
    with pytest.raises(SourceError) as caught:
        open_source(tmp_path / "trajectory.json")
    assert "ManiSkill tells" not in str(caught.value)
