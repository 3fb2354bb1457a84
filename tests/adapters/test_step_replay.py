"""Vector steps kept once: against every transition by itself, with the same random operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlds2buf
from rlds2buf.adapters.step_replay import StepReplay, end_codes, packed
from rlds2buf.core.sample import Transition
from rlds2buf.core.spec import FieldSpec, StepSpec

SPEC = StepSpec(
    observation=FieldSpec((2,), np.float32),
    action=FieldSpec((1,), np.float32),
    reward=FieldSpec((), np.float32),
    discount=None,
    is_first=FieldSpec((), np.bool_),
    is_last=FieldSpec((), np.bool_),
    is_terminal=FieldSpec((), np.bool_),
)


def replay(capacity: int, envs: int, **options: Any) -> StepReplay:
    buffer = rlds2buf.make_circular(SPEC, capacity, capacity_unit="transitions", seed=1)
    return StepReplay(buffer, capacity, envs, seed=2, **options)


class World:
    """Environments that number their observations, so that a batch tells where it is from."""

    def __init__(self, envs: int, rng: np.random.Generator) -> None:
        self.envs, self.rng = envs, rng
        self.now = np.arange(envs) * 100_000
        self.known: dict[int, tuple[int, int, float]] = {}
        """Observation to next observation, code and reward."""

    def step(self) -> tuple[Any, ...]:
        codes = self.rng.choice([0, 0, 0, 1, 2], self.envs).astype(np.uint8)
        before, after = self.now, self.now + 1
        self.newest = set(before.tolist())
        jump = (codes > 0) | (self.rng.random(self.envs) < 0.1)  # some are cut without a word
        self.now = np.where(jump, after + 1, after)
        reward = self.rng.integers(0, 100, self.envs).astype(np.float32)
        for one in range(self.envs):
            self.known[int(before[one])] = int(after[one]), int(codes[one]), float(reward[one])
        return self._seen(before), -self._seen(before)[:, :1], reward, self._seen(after), codes

    @staticmethod
    def _seen(numbers: np.ndarray) -> np.ndarray:
        return np.stack([numbers, -numbers], 1).astype(np.float32)


@settings(max_examples=40)
@given(
    envs=st.integers(1, 3),
    capacity=st.integers(3, 200),
    steps=st.integers(1, 150),
    n_step=st.integers(1, 4),
    whole=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_what_is_drawn_is_what_was_added(
    envs: int, capacity: int, steps: int, n_step: int, whole: bool, seed: int
) -> None:
    held, world = replay(max(capacity, 160), envs, whole_episodes=whole), World(envs, np.random.default_rng(seed))
    for number in range(steps):
        held.add(*world.step())
        if number == 50:
            state = held.state()
            held = replay(max(capacity, 160), envs, whole_episodes=whole)
            held.set_state(state)
    if whole:
        held.cut()
    batch = held.sample(64, n_step, 0.5)
    for i in range(64):
        seen = int(batch.observation[i, 0])
        assert batch.observation[i, 1] == -seen == batch.action[i, 0]
        reward, at = 0.0, seen
        for k in range(int(batch.steps[i])):
            last = at
            after, code, one = world.known[last]
            reward += 0.5**k * one
            assert k == batch.steps[i] - 1 or (code == 0 and after in world.known)
            at = after
        assert batch.next_observation[i, 0] == at
        assert batch.reward[i] == reward
        assert batch.is_done[i] == (2 if whole and last in world.newest and code == 0 else code)
    held.buffer.check_valid()


def test_every_transition_is_drawn_alike_whether_it_waits_or_not() -> None:
    held, world = replay(3200, 1), World(1, np.random.default_rng(0))
    for _ in range(150):
        held.add(*world.step())
    assert 0 < held.num_recent < 150 == len(held)
    drawn = np.concatenate([held.sample(200).observation[:, 0] for _ in range(300)])
    counts = np.unique(drawn, return_counts=True)[1]
    assert len(counts) == 150
    assert np.all(np.abs(counts - 400) < 6 * 20)


def test_observations_are_kept_once() -> None:
    held = replay(10_000, 2)
    for t in range(5000):
        now = np.full((2, 2), t, np.float32)
        held.add(now, now[:, :1], now[:, 0], now + 1, np.zeros(2, np.uint8))
    assert held.buffer.engine.store.num_own == 0
    assert held.buffer.num_rows < 1.02 * len(held.buffer)


def test_an_unfinished_episode_goes_on_when_it_is_packed() -> None:
    """Its later part is no episode's beginning."""
    held = replay(64, 1)  # packs every step
    for t in range(5):
        now = np.full((1, 2), t, np.float32)
        held.add(now, now[:, :1], now[:, 0], now + 1, np.array([t == 3], np.uint8))
    flags = held.buffer.all(concatenate="sequence").is_first[0]
    assert flags.tolist() == [True, False, False, False]


def test_nothing_to_sample_is_told() -> None:
    with pytest.raises(rlds2buf.NotEnoughItems, match="before a step"):
        replay(10, 1).sample(2)
    held = replay(10, 1, whole_episodes=True)
    held.add(np.zeros((1, 2)), np.zeros((1, 1)), np.zeros(1), np.ones((1, 2)), np.zeros(1, np.uint8))
    with pytest.raises(rlds2buf.NotEnoughItems, match="before an episode's end"):
        held.sample(2)


def test_a_state_of_other_environments_is_refused() -> None:
    with pytest.raises(rlds2buf.SnapshotError, match="3 environments, not 2"):
        replay(30, 2).set_state(replay(30, 3).state())


def test_packing_a_buffer_s_transitions_gives_its_episodes() -> None:
    rng = np.random.default_rng(0)
    buffer = rlds2buf.make_circular(SPEC, 100)
    episodes = []
    for length in (4, 2, 7):
        numbers = rng.random((length, 2)).astype(np.float32)
        ended = np.arange(length) == length - 1
        reward = np.arange(length, dtype=np.float32) * ~ended
        episodes.append(
            rlds2buf.Episode(
                observation=numbers, action=numbers[:, :1] * ~ended[:, None], reward=reward, is_terminal=ended
            )
        )
        buffer.add(episodes[-1])
    for one, other in zip(packed(buffer.all()), episodes, strict=True):
        np.testing.assert_array_equal(one.observation, other.observation)
        np.testing.assert_array_equal(one.action, other.action)
        np.testing.assert_array_equal(one.reward, other.reward)
        assert one.end == other.end == "terminated"


def test_single_transitions_are_episodes_of_one() -> None:
    one = Transition(np.arange(3), np.zeros(3), np.ones(3), None, np.arange(10, 13), is_done=np.array([0, 1, 2]))
    batch = packed(one)
    assert [(episode.observation.tolist(), episode.end) for episode in batch] == [
        ([0, 10], "open"),
        ([1, 11], "terminated"),
        ([2, 12], "truncated"),
    ]


def test_end_codes() -> None:
    assert end_codes([True, False]).tolist() == [1, 0]
    assert end_codes([True, True], [{"TimeLimit.truncated": True}, {}]).tolist() == [2, 1]
