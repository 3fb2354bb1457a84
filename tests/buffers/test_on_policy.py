"""The on-policy buffer: published tables, paths, what it refuses, and its peer's bugs."""

from __future__ import annotations

import itertools
import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlds2buf
from rlds2buf import FieldSpec, StepSpec, make_on_policy, returns
from rlds2buf.buffers.on_policy import OnPolicyBuffer
from rlds2buf.buffers.rollout import Rollout
from rlds2buf.errors import MissingDependency, NotEnoughItems, ReplayError, SpecMismatch
from tests.data import GOLDEN

ONPOLICY = json.loads((GOLDEN / "onpolicy_estimators.json").read_text())
SPEC = StepSpec(observation=FieldSpec((2,), np.float32), action=FieldSpec((), np.int64))
RAW = {"standardize_reward": False, "standardize_cost": False}
COMPUTED = ("adv_r", "adv_c", "target_value_r", "target_value_c", "discounted_ret")


def steps(reward: Any, **more: Any) -> dict[str, Any]:
    """Fields for ``store``: the observation holds the reward twice, so that rows can be told apart."""
    numbers = np.asarray(reward, np.float32)
    observation = np.stack([numbers, numbers], axis=-1)
    return {"observation": observation, "action": np.zeros(numbers.shape, np.int64), "reward": numbers, **more}


def golden_buffer(case: dict[str, Any], **options: Any) -> OnPolicyBuffer:
    shared = ONPOLICY["shared"]
    return make_on_policy(
        SPEC,
        8,
        gamma=shared["gamma"],
        lam=shared["lam"],
        lam_c=shared["lam_c"],
        estimator=case["estimator"],
        penalty_coefficient=case["penalty_coefficient"],
        **{**RAW, **options},
    )


def fill_golden(buffer: OnPolicyBuffer, how: str, case: dict[str, Any]) -> None:
    shared = ONPOLICY["shared"]
    names = {"value_r": "values", "cost": "costs", "value_c": "cost_values", "logp": "logp"}
    if how == "columns":
        buffer.store(**steps(shared["rewards"], **{ours: shared[theirs] for ours, theirs in names.items()}))
    else:
        for i, reward in enumerate(shared["rewards"]):
            buffer.store(**steps(reward, **{ours: shared[theirs][i] for ours, theirs in names.items()}))
    if case["last_value_r"] or case["last_value_c"]:
        buffer.finish_path(case["last_value_r"], case["last_value_c"])
    else:
        buffer.finish_path()


