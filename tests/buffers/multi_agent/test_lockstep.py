"""Lockstep replay: all policies' rows of a time step together."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlds2buf
from rlds2buf import EpisodeError, NotEnoughItems, SnapshotCorrupt, SpecMismatch
from rlds2buf.buffers.multi_agent.time_slots import TimeSlots
from tests.buffers.numbered import SPEC, episode, transition, transitions
from tests.reference.time_slots import ListSlots


def lockstep(capacity: int = 50, policies: str = "ab", **options: Any) -> Any:
    given_policies = {name: (SPEC, {"capacity": capacity}) for name in policies}
    return rlds2buf.make_multi_agent(given_policies, mode="lockstep", **{"seed": 3, **options})


def rows(batch: Any) -> set[tuple[int, frozenset[tuple[str, int, int]]]]:
    """Slot number to its ``(policy, agent, number of the row)``."""
    found: dict[int, set[tuple[str, int, int]]] = {}
    for name, sample in batch.items():
        numbers = sample.data.observation["count"]
        for slot, agent, number in zip(batch.slot[name], batch.agent_index[name], numbers, strict=True):
            found.setdefault(int(slot), set()).add((name, int(agent), int(number)))
    return {(slot, frozenset(some)) for slot, some in found.items()}


def test_rows_of_a_time_step_come_together() -> None:
    buffer = lockstep()
    for t in range(6):
        data = {"a": transitions(10 * t, 2)}
        if t % 2:
            data["b"] = transitions(1000 + t, 1)  # is absent in every second step
        keys = buffer.add(data, episode_id=7, t=t, agent_index={"a": [0, 1], "b": 2})
    assert {name: mine.tolist() for name, mine in keys.items()} == {"a": [10, 11], "b": [2]}
    assert len(buffer) == 6 == buffer.env_steps
    batch = buffer.sample(40)
    assert batch.num_slots == 40 and len(batch["a"].info.key) == 80
    expected = {
        frozenset({("a", 0, 10 * t), ("a", 1, 10 * t + 1)} | ({("b", 2, 1000 + t)} if t % 2 else set()))
        for t in range(6)
    }
    assert {some for _, some in rows(batch)} == expected and len(rows(batch)) == 40
    assert batch["a"].info.probability.tolist() == [1 / 6] * 80 and batch["a"].info.table_size == 6
    assert (np.diff(batch.slot["a"]) >= 0).all()
    every = buffer.sample(6, replace=False)
    assert {some for _, some in rows(every)} == expected
    with pytest.raises(NotEnoughItems, match="6 time slots"):
        buffer.sample(7, replace=False)


def test_every_time_step_is_as_likely() -> None:
    """However many rows it has."""
    buffer = lockstep()
    for t in range(5):
        buffer.add({"a": transitions(0, t + 1)}, episode_id=0, t=t, agent_index=np.arange(t + 1))
    batch = buffer.sample(10_000)
    sizes = np.bincount(np.bincount(batch.slot["a"]), minlength=6)[1:]
    assert np.abs(sizes / 10_000 - 0.2).max() < 0.02


def test_columns_of_the_data_or_of_the_extras() -> None:
    spec = rlds2buf.StepSpec(
        observation=rlds2buf.FieldSpec((), np.float64),
        action=rlds2buf.FieldSpec((), np.int64),
        reward=rlds2buf.FieldSpec((), np.float64),
        discount=None,
        extras={name: rlds2buf.FieldSpec((), np.int64) for name in ("episode_id", "t", "agent_index")},
    )
    buffer = rlds2buf.make_multi_agent({"a": (spec, {"capacity": 9})}, mode="lockstep")
    ids = {"episode_id": np.array([4, 4, 5]), "t": np.array([0, 1, 0]), "agent_index": np.array([0, 0, 0])}
    steps = {name: np.zeros(3, np.int64) for name in ("observation", "action", "reward", "next_observation")}
    buffer.add({"a": {**steps, "extras": ids}})
    assert len(buffer) == 3
    batch = buffer.sample(20)["a"]
    assert set(zip(batch.data.extras["episode_id"].tolist(), batch.data.extras["t"].tolist(), strict=True)) == {
        (4, 0),
        (4, 1),
        (5, 0),
    }
    other = lockstep()
    other.add({"a": {**transitions(0, 3)._asdict(), **ids}})
    assert len(other) == 3


@pytest.mark.parametrize("missing", ["episode_id", "t", "agent_index"])
def test_a_missing_column_is_named(missing: str) -> None:
    """RLlib: KeyError."""
    buffer = lockstep()
    ids = {"episode_id": 0, "t": 0, "agent_index": 0}
    del ids[missing]
    with pytest.raises(SpecMismatch, match=f"^{missing}: .*policy 'a'") as caught:
        buffer.add({"b": transition(1), "a": transition(1)}, **ids, **{missing: {"b": 0}})
    assert caught.value.path == missing
    assert buffer.stats()["policies"]["b"]["added"] == 0 == len(buffer)


@pytest.mark.parametrize("value", [[0, 1], 0.5, "zero", [[0]]])
def test_ids_are_integers(value: Any) -> None:
    with pytest.raises(SpecMismatch, match="t: expected an integer"):
        lockstep().add({"a": transitions(0, 3)}, episode_id=0, t=value, agent_index=0)


def test_the_same_row_twice() -> None:
    """RLlib: TypeError comparing dicts."""
    buffer = lockstep()
    buffer.add({"a": transition(1)}, episode_id=3, t=8, agent_index=1)
    before = buffer.stats()
    for data, agents in (({"b": transition(1), "a": transition(2)}, 1), ({"a": transitions(1, 2)}, 5)):
        with pytest.raises(EpisodeError, match=r"policy 'a' has two rows of agent \d") as caught:
            buffer.add(data, episode_id=3, t=8, agent_index=agents)
        assert (caught.value.episode, caught.value.step, caught.value.path) == (3, 8, "agent_index")
    assert buffer.stats() == before
    buffer.add({"b": transition(1), "a": transition(2)}, episode_id=3, t=8, agent_index=2)
    assert len(buffer) == 1 and len(buffer.sample(1)["a"].info.key) == 2


def test_a_slot_leaves_with_its_first_row() -> None:
    buffer = lockstep(4)
    for t in range(6):
        data = {"a": transition(t), **({"b": transition(100 + t)} if t < 2 else {})}
        buffer.add(data, episode_id=0, t=t, agent_index=0)
    assert len(buffer) == 4  # times 2 to 5: of the first two, a's rows have left, b's are still there
    assert len(buffer.policies["b"]) == 2
    assert list(buffer.sample(50)) == ["a"]


def test_more_than_fits_in_one_call() -> None:
    buffer = lockstep(4)
    buffer.add(
        {"a": transitions(0, 10), "b": transitions(100, 3)},
        episode_id=0,
        agent_index=0,
        t={"a": range(10), "b": [0, 8, 9]},
    )
    assert len(buffer) == 4
    assert {some for _, some in rows(buffer.sample(100))} == {
        frozenset({("a", 0, 6)}),
        frozenset({("a", 0, 7)}),
        frozenset({("a", 0, 8), ("b", 0, 101)}),
        frozenset({("a", 0, 9), ("b", 0, 102)}),
    }


def test_sequences_are_of_one_agent_and_episode() -> None:
    buffer = lockstep()
    for t in range(4):
        # agents 0 and 1 of episodes 0 and 1, interleaved; nothing says that they end
        buffer.add({"a": transitions(100 * t, 4)}, episode_id=[0, 0, 1, 1], t=t, agent_index=[0, 1, 0, 1])
    buffer.add({"a": transition(999)}, episode_id=2, t=0, agent_index=0)
    batch = buffer.sample(200, sequence_length=6, burn_in=2)
    data = batch["a"].data
    for row, mask, burn_in in zip(data.observation["count"], data.mask, data.burn_in, strict=True):
        real = row[mask | burn_in].tolist()
        assert len({number % 100 for number in real}) == 1
        assert np.diff(real).tolist() == [100] * (len(real) - 1)
    assert (data.mask | data.burn_in).sum(1).max() == 4


def test_episodes() -> None:
    buffer = lockstep()
    buffer.add({"a": episode(0, 5), "b": [episode(100, 4)]}, episode_id=1, agent_index=0)
    assert len(buffer) == 4
    found = {some for _, some in rows(buffer.sample(100))}
    assert frozenset({("a", 0, 1), ("b", 0, 101)}) in found and frozenset({("a", 0, 3)}) in found


def test_agents_by_number() -> None:
    buffer = lockstep(policy_mapping={"x": "a", "y": "a", "z": "b"})
    for t in range(3):
        buffer.add({"x": transition(t), "y": transition(10 + t), "z": transition(20 + t)}, episode_id=0, t=t)
    batch = buffer.sample(5)
    assert batch.agent_index["a"].tolist() == [0, 1] * 5 and batch.agent_index["b"].tolist() == [2] * 5


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda buffer: buffer.sample(2, policy_id="a"), "policy_id"),
        (lambda buffer: buffer.sample(2, beta=0.5), "beta"),
        (lambda buffer: buffer.sample(2, source_id=0), "source_id"),
        (lambda buffer: buffer.add({"a": transition(1)}, priorities={"a": [1.0]}), "priorities"),
        (lambda buffer: buffer.add({"a": transition(1)}, source_id=3), "source_id"),
    ],
)
def test_what_lockstep_can_not_do(call: Any, what: str) -> None:
    buffer = lockstep()
    buffer.add({"a": transition(1)}, episode_id=0, t=0, agent_index=0)
    with pytest.raises(ValueError, match=what):
        call(buffer)


@pytest.mark.parametrize("kind", ["prioritized", "circular"])
def test_only_rows_of_uniform_buffers(kind: str) -> None:
    """RLlib's prioritized lockstep runs, silently without weights."""
    options = {"capacity": 5} if kind == "prioritized" else {"capacity": 5, "capacity_unit": "episodes"}
    with pytest.raises(ValueError, match="lockstep draws whole time steps uniformly"):
        rlds2buf.make_multi_agent({"a": (SPEC, {"kind": kind, **options})}, mode="lockstep")


