"""rlds2buf.returns: published tables, identities between estimators, and what is refused."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import rlds2buf
from rlds2buf import returns
from rlds2buf.errors import EpisodeError, SpecMismatch
from tests.data import GOLDEN
from tests.reference import returns as reference

ONPOLICY = json.loads((GOLDEN / "onpolicy_estimators.json").read_text())
VTRACE = json.loads((GOLDEN / "vtrace.json").read_text())
ESTIMATORS = {"gae": returns.gae, "gae-rtg": returns.gae_rtg, "plain": returns.plain, "vtrace": returns.vtrace}
FRACTIONS = st.floats(0, 1)
EXACT = {"rtol": 0, "atol": 1e-6}


@st.composite
def rollouts(draw: st.DrawFn, max_batch: int = 3) -> dict[str, np.ndarray]:
    """Rewards, values, flags and the true successors' values of ``[T, B]`` steps."""
    shape = (draw(st.integers(1, 15)), draw(st.integers(1, max_batch)))
    column = hnp.arrays(np.float64, shape, elements=st.floats(-5, 5, width=32))
    flag = hnp.arrays(np.bool_, shape, elements=st.sampled_from([False, False, False, True]))
    out = {"rewards": draw(column), "values": draw(column), "terminated": draw(flag), "truncated": draw(flag)}
    out["next_values"] = returns.successor_values(
        out["values"], last_value=draw(column)[0], truncated=out["truncated"], final_values=draw(column)
    )
    return out


# Published tables


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", ONPOLICY["cases"], ids=lambda case: f"{case['estimator']}-{case['last_value_r']}")
def test_estimators_on_one_path(case: dict[str, Any], dtype: type) -> None:
    shared, expected = ONPOLICY["shared"], case["expected"]
    gamma, penalty = shared["gamma"], case["penalty_coefficient"]
    reward, value, cost, cost_value = (
        np.array(shared[name], dtype) for name in ("rewards", "values", "costs", "cost_values")
    )
    estimate = ESTIMATORS[case["estimator"]]
    lam = {"lam": shared["lam"]} if case["estimator"].startswith("gae") else {}
    lam_c = {"lam": shared["lam_c"]} if case["estimator"].startswith("gae") else {}
    charged = (reward - penalty * cost).astype(dtype)
    result = estimate(charged, value, gamma=gamma, last_value=case["last_value_r"], **lam)
    np.testing.assert_allclose(result.advantage, expected["adv_r"], **EXACT)
    assert result.advantage.dtype == dtype
    target = result.target
    if case["estimator"] in ("gae-rtg", "plain"):
        # The table's peer bootstraps these targets with the penalised value.
        rest = case["last_value_r"] - penalty * case["last_value_c"]
        target = returns.discounted_return(charged, gamma=gamma, last_value=rest)
    np.testing.assert_allclose(target, expected["target_value_r"], **EXACT)
    costs = estimate(cost, cost_value, gamma=gamma, last_value=case["last_value_c"], **lam_c)
    np.testing.assert_allclose(costs.advantage, expected["adv_c"], **EXACT)
    np.testing.assert_allclose(costs.target, expected["target_value_c"], **EXACT)
    ret = returns.discounted_return(reward, gamma=gamma, last_value=case["last_value_r"])
    np.testing.assert_allclose(ret, expected["discounted_ret"], **EXACT)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("case", VTRACE["cases"])
def test_vtrace_table(case: dict[str, Any], log: bool) -> None:
    given = VTRACE["inputs"]
    pi, mu, values = (np.array(given[name]) for name in ("pi", "mu", "values"))
    weights = {"policy_logp": np.log(pi), "behavior_logp": np.log(mu)} if log else {"ratio": pi / mu}
    # A last row that the table calls terminated needs no value; one it does not mention has it.
    result = returns.vtrace(
        given["rewards"],
        values[:-1],
        **weights,
        gamma=given["gamma"],
        lam=case.get("lam", 1.0),
        rho_bar=case["rho_bar"],
        c_bar=case["c_bar"],
        terminated=case.get("terminated"),
        last_value=values[-1],
    )
    np.testing.assert_allclose(result.target, case["vs"], **EXACT)
    np.testing.assert_allclose(result.advantage, case["policy_advantage"], **EXACT)
    np.testing.assert_allclose(result.rho, case["clipped_rho"], **EXACT)