@pytest.mark.parametrize("how", ["steps", "columns"])
@pytest.mark.parametrize("case", ONPOLICY["cases"], ids=lambda case: f"{case['estimator']}-{case['last_value_r']}")
def test_table(case: dict[str, Any], how: str) -> None:
    buffer = golden_buffer(case, bootstrap="omnisafe")
    fill_golden(buffer, how, case)
    rollout = buffer.get()
    for name in COMPUTED:
        column = getattr(rollout, name)
        assert column.dtype == np.float32
        np.testing.assert_allclose(column, case["expected"][name], rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("case", ONPOLICY["cases"], ids=lambda case: f"{case['estimator']}-{case['last_value_r']}")
def test_default_bootstrap_differs_only_where_it_charges_twice(case: dict[str, Any]) -> None:
    ours, theirs = golden_buffer(case), golden_buffer(case, bootstrap="omnisafe")
    for buffer in (ours, theirs):
        fill_golden(buffer, "columns", case)
    a, b = ours.get(), theirs.get()
    charged_twice = case["estimator"] in ("gae-rtg", "plain") and case["penalty_coefficient"] and case["last_value_c"]
    for name in COMPUTED:
        same = np.allclose(getattr(a, name), getattr(b, name), atol=1e-6)
        assert same == (not (name == "target_value_r" and charged_twice)), name


def test_one_penalised_step_has_one_target() -> None:
    # r 3, c 1, V' 0.8, Vc' 0.5, penalty 0.5, gamma 0.9: the target is 2.5 + 0.9 * 0.8 whatever estimates it.
    for estimator in ("gae", "gae-rtg", "vtrace", "plain"):
        buffer = make_on_policy(SPEC, 1, gamma=0.9, penalty_coefficient=0.5, estimator=estimator, **RAW)
        buffer.store(**steps(3.0, cost=1.0, value_r=0.7))
        buffer.finish_path(0.8, 0.5)
        assert buffer.get().target_value_r[0] == pytest.approx(3.22)


# Paths


def random_rollout(rng: np.random.Generator, size: int, num_envs: int) -> dict[str, np.ndarray]:
    columns = {name: rng.normal(size=(size, num_envs)).astype(np.float32) for name in ("reward", "cost", "logp")}
    columns["value_r"], columns["value_c"] = rng.normal(size=(2, size, num_envs)).astype(np.float32)
    columns["terminated"], columns["truncated"] = rng.random((2, size, num_envs)) < 0.15
    columns["final_value_r"], columns["final_value_c"] = rng.normal(size=(2, size, num_envs)).astype(np.float32)
    columns["observation"] = rng.normal(size=(size, num_envs, 2)).astype(np.float32)
    columns["action"] = rng.integers(0, 5, (size, num_envs))
    return columns


def fill(buffer: OnPolicyBuffer, how: str, columns: dict[str, np.ndarray]) -> None:
    size, num_envs = columns["reward"].shape
    everything = (slice(None), slice(None))
    cells: dict[str, list[tuple[Any, ...]]] = {
        "table": [everything],
        "two tables": [(slice(0, size // 2), slice(None)), (slice(size // 2, size), slice(None))],
        "vector steps": [(t, slice(None)) for t in range(size)],
        "one by one": [(t, env) for env in range(num_envs) for t in range(size)],
        "env by env": [(slice(None), env) for env in reversed(range(num_envs))],
    }
    if how == "finish_path":
        fill_by_hand(buffer, columns)
    else:
        for t, env in cells[how]:
            one = env if isinstance(env, int) else None
            buffer.store(**{name: column[t, env] for name, column in columns.items()}, env=one)


def fill_by_hand(buffer: OnPolicyBuffer, columns: dict[str, np.ndarray]) -> None:
    """Paths finished as OmniSafe's adapters do; the flags themselves are not stored."""
    flags = {name: columns[name] for name in ("terminated", "truncated", "final_value_r", "final_value_c")}
    for t in range(len(columns["reward"])):
        buffer.store(**{name: column[t] for name, column in columns.items() if name not in flags})
        for env in range(buffer.num_envs):
            if flags["terminated"][t, env]:
                buffer.finish_path(env=env)
            elif flags["truncated"][t, env]:
                buffer.finish_path(flags["final_value_r"][t, env], flags["final_value_c"][t, env], env)


HOW = ["table", "two tables", "vector steps", "one by one", "env by env", "finish_path"]


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


# What get() hands out


def test_only_written_steps_count() -> None:
    # OmniSafe standardises over all slots, written or not.
    buffer = make_on_policy(SPEC, 100, estimator="plain", gamma=0.0)
    rewards = np.array([3.0, 5.0, 10.0], np.float32)
    buffer.store(**steps(rewards, cost=rewards))
    rollout = buffer.get(0.0)
    assert rollout.num_steps == 3
    np.testing.assert_allclose(rollout.adv_r, (rewards - 6.0) / rewards.std(), rtol=1e-6)
    np.testing.assert_allclose(rollout.adv_c, rewards - 6.0, rtol=1e-6)


def test_standardised_once_however_often_it_is_read() -> None:
    rng = np.random.default_rng(0)
    one, many = make_on_policy(SPEC, 40), make_on_policy(SPEC, 10, num_envs=4)
    columns = random_rollout(rng, 10, 4)
    fill(many, "table", columns)
    for env in range(4):
        one.store(**{name: column[:, env] for name, column in columns.items()})
        one.finish_path(0.5, 0.5)
    first = many.get(0.5, 0.5, clear=False)
    second = many.get(clear=False)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_equal(a, b)
    # Statistics run over all environments, so that many environments are worth one long rollout.
    np.testing.assert_allclose(one.get().adv_r, first.adv_r, atol=1e-6)
    assert first.adv_r.mean() == pytest.approx(0, abs=1e-6) and first.adv_r.std() == pytest.approx(1, abs=1e-5)
    raw = make_on_policy(SPEC, 10, num_envs=4, **RAW)
    fill(raw, "table", columns)
    plain = raw.get(0.5, 0.5)
    np.testing.assert_allclose(first.adv_r, (plain.adv_r - plain.adv_r.mean()) / plain.adv_r.std(), atol=1e-5)
    np.testing.assert_allclose(first.adv_c, plain.adv_c - plain.adv_c.mean(), atol=1e-6)


@pytest.mark.parametrize("count", [1, 7])
def test_constant_advantages_give_zeros(count: int) -> None:
    buffer = make_on_policy(SPEC, 10, estimator="plain", gamma=0.0)
    buffer.store(**steps(np.full(count, 0.1), cost=0.3))
    rollout = buffer.get(0.0)
    assert rollout.adv_r.tolist() == [0.0] * count == rollout.adv_c.tolist()


def test_batches_are_copies() -> None:
    # OmniSafe's are live references: later stores change the batch.
    for num_envs in (1, 3):
        buffer = make_on_policy(SPEC, 4, num_envs=num_envs, **RAW)
        buffer.add_field("mu", (2,))
        columns = random_rollout(np.random.default_rng(0), 4, num_envs)
        columns["mu"] = columns["observation"]
        fill(buffer, "table", columns)
        rollout = buffer.get(0.0, clear=False)
        before = [np.array(leaf) for _, leaf in rlds2buf.core.nest.flatten(rollout)]
        buffer.clear()
        fill(buffer, "table", {name: column[::-1] for name, column in columns.items()})
        again = buffer.get(0.0)
        for old, (_, now) in zip(before, rlds2buf.core.nest.flatten(rollout), strict=True):
            np.testing.assert_array_equal(old, now)
        assert not np.array_equal(again.reward, rollout.reward)
        rollout.reward[:] = 0
        assert again.reward.any()


def test_get_empties_the_buffer_and_leaves_no_flags_behind() -> None:
    buffer = make_on_policy(SPEC, 3, gamma=1.0, **RAW)
    buffer.store(**steps([1.0, 1.0, 1.0]), terminated=[True, True, True])
    assert buffer.get().discounted_ret.tolist() == [1.0, 1.0, 1.0]
    assert len(buffer) == 0
    buffer.store(**steps([1.0, 1.0, 1.0]))
    assert buffer.get(0.0).discounted_ret.tolist() == [3.0, 2.0, 1.0]
    with pytest.raises(NotEnoughItems, match="no steps"):
        buffer.get()


def test_fields_not_given_are_zero_not_left_over() -> None:
    buffer = make_on_policy(SPEC, 2, **RAW)
    buffer.store(**steps([1.0, 1.0]), value_r=[5.0, 5.0], logp=-1.0, cost=1.0)
    buffer.get(0.0)
    buffer.store(**steps([1.0, 1.0]))
    rollout = buffer.get(0.0)
    assert not rollout.value_r.any() and not rollout.logp.any() and not rollout.cost.any()


def test_minibatches_cover_every_step_once_per_epoch() -> None:
    buffer = make_on_policy(SPEC, 5, num_envs=2, seed=7)
    buffer.add_field("number", (), np.int64)

    def batches(**options: Any) -> list[Rollout]:
        buffer.store(**steps(np.arange(10.0).reshape(5, 2)), number=np.arange(10).reshape(5, 2))
        buffer.finish_path()
        return list(buffer.minibatches(4, **options))

    for epochs in (1, 3):
        got = batches(epochs=epochs)
        assert [batch.num_steps for batch in got] == [4, 4, 2] * epochs
        for epoch in range(epochs):
            part = got[3 * epoch : 3 * epoch + 3]
            assert sorted(np.concatenate([batch.reward for batch in part]).tolist()) == list(range(10))
        for batch in got:
            assert batch.observation[:, 0].tolist() == batch.reward.tolist() == batch.extras["number"].tolist()
    assert [batch.num_steps for batch in batches(drop_last=True)] == [4, 4]
    assert np.concatenate([b.reward for b in batches(shuffle=False)]).tolist() == [0, 2, 4, 6, 8, 1, 3, 5, 7, 9]
    assert len(buffer) == 0
    rollouts = []
    for _ in range(2):
        buffer.store(**steps(np.arange(10.0).reshape(5, 2)), number=np.zeros((5, 2), int))
        rollouts.append([b.reward.tolist() for b in buffer.get(0.0).minibatches(3, epochs=2, seed=1)])
    assert rollouts[0] == rollouts[1] and rollouts[0][:4] != rollouts[0][4:]
    buffer.store(**steps([1.0, 2.0]), number=[1, 2])
    rollout = buffer.get(0.0)
    with pytest.raises(ValueError, match="batch_size"):
        rollout.minibatches(0)


# Fields, spaces, dtypes


def test_nested_and_discrete_spaces() -> None:
    # OmniSafe takes Box spaces only.
    spaces = (
        gymnasium.spaces.Dict(
            camera=gymnasium.spaces.Box(0, 255, (4, 4, 3), np.uint8),
            arm=gymnasium.spaces.Tuple((gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.MultiBinary(3))),
        ),
        gymnasium.spaces.Dict(gripper=gymnasium.spaces.Discrete(2), wheels=gymnasium.spaces.MultiDiscrete([3, 4])),
    )
    buffer = make_on_policy(spaces, 4, num_envs=2)
    envs = [[(spaces[0].sample(), spaces[1].sample()) for _ in range(2)] for _ in range(4)]
    for row in envs:
        stacked = [rlds2buf.core.nest.map_structure(lambda *leaves: np.stack(leaves), *pair) for pair in zip(*row)]  # noqa: B905
        buffer.store(observation=stacked[0], action=stacked[1], reward=[0.0, 1.0])
    rollout = buffer.get(0.0)
    assert rollout.observation["camera"].dtype == np.uint8
    assert rollout.action["gripper"].shape == (8,) and rollout.action["wheels"].dtype == np.int64
    for env, t in itertools.product(range(2), range(4)):
        observation, action = envs[t][env]
        at = env * 4 + t
        np.testing.assert_array_equal(rollout.observation["camera"][at], observation["camera"])
        np.testing.assert_array_equal(rollout.observation["arm"][1][at], observation["arm"][1])
        np.testing.assert_array_equal(rollout.action["wheels"][at], action["wheels"])
    assert rollout.minibatches(3).__next__().observation["arm"][0].shape == (3, 2)


def test_spaces_without_a_shape_are_refused() -> None:
    box = gymnasium.spaces.Box(-1, 1, (2,))
    with pytest.raises(TypeError, match="action/note: Text has no fixed shape"):
        make_on_policy((box, gymnasium.spaces.Dict(note=gymnasium.spaces.Text(5))), 4)
    with pytest.raises(TypeError, match="StepSpec or a pair"):
        make_on_policy(box, 4)  # type: ignore[arg-type]
    with pytest.raises(SpecMismatch, match="observation: an axis of varying length"):
        make_on_policy(StepSpec(FieldSpec((None,), np.float32), FieldSpec((), np.int64)), 4)
    with pytest.raises(SpecMismatch, match="action: the spec lacks the field"):
        make_on_policy(StepSpec(FieldSpec((), np.float32)), 4)


def test_float64_rewards_make_float64_numbers() -> None:
    spec = StepSpec(FieldSpec((2,), np.float64), FieldSpec((), np.int64), reward=FieldSpec((), np.float64))
    buffer = make_on_policy(spec, 4)
    buffer.store(**steps([1.0, 2.0]))
    rollout = buffer.get(0.0)
    assert {getattr(rollout, name).dtype for name in (*COMPUTED, "reward", "cost", "value_r")} == {np.dtype(np.float64)}


def test_extras_of_the_spec_and_added_fields() -> None:
    spec = StepSpec(
        FieldSpec((2,), np.float32),
        FieldSpec((), np.int64),
        extras={"hidden": {"h": FieldSpec((3,), np.float32)}, "cost": FieldSpec((), np.float32)},
    )
    buffer = make_on_policy(spec, 4, num_envs=2)
    buffer.add_field("log_std", (2,), np.float64)
    assert buffer.field_names[-2:] == ("hidden", "log_std")
    with pytest.raises(ReplayError, match="lacks the fields hidden, log_std"):
        buffer.store(**steps([1.0, 2.0]))
    hidden, log_std = {"h": np.ones((2, 3))}, np.full((2, 2), 0.5)
    with pytest.raises(ReplayError, match="no fields logstd"):
        buffer.store(**steps([1.0, 2.0]), hidden=hidden, log_std=log_std, logstd=log_std)
    buffer.store(**steps([1.0, 2.0]), hidden=hidden, log_std=log_std, cost=[1.0, 0.0])
    with pytest.raises(ReplayError, match="2 steps are stored without 'more'"):
        buffer.add_field("more")
    for taken in ("log_std", "reward", "adv_r", "terminated"):
        with pytest.raises(ValueError, match="already"):
            buffer.add_field(taken)
    rollout = buffer.get(0.0)
    assert rollout.cost.tolist() == [1.0, 0.0] and set(rollout.extras) == {"hidden", "log_std"}
    assert rollout.extras["hidden"]["h"].shape == (2, 3) and rollout.extras["log_std"].dtype == np.float64


@pytest.mark.parametrize("num_envs", [1, 3])
def test_properties_hold_for_one_and_many(num_envs: int) -> None:
    # OmniSafe's vector buffer has no size, device or add_field.
    buffer = make_on_policy(SPEC, 5, num_envs=num_envs)
    buffer.add_field("x")
    assert (buffer.size, buffer.num_envs, buffer.capacity, len(buffer)) == (5, num_envs, 5 * num_envs, 0)
    assert buffer.device is None and buffer.settings.estimator == "gae"
    assert repr(buffer) == (
        f"<OnPolicyBuffer: 0 of {5 * num_envs} steps, {num_envs} environment{'s' if num_envs > 1 else ''}, gae>"
    )


@pytest.mark.parametrize(
    ("num_envs", "fields", "message"),
    [
        (2, {"observation": np.zeros((2, 3))}, r"observation: expected shape \[2, 2\], got \[2, 3\]"),
        (2, {"observation": np.zeros(2)}, "observation: expected shape"),
        (2, {"observation": [[0.0, 0.0], [0.0]]}, "observation: expected .* ragged"),
        (2, {"action": np.zeros(2)}, "action: expected int64, got float64"),
        (2, {"reward": np.zeros(3)}, r"reward: expected shape \[2\] or \[T, 2\] .* got \[3\]"),
        (2, {"reward": 1.0}, r"reward: expected shape"),
        (2, {"value_r": np.zeros(3)}, "value_r: expected shape"),
        (2, {"terminated": [True]}, r"terminated: expected shape \[2\], got \[1\]"),
        (2, {"truncated": [True, False], "final_value_r": [1.0]}, "final_value_r: expected shape"),
        (1, {"reward": np.zeros((1, 1, 1))}, "reward: expected shape"),
        (2, {"observation": {"a": np.zeros((2, 2))}}, "observation"),
    ],
)
def test_bad_steps_are_named_and_nothing_is_stored(num_envs: int, fields: dict[str, Any], message: str) -> None:
    buffer = make_on_policy(SPEC, 4, num_envs=num_envs)
    with pytest.raises(SpecMismatch, match=message):
        buffer.store(**{**steps(np.zeros(num_envs)), **fields})
    assert len(buffer) == 0 and buffer.finish_path() == 0


def test_bad_structure_is_named() -> None:
    spec = StepSpec({"a": FieldSpec((), np.float32), "b": FieldSpec((), np.uint8)}, FieldSpec((), np.int64))
    buffer = make_on_policy(spec, 4)
    with pytest.raises(SpecMismatch, match="expected the fields observation/a, observation/b; got observation/a"):
        buffer.store(observation={"a": 1.0}, action=0, reward=0.0)
    with pytest.raises(SpecMismatch, match="observation/b: expected uint8, got int64"):
        buffer.store(observation={"a": 1.0, "b": 256}, action=0, reward=0.0)
    buffer.store(observation={"a": 1, "b": 255}, action=0, reward=0)
    assert buffer.get(0.0).observation["b"].tolist() == [255]


def test_no_room() -> None:
    buffer = make_on_policy(SPEC, 3, num_envs=2)
    buffer.store(**steps([[1.0, 2.0]] * 3))
    for fields, env in ((steps([1.0, 2.0]), None), (steps(1.0), 1)):
        with pytest.raises(ReplayError, match="no room: 3 of 3 steps per environment are stored, 1 more came"):
            buffer.store(**fields, env=env)
    with pytest.raises(ReplayError, match="4 more came"):
        make_on_policy(SPEC, 3).store(**steps(np.zeros(4)))
    assert len(buffer) == 6


def test_bad_environments_and_values() -> None:
    buffer = make_on_policy(SPEC, 3, num_envs=2)
    for env in (2, -1):
        with pytest.raises(ValueError, match=r"env must be in \[0, 2\)"):
            buffer.store(**steps(1.0), env=env)
        with pytest.raises(ValueError, match="env must be in"):
            buffer.finish_path(env=env)
    buffer.store(**steps([1.0, 2.0]))
    with pytest.raises(ValueError, match="last_value_r has shape"):
        buffer.finish_path([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="last_value_c has shape"):
        buffer.finish_path(1.0, [1.0, 2.0], env=0)
    # A zero-dimensional value is as good as OmniSafe's shape (1,).
    assert buffer.finish_path(np.array(1.0), np.array([1.0]), env=0) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"size": 0},
        {"num_envs": 0},
        {"gamma": 1.1},
        {"lam": -1},
        {"lam_c": 2},
        {"estimator": "td"},
        {"bootstrap": "cost"},
        {"penalty_coefficient": -0.5},
        {"penalty_coefficient": float("nan")},
    ],
)
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        make_on_policy(SPEC, **{"size": 4, **options})


def test_a_device_needs_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(MissingDependency, match="pip install torch"):
        make_on_policy(SPEC, 4, device="cpu")


def test_a_logged_episode_as_one_path() -> None:
    rng = np.random.default_rng(0)
    ep = rlds2buf.Episode(
        observation=rng.normal(size=(6, 2)).astype(np.float32),
        action=np.zeros(6, np.int64),
        reward=rng.normal(size=6).astype(np.float32),
        is_terminal=[False] * 5 + [True],
    )
    batch = rlds2buf.transitions(ep)
    buffer = make_on_policy(rlds2buf.spec_of(ep), 10, gamma=0.9, **RAW)
    buffer.store(
        observation=batch.observation,
        action=batch.action,
        reward=batch.reward,
        terminated=batch.terminated,
        truncated=batch.truncated,
    )
    annotated = returns.annotate(ep, gamma=0.9).extras["discounted_return"]
    np.testing.assert_allclose(buffer.get().discounted_ret, annotated[:-1], rtol=1e-6)
