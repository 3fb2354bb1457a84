"""Relabelled trajectories against the naive twin."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf import Episode, GoalMap, Transition, transitions
from rlds2buf.kernels.goals import judge
from rlds2buf.views.hindsight import draw_picks, judge_numpy, one_by_one, relabel
from tests.buffers.frequencies import p_value
from tests.reference import hindsight as reference

# -- trajectories of small whole numbers, so that goals are met now and then ------------------------


def trajectory(rng: np.random.Generator, count: int, end: int) -> list[dict[str, Any]]:
    """Steps of two channels ([4] and [2, 2]) and an action; the last one ends with code `end`."""
    rows = [[rng.integers(0, 3, 4) * 1.0, rng.integers(0, 3, (2, 2)) * 1.0] for _ in range(count + 1)]
    return [
        {
            "obs": [rows[t][0].tolist(), rows[t][1].reshape(-1).tolist()],
            "action": [float(rng.integers(0, 3))],
            "next_obs": [rows[t + 1][0].tolist(), rows[t + 1][1].reshape(-1).tolist()],
            "reward": float(rng.integers(0, 3)),
            "is_done": end if t == count - 1 else 0,
        }
        for t in range(count)
    ]


def columns(steps: list[dict[str, Any]], discount: float = 0.5) -> Transition:
    def side(name: str) -> tuple[np.ndarray, ...]:
        flat = [np.array([step[name][i] for step in steps]) for i in range(2)]
        return flat[0], flat[1].reshape(-1, 2, 2)

    codes = np.array([step["is_done"] for step in steps], np.uint8)
    logged = np.where(codes == 1, 0.0, discount).astype(np.float32)
    return Transition(
        observation=side("obs"),
        action=np.array([step["action"] for step in steps]),
        reward=np.array([step["reward"] for step in steps]),
        discount=logged,
        next_observation=side("next_obs"),
        extras={"t": np.arange(len(steps))},
        is_done=codes,
        steps=np.ones(len(steps), np.int32),
        bootstrap_discount=(logged * 0.9).astype(np.float32),
    )


# Two conditions across channels: elements 0 and 3 of the first, 1 of the (flattened) second.
PLACES = [((0, [3, 0]), (1, [0, 3])), ((1, [1]), (0, [2]))]


def gap(first: Any, second: Any) -> Any:
    return (
        abs(first[..., 3] - second[..., 0]) + abs(first[..., 0] - second[..., 3]) + abs(second[..., 1] - first[..., 2])
    )


def flat(channels: Any) -> tuple[Any, Any]:
    first, second = np.asarray(channels[0]), np.asarray(channels[1])
    return first, second.reshape(*first.shape[:-1], 4)


def reward_fn(observation: Any, action: Any, next_observation: Any) -> Any:
    before, after = flat(observation), flat(next_observation)
    return -gap(*after) + 0.25 * gap(*before) + 0.125 * np.asarray(action)[..., 0]


def done_fn(observation: Any, action: Any, next_observation: Any) -> Any:
    return gap(*flat(next_observation)) == 0


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 8),
    st.sampled_from([0, 1, 2]),
    st.sampled_from(["final", "episode", "future"]),
    st.integers(1, 4),
    st.booleans(),
)
def test_equals_the_twin(seed: int, count: int, end: int, strategy: str, num_goals: int, current: bool) -> None:
    steps = trajectory(np.random.default_rng(seed), count, end)
    before = copy.deepcopy(steps)
    picks = reference.pick(strategy, count, num_goals, random.Random(seed), current)
    expected = reference.relabel(steps, PLACES, picks, reward_fn, done_fn)
    batch = columns(steps)
    untouched = copy.deepcopy(batch)
    got = relabel(batch, picks, [GoalMap(*place) for place in PLACES], reward_fn, done_fn, gamma=0.9)
    assert len(got.reward) == len(expected) == count * (1 if strategy == "final" else num_goals)
    sources = np.repeat(np.arange(count), len(picks[0]))
    for i, new in enumerate(expected):
        assert [got.observation[0][i].tolist(), got.observation[1][i].reshape(-1).tolist()] == new["obs"]
        assert [got.next_observation[0][i].tolist(), got.next_observation[1][i].reshape(-1).tolist()] == new["next_obs"]
        assert got.action[i].tolist() == new["action"]
        assert got.reward[i] == new["reward"]
        assert got.is_done[i] == new["is_done"]
        stored = steps[sources[i]]["is_done"]
        discount = 0.0 if new["is_done"] == 1 else 1.0 if stored == 1 else 0.5
        assert got.discount[i] == discount
        assert got.bootstrap_discount[i] == np.float32(0.9 * discount)
        assert got.extras["t"][i] == sources[i] and got.steps[i] == 1
    # Neither the steps nor the columns were changed, and what came out is nobody else's.
    assert steps == before
    for mine, theirs in zip(flatten(batch), flatten(untouched), strict=True):
        assert np.array_equal(mine, theirs)
    for column in flatten(got):
        column[...] = 7
    for mine, theirs in zip(flatten(batch), flatten(untouched), strict=True):
        assert np.array_equal(mine, theirs)


def flatten(batch: Transition) -> list[np.ndarray]:
    from rlds2buf.core import nest

    return [leaf for _, leaf in nest.flatten(batch._asdict())]


# -- picks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["final", "episode", "future"])
@pytest.mark.parametrize("current", [True, False])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_picks_are_uniform_over_what_is_allowed(strategy: str, current: bool, count: int) -> None:
    rng = np.random.default_rng(0)
    draws = [draw_picks(count, strategy, 50, rng, include_current=current) for _ in range(100)]
    picks = np.concatenate(draws, axis=1)
    assert picks.dtype == np.int64 and picks.shape == (count, 100 if strategy == "final" else 5000)
    for t in range(count):
        first = {"final": count - 1, "episode": 0, "future": t if current or t == count - 1 else t + 1}[strategy]
        counts = np.bincount(picks[t], minlength=count)
        assert counts[:first].sum() == 0 and (counts[first:] > 0).all()
        if count - first > 1:
            assert p_value(counts[first:], np.full(count - first, 1 / (count - first))) > 1e-4


def test_picks_of_nothing() -> None:
    for strategy in ("final", "episode", "future"):
        assert len(draw_picks(0, strategy, 3, np.random.default_rng(0))) == 0


@pytest.mark.parametrize("num_goals", [0, -1, 1.5, True, "4", None])
def test_bad_numbers_of_goals(num_goals: Any) -> None:
    with pytest.raises(ValueError, match="num_goals"):
        draw_picks(3, "future", num_goals, np.random.default_rng(0))


def test_unknown_strategy() -> None:
    with pytest.raises(ValueError, match=r"final, episode, future.*'random'"):
        draw_picks(3, "random", 1, np.random.default_rng(0))


# -- rules ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reward", [np.float32, np.float64])
def test_compiled_rules_are_the_plain_ones(reward: Any) -> None:
    rng = np.random.default_rng(0)
    chosen, met = rng.random((2, 60)) < 0.5
    rewards = rng.random(60).astype(reward)
    start = [
        rng.random(60).astype(reward),
        rng.integers(0, 3, 60).astype(np.uint8),
        rng.random(60).astype(reward),
        rng.random(60).astype(np.float32),
    ]
    one, other = copy.deepcopy(start), copy.deepcopy(start)
    judge_numpy(chosen, rewards, met, 0.9, *one)
    judge(chosen, rewards, met, 0.9, *other)
    for i in range(60):
        code = start[1][i]
        expected: Any = [column[i] for column in start]
        if chosen[i]:
            expected[0] = rewards[i]
            if met[i]:
                expected[1:] = 1, 0, 0
            elif code == 1:
                expected[1:] = 0, 1, np.float32(0.9)
        for a, b, c in zip(one, other, expected, strict=True):
            assert a[i] == b[i] == c


def test_one_step() -> None:
    """Its only goal is what it reached, whatever the strategy."""
    ep = Episode(
        observation=np.array([[0.0, 9], [3, 9]]), action=np.zeros(2), reward=np.zeros(2), is_last=[False, True]
    )
    step = transitions(ep)
    for strategy in ("final", "episode", "future"):
        picks = draw_picks(1, strategy, 3, np.random.default_rng(0), include_current=False)

        def met(observation: Any, action: Any, after: Any) -> Any:
            return after[:, 0] == after[:, 1]

        new = relabel(step, picks, [GoalMap(((), [0]), ((), [1]))], met, met)
        assert new.next_observation.tolist() == [[3, 3]] * picks.shape[1]
        assert new.is_done.tolist() == [1] * picks.shape[1] and new.discount.tolist() == [0] * picks.shape[1]


# -- bad input --------------------------------------------------------------------------------------

STEPS = columns(trajectory(np.random.default_rng(0), 4, 2))
GOALS = [GoalMap(*place) for place in PLACES]


@pytest.mark.parametrize(
    "picks", [[[0]], [[0], [1], [2], [4]], [[0], [1], [2], [-1]], [[0.0]] * 4, 3, [[[0]]] * 4], ids=str
)
def test_bad_picks(picks: Any) -> None:
    with pytest.raises(ValueError, match="picks must be"):
        relabel(STEPS, picks, GOALS, reward_fn, done_fn)


@pytest.mark.parametrize(
    "result",
    [0.0, np.zeros(3), np.zeros((4, 1)), None, np.zeros(4, object), [1, 2, 3, "a"], np.zeros(4, complex)],
    ids=str,
)
@pytest.mark.parametrize("which", ["reward_fn", "done_fn"])
def test_results_of_the_wrong_shape(which: str, result: Any) -> None:
    functions = {"reward_fn": reward_fn, "done_fn": done_fn, which: lambda *arguments: result}
    with pytest.raises(ValueError, match=f"{which} must give 4 numbers"):
        relabel(STEPS, [0, 1, 2, 3], GOALS, functions["reward_fn"], functions["done_fn"])


def test_rewards_that_lose_their_fraction() -> None:
    whole = STEPS._replace(reward=np.zeros(4, np.int64))
    with pytest.raises(ValueError, match=r"reward_fn gives float64.*int64"):
        relabel(whole, [0, 1, 2, 3], GOALS, reward_fn, done_fn)
    met = relabel(whole, [0, 1, 2, 3], GOALS, done_fn, lambda *arguments: done_fn(*arguments).astype(int))
    assert met.reward.dtype == np.int64 and met.reward.tolist() == (met.is_done == 1).tolist()


def test_n_step_transitions_are_refused() -> None:
    with pytest.raises(ValueError, match="one-step"):
        relabel(STEPS._replace(steps=np.array([2, 2, 2, 1], np.int32)), [0, 1, 2, 3], GOALS, reward_fn, done_fn)


def test_functions_of_single_transitions() -> None:
    one = relabel(STEPS, [3, 3, 3, 3], GOALS, reward_fn, done_fn)
    seen = []

    def single(observation: Any, action: Any, after: Any) -> float:
        seen.append((observation[0].shape, observation[1].shape, np.shape(action)))
        return float(reward_fn(observation, action, after))

    other = relabel(STEPS, [3, 3, 3, 3], GOALS, one_by_one(single, "reward_fn"), one_by_one(done_fn, "done_fn"))
    assert seen == [((4,), (2, 2), (1,))] * 4
    for mine, theirs in zip(flatten(one), flatten(other), strict=True):
        assert np.array_equal(mine, theirs)
    with pytest.raises(ValueError, match=r"reward_fn must give one number.*\[2\]"):
        relabel(STEPS, [3, 3, 3, 3], GOALS, one_by_one(lambda *arguments: [1, 2], "reward_fn"), done_fn)