def test_vtrace_refuses_a_trace_clip_above_the_weight_clip() -> None:
    case = VTRACE["error_case"]
    with pytest.raises(ValueError, match="c_bar"):
        returns.vtrace([1.0], [1.0], [1.0], rho_bar=case["rho_bar"], c_bar=case["c_bar"])


# Identities


@settings(deadline=None)
@given(rollouts(), FRACTIONS)
def test_lam_1_is_return_minus_value(data: dict[str, np.ndarray], gamma: float) -> None:
    result = returns.gae(**data, gamma=gamma, lam=1.0)
    values = data.pop("values")
    full = returns.discounted_return(**data, gamma=gamma)
    # Inside a path the successor is the next row, so the sum telescopes.
    np.testing.assert_allclose(result.advantage, full - values, atol=1e-9)
    np.testing.assert_allclose(result.target, full, atol=1e-9)


@settings(deadline=None)
@given(rollouts(), FRACTIONS)
def test_lam_0_is_the_one_step_error(data: dict[str, np.ndarray], gamma: float) -> None:
    result = returns.gae(**data, gamma=gamma, lam=0.0)
    error = data["rewards"] + gamma * ~data["terminated"] * data["next_values"] - data["values"]
    np.testing.assert_allclose(result.advantage, error, atol=1e-12)
    np.testing.assert_allclose(returns.plain(**data, gamma=gamma).advantage, error, atol=1e-12)


@settings(deadline=None)
@given(rollouts(), FRACTIONS, FRACTIONS)
def test_vtrace_with_equal_policies_is_gae(data: dict[str, np.ndarray], gamma: float, lam: float) -> None:
    logp = np.sin(data["values"])
    v = returns.vtrace(**data, policy_logp=logp, behavior_logp=logp, gamma=gamma, lam=lam)
    g = returns.gae(**data, gamma=gamma, lam=lam)
    np.testing.assert_allclose(v.target, g.target, atol=1e-9)
    np.testing.assert_allclose(v.target, g.advantage + data["values"], atol=1e-9)
    assert (v.rho == 1).all()
    n_step = returns.vtrace(**data, gamma=gamma, lam=1.0)
    rest = {name: data[name] for name in data if name != "values"}
    np.testing.assert_allclose(n_step.target, returns.discounted_return(**rest, gamma=gamma), atol=1e-9)
    np.testing.assert_allclose(n_step.advantage, n_step.target - data["values"], atol=1e-9)


@settings(deadline=None)
@given(rollouts(max_batch=1), FRACTIONS, FRACTIONS, st.sampled_from(sorted(ESTIMATORS)))
def test_splitting_at_flags_equals_the_flat_pass(
    data: dict[str, np.ndarray], gamma: float, lam: float, name: str
) -> None:
    flat = {key: column[:, 0] for key, column in data.items()}
    options = {"gamma": gamma} if name == "plain" else {"gamma": gamma, "lam": lam}
    whole = ESTIMATORS[name](**flat, **options)
    ends = np.flatnonzero(flat["terminated"] | flat["truncated"])
    borders = [0, *(ends + 1).tolist()]
    if borders[-1] != len(flat["rewards"]):
        borders.append(len(flat["rewards"]))
    for start, stop in itertools.pairwise(borders):
        last = 0.0 if flat["terminated"][stop - 1] else flat["next_values"][stop - 1]
        # One path, no flags: as finish_path would see it.
        part = ESTIMATORS[name](flat["rewards"][start:stop], flat["values"][start:stop], last_value=last, **options)
        np.testing.assert_allclose(part.advantage, whole.advantage[start:stop], atol=1e-9)
        np.testing.assert_allclose(part.target, whole.target[start:stop], atol=1e-9)


