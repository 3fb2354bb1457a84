"""The on-policy buffer: published tables, what it hands out and refuses, and its peer's bugs."""

from __future__ import annotations

import itertools
import json
from typing import Any

import gymnasium
import numpy as np
import pytest

import rlds2buf
from rlds2buf import FieldSpec, StepSpec, make_on_policy, returns
from rlds2buf.buffers.vectorized.on_policy import OnPolicyBuffer
from rlds2buf.buffers.vectorized.rollout import Rollout
from rlds2buf.errors import MissingDependency, NotEnoughItems, ReplayError, SpecMismatch
from tests.buffers.vectorized.rollouts import RAW, SPEC, fill, random_rollout, steps
from tests.data import GOLDEN

ONPOLICY = json.loads((GOLDEN / "onpolicy_estimators.json").read_text())
COMPUTED = ("adv_r", "adv_c", "target_value_r", "target_value_c", "discounted_ret")


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
    with pytest.raises(TypeError, match="action/graph: Graph has no fixed shape"):
        make_on_policy((box, gymnasium.spaces.Dict(graph=gymnasium.spaces.Graph(box, None))), 4)
    with pytest.raises(TypeError, match="or a pair"):
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
    assert repr(buffer).splitlines()[0] == (
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