@pytest.mark.parametrize("unit", ["episodes", "sequences", "fragments"])
def test_only_timesteps(unit: str) -> None:
    """Each such buffer could be made before, and then took nothing of more than one step."""
    options = {"capacity": 5, "storage_unit": unit, **({"item_length": 2} if unit == "sequences" else {})}
    with pytest.raises(ValueError, match=f"policy 'a' has a circular one of {unit}"):
        rlds2buf.make_multi_agent({"a": (SPEC, options)}, mode="lockstep")


@pytest.mark.parametrize("direct", [False, True])
def test_a_resized_buffer(direct: bool) -> None:
    """Slots of rows that left leave, the others stay, and there is room for as many as there are rows."""
    buffer = lockstep(6)
    for t in range(6):
        buffer.add({"a": transition(t), "b": transition(100 + t)}, episode_id=0, t=t, agent_index=0)
    for size, held in ((3, [3, 4, 5]), (20, [3, 4, 5, 6, 7, 8])):
        if direct:
            buffer.policies["a"].resize(size)
        else:
            buffer.resize({"a": size, "b": 7})
        for t in range(6, 9) if size == 20 else ():
            buffer.add({"a": transition(t), "b": transition(100 + t)}, episode_id=0, t=t, agent_index=0)
        batch = buffer.sample(60)
        buffer.engine.lockstep.slots.check_valid()
        assert len(buffer) == len(held)
        for name, start in (("a", 0), ("b", 100)):
            assert set(batch[name].data.observation["count"]) == {start + t for t in held}
        assert (batch["a"].data.action * 1 == batch["b"].data.action - 1000).all()
    assert buffer.policies["a"].capacity == 20