@settings(deadline=None)
@given(rollouts(), FRACTIONS, FRACTIONS)
def test_against_sums_by_definition(data: dict[str, np.ndarray], gamma: float, lam: float) -> None:
    end = np.where(data["terminated"], 1, np.where(data["truncated"], 2, 0))
    end[-1] = np.where(end[-1] == 0, 2, end[-1])
    result = returns.gae(**data, gamma=gamma, lam=lam)
    for b in range(end.shape[1]):
        columns = [data[name][:, b] for name in ("rewards", "values", "next_values")]
        expected = reference.gae(*columns, end[:, b], gamma, lam)
        np.testing.assert_allclose(result.advantage[:, b], expected[0], atol=1e-9)
        np.testing.assert_allclose(result.target[:, b], expected[1], atol=1e-9)


# Axes and dtypes


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_batch_axes_are_streams_of_their_own(name: str) -> None:
    rng = np.random.default_rng(0)
    reward, value = rng.normal(size=(2, 20, 3, 4))
    terminated = rng.random((20, 3, 4)) < 0.1
    last = rng.normal(size=(3, 4))
    whole = ESTIMATORS[name](reward, value, terminated=terminated, last_value=last)
    assert whole.advantage.shape == (20, 3, 4)
    for i, j in np.ndindex(3, 4):
        alone = ESTIMATORS[name](reward[:, i, j], value[:, i, j], terminated=terminated[:, i, j], last_value=last[i, j])
        np.testing.assert_array_equal(whole.advantage[:, i, j], alone.advantage)
        np.testing.assert_array_equal(whole.target[:, i, j], alone.target)
    for axis in (1, -1):
        moved = [np.moveaxis(column, 0, axis) for column in (reward, value, terminated)]
        result = ESTIMATORS[name](moved[0], moved[1], terminated=moved[2], last_value=last, time_axis=axis)
        np.testing.assert_array_equal(np.moveaxis(result.target, axis, 0), whole.target)


@pytest.mark.parametrize(
    ("given", "result"),
    [(np.float16, np.float32), (np.float32, np.float32), (np.float64, np.float64), (np.int64, np.float64)],
)
def test_result_dtypes(given: type, result: type) -> None:
    rewards = np.array([1, 2, 3], given)
    assert returns.discounted_return(rewards).dtype == result
    assert returns.gae(rewards, rewards).target.dtype == result
    assert returns.vtrace(rewards, rewards).rho.dtype == result
    assert returns.gae(rewards, rewards.astype(np.float64)).advantage.dtype == np.float64


def test_arguments_are_left_alone() -> None:
    rewards, values = np.arange(4.0), np.ones(4)
    rewards.flags.writeable = values.flags.writeable = False
    result = returns.gae(rewards, values, last_value=1.0)
    assert not np.shares_memory(result.target, values) and not np.shares_memory(result.advantage, rewards)


def test_no_steps() -> None:
    assert returns.discounted_return(np.zeros((0, 3))).shape == (0, 3)
    assert returns.gae(np.zeros(0), np.zeros(0), last_value=1.0).target.shape == (0,)
    assert returns.successor_values(np.zeros(0)).shape == (0,)


# The successor of a truncated step


def test_reset_observations_value_never_counts() -> None:
    # Two episodes of two steps; the first is cut by a limit.  Its last step is followed by an
    # observation worth 10, and in the data by the next episode's first one, worth 500.
    rewards, values = np.ones(4), np.array([1.0, 2.0, 500.0, 3.0])
    cut = np.array([False, True, False, False])
    successor = returns.successor_values(values, last_value=4.0, truncated=cut, final_values=[10.0])
    assert successor.tolist() == [2.0, 10.0, 3.0, 4.0]
    result = returns.gae(rewards, values, gamma=1.0, lam=1.0, truncated=cut, next_values=successor)
    assert result.target.tolist() == [12.0, 11.0, 6.0, 5.0]
    for estimate in (returns.gae, returns.gae_rtg, returns.plain, returns.vtrace):
        with pytest.raises(ValueError, match="next_values"):
            estimate(rewards, values, truncated=cut, last_value=4.0)
    with pytest.raises(ValueError, match="next_values"):
        returns.discounted_return(rewards, truncated=cut, last_value=4.0)


