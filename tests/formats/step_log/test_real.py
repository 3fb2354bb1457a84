"""Logs of real data: D4RL's columns in the formats of logs, and what a Gymnasium loop writes down."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from rlds2buf import open_source, transitions
from rlds2buf.formats.d4rl.source import D4rlHdf5Source
from tests.formats.step_log.files import FORMATS, write
from tests.made import BOTH
from tests.reference import d4rl

NAMES = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")


@BOTH
class TestD4rlAsALog:
    @pytest.mark.parametrize("suffix", FORMATS)
    @pytest.mark.parametrize("name", ["hopper_medium", "hopper_medium_replay-v1", "door-human-v0", "antmaze-umaze-v0"])
    def test_the_same_episodes(self, tmp_path: Path, sets: Any, name: str, suffix: str) -> None:
        file = sets / f"d4rl/{name}.hdf5"
        held = d4rl.read_file(file)
        columns = {key: held[key] for key in NAMES if key in held}
        columns |= {key: held[key].reshape(-1).astype(np.int64) for key in ("terminals", "timeouts")}
        columns["rewards"] = held["rewards"].reshape(-1)
        ours = open_source(write(tmp_path / f"log.{suffix}", columns))
        theirs = D4rlHdf5Source(file, infos=False)
        assert (ours.num_episodes, ours.num_steps) == (theirs.num_episodes, theirs.num_steps)
        for mine, other in zip(ours, theirs, strict=True):
            for field in ("observation", "action", "reward", "discount", "is_first", "is_last", "is_terminal"):
                np.testing.assert_array_equal(getattr(mine, field), getattr(other, field))
            assert mine.metadata.keys() == other.metadata.keys() - {"algorithm", "iteration", "policy"}


def play(episodes: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Steps of CartPole, cut at 15, as a loop sees them."""
    env = gymnasium.make("CartPole-v1", max_episode_steps=15)
    env.action_space.seed(0)
    for episode in range(episodes):
        observation, _ = env.reset(seed=episode)
        over = False
        while not over:
            action = env.action_space.sample()
            following, reward, terminated, truncated, _ = env.step(action)
            yield (
                episode,
                {
                    "obs": observation,
                    "action": int(action),
                    "reward": float(reward),
                    "next_obs": following,
                    "terminated": bool(terminated),
                    "truncated": bool(truncated),
                },
            )
            observation, over = following, terminated or truncated
    env.close()


@pytest.fixture(scope="module")
def steps() -> list[tuple[int, dict[str, Any]]]:
    return list(play(12))


def assert_as_played(path: Path, steps: list[tuple[int, dict[str, Any]]], **options: Any) -> None:
    """Every step is a transition, in order, with its own successor."""
    source = open_source(path, **options)
    assert source.num_episodes == 12
    batches = [transitions(episode) for episode in source]
    assert {episode.end for episode in source} == {"terminated", "truncated"}
    for name, field in (("obs", "observation"), ("next_obs", "next_observation"), ("action", "action")):
        played = np.array([step[name] for _, step in steps])
        np.testing.assert_array_equal(np.concatenate([getattr(batch, field) for batch in batches]), played)
    assert np.concatenate([b.terminated for b in batches]).tolist() == [step["terminated"] for _, step in steps]


class TestAGymnasiumLoop:
    def test_json_lines(self, tmp_path: Path, steps: list[tuple[int, dict[str, Any]]]) -> None:
        lines = []
        for _, step in steps:
            plain = {**step, "obs": step["obs"].tolist(), "next_obs": step["next_obs"].tolist()}
            lines.append(json.dumps(plain))
        (tmp_path / "run.jsonl").write_text("\n".join(lines))
        assert_as_played(tmp_path / "run.jsonl", steps)

    def test_csv_with_names_of_ones_own(self, tmp_path: Path, steps: list[tuple[int, dict[str, Any]]]) -> None:
        """str(float32) holds all its digits; the column is float64 then, as text says nothing of widths."""
        with open(tmp_path / "run.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(
                ["run", *[f"x{i}" for i in range(4)], "a", "r", *[f"x{i}'" for i in range(4)], "fell", "cut"]
            )
            for episode, step in steps:
                old, new = (step[name].astype(np.float64).tolist() for name in ("obs", "next_obs"))
                writer.writerow(
                    [episode, *old, step["action"], step["reward"], *new, step["terminated"], step["truncated"]]
                )
        named = {
            "episode": "run",
            "observation": "x?",
            "next_observation": "x?'",
            "action": "a",
            "reward": "r",
            "terminated": "fell",
            "truncated": "cut",
        }
        assert_as_played(tmp_path / "run.csv", steps, columns=named)

    def test_npz_per_episode(self, tmp_path: Path, steps: list[tuple[int, dict[str, Any]]]) -> None:
        (tmp_path / "runs").mkdir()
        for number in range(12):
            own = [step for episode, step in steps if episode == number]
            columns = {name: np.array([step[name] for step in own]) for name in own[0] if name != "next_obs"}
            columns["obs"] = np.concatenate([columns["obs"], own[-1]["next_obs"][None]])
            np.savez(tmp_path / "runs" / f"{number}.npz", **columns)
        assert_as_played(tmp_path / "runs", steps)
        assert open_source(tmp_path / "runs").spec.observation.dtype == np.float32

    def test_parquet(self, tmp_path: Path, steps: list[tuple[int, dict[str, Any]]]) -> None:
        columns = {name: np.array([step[name] for _, step in steps]) for name in steps[0][1]}
        columns["obs"], columns["next_obs"] = columns["obs"].astype(float), columns["next_obs"].astype(float)
        assert_as_played(write(tmp_path / "run.parquet", columns), steps)