def test_mixing() -> None:
    """RLlib's never returns anything in lockstep."""
    buffer = lockstep(replay_ratio=0.5, when_not_ready="empty")
    for t in range(10):
        buffer.add({"a": transition(t), "b": transition(100 + t)}, episode_id=0, t=t, agent_index=0)
    first = buffer.sample(8)
    assert first.num_slots == 8 and first.num_new == {"a": 4, "b": 4}
    assert first["b"].data.observation["count"][:4].tolist() == [100, 101, 102, 103]
    assert buffer.sample(12)["a"].data.observation["count"][:6].tolist() == [4, 5, 6, 7, 8, 9]
    assert buffer.sample(8) == {}
    buffer.add({"a": transition(50)}, episode_id=0, t=20, agent_index=0)
    batch = buffer.sample(8)
    assert batch.num_slots == 2 and batch["a"].data.observation["count"][0] == 50


@pytest.mark.parametrize("ratio", [None, 0.5])
def test_states_and_files(ratio: float | None, tmp_path: Path) -> None:
    buffer = lockstep(7, replay_ratio=ratio)
    for t in range(20):
        buffer.add(
            {"a": transitions(10 * t, 2), "b": transition(1000 + t)},
            episode_id=0,
            t=t,
            agent_index={"a": [0, 1], "b": 0},
        )
    buffer.sample(2)
    state = buffer.state_dict()
    buffer.save(tmp_path / "saved")
    again, other = rlds2buf.load_buffer(tmp_path / "saved"), lockstep(7, replay_ratio=ratio, seed=11)
    other.load_state_dict(state)
    for t in range(20, 24):
        drawn = []
        for one in (buffer, again, other):
            one.add(
                {"a": transitions(10 * t, 2), "b": transition(1000 + t)},
                episode_id=0,
                t=t,
                agent_index={"a": [0, 1], "b": 0},
            )
            one.engine.lockstep.slots.check_valid()
            batch = one.sample(4, sequence_length=3, burn_in=1)
            drawn.append(
                [
                    (batch.slot[name].tolist(), sample.data.observation["count"].tolist())
                    for name, sample in batch.items()
                ]
            )
        assert drawn[0] == drawn[1] == drawn[2]
    table = state["arrays"]["rows"]
    state["arrays"]["rows"] = table[table[:, 2] != 0]  # a slot without rows
    with pytest.raises(SnapshotCorrupt):
        other.load_state_dict(state)
    state["arrays"].pop("slots")
    before = len(other)
    with pytest.raises(SnapshotCorrupt):
        other.load_state_dict(state)
    assert len(other) == before


