"""Files that d3rlpy itself wrote, and the transitions that d3rlpy itself picks."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2buf import Episode, convert, open_source, transitions
from rlds2buf.core import nest
from tests.formats.d3rlpy.files import episode, table, write_v1

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from d3rlpy import constants, dataset


def their_transitions(episodes: Any) -> list[tuple[Any, ...]]:
    picker = dataset.BasicTransitionPicker()
    picked = [picker(one, i) for one in episodes for i in range(one.transition_count)]
    return [(t.observation, t.action, t.reward, t.next_observation, t.terminal) for t in picked]


def assert_same_transitions(path: Path, episodes: Any, *, squeeze: bool = False) -> None:
    """Every transition of theirs, in order, and none more."""
    theirs = iter(their_transitions(episodes))
    for mine in open_source(path):
        batch = transitions(mine)
        for t in range(mine.num_transitions):
            observation, action, reward, following, terminal = next(theirs)
            for ours, other in ((batch.observation, observation), (batch.next_observation, following)):
                parts = [leaf[t] for _, leaf in nest.flatten(ours)]
                others = other if isinstance(other, list) else [other]
                for part, expected in zip(parts, others, strict=True):
                    np.testing.assert_array_equal(part, expected)
            np.testing.assert_array_equal(batch.action[t], action[0] if squeeze else action)
            assert batch.reward[t] == reward[0]
            assert batch.terminated[t] == bool(terminal)
    assert next(theirs, None) is None


@pytest.mark.parametrize("discrete", [False, True], ids=["continuous", "discrete"])
@pytest.mark.parametrize("parts", [False, True], ids=["vector", "tuple"])
def test_a_dumped_replay_buffer(tmp_path: Path, discrete: bool, parts: bool) -> None:
    episodes = [dataset.Episode(**episode(3 + i, i % 3 == 0, i, discrete=discrete, parts=parts)) for i in range(11)]
    buffer = dataset.ReplayBuffer(dataset.InfiniteBuffer(), episodes=episodes)
    with open(tmp_path / "replay.h5", "w+b") as file:
        buffer.dump(file)
    source = open_source(tmp_path / "replay.h5")
    assert source.format == "d3rlpy" and source.num_episodes == 11
    assert sum(found.num_transitions for found in source) == buffer.transition_count
    assert_same_transitions(tmp_path / "replay.h5", buffer.episodes)


def test_a_dumped_mdp_dataset(tmp_path: Path) -> None:
    columns = table(40, [9, 19], [9, 14, 19, 39])
    ends = columns.pop("episode_terminals")
    made = dataset.MDPDataset(**columns, timeouts=ends * (1 - columns["terminals"]))
    with open(tmp_path / "dataset.h5", "w+b") as file:
        made.dump(file)
    source = open_source(tmp_path / "dataset.h5")
    assert [found.end for found in source] == ["terminated", "truncated", "terminated", "truncated"]
    assert_same_transitions(tmp_path / "dataset.h5", made.episodes)


def test_experience_written_step_by_step(tmp_path: Path) -> None:
    """What an online run leaves in its buffer."""
    buffer = dataset.ReplayBuffer(
        dataset.InfiniteBuffer(),
        observation_signature=dataset.Signature(dtype=[np.dtype(np.float32)], shape=[(3,)]),
        action_signature=dataset.Signature(dtype=[np.dtype(np.int64)], shape=[(1,)]),
        reward_signature=dataset.Signature(dtype=[np.dtype(np.float32)], shape=[(1,)]),
        action_space=constants.ActionSpace.DISCRETE,
        action_size=4,
    )
    rng = np.random.default_rng(0)
    for length, terminated in ((5, True), (4, False), (3, True)):
        for _ in range(length):
            buffer.append(rng.normal(size=3).astype(np.float32), int(rng.integers(4)), float(rng.normal()))
        buffer.clip_episode(terminated)
    with open(tmp_path / "online.h5", "w+b") as file:
        buffer.dump(file)
    assert [(found.num_steps, found.end) for found in open_source(tmp_path / "online.h5")] == [
        (6, "terminated"),
        (4, "truncated"),
        (4, "terminated"),
    ]
    assert_same_transitions(tmp_path / "online.h5", buffer.episodes)


@pytest.mark.parametrize("parts", [False, True], ids=["vector", "tuple"])
def test_d3rlpy_loads_what_is_written(tmp_path: Path, parts: bool) -> None:
    """Episodes of ours into its format; its own loader gives their transitions, but for final observations."""

    def made(rows: int, start: int, end: str) -> Episode:
        number = np.arange(start, start + rows).astype(np.float32)
        last = np.arange(rows) == rows - 1
        vector = np.stack([number, -number], 1)
        return Episode(
            observation=(vector, number[:, None, None] * np.ones((1, 2, 2))) if parts else vector,
            action=(number[:, None] + 0.5) * ~last[:, None],
            reward=number * 0.25 * ~last,
            is_last=last,
            is_terminal=last & (end == "terminated"),
        )

    episodes = [made(5, 0, "terminated"), made(4, 10, "truncated"), made(2, 20, "terminated")]
    convert(episodes, tmp_path / "ours.h5", to="d3rlpy", on_invalid="repair")
    with open(tmp_path / "ours.h5", "rb") as file:
        loaded = dataset.ReplayBuffer.load(file, dataset.InfiniteBuffer())
    assert [(len(one.rewards), bool(one.terminated)) for one in loaded.episodes] == [(4, True), (4, False), (1, True)]
    assert loaded.transition_count == sum(one.num_transitions for one in episodes)
    assert_same_transitions(tmp_path / "ours.h5", loaded.episodes)
    for one, other in zip(episodes, open_source(tmp_path / "ours.h5"), strict=True):
        np.testing.assert_array_equal(transitions(one).action, transitions(other).action)
        np.testing.assert_array_equal(transitions(one).reward, transitions(other).reward)


@pytest.mark.parametrize("ends", [[4, 11, 15, 19], None], ids=["ends", "terminals"])
@pytest.mark.parametrize("discrete", [False, True], ids=["continuous", "discrete"])
def test_first_version_files_as_d3rlpy_2_loads_them(tmp_path: Path, ends: list[int] | None, discrete: bool) -> None:
    columns = table(20, [4, 15, 19], ends)
    if discrete:
        columns["actions"] = np.arange(20, dtype=np.int32) % 3
    path = write_v1(tmp_path / "old.h5", **columns)
    with open(path, "rb") as file:
        episodes = dataset.load_v1(file)
    assert_same_transitions(path, episodes, squeeze=discrete)
