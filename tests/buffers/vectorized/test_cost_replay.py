"""Off-policy replay with costs: the published ring tables, a list model, and its peer's bugs."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlds2buf
from rlds2buf import FieldSpec, StepSpec, make_cost_replay
from rlds2buf.buffers.vectorized.cost_replay import CostReplay
from rlds2buf.errors import MissingDependency, NotEnoughItems, ReplayError, SnapshotError, SpecMismatch
from tests.buffers import numbered
from tests.buffers.compare import assert_same_nest
from tests.data import GOLDEN

RING = json.loads((GOLDEN / "offpolicy_ring.json").read_text())
SPEC = StepSpec(observation=FieldSpec((), np.float32), action=FieldSpec((), np.int64))


def row(number: Any, **more: Any) -> dict[str, Any]:
    """A step whose every field follows from `number`."""
    n = np.asarray(number)
    fields = {"observation": n, "action": n.astype(np.int64), "reward": n, "cost": np.ones(n.shape)}
    return {**fields, "next_observation": n + 1, **more}


def test_single_ring_table() -> None:
    table = RING["single"]
    buffer = make_cost_replay(SPEC, table["size"], penalty_coefficient=table["penalty_coefficient"])
    for i, state in enumerate(table["states"]):
        assert buffer.store(**row(i)) == i
        held = buffer.all()
        # The peer's slots, oldest first.
        oldest = state["ptr"] if state["size"] == table["size"] else 0
        order = [(oldest + k) % table["size"] for k in range(state["size"])]
        assert len(buffer) == state["size"]
        assert held.observation.tolist() == [state["slots_obs"][slot] for slot in order]
        assert held.reward.tolist() == [state["slots_reward"][slot] for slot in order]
        assert held.extras["original_reward"].tolist() == held.observation.tolist()


def test_vector_ring_table() -> None:
    table = RING["vector"]
    buffer = make_cost_replay(SPEC, table["size"], num_envs=table["num_envs"], batch_size=table["batch_size"], seed=0)
    for i in range(table["stored_steps"]):
        buffer.store(**row(np.array([i, i + 10])))
    oldest = table["stored_steps"] % table["size"]
    slots = np.roll(table["slots_reward"], -oldest, axis=0)
    assert buffer.all().reward.reshape(slots.shape).tolist() == slots.tolist()
    seen = set()
    for _ in range(50):
        batch = buffer.sample()
        assert len(batch.data.reward) == table["sample_rows"]
        assert (batch.data.reward >= 10).astype(int).tolist() == table["sample_env_of_row"]
        # Each row draws its own time index.
        seen.add(tuple((batch.data.reward % 10).tolist()))
        np.testing.assert_array_equal(batch.data.next_observation, batch.data.observation + 1)
    assert any(len(set(times)) > 1 for times in seen)


def test_documented_differences_from_the_table() -> None:
    # A batch as large as the buffer is fine; an empty buffer says what is missing.
    buffer = make_cost_replay(SPEC, 3, batch_size=3)
    with pytest.raises(NotEnoughItems, match="holds 0 steps per environment, and sampling needs 1"):
        buffer.sample()
    buffer.store(**row(1))
    assert len(buffer.sample().data.reward) == 3


@settings(deadline=None, max_examples=60)
@given(st.data(), st.integers(1, 6), st.integers(1, 3))
def test_against_a_list(data: st.DataObject, size: int, num_envs: int) -> None:
    buffer = make_cost_replay(SPEC, size, num_envs=num_envs, penalty_coefficient=0.5, seed=0)
    model: list[np.ndarray] = []
    stored = 0
    for _ in range(data.draw(st.integers(1, 6))):
        what = data.draw(st.sampled_from(["step", "table", "table", "resize", "clear", "reload"]))
        if what in ("step", "table"):
            shape = (num_envs,) if what == "step" else (data.draw(st.integers(0, 8)), num_envs)
            numbers = np.arange(np.prod(shape)).reshape(shape) + 100 * stored
            keys = buffer.store(**row(numbers))
            assert keys.shape == shape and keys.dtype == np.uint64
            assert keys.reshape(-1).tolist() == list(range(stored, stored + numbers.size))
            stored += numbers.size
            model += list(numbers.reshape(-1, num_envs))
        elif what == "resize":
            buffer.resize(data.draw(st.integers(1, 6)))
        elif what == "clear":
            buffer.clear()
            model = []
        else:
            other = make_cost_replay(SPEC, buffer.size, num_envs=num_envs, penalty_coefficient=0.5)
            other.load_state_dict(buffer.state_dict())
            buffer = other
        model = model[-buffer.size :]
        expected = np.concatenate(model) if model else np.zeros(0)
        held = buffer.all()
        assert len(buffer) == len(expected) <= buffer.capacity
        np.testing.assert_array_equal(held.observation, expected)
        np.testing.assert_array_equal(held.next_observation, expected + 1)
        np.testing.assert_array_equal(held.reward, expected - 0.5)
        if model:
            batch = buffer.sample(4)
            sampled = batch.data.observation.reshape(4, num_envs)
            for env in range(num_envs):
                assert set(sampled[:, env]) <= {float(step[env]) for step in model}
            assert (batch.info.probability == 1 / len(model)).all()


def test_draws_are_uniform_in_every_environment() -> None:
    buffer = make_cost_replay(SPEC, 10, num_envs=2, seed=0)
    buffer.store(**row(np.stack([np.arange(15), np.arange(15) + 100], axis=1)))
    batch = buffer.sample(20_000)
    for env in range(2):
        numbers, counts = np.unique(batch.data.observation[env::2], return_counts=True)
        assert numbers.tolist() == [5 + k + 100 * env for k in range(10)]
        # Chi-square with 9 degrees of freedom stays below 33.7 in all but one of 10,000 runs.
        assert ((counts - 2000) ** 2 / 2000).sum() < 33.7


def test_without_replacement() -> None:
    buffer = make_cost_replay(SPEC, 8, num_envs=2, seed=0)
    buffer.store(**row(np.arange(10).reshape(5, 2)))
    batch = buffer.sample(5, replace=False)
    assert sorted(batch.data.observation.tolist()) == list(range(10))
    assert (batch.data.observation % 2).tolist() == [0, 1] * 5
    assert sorted(batch.info.key.tolist()) == list(range(10))
    with pytest.raises(NotEnoughItems, match="holds 5 steps per environment, and sampling needs 6"):
        buffer.sample(6, replace=False)


def test_the_original_reward_is_kept_and_the_penalty_may_change() -> None:
    # OmniSafe overwrites the reward when it stores.
    buffer = make_cost_replay(SPEC, 4, penalty_coefficient=2.0)
    buffer.store(**row(5.0, cost=3.0))
    assert buffer.all().reward.tolist() == [-1.0]
    buffer.penalty_coefficient = 0.0
    held = buffer.all()
    assert held.reward.tolist() == [5.0] == held.extras["original_reward"].tolist()
    assert held.extras["cost"].tolist() == [3.0] and held.reward.dtype == np.float32


def test_ends() -> None:
    # OmniSafe stores done=0 where both flags are set, and so bootstraps through the terminal state.
    buffer = make_cost_replay(SPEC, 4)
    buffer.store(**row(np.arange(4.0), terminated=[0, 1, 0, 1], truncated=[0, 0, 1, 1]))
    data = buffer.all()
    assert data.is_done.tolist() == [0, 1, 2, 1]
    assert data.discount.tolist() == [1.0, 0.0, 1.0, 0.0]
    batch = buffer.sample(64, gamma=0.5).data
    np.testing.assert_array_equal(batch.bootstrap_discount, np.where(batch.is_done == 1, 0.0, 0.5))


def test_batches_are_copies() -> None:
    buffer = make_cost_replay(SPEC, 2)
    buffer.store(**row(np.array([1.0, 2.0])))
    held = buffer.all()
    buffer.store(**row(np.array([3.0, 4.0])))
    assert held.observation.tolist() == [1.0, 2.0]
    held.observation[:] = 9
    assert buffer.all().observation.tolist() == [3.0, 4.0]


@pytest.mark.parametrize("num_envs", [1, 2])
def test_added_fields(num_envs: int) -> None:
    # OmniSafe's add_field makes a column of no rows in an empty buffer.
    buffer = make_cost_replay(SPEC, 3, num_envs=num_envs)
    buffer.add_field("logp")
    buffer.add_field("mu", (2,), np.float64)
    numbers = np.arange(4.0 * num_envs).reshape(4, num_envs)
    mu = np.stack([numbers, -numbers], axis=-1)
    buffer.store(**row(numbers, logp=numbers * 2, mu=mu))
    held = buffer.all()
    np.testing.assert_array_equal(held.extras["mu"][:, 0], held.observation)
    np.testing.assert_array_equal(held.extras["logp"], held.observation * 2)
    assert held.extras["mu"].shape == (3 * num_envs, 2) and held.extras["mu"].dtype == np.float64
    for missing in ({"logp": numbers}, {"logp": numbers, "mu": mu, "nu": mu}):
        with pytest.raises(SpecMismatch, match=r"extras: expected the fields .*; got"):
            buffer.store(**row(numbers, **missing))
    with pytest.raises(ReplayError, match="stored without 'more'"):
        buffer.add_field("more")
    for taken in ("logp", "cost", "original_reward", "reward"):
        with pytest.raises(ValueError, match="taken"):
            make_cost_replay(SPEC, 3).add_field(taken) if taken != "logp" else buffer.add_field(taken)


def test_nested_observations_strings_and_discrete_actions() -> None:
    spec = StepSpec(
        observation={"image": FieldSpec((2, 2), np.uint8), "text": FieldSpec((), np.dtype(object))},
        action=(FieldSpec((), np.int64), FieldSpec((3,), np.float32)),
    )
    buffer = make_cost_replay(spec, 3, num_envs=2, seed=0)

    def observation(t: int) -> dict[str, Any]:
        return {"image": np.full((2, 2, 2), t, np.uint8), "text": np.array([b"step %d" % t, b"x"], object)}

    for t in range(5):
        action = (np.array([t, t + 1]), np.full((2, 3), t))
        buffer.store(
            observation=observation(t), action=action, reward=[0.0, 1.0], cost=0.0, next_observation=observation(t + 1)
        )
    held = buffer.all()
    assert held.observation["text"].tolist() == [b"step 2", b"x", b"step 3", b"x", b"step 4", b"x"]
    assert held.next_observation["text"][::2].tolist() == [b"step 3", b"step 4", b"step 5"]
    assert held.observation["image"].dtype == np.uint8 and held.action[0].tolist() == [2, 3, 3, 4, 4, 5]
    other = make_cost_replay(spec, 3, num_envs=2)
    other.load_state_dict(buffer.state_dict())
    assert other.all().observation["text"].tolist() == held.observation["text"].tolist()
    assert other.sample(4).data.action[0].tolist() == buffer.sample(4).data.action[0].tolist()


def test_a_logged_episode_with_costs() -> None:
    ep = rlds2buf.Episode(
        observation=np.arange(4.0, dtype=np.float32),
        action=np.arange(4),
        reward=np.arange(4.0, dtype=np.float32),
        is_terminal=[False, False, False, True],
        extras={"cost": np.array([1.0, 0.0, 1.0, 9.0], np.float32)},
    )
    buffer = make_cost_replay(rlds2buf.spec_of(ep), 10, penalty_coefficient=0.5)
    assert buffer.add(ep).tolist() == [0, 1, 2]
    assert buffer.add(rlds2buf.transitions(ep)).tolist() == [3, 4, 5]
    held = buffer.all()
    assert held.reward.tolist() == [-0.5, 1.0, 1.5] * 2 and held.is_done.tolist() == [0, 0, 1] * 2
    assert held.next_observation.tolist() == [1.0, 2.0, 3.0] * 2
    with pytest.raises(SpecMismatch, match="extras/cost: the data have no costs"):
        buffer.add(ep.replace(extras={}))
    with pytest.raises(ReplayError, match="of one environment, the buffer of 2"):
        make_cost_replay(SPEC, 4, num_envs=2).add(ep)


def test_state_is_a_copy_and_goes_on_with_the_same_draws() -> None:
    buffer = make_cost_replay(SPEC, 4, num_envs=2, seed=5)
    buffer.store(**row(np.arange(12).reshape(6, 2)))
    state = buffer.state_dict()
    expected = [buffer.sample(8).data.observation.tolist() for _ in range(3)]
    buffer.store(**row(np.full((4, 2), 99)))
    other = make_cost_replay(SPEC, 4, num_envs=2, seed=1)
    other.load_state_dict(state)
    assert [other.sample(8).data.observation.tolist() for _ in range(3)] == expected
    assert other.store(**row(np.zeros(2))).tolist() == [12, 13]
    other.load_state_dict(state)
    assert [other.sample(8).data.observation.tolist() for _ in range(3)] == expected
    wide = StepSpec(FieldSpec((2,), np.float32), FieldSpec((), np.int64))
    for wrong in (
        make_cost_replay(SPEC, 5, num_envs=2),
        make_cost_replay(SPEC, 4),
        make_cost_replay(wide, 4, num_envs=2),
    ):
        with pytest.raises(SnapshotError, match="the state is of a buffer with"):
            wrong.load_state_dict(state)
        assert len(wrong) == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"reward": np.zeros(3)}, r"reward: expected shape \[2\] or \[T, 2\], got \[3\]"),
        ({"reward": 1.0}, "reward: expected shape"),
        ({"cost": np.zeros(3)}, "extras/cost: expected shape"),
        ({"action": np.zeros(2)}, "action: expected int64, got float64"),
        ({"next_observation": np.zeros((2, 2))}, "next_observation: expected shape"),
        ({"terminated": [True]}, "terminated: expected shape"),
        ({"speed": [1.0, 2.0]}, "extras: expected the fields extras/cost; got extras/cost, extras/speed"),
    ],
)
def test_bad_steps_are_named_and_nothing_is_stored(fields: dict[str, Any], message: str) -> None:
    buffer = make_cost_replay(SPEC, 4, num_envs=2)
    with pytest.raises(SpecMismatch, match=message):
        buffer.store(**{**row(np.zeros(2)), **fields})
    assert len(buffer) == 0


@pytest.mark.parametrize("options", [{"size": 0}, {"num_envs": 0}, {"batch_size": 0}, {"penalty_coefficient": -1.0}])
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        make_cost_replay(SPEC, **{"size": 4, **options})


def test_bad_calls() -> None:
    buffer = make_cost_replay(SPEC, 4)
    buffer.store(**row(1.0))
    for arguments in ({}, {"batch_size": 0}, {"batch_size": 2, "gamma": 1.5}):
        with pytest.raises(ValueError, match=r"batch_size|gamma"):
            buffer.sample(**arguments)
    with pytest.raises(ValueError, match="size"):
        buffer.resize(0)
    with pytest.raises(TypeError, match="an Episode, an EpisodeBatch or a Transition, got dict; store"):
        buffer.add(row(1.0))  # type: ignore[arg-type]
    taken = StepSpec(SPEC.observation, SPEC.action, extras={"original_reward": FieldSpec((), np.float32)})
    with pytest.raises(ValueError, match="original_reward is taken"):
        make_cost_replay(taken, 4)


def test_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = make_cost_replay(SPEC, 4, num_envs=3)
    buffer.store(**row(np.zeros(3)))
    assert isinstance(buffer, CostReplay)
    assert (buffer.size, buffer.capacity, len(buffer), buffer.num_envs, buffer.device) == (4, 12, 3, 3, None)
    assert repr(buffer).splitlines()[0] == "<CostReplay: 3 of 12 transitions, 3 environments>"
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(MissingDependency, match="pip install torch"):
        make_cost_replay(SPEC, 4, device="cpu")


@pytest.mark.parametrize("size", [200, 11])
def test_a_batch_of_episodes(size: int) -> None:
    """The same as one by one, those of one row and more than fit among them."""
    ends = ("terminated", "truncated", "open")
    found = []
    for i, rows in enumerate((3, 1, 2, 9, 1, 4)):
        ep = numbered.episode(20 * i, rows, ends[i % 3])
        found.append(ep.replace(extras={"cost": np.arange(rows, dtype=np.float64)}, discount=None))
    spec = dataclasses.replace(numbered.SPEC, extras={}, discount=None)
    one, other = (make_cost_replay(spec, size, seed=1) for _ in range(2))
    for _ in range(2):
        keys = np.concatenate([other.add(ep) for ep in found])
        assert one.add(rlds2buf.EpisodeBatch.of(found)).tolist() == keys.tolist()
        mine, theirs = one.sample(40), other.sample(40)
        assert mine.info.key.tolist() == theirs.info.key.tolist()
        assert_same_nest(mine.data._asdict(), theirs.data._asdict())