def test_clear() -> None:
    buffer = lockstep(5)
    for turn in range(3):
        for t in range(8):
            buffer.add({"a": transition(t)}, episode_id=0, t=t, agent_index=0)
        assert len(buffer) == 5, turn
        buffer.clear()
        assert len(buffer) == 0
        buffer.engine.lockstep.slots.check_valid()


def test_many_open_episodes_are_forgotten() -> None:
    buffer = lockstep(20)
    for number in range(3000):
        buffer.add({"a": transition(number)}, episode_id=number, t=0, agent_index=0)
    assert len(buffer.engine.lockstep._sources[0]) <= 1024 and len(buffer) == 20


# -- against the twin ---------------------------------------------------------------------------------

CALLS = st.lists(
    st.dictionaries(
        st.sampled_from("abc"),
        st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=6),
        min_size=1,
    ),
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@given(CALLS, st.integers(1, 9), st.integers(1, 9))
def test_random_calls(calls: list[dict[str, list[tuple[int, int, int]]]], small: int, large: int) -> None:
    capacities = {"a": small, "b": large, "c": 5}
    buffer = rlds2buf.make_multi_agent(
        {name: (SPEC, {"capacity": capacity}) for name, capacity in capacities.items()}, mode="lockstep", seed=0
    )
    twin = ListSlots(capacities)
    number = 0
    for call in calls:
        data = {name: transitions(number + 100 * i, len(steps)) for i, (name, steps) in enumerate(call.items())}
        ids = {
            name: {policy: [step[place] for step in steps] for policy, steps in call.items()}
            for place, name in enumerate(("episode_id", "t", "agent_index"))
        }
        number += 1000
        if any(twin.clashes(policy, steps) for policy, steps in call.items()):
            with pytest.raises(EpisodeError):
                buffer.add(data, **ids)
            continue
        keys = buffer.add(data, **ids)
        twin.add({policy: list(zip(keys[policy].tolist(), steps, strict=True)) for policy, steps in call.items()})
        slots = buffer.engine.lockstep.slots
        slots.check_valid()
        assert len(buffer) == len(twin.slots)
        if not len(buffer):
            continue
        batch = buffer.sample(len(buffer), replace=False)
        found: dict[int, list[Any]] = {}
        for name in batch:
            for slot, key, agent in zip(batch.slot[name], batch[name].info.key, batch.agent_index[name], strict=True):
                found.setdefault(int(slot), []).append((name, int(key), int(agent)))
        expected = sorted([*sorted(row for row in some)] for some in twin.slots.values())
        assert sorted(sorted(some) for some in found.values()) == expected


