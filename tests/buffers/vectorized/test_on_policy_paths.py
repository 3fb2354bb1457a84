"""Paths of the on-policy buffer: every way of storing and finishing them, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf import make_on_policy, returns
from rlds2buf.errors import ReplayError
from tests.buffers.vectorized.rollouts import HOW, RAW, SPEC, fill, random_rollout, steps


@pytest.mark.parametrize("estimator", ["gae", "gae-rtg", "vtrace", "plain"])
@pytest.mark.parametrize("how", HOW)
def test_every_way_of_storing_gives_the_flat_pass(how: str, estimator: str) -> None:
    rng = np.random.default_rng(3)
    size, num_envs = 12, 3
    columns = random_rollout(rng, size, num_envs)
    last_r, last_c = rng.normal(size=(2, num_envs)).astype(np.float32)
    buffer = make_on_policy(SPEC, size, num_envs=num_envs, gamma=0.9, lam=0.8, lam_c=0.7, estimator=estimator, **RAW)
    fill(buffer, how, columns)
    buffer.finish_path(last_r, last_c)
    rollout = buffer.get()
    estimate = {"gae": returns.gae, "gae-rtg": returns.gae_rtg, "vtrace": returns.vtrace, "plain": returns.plain}
    flags = {name: columns[name] for name in ("terminated", "truncated")}
    for kind, reward, lam in (("r", "reward", 0.8), ("c", "cost", 0.7)):
        value = columns[f"value_{kind}"]
        successor = returns.successor_values(
            value,
            last_value=last_r if kind == "r" else last_c,
            truncated=flags["truncated"],
            final_values=columns[f"final_value_{kind}"],
        )
        options = {"lam": lam} if estimator.startswith("gae") else {}
        expected = estimate[estimator](columns[reward], value, gamma=0.9, **flags, next_values=successor, **options)
        # Environment after environment.
        np.testing.assert_allclose(getattr(rollout, f"adv_{kind}"), expected.advantage.T.reshape(-1), atol=1e-6)
        np.testing.assert_allclose(getattr(rollout, f"target_value_{kind}"), expected.target.T.reshape(-1), atol=1e-6)
    for name in ("reward", "cost", "value_r", "value_c", "logp", "action"):
        np.testing.assert_array_equal(getattr(rollout, name), columns[name].T.reshape(-1))
    np.testing.assert_array_equal(rollout.observation, columns["observation"].swapaxes(0, 1).reshape(-1, 2))
    codes = np.where(flags["terminated"], 1, np.where(flags["truncated"], 2, 0))
    codes[-1] = np.where(codes[-1] == 0, 2, codes[-1])
    np.testing.assert_array_equal(rollout.is_done, codes.T.reshape(-1))


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(1, 10), st.integers(1, 3), st.sampled_from(HOW[1:]))
def test_ways_of_storing_agree(seed: int, size: int, num_envs: int, how: str) -> None:
    columns = random_rollout(np.random.default_rng(seed), size, num_envs)
    rollouts = []
    for way in ("table", how):
        buffer = make_on_policy(SPEC, size, num_envs=num_envs, penalty_coefficient=0.3)
        fill(buffer, way, columns)
        rollouts.append(buffer.get(0.5, 0.25))
    for a, b in zip(*rollouts, strict=True):
        np.testing.assert_equal(a, b)


def test_environments_may_differ_in_length() -> None:
    buffer = make_on_policy(SPEC, 4, num_envs=3, **RAW)
    buffer.store(**steps([1.0, 10.0, 100.0]))
    buffer.store(**steps([2.0, 3.0]), env=0)
    buffer.store(**steps([4.0, 11.0, 101.0]))
    buffer.store(**steps([12.0]), env=1)
    assert len(buffer) == 9
    rollout = buffer.get(0.0)
    assert rollout.reward.tolist() == [1.0, 2.0, 3.0, 4.0, 10.0, 11.0, 12.0, 100.0, 101.0]
    assert rollout.is_done.tolist() == [0, 0, 0, 2, 0, 0, 2, 0, 2]
    buffer.store(**steps([1.0, 10.0, 100.0]))
    buffer.store(**steps(2.0), env=2)
    buffer.store(**steps([[1.5, 10.5, 102.0], [1.75, 10.75, 103.0]]))
    assert buffer.get(0.0).reward.tolist() == [1.0, 1.5, 1.75, 10.0, 10.5, 10.75, 100.0, 2.0, 102.0, 103.0]


@settings(deadline=None, max_examples=60)
@given(st.data(), st.integers(0, 2**32 - 1))
def test_mixed_stores_equal_one_environment_at_a_time(data: st.DataObject, seed: int) -> None:
    size, num_envs = 12, 3
    columns = random_rollout(np.random.default_rng(seed), size, num_envs)
    mixed = make_on_policy(SPEC, size, num_envs=num_envs, estimator="gae-rtg")
    apart = make_on_policy(SPEC, size, num_envs=num_envs, estimator="gae-rtg")
    stored = np.zeros(num_envs, int)
    for _ in range(data.draw(st.integers(1, 8))):
        env = data.draw(st.sampled_from([None, 0, 1, 2]))
        room = size - int(stored.max() if env is None else stored[env])
        count = data.draw(st.integers(0, min(room, 3)))
        envs = range(num_envs) if env is None else [env]
        rows = np.stack([stored[e] + np.arange(count) for e in envs], axis=1)
        block = {name: column[rows, list(envs)] for name, column in columns.items()}
        if env is not None:
            block = {name: column[:, 0] for name, column in block.items()}
        elif count == 1 and data.draw(st.booleans()):
            block = {name: column[0] for name, column in block.items()}
        mixed.store(**block, env=env)
        stored[list(envs)] += count
    for env in range(num_envs):
        apart.store(**{name: column[: stored[env], env] for name, column in columns.items()}, env=env)
    assert len(mixed) == len(apart) == stored.sum()
    if stored.any():
        for a, b in zip(mixed.get(0.5), apart.get(0.5), strict=True):
            np.testing.assert_equal(a, b)


def test_finish_path_counts_and_does_nothing_twice() -> None:
    for estimator in ("gae", "gae-rtg", "vtrace", "plain"):
        buffer = make_on_policy(SPEC, 8, estimator=estimator, num_envs=2, **RAW)
        assert buffer.finish_path() == 0
        buffer.store(**steps([[1.0, 1.0], [1.0, 1.0]]))
        assert buffer.finish_path(5.0, env=1) == 2
        assert buffer.finish_path(7.0, env=1) == 0
        assert buffer.finish_path() == 2
        assert buffer.finish_path(9.0) == 0
        rollout = buffer.get()
        assert rollout.discounted_ret.tolist() == pytest.approx([1.99, 1.0, 1.99 + 5 * 0.99**2, 1 + 5 * 0.99])


def test_terminated_wins_and_ignores_bootstrap_values() -> None:
    for flags in ({"terminated": True, "truncated": True}, {"terminated": True}):
        buffer = make_on_policy(SPEC, 4, gamma=1.0, **RAW)
        buffer.store(**steps(1.0), **flags, final_value_r=100.0, final_value_c=100.0)
        assert buffer.finish_path(100.0, 100.0) == 0
        rollout = buffer.get()
        assert rollout.is_done.tolist() == [1] and rollout.target_value_r.tolist() == [1.0]
        assert rollout.terminated.tolist() == [True] and rollout.truncated.tolist() == [False]


def test_a_truncated_step_needs_its_successors_value() -> None:
    buffer = make_on_policy(SPEC, 4, gamma=1.0, num_envs=2, estimator="gae-rtg", **RAW)
    buffer.store(**steps([1.0, 2.0]), truncated=[False, True])
    with pytest.raises(ReplayError, match="environment 1: step 0 was truncated, and nothing says what followed"):
        buffer.store(**steps([1.0, 2.0]))
    assert len(buffer) == 2
    with pytest.raises(ReplayError, match="environment 1: step 0 was truncated, not terminated"):
        buffer.finish_path(env=1)
    assert buffer.finish_path(10.0, env=1) == 1
    buffer.store(**steps([1.0, 2.0]), truncated=[True, False], final_value_r=[5.0, np.nan])
    rollout = buffer.get(0.0)
    assert rollout.target_value_r.tolist() == [7.0, 6.0, 12.0, 2.0]
    with pytest.raises(ReplayError, match="environment 0: step 1 of 3 is truncated"):
        buffer.store(**steps([[1.0, 1.0]] * 3), truncated=[[False, True], [True, False], [False, False]])
    assert len(buffer) == 0


def test_open_paths_are_named_or_bootstrapped() -> None:
    buffer = make_on_policy(SPEC, 4, num_envs=3, **RAW)
    buffer.store(**steps([1.0, 2.0, 3.0]), terminated=[True, False, False])
    with pytest.raises(ReplayError, match=r"2 of 3 environments have an open path \(environment 1: steps 0 to 0\)"):
        buffer.get()
    assert len(buffer) == 3
    assert buffer.get([0.0, 10.0, 20.0]).discounted_ret.tolist() == pytest.approx([1.0, 2 + 9.9, 3 + 19.8])


def test_values_that_are_not_finite_are_named() -> None:
    buffer = make_on_policy(SPEC, 4, num_envs=2)
    buffer.store(**steps([[1.0, 2.0], [3.0, np.nan]]))
    buffer.finish_path()
    with pytest.raises(ReplayError, match="environment 1, step 1: reward is nan"):
        buffer.get()
    buffer.clear()
    buffer.store(**steps([1.0, 2.0]), value_c=[0.0, np.inf])
    with pytest.raises(ReplayError, match="environment 1, step 0: value_c is inf"):
        buffer.get(0.0)
    buffer.clear()
    buffer.store(**steps([1.0, 2.0]))
    buffer.finish_path([0.0, np.nan])
    with pytest.raises(ReplayError, match="environment 1, step 0: last_value_r is nan"):
        buffer.get()
