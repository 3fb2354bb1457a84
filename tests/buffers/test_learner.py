"""Batches of at least so many steps, and priorities from a learner's results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlds2buf
from rlds2buf import InvalidPriority, NotEnoughItems, ReplayError, sample_min_n_steps, update_priorities_from_learner
from rlds2buf.core import nest
from tests.buffers import numbered_blobs as blobs
from tests.buffers.numbered import SPEC, episode, transitions
from tests.reference.learner import min_n_steps


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


UNITS: list[dict[str, Any]] = [
    {"storage_unit": "episodes"},
    {"storage_unit": "fragments"},
    {"storage_unit": "sequences", "item_length": 3},
]


@pytest.mark.parametrize("unit", UNITS, ids=str)
@pytest.mark.parametrize("kind", ["circular", "prioritized", "reservoir"])
def test_whole_items_no_item_too_many(kind: str, unit: dict[str, Any]) -> None:
    """Episodes of 4 steps, 6 asked: 2 of them, not 6 as in version 0.1.0."""
    buffer = getattr(rlds2buf, f"make_{kind}")(SPEC, 60, seed=0, **unit)
    for start in (0, 10, 20):
        buffer.add(episode(start, 5))
    counts = {len(sample_min_n_steps(buffer, 6).info.key) for _ in range(20)}
    assert counts <= ({2} if unit["storage_unit"] != "sequences" else {2, 3, 4, 5, 6})
    several = rlds2buf.make_multi_agent({"a": buffer, "b": rlds2buf.make_circular(SPEC, 9)}, seed=0)
    mask = sample_min_n_steps(several, 6)["a"].data.mask
    assert mask.sum() >= 6 > mask[:-1].sum()


@pytest.mark.parametrize("kind", ["circular", "prioritized", "reservoir"])
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    unit=st.sampled_from([*UNITS, {}]),
    num_steps=st.integers(1, 40),
    concatenate=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
def test_against_one_item_at_a_time(
    kind: str, lengths: list[int], unit: dict[str, Any], num_steps: int, concatenate: bool, seed: int
) -> None:
    """The very items that single draws give, whole, and no other."""
    number = 0
    buffer, one_by_one = (getattr(rlds2buf, f"make_{kind}")(SPEC, 30, seed=seed, **unit) for _ in range(2))
    for length in lengths:
        for each in (buffer, one_by_one):
            keys = each.add(episode(number, length + 1))
            if kind == "prioritized":
                each.update_priorities(keys, 1.0 + np.arange(len(keys)))
        number += length + 1
    options = {"concatenate": True} if concatenate and unit else {}
    keys, items = min_n_steps(lambda: one_by_one.sample(1), num_steps)
    sample = sample_min_n_steps(buffer, num_steps, **options)
    rewards = [reward for item in items for reward in item]
    if options or not unit:
        assert sample.data.reward.tolist() == rewards
        assert sample.info.key.tolist() == np.repeat(keys, [len(item) for item in items]).tolist()
        return
    assert sample.info.key.tolist() == keys
    assert sample.data.reward[sample.data.mask].tolist() == rewards
    assert sample.data.mask.sum(1).tolist() == [len(item) for item in items]
    assert not sample.data.reward[~sample.data.mask].any() and not sample.data.is_done[~sample.data.mask].any()


def test_new_and_replayed_items_of_different_lengths() -> None:
    """They were joined as if all were equally long: ValueError."""
    buffer = rlds2buf.make_multi_agent(
        {"a": (SPEC, {"capacity": 100, "storage_unit": "episodes"})}, replay_ratio=0.5, seed=0
    )
    for length in (3, 9, 5, 7, 4, 8, 6, 2):
        buffer.add({"a": episode(100 * length, length + 1)})
    batch = buffer.sample(6)["a"]
    assert batch.data.mask.sum(1)[:3].tolist() == [3, 9, 5]
    rows = batch.data.observation["count"] // 100
    assert (np.where(batch.data.mask, rows, rows[:, :1]) == rows[:, :1]).all()
    assert sample_min_n_steps(buffer, 3)["a"].data.mask.sum() >= 3


def test_pictures_and_arrays_of_any_length_in_items_of_different_lengths() -> None:
    buffer = rlds2buf.make_circular(blobs.SPEC, 60, storage_unit="episodes", seed=0)
    for start, rows in ((0, 3), (10, 7), (20, 4)):
        buffer.add(blobs.episode(start, rows))
    for _ in range(10):
        sample = sample_min_n_steps(buffer, 11, decode=False)
        for i, key in enumerate(sample.info.key):
            alone = buffer.get([key], decode=False)
            steps = int(alone.mask.sum())
            assert steps == sample.data.mask[i].sum()
            for (_, mine), (_, theirs) in zip(
                nest.flatten(sample.data.observation), nest.flatten(alone.observation), strict=True
            ):
                for t in range(steps):
                    np.testing.assert_array_equal(mine[i, t], theirs[0, t])


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
    with pytest.raises(ValueError, match="count_by must be 'env' or 'agent', got 'step'"):
        sample_min_n_steps(buffer, 3, count_by="step")


def numbers(sample: Any) -> list[int]:
    return sample.data.observation["count"].tolist()


@pytest.mark.parametrize("num_steps", [1, 2, 3, 10, 31])
@pytest.mark.parametrize("length", [None, 4])
def test_steps_of_all_policies_together(num_steps: int, length: int | None) -> None:
    buffer, by_hand = two(), two()
    for each in (buffer, by_hand):
        each.add({"a": episode(0, 4), "b": episode(0, 9)})
    options = {} if length is None else {"sequence_length": length}
    batch = sample_min_n_steps(buffer, num_steps, count_by="agent", **options)
    taken, rounds = 0, []
    while taken < num_steps:
        rounds.append({name: by_hand.policies[name].sample(1, **options) for name in ("a", "b")})
        masks = [getattr(sample.data, "mask", np.ones(1)) for sample in rounds[-1].values()]
        taken += int(sum(mask.sum() for mask in masks))
    for name in ("a", "b"):
        expected = [key for each in rounds for key in each[name].info.key.tolist()]
        assert batch[name].info.key.tolist() == expected
    one = sample_min_n_steps(buffer, 5, count_by="agent", policy_id="a")
    assert list(one) == ["a"] and len(one["a"].info.key) == 5
    assert len(sample_min_n_steps(buffer.policies["a"], 5, count_by="agent").info.key) == 5


def lockstep(**options: Any) -> Any:
    """Policy "a" acts in 40 steps with two agents, "b" in the first 10 with one."""
    buffer = rlds2buf.make_multi_agent({"a": (SPEC, {}), "b": (SPEC, {})}, mode="lockstep", seed=0, **options)
    for agent in (0, 1):
        buffer.add({"a": episode(0, 41)}, episode_id=7, t=np.arange(40), agent_index=agent)
    buffer.add({"b": episode(0, 11)}, episode_id=7, t=np.arange(10), agent_index=2)
    return buffer


@pytest.mark.parametrize("num_steps", [1, 2, 7, 100])
@pytest.mark.parametrize("count_by", ["env", "agent"])
def test_lockstep_counts_slots_or_rows(num_steps: int, count_by: str) -> None:
    batch = sample_min_n_steps(lockstep(), num_steps, count_by=count_by)
    rows = np.zeros(batch.num_slots, np.int64)
    for name, sample in batch.items():
        np.add.at(rows, batch.slot[name], 1)
        assert len(batch.agent_index[name]) == len(batch.slot[name]) == len(sample.info.key)
    if count_by == "env":
        assert batch.num_slots == num_steps
    else:
        assert rows.sum() >= num_steps > rows.sum() - rows[-1]
    seen = {(slot, number) for slot, number in zip(batch.slot["a"].tolist(), numbers(batch["a"]), strict=True)}
    assert len(seen) == batch.num_slots  # both agents of a slot are at the same step
    if "b" in batch:
        assert {(s, n) for s, n in zip(batch.slot["b"].tolist(), numbers(batch["b"]), strict=True)} <= seen


def test_lockstep_sequences_count_their_steps() -> None:
    batch = sample_min_n_steps(lockstep(), 50, sequence_length=6)
    longest = np.zeros(batch.num_slots, np.int64)
    for name, sample in batch.items():
        np.maximum.at(longest, batch.slot[name], sample.data.mask.sum(1))
    assert longest.sum() >= 50 > longest.sum() - longest[-1]


@pytest.mark.parametrize("count_by", ["env", "agent"])
def test_new_ones_come_first_wherever_they_were_drawn(count_by: str) -> None:
    buffer = two(replay_ratio=0.5)
    buffer.add({"a": transitions(0, 60), "b": transitions(0, 60)})
    batch = sample_min_n_steps(buffer, 20, count_by=count_by)
    for name, sample in batch.items():
        new = batch.num_new[name]
        assert 0 < new < len(sample.info.key)
        assert sample.info.key[:new].tolist() == list(range(new))  # each in one batch only, the oldest first
    both = lockstep(replay_ratio=0.5)
    slots = sample_min_n_steps(both, 20, count_by=count_by)
    last = slots.num_new["a"]
    fresh = numbers(slots["a"])[:last]
    assert fresh == sorted(fresh) and len(set(fresh)) * 2 == len(fresh)


def test_what_was_drawn_is_given_where_nothing_new_is_left() -> None:
    buffer = two(replay_ratio=0.0)
    buffer.add({"a": transitions(0, 3)})
    batch = sample_min_n_steps(buffer, 10)
    assert batch.num_new == {"a": 3} and sorted(numbers(batch["a"])) == [0, 1, 2]
    with pytest.raises(NotEnoughItems):
        sample_min_n_steps(buffer, 10)


# -- priorities ---------------------------------------------------------------------------------------


def priorities(buffer: Any) -> list[float]:
    return buffer.engine.sampler.arrays(buffer.engine.store)["priority"].tolist()


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