@pytest.mark.parametrize("size", [0, 1, 2, 3, 8, 15, 16, 17, 100])
def test_table_fills_and_empties(size: int) -> None:
    slots = TimeSlots([size])
    rng = np.random.default_rng(size)
    for turn in range(3):
        episodes, times = rng.integers(-(2**62), 2**62, size), np.arange(size)
        slots.enter(0, np.arange(turn * size, (turn + 1) * size), episodes, times, np.zeros(size, np.int64))
        slots.check_valid()
        assert len(slots) == size
        slots.follow(0, (turn + 1) * size)
        slots.check_valid()
        assert len(slots) == 0


@pytest.mark.parametrize("seed", range(8))
def test_a_batch_of_episodes_is_the_same_as_one_by_one(seed: int) -> None:
    """Those of one row, more than fit, and steps of episodes that go on, before and in between, among them."""
    rng = np.random.default_rng(seed)
    spec = dataclasses.replace(SPEC, extras={**SPEC.extras, "episode_id": rlds2buf.FieldSpec((), np.int64)})
    one, other = (
        rlds2buf.make_multi_agent(
            {"a": (spec, {"capacity": 40}), "b": (spec, {"capacity": 40})}, mode="lockstep", seed=3
        )
        for _ in range(2)
    )
    number = 0
    for turn in range(6):
        found = []
        for i in range(int(rng.integers(1, 7))):
            ep = episode(number, int(rng.choice([1, 2, int(rng.integers(1, 20))])))
            ids = np.full(len(ep), 1000 * turn + i)
            ids[len(ep) // 2 :] += 500 * int(rng.random() < 0.2)  # seldom, a column that changes within an episode
            found.append(ep.replace(extras={**ep.extras, "episode_id": ids}))
            number += len(ep)
        batch = rlds2buf.EpisodeBatch.of(found)
        step = transition(number)
        for buffer in (one, other):
            loose = {**step, "extras": {**step["extras"], "episode_id": np.int64(1000 * turn)}}
            buffer.add({"a": loose}, t=100, agent_index=0)
        keys = one.add({"a": batch, "b": found[0]}, agent_index={"a": 0, "b": 1})
        mine = other.add({"a": found, "b": found[0]}, agent_index={"a": 0, "b": 1})
        assert {name: some.tolist() for name, some in keys.items()} == {
            name: some.tolist() for name, some in mine.items()
        }
        states = [buffer.state_dict() for buffer in (one, other)]
        assert states[0]["lockstep"] == states[1]["lockstep"]
        for name in "ab":
            assert one.policies[name].keys().tolist() == other.policies[name].keys().tolist()
            sources = [state["policies"][name]["arrays"].get("source", np.zeros(0)).tolist() for state in states]
            assert sources[0] == sources[1]
        assert len(one) == len(other)
        seen = [rows(buffer.sample(8)) for buffer in (one, other)]
        assert seen[0] == seen[1]