def test_both_flags_mean_terminated() -> None:
    both = {"terminated": [False, True], "truncated": [False, True]}
    result = returns.gae([1.0, 1.0], [0.0, 0.0], gamma=1.0, lam=1.0, **both, last_value=100.0)
    assert result.target.tolist() == [2.0, 1.0]
    assert returns.discounted_return([1.0, 1.0], gamma=1.0, **both, last_value=100.0).tolist() == [2.0, 1.0]


def test_values_after_termination_are_not_read() -> None:
    result = returns.gae([1.0, 1.0], [0.5, 0.5], terminated=[True, True], next_values=[np.nan, np.inf])
    assert np.isfinite(result.advantage).all()


def test_successor_values_takes_whole_columns_too() -> None:
    values, final = np.arange(6.0).reshape(3, 2), -np.arange(6.0).reshape(3, 2)
    cut = np.array([[True, False], [False, False], [False, True]])
    expected = [[-0.0, 3.0], [4.0, 5.0], [7.0, -5.0]]
    whole = returns.successor_values(values, last_value=[7.0, 8.0], truncated=cut, final_values=final)
    picked = returns.successor_values(values, last_value=[7.0, 8.0], truncated=cut, final_values=final[cut])
    assert whole.tolist() == picked.tolist() == expected
    swapped = returns.successor_values(
        values.T, last_value=[7.0, 8.0], truncated=cut.T, final_values=final.T, time_axis=1
    )
    assert swapped.T.tolist() == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"values": [1.0, 2.0]}, "values has shape"),
        ({"terminated": [True]}, "terminated has shape"),
        ({"next_values": [1.0]}, "next_values has shape"),
        ({"last_value": [1.0, 2.0]}, "last_value has shape"),
        ({"last_value": 1.0, "next_values": [0.0, 0.0, 0.0]}, "not both"),
        ({"terminated": [False, False, False]}, "does not terminate"),
        ({"gamma": 1.5}, "gamma must be in"),
        ({"lam": -0.1}, "lam must be in"),
        ({"gamma": float("nan")}, "gamma must be in"),
        ({"time_axis": 1}, "no time axis 1"),
        ({"rewards": ["a", "b", "c"]}, "real numbers"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"rewards": [1.0, 2.0, 3.0], "values": [0.0, 0.0, 0.0], **arguments}
    with pytest.raises(ValueError, match=message):
        returns.gae(**given)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ratio": [1.0, -1.0]}, "negative"),
        ({"ratio": [1.0, np.nan]}, "NaN"),
        ({"ratio": [1.0]}, "ratio has shape"),
        ({"policy_logp": [0.0, 0.0]}, "go together"),
        ({"ratio": [1.0, 1.0], "policy_logp": [0.0, 0.0], "behavior_logp": [0.0, 0.0]}, "not both"),
    ],
)
def test_bad_ratios(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        returns.vtrace([1.0, 2.0], [0.0, 0.0], **arguments)


def test_tiny_probabilities_make_no_nan() -> None:
    # exp(-2000) is 0: a quotient of probabilities would be 0/0.
    logp = np.array([-2000.0, -1500.0], np.float32)
    result = returns.vtrace(np.ones(2, np.float32), np.zeros(2, np.float32), policy_logp=logp, behavior_logp=logp)
    np.testing.assert_allclose(result.target, [1.99, 1.0], rtol=1e-6)
    far = returns.vtrace([1.0], [0.0], policy_logp=[0.0], behavior_logp=[-2000.0], rho_bar=np.inf)
    assert np.isfinite(far.target).all()


@pytest.mark.parametrize(
    "arguments",
    [
        {"truncated": [True, False]},
        {"truncated": [True], "final_values": [1.0]},
        {"truncated": [True, True], "final_values": [1.0, 2.0, 3.0]},
        {"last_value": [1.0, 2.0]},
    ],
)
def test_successor_values_refuses(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"final_values|truncated|last_value"):
        returns.successor_values([1.0, 2.0], **arguments)


# Logged episodes


def episode(**changes: Any) -> rlds2buf.Episode:
    fields: dict[str, Any] = {
        "observation": np.arange(4.0),
        "action": np.zeros(4),
        "reward": np.array([1.0, 2.0, 4.0, 99.0], np.float32),
        "discount": np.ones(4),
        "extras": {"cost": np.array([1, 0, 1, 7])},
        "source": "somewhere",
        "index": 3,
    }
    return rlds2buf.Episode(**{**fields, **changes})


def test_annotate_adds_columns_and_ignores_padding() -> None:
    given = episode()
    names = ("return_to_go", "discounted_return", "cost_to_go", "discounted_cost")
    out = returns.annotate(given, add=names, gamma=0.5)
    assert out.extras["return_to_go"].tolist() == [7.0, 6.0, 4.0, 0.0]
    assert out.extras["discounted_return"].tolist() == [3.0, 4.0, 4.0, 0.0]
    assert out.extras["cost_to_go"].tolist() == [2.0, 1.0, 1.0, 0.0]
    assert out.extras["discounted_cost"].tolist() == [1.25, 0.5, 1.0, 0.0]
    assert out.extras["return_to_go"].dtype == np.float32 and out.extras["cost_to_go"].dtype == np.float64
    assert set(given.extras) == {"cost"} and out.observation is given.observation
    assert (out.source, out.index, out.end, out.derived) == ("somewhere", 3, given.end, given.derived)


def test_annotate_agrees_with_the_longest_n_step_return() -> None:
    rng = np.random.default_rng(1)
    given = rlds2buf.Episode(observation=np.zeros(30), action=np.zeros(30), reward=rng.normal(size=30))
    whole = rlds2buf.transitions(given, n_step=29, gamma=0.9).reward
    np.testing.assert_allclose(returns.annotate(given, gamma=0.9).extras["discounted_return"][:-1], whole)


def test_annotated_spec_describes_the_result() -> None:
    for names in (["return_to_go"], ["discounted_return", "cost_to_go"]):
        out = returns.annotate(episode(), add=names)
        assert returns.annotated_spec(rlds2buf.spec_of(episode()), add=names) == rlds2buf.spec_of(out)


def test_annotate_column_shapes() -> None:
    column = episode(reward=np.ones((4, 1)))
    assert returns.annotate(column, add="return_to_go").extras["return_to_go"].tolist() == [[3.0], [2.0], [1.0], [0.0]]
    one = rlds2buf.Episode(observation=np.zeros(1), reward=np.ones(1))
    assert returns.annotate(one).extras["return_to_go"].tolist() == [0.0]


def test_annotate_refuses() -> None:
    with pytest.raises(ValueError, match="known: return_to_go"):
        returns.annotate(episode(), add=["returns"])
    with pytest.raises(ValueError, match="gamma"):
        returns.annotate(episode(), gamma=2.0)
    with pytest.raises(EpisodeError, match="somewhere, episode 3, reward") as caught:
        returns.annotate(episode(reward=None))
    assert caught.value.path == "reward"
    with pytest.raises(EpisodeError, match="extras/cost"):
        returns.annotate(episode(extras={}), add=["cost_to_go"])
    with pytest.raises(SpecMismatch, match="real numbers"):
        returns.annotate(episode(reward={"a": np.zeros(4)}))
    with pytest.raises(SpecMismatch, match="extras/return_to_go"):
        returns.annotate(returns.annotate(episode()))
    spec = rlds2buf.spec_of(episode())
    with pytest.raises(SpecMismatch, match="real numbers"):
        returns.annotated_spec(rlds2buf.StepSpec(reward=None))
    with pytest.raises(SpecMismatch, match="already"):
        returns.annotated_spec(returns.annotated_spec(spec))


def test_import_loads_no_numba() -> None:
    code = "import sys, rlds2buf; rlds2buf.returns.gae; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0


def test_public_names() -> None:
    assert all(hasattr(returns, name) for name in returns.__all__)
    assert rlds2buf.returns is returns
