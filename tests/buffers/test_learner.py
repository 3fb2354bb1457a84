"""Batches of at least so many steps, and priorities from a learner's results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import InvalidPriority, NotEnoughItems, ReplayError, sample_min_n_steps, update_priorities_from_learner
from tests.buffers.numbered import SPEC, episode, transitions


def two(**options: Any) -> Any:
    given = {
        "a": (SPEC, {"capacity": 200}),
        "b": (SPEC, {"kind": "prioritized", "capacity": 200, "alpha": 1.0, "eps": 0.0}),
    }
    return rlds2buf.make_multi_agent(given, **{"seed": 3, **options})


def prioritized(**options: Any) -> Any:
    return rlds2buf.make_prioritized(SPEC, 200, alpha=1.0, eps=0.0, seed=1, **options)


# -- at least n steps ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 6, 50])
@pytest.mark.parametrize("make", [lambda: rlds2buf.make_circular(SPEC, 200, seed=0), prioritized])
def test_transitions(make: Any, count: int) -> None:
    """Also of a plain prioritized buffer, where RLlib's fails for want of beta."""
    buffer = make()
    buffer.add(episode(0, 9))
    assert len(sample_min_n_steps(buffer, count).info.key) == count
    assert len(sample_min_n_steps(buffer, count, n_step=3).info.key) == count


@pytest.mark.parametrize("count", [1, 5, 6, 37])
@pytest.mark.parametrize("burn_in", [0, 3])
def test_sequences(count: int, burn_in: int) -> None:
    """Neither padding nor burn-in count, and without the last sequence there are fewer steps."""
    buffer = prioritized()
    for length in (2, 3, 5, 9):
        buffer.add(episode(0, length))
    for _ in range(20):
        sample = sample_min_n_steps(buffer, count, sequence_length=4, burn_in=burn_in)
        steps = sample.data.mask.sum(1)
        assert steps.sum() >= count > steps[:-1].sum()
        assert len(sample.info.key) == len(steps) == len(sample.data.reward)


def test_weights_of_several_draws_are_relative_to_one_largest() -> None:
    buffer = prioritized(beta=0.7)
    keys = np.concatenate([buffer.add(episode(0, 2)) for _ in range(30)])
    buffer.update_priorities(keys, np.arange(1.0, 31.0))
    for beta in (None, 0.3):
        options = {} if beta is None else {"beta": beta}
        info = sample_min_n_steps(buffer, 40, sequence_length=8, **options).info
        raw = (len(buffer) * info.probability) ** -(beta or 0.7)
        np.testing.assert_allclose(info.weight, raw / raw.max(), rtol=1e-12)


def test_of_several_policies() -> None:
    buffer = two()
    with pytest.raises(NotEnoughItems):
        sample_min_n_steps(buffer, 3)
    buffer.add({"a": episode(0, 4), "b": episode(0, 9)})
    batch = sample_min_n_steps(buffer, 10, sequence_length=4)
    for sample in batch.values():
        assert sample.data.mask.sum() >= 10 > sample.data.mask[:-1].sum()
    assert list(batch) == ["a", "b"]
    assert list(sample_min_n_steps(buffer, 10, policy_id="b")) == ["b"]
    with pytest.raises(ReplayError, match="known: a, b"):
        sample_min_n_steps(buffer, 10, policy_id="c")


def test_not_ready_and_mixing() -> None:
    buffer = two(learning_starts=5, when_not_ready="empty", replay_ratio=0.5)
    assert sample_min_n_steps(buffer, 3) == {}
    buffer.add({"b": transitions(0, 50)})
    batch = sample_min_n_steps(buffer, 20)
    assert list(batch) == ["b"] and len(batch["b"].info.key) == 20
    assert 2 <= batch.num_new["b"] <= 18


@pytest.mark.parametrize(
    ("count", "options", "what"),
    [(0, {}, "num_steps"), (3, {"replace": False}, "replace"), (3, {"beta": -1.0}, "beta")],
)
def test_arguments(count: int, options: dict[str, Any], what: str) -> None:
    buffer = prioritized()
    buffer.add(episode(0, 9))
    with pytest.raises(ValueError, match=what):
        sample_min_n_steps(buffer, count, **options)
    lockstep = rlds2buf.make_multi_agent({"a": (SPEC, {"capacity": 9})}, mode="lockstep")
    with pytest.raises(ValueError, match="lockstep"):
        sample_min_n_steps(lockstep, 3)


# -- priorities ---------------------------------------------------------------------------------------


def priorities(buffer: Any) -> list[float]:
    return buffer._sampler.arrays(buffer._store)["priority"].tolist()


def test_results_by_policy() -> None:
    buffer = two()
    keys = buffer.add({"a": episode(0, 4), "b": episode(0, 4)})
    results = {
        "b": {"td_error": np.array([-2.0, 0.5]), "batch_indexes": keys["b"][:2], "loss": 3.0},
        "a": {"loss": 1.0},  # samples uniformly: passed over
    }
    missing = update_priorities_from_learner(buffer, results)
    assert list(missing) == ["b"] and missing["b"].tolist() == []
    assert priorities(buffer.policies["b"]) == [2.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("eta", "mask", "expected"),
    [
        (0.0, None, [2.0, 1.0]),
        (1.0, None, [3.0, 2.0]),
        (0.5, None, [2.5, 1.5]),
        (0.0, [[1, 1, 0], [0, 1, 1]], [1.5, 1.5]),
        (1.0, [[1, 1, 0], [0, 0, 1]], [2.0, 2.0]),
    ],
)
def test_errors_of_sequences(eta: float, mask: Any, expected: list[float]) -> None:
    buffer = prioritized()
    keys = buffer.add(episode(0, 3))
    results = {
        "td_error": [[-1.0, 2.0, 3.0], [0.0, -1.0, 2.0]],
        "keys": keys,
        **({} if mask is None else {"mask": mask}),
    }
    update_priorities_from_learner(buffer, results, eta=eta)
    assert priorities(buffer) == expected


@pytest.mark.parametrize(
    ("result", "error", "what"),
    [
        ({"keys": [0]}, ValueError, "policy 'b': .*td_error"),
        ({"td_error": [1.0]}, ValueError, "policy 'b': .*keys"),
        ({"td_error": [1.0, 2.0], "keys": [0]}, ValueError, "policy 'b'"),
        ({"td_error": [[1.0]], "keys": [0], "mask": [[False]]}, ValueError, "policy 'b': a mask"),
        ({"td_error": [np.nan], "keys": [0]}, InvalidPriority, "finite|NaN|nan"),
    ],
)
def test_results_that_do_not_fit(result: dict[str, Any], error: type[Exception], what: str) -> None:
    """RLlib warns and goes on without the priorities."""
    buffer = two()
    buffer.add({"b": episode(0, 4)})
    with pytest.raises(error, match=what):
        update_priorities_from_learner(buffer, {"b": result})
    with pytest.raises(ReplayError, match="known: a, b"):
        update_priorities_from_learner(buffer, {"b": {"td_error": [9.0], "keys": [0]}, "c": result})
    assert priorities(buffer.policies["b"]) == [1.0, 1.0, 1.0]
    with pytest.raises(ValueError, match="eta"):
        update_priorities_from_learner(buffer, {}, eta=2.0)


def test_a_uniform_buffer_is_passed_over() -> None:
    assert update_priorities_from_learner(rlds2buf.make_circular(SPEC, 3), {"loss": 1.0}) == {}
