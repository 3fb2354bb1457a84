"""Several policies' buffers: independent replay, shards, learning starts, mixing, states and files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import (
    InvalidPriority,
    MultiAgentSample,
    NotEnoughItems,
    ReplayError,
    SnapshotCorrupt,
    SnapshotError,
    SnapshotExists,
    SpecMismatch,
    Transition,
)
from tests.buffers.multi_agent.agents import assert_same_batch, two
from tests.buffers.numbered import SPEC, episode, transition, transitions


def counts(batch: MultiAgentSample) -> dict[str, int]:
    return {name: len(sample.info.key) for name, sample in batch.items()}


# -- making -------------------------------------------------------------------------------------------


def test_policies_of_every_kind() -> None:
    made = rlds2buf.make_prioritized(SPEC, 30)
    buffer = rlds2buf.make_multi_agent(
        {
            "made": made,
            "function": lambda: rlds2buf.make_circular(SPEC, 20, capacity_unit="transitions"),
            "options": (SPEC, {"kind": "uniform", "capacity": 10, "view": {"n_step": 2}}),
        }
    )
    assert buffer.policies["made"] is made
    assert buffer.policies["function"].capacity_unit == "transitions"
    assert buffer.policies["options"].kind == "circular" and buffer.policies["options"].capacity == 10
    buffer.add({name: episode(0, 5) for name in buffer.policies})
    batch = buffer.sample(64)
    assert counts(batch) == {"made": 64, "function": 64, "options": 64}
    assert batch["options"].data.steps.max() == 2  # its own default
    assert buffer.sample(64, policy_id="options", n_step=1)["options"].data.steps.max() == 1  # a call's wins


@pytest.mark.parametrize(
    ("policies", "options", "error", "what"),
    [
        ({}, {}, ValueError, "no policies"),
        ({"a": 3}, {}, TypeError, "'a' needs a buffer"),
        ({"a": lambda: None}, {}, TypeError, "'a' needs a buffer"),
        ({3: (SPEC, {"capacity": 3})}, {}, TypeError, "strings"),
        ({"a": (SPEC, {"kind": "on_policy"})}, {}, ValueError, "with a capacity, not 'on_policy'"),
        ({"a": SPEC}, {}, TypeError, "'a' needs a buffer"),
        ({"a": (SPEC, {"kind": "magic", "capacity": 3})}, {}, ValueError, "magic"),
        (None, {"mode": "both"}, ValueError, "mode"),
        (None, {"learning_starts": -1}, ValueError, "learning_starts"),
        (None, {"num_shards": 0}, ValueError, "num_shards"),
        (None, {"num_shards": 51}, ValueError, "51 shards"),
        (None, {"replay_ratio": 1.5}, ValueError, "replay_ratio"),
        (None, {"when_not_ready": "wait"}, ValueError, "when_not_ready"),
        (None, {"policy_mapping": {"x": "c"}}, ValueError, "c, which are no policies"),
        (None, {"policy_mapping": 3}, ValueError, "policy_mapping"),
        (None, {"mode": "lockstep"}, ValueError, "'b' has a prioritized one"),
    ],
)
def test_what_can_not_be_made(policies: Any, options: dict[str, Any], error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=what):
        two(**options) if policies is None else rlds2buf.make_multi_agent(policies, **options)


def test_one_buffer_is_not_shared() -> None:
    one = rlds2buf.make_circular(SPEC, 10)
    with pytest.raises(ValueError, match="each needs its own"):
        rlds2buf.make_multi_agent({"a": one, "b": one})


def test_shards_divide_every_capacity() -> None:
    """RLlib ignores num_shards for its default buffer."""
    given = {
        "options": (SPEC, {"capacity": 31}),
        "made": rlds2buf.make_prioritized(SPEC, 30),
        "function": lambda: rlds2buf.make_circular(SPEC, 20),
    }
    buffer = rlds2buf.make_multi_agent(given, num_shards=3, learning_starts=10)
    assert {name: one.capacity for name, one in buffer.policies.items()} == {"options": 10, "made": 10, "function": 6}
    for number in range(12):
        buffer.add({name: transition(number) for name in given})
    assert {name: one.num_rows for name, one in buffer.policies.items()} == {"options": 10, "made": 10, "function": 6}
    assert counts(buffer.sample(2)) == {"options": 2, "made": 2, "function": 2}


# -- adding -------------------------------------------------------------------------------------------


def test_keys_come_by_policy() -> None:
    buffer = two()
    keys = buffer.add({"a": episode(0, 4), "b": [transition(7), transitions(10, 2)]})
    assert {name: mine.tolist() for name, mine in keys.items()} == {"a": [0, 1, 2], "b": [0, 1, 2]}
    assert {name: mine.tolist() for name, mine in buffer.keys().items()} == {"a": [0, 1, 2], "b": [0, 1, 2]}
    assert len(buffer) == 6
    assert buffer.policies["b"].all().observation["count"].tolist() == [7, 10, 11]


def test_an_unknown_policy_leaves_no_trace() -> None:
    """RLlib leaves an empty buffer behind, and every later sample fails."""
    buffer = two()
    buffer.add({"a": episode(0, 4)})
    before = buffer.stats()
    for data in ({"a": episode(0, 4), "c": episode(0, 4)}, {"c": transition(1)}, {7: transition(1)}):
        with pytest.raises(ReplayError, match=r"unknown policy ('c'|7); known: a, b"):
            buffer.add(data)
    with pytest.raises(ReplayError, match="unknown policy 'c'; known: a, b"):
        buffer.sample(3, policy_id="c")
    with pytest.raises(ReplayError, match="unknown policy 'c'; known: a, b"):
        buffer.update_priorities({"b": ([], []), "c": ([0], [1.0])})
    assert buffer.stats() == before and list(buffer.policies) == ["a", "b"]
    assert counts(buffer.sample(5)) == {"a": 5}


@pytest.mark.parametrize(
    ("data", "options", "error"),
    [
        ({"a": "first", "b": {"observation": 3}}, {}, SpecMismatch),
        ({"a": "first", "b": [transition(1), {"action": 1}]}, {}, SpecMismatch),
        ({"a": "first", "b": 17}, {}, TypeError),
        ({"a": "first", "b": "first"}, {"priorities": {"b": [1.0, -1.0, 1.0]}}, InvalidPriority),
        ({"a": "first", "b": "first"}, {"priorities": {"b": [1.0]}}, ValueError),
        ({"a": "first", "b": "first"}, {"source_id": {"b": -1}}, ValueError),
        ({"a": "first", "b": "long"}, {}, rlds2buf.EpisodeError),
        ({"a": "first"}, {"episode_id": 3}, ValueError),
    ],
)
def test_all_or_nothing(data: dict[str, Any], options: dict[str, Any], error: type[Exception]) -> None:
    buffer = two()
    buffer.add({"b": episode(0, 3)})
    before = buffer.stats()
    named = {"first": episode(0, 4), "long": episode(0, 60)}
    given = {name: named[part] if isinstance(part, str) else part for name, part in data.items()}
    with pytest.raises(error):
        buffer.add(given, **options)
    assert buffer.stats() == before
    with pytest.raises(NotEnoughItems):
        buffer.policies["a"].sample(1)


@pytest.mark.parametrize("nothing", [None, {}, [], "", (), {"a": None}, {"a": [], "b": {}}], ids=repr)
def test_absent_agents(nothing: Any) -> None:
    buffer = two()
    assert all(len(keys) == 0 for keys in buffer.add(nothing).values())
    assert len(buffer) == 0 and buffer.env_steps == 0
    buffer.add({"a": None, "b": episode(0, 4)})
    assert counts(buffer.sample(4)) == {"b": 4}


def test_data_without_policy() -> None:
    with pytest.raises(ReplayError, match="'default_policy'; known: a, b"):
        two().add(episode(0, 4))
    buffer = rlds2buf.make_multi_agent({"default_policy": (SPEC, {"capacity": 50}), "a": (SPEC, {"capacity": 50})})
    for data, count in (
        (episode(0, 4), 3),
        (transition(1), 1),
        (transitions(1, 5), 5),
        ([episode(0, 3), episode(0, 3)], 4),
        ({"default_policy": episode(0, 3)}, 2),
    ):
        assert len(buffer.add(data)["default_policy"]) == count
    assert len(buffer) == len(buffer.policies["default_policy"]) == 15


def test_environment_steps() -> None:
    buffer = two()
    buffer.add({"a": episode(0, 4), "b": episode(0, 6)})
    assert buffer.env_steps == 5
    buffer.add({"a": transitions(0, 4)})
    assert buffer.env_steps == 9
    buffer.add({"a": transitions(0, 4)}, env_steps=2)
    assert buffer.env_steps == 11
    buffer.clear()
    assert len(buffer) == buffer.env_steps == 0
    with pytest.raises(NotEnoughItems):
        buffer.sample(1)


def test_agents_of_one_policy_do_not_follow_one_another() -> None:
    buffer = two(policy_mapping={"left": "a", "right": "a", 3: "b"})
    for number in range(3):
        agents = {"left": transition(number), "right": transition(100 + number), 3: transition(200 + number)}
        keys = buffer.add(agents)
    assert {name: mine.tolist() for name, mine in keys.items()} == {"left": [4], "right": [5], 3: [2]}
    assert {name: len(one) for name, one in buffer.policies.items()} == {"a": 6, "b": 3}
    data = buffer.policies["a"].get([0, 1], sequence_length=4)
    assert data.observation["count"].tolist() == [[0, 1, 2, 0], [100, 101, 102, 0]]
    with pytest.raises(ReplayError, match="unknown agent 'up'; known: left, right, 3"):
        buffer.add({"left": transition(0), "up": transition(0)})
    assert len(buffer) == 9


def test_a_function_maps_agents() -> None:
    buffer = two(policy_mapping=lambda agent: "ab"[int(agent) % 2] if int(agent) < 10 else "c")
    buffer.add({0: episode(0, 3), 1: episode(0, 4), 2: episode(0, 5)})
    assert {name: len(one) for name, one in buffer.policies.items()} == {"a": 6, "b": 3}
    with pytest.raises(ReplayError, match="unknown policy 'c'"):
        buffer.add({0: episode(0, 3), 12: episode(0, 3)})
    with pytest.raises(TypeError, match="agent ids"):
        buffer.add({2.5: episode(0, 3)})
    assert len(buffer) == 9


# -- sampling -----------------------------------------------------------------------------------------


def test_independent_batches() -> None:
    buffer = two()
    buffer.add({"a": episode(0, 10), "b": episode(100, 5)})
    batch = buffer.sample(32)
    assert isinstance(batch, MultiAgentSample) and counts(batch) == {"a": 32, "b": 32}
    assert batch["a"].data.observation["count"].max() < 10 <= 100 <= batch["b"].data.observation["count"].min()
    assert batch.slot == batch.num_new == {} and batch.num_slots is None
    assert counts(buffer.sample(7, policy_id="b")) == {"b": 7}
    assert counts(buffer.sample(7, "a")) == {"a": 7}
    assert buffer.sample(4, sequence_length=3, burn_in=2)["a"].data.mask.shape == (4, 5)
    assert isinstance(buffer.sample(4, n_step=3, gamma=0.9)["b"].data, Transition)
    with pytest.raises(NotEnoughItems, match="policy 'b': the buffer holds 4 transitions"):
        buffer.sample(9, replace=False)
    with pytest.raises(ValueError, match="batch_size"):
        buffer.sample(0)


def test_learning_starts() -> None:
    for how in ("raise", "empty"):
        buffer = two(learning_starts=8, when_not_ready=how)
        for steps in (0, 5):
            if steps:
                buffer.add({"a": episode(0, 6)})
            if how == "raise":
                with pytest.raises(NotEnoughItems, match=f"{steps} environment steps were added, learning starts at 8"):
                    buffer.sample(2)
            else:
                assert buffer.sample(2) == {}
        buffer.add({"a": episode(0, 4)})
        assert counts(buffer.sample(2)) == {"a": 2}


def test_empty() -> None:
    with pytest.raises(NotEnoughItems, match=r"holds 0 items, at least 1"):
        two().sample(4)
    assert two(when_not_ready="empty").sample(4) == {}
    assert two(when_not_ready="empty").sample(4, policy_id="a") == {}


def test_same_seed_same_batches() -> None:
    one, other = two(), two()
    for buffer in (one, other):
        buffer.add({"a": episode(0, 10), "b": episode(100, 5)})
    for _ in range(5):
        assert_same_batch(one.sample(16), other.sample(16))
    other = two(seed=4)
    other.add({"a": episode(0, 10), "b": episode(100, 5)})
    assert one.sample(16)["a"].info.key.tolist() != other.sample(16)["a"].info.key.tolist()


# -- priorities ---------------------------------------------------------------------------------------


def test_each_item_keeps_its_own_priority() -> None:
    """RLlib gives every slice of a batch the first slice's weight: [0.1, 0.5, 0.9] -> [0.1, 0.1, 0.1]."""
    buffer = two()
    keys = buffer.add({"b": transitions(0, 3)}, priorities={"b": [0.1, 0.5, 0.9]})["b"]
    info = buffer.sample(300)["b"].info
    found = dict(zip(info.key.tolist(), info.priority.tolist(), strict=True))
    assert found == dict(zip(keys.tolist(), [0.1, 0.5, 0.9], strict=True))


def test_priorities_of_each_policy() -> None:
    given = {name: (SPEC, {"kind": "prioritized", "capacity": 9, "alpha": 1.0, "eps": 0.0}) for name in "xyz"}
    buffer = rlds2buf.make_multi_agent(given, seed=0)
    keys = buffer.add(dict.fromkeys("xyz", episode(0, 4)))
    missing = buffer.update_priorities({"x": (keys["x"], [0, -2.0, 0]), "z": ([2, 77], [5.0, 1.0])})
    assert {name: gone.tolist() for name, gone in missing.items()} == {"x": [], "z": [77]}
    batch = buffer.sample(64)
    assert set(batch["x"].info.key.tolist()) == {1} and set(batch["x"].info.priority.tolist()) == {2.0}
    assert set(batch["y"].info.priority.tolist()) == {1.0}
    assert batch["z"].info.priority.max() == 5.0


@pytest.mark.parametrize(
    ("updates", "error"),
    [
        ({"b": ([0], [1.0]), "a": ([0], [1.0])}, ReplayError),
        ({"b": ([0], [9.0]), "c": ([0], [np.nan])}, InvalidPriority),
        ({"b": ([0], [9.0]), "c": ([0, 1], [1.0])}, ValueError),
        ({"b": ([0], [9.0]), "d": ([0], [1.0])}, ReplayError),
    ],
)
def test_priorities_all_or_nothing(updates: Any, error: type[Exception]) -> None:
    per = (SPEC, {"kind": "prioritized", "capacity": 9})
    buffer = rlds2buf.make_multi_agent({"a": (SPEC, {"capacity": 9}), "b": per, "c": per}, seed=0)
    buffer.add(dict.fromkeys("abc", episode(0, 4)))
    with pytest.raises(error):
        buffer.update_priorities(updates)
    assert set(buffer.sample(32)["b"].info.priority.tolist()) == {1.0}


# -- mixing -------------------------------------------------------------------------------------------


def test_only_new_items() -> None:
    buffer = two(replay_ratio=0.0, when_not_ready="empty")
    keys = buffer.add({"a": transitions(0, 7)})["a"]
    seen = [buffer.sample(3) for _ in range(4)]
    assert [counts(batch) for batch in seen] == [{"a": 3}, {"a": 3}, {"a": 1}, {}]
    assert [batch.num_new for batch in seen] == [{"a": 3}, {"a": 3}, {"a": 1}, {}]
    assert np.concatenate([batch["a"].info.key for batch in seen if batch]).tolist() == keys.tolist()
    buffer.add({"a": transitions(7, 1), "b": episode(0, 3)})
    assert counts(buffer.sample(3)) == {"a": 1, "b": 2}
    with pytest.raises(NotEnoughItems, match="no new items"):
        strict = two(replay_ratio=0.0)
        strict.add({"a": transitions(0, 1)})
        strict.sample(1)
        strict.sample(1)


def test_only_replay() -> None:
    buffer = two(replay_ratio=1.0)
    buffer.add({"a": transitions(0, 7)})
    batch = buffer.sample(20)
    assert counts(batch) == {"a": 20} and batch.num_new == {"a": 0}
    assert counts(buffer.sample(20)) == {"a": 20}


@pytest.mark.parametrize("ratio", [0.25, 0.5, 0.66, 0.9])
@pytest.mark.parametrize("count", [1, 3, 10])
def test_ratio_holds_on_average(ratio: float, count: int) -> None:
    buffer = two(capacity=10_000, replay_ratio=ratio, when_not_ready="empty")
    buffer.add({"a": transitions(0, 4500)})
    new = total = 0
    seen: list[int] = []
    for _ in range(500):
        batch = buffer.sample(count)
        assert len(batch["a"].info.key) == count
        fresh = batch.num_new["a"]
        seen += batch["a"].info.key[:fresh].tolist()
        new, total = new + fresh, total + count
    assert seen == list(range(len(seen)))  # each new one once, in order
    assert abs(new / total - (1 - ratio)) < 0.04


def test_few_new_items_take_few_old_ones_along() -> None:
    buffer = two(capacity=1000, replay_ratio=0.5, when_not_ready="empty")
    buffer.add({"a": transitions(0, 100)})
    while counts(buffer.sample(50)):
        pass
    buffer.add({"a": transitions(100, 5)})
    batch = buffer.sample(50)
    assert counts(batch) == {"a": 10} and batch.num_new == {"a": 5}
    assert batch["a"].data.observation["count"][:5].tolist() == [100, 101, 102, 103, 104]
    assert buffer.sample(50) == {}


def test_new_items_that_left_are_passed_over() -> None:
    buffer = two(capacity=5, replay_ratio=0.0)
    buffer.add({"a": transitions(0, 3)})
    buffer.add({"a": transitions(3, 6)})
    assert buffer.sample(9)["a"].data.observation["count"].tolist() == [4, 5, 6, 7, 8]


def test_mixed_items_as_prioritized_sequences() -> None:
    buffer = two(replay_ratio=0.5)
    buffer.add({"b": episode(0, 9)})
    batch = buffer.sample(6, sequence_length=4, burn_in=1)["b"]
    assert batch.data.mask.shape == (6, 5) and batch.info.weight[:3].tolist() == [1.0] * 3
    buffer.update_priorities({"b": (batch.info.key, np.full(6, 3.0))})
    with pytest.raises(ValueError, match="sequence_length must be"):
        buffer.sample(4, sequence_length=0)
    with pytest.raises(ValueError, match="source_id"):
        buffer.sample(4, source_id=0)
    assert buffer.sample(100).num_new == {"b": 5}  # refused calls took nothing


# -- states and files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [None, 0.5])
def test_states(ratio: float | None) -> None:
    """The mixing buffer's too, whose set_state always raises TypeError in RLlib."""
    buffer = two(replay_ratio=ratio, policy_mapping={"l": "a", "r": "a", "s": "b"})
    buffer.add({"l": episode(0, 10), "s": episode(100, 8)})
    buffer.sample(4)
    buffer.update_priorities({"b": ([0, 1], [3.0, 0.5])})
    state = buffer.state_dict()
    later = [buffer.sample(5) for _ in range(3)]
    buffer.add({"r": episode(50, 10)})
    buffer.sample(4)
    other = two(replay_ratio=ratio, policy_mapping={"l": "a", "r": "a", "s": "b"}, seed=99)
    for target in (buffer, other):
        target.load_state_dict(state)
        assert target.env_steps == 9 and len(target) == 16
        for expected in later:
            assert_same_batch(target.sample(5), expected)


def test_a_state_is_no_reference() -> None:
    """RLlib's get_state gives live references, which later adds change."""
    buffer = two()
    buffer.add({"a": episode(0, 10)})
    state = buffer.state_dict()
    buffer.add({"a": episode(20, 10), "b": episode(0, 3)})
    buffer.load_state_dict(state)
    assert {name: len(one) for name, one in buffer.policies.items()} == {"a": 9, "b": 0}


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("rng"),
        lambda state: state["policies"].pop("b"),
        lambda state: state["policies"].update(c=state["policies"].pop("b")),
        lambda state: state["policies"]["b"].pop("arrays"),
        lambda state: state.update(version=9),
        lambda state: state.update(settings={**state["settings"], "mode": "lockstep"}),
        lambda state: state.update(fresh={}),
        lambda state: state.update(rng={"bit_generator": "PCG64"}),
        lambda state: state["policies"]["b"].update(capacity=7),
    ],
)
def test_states_that_do_not_fit(change: Any) -> None:
    source, buffer = two(), two(seed=5)
    source.add({"a": episode(0, 10)})
    buffer.add({"a": episode(50, 5), "b": episode(0, 4)})
    state, before = source.state_dict(), buffer.state_dict()
    change(state)
    with pytest.raises(SnapshotError):
        buffer.load_state_dict(state)
    expected = two(seed=6)
    expected.load_state_dict(before)
    assert buffer.env_steps == 4
    for _ in range(3):
        assert_same_batch(buffer.sample(8), expected.sample(8))


def test_saved(tmp_path: Path) -> None:
    buffer = two(learning_starts=3, replay_ratio=0.5, policy_mapping={"l": "a", 7: "b"})
    buffer.add({"l": episode(0, 10), 7: episode(100, 8)})
    buffer.sample(4)
    buffer.save(tmp_path / "ants", provenance={"run": 3})
    loaded = rlds2buf.load_buffer(tmp_path / "ants")
    assert isinstance(loaded, type(buffer)) and loaded.provenance == {"run": 3}
    assert loaded.stats()["policies"]["b"]["kind"] == "prioritized"
    for _ in range(3):
        assert_same_batch(loaded.sample(5), buffer.sample(5))
    for one in (loaded, buffer):
        one.add({7: transition(3)})
    assert_same_batch(loaded.sample(5), buffer.sample(5))
    with pytest.raises(SnapshotExists):
        buffer.save(tmp_path / "ants")
    buffer.save(tmp_path / "ants", overwrite=True)
    assert len(rlds2buf.load_buffer(tmp_path / "ants")) == len(buffer)
    seeded = [rlds2buf.load_buffer(tmp_path / "ants", seed=seed) for seed in (1, 1, 2)]
    for one in seeded:
        one.add({"l": episode(0, 20)})
    draws = [one.sample(30, policy_id="a")["a"].info.key.tolist() for one in seeded]
    assert draws[0] == draws[1] != draws[2]


def test_saved_with_a_function(tmp_path: Path) -> None:
    buffer = two(policy_mapping=lambda agent: "a")
    buffer.add({"x": episode(0, 5)})
    buffer.save(tmp_path / "ants")
    with pytest.raises(SnapshotError, match="policy_mapping"):
        rlds2buf.load_buffer(tmp_path / "ants")
    loaded = rlds2buf.load_buffer(tmp_path / "ants", policy_mapping=lambda agent: "b")
    loaded.add({"x": episode(0, 5)})
    assert {name: len(one) for name, one in loaded.policies.items()} == {"a": 4, "b": 4}


def test_damaged_folders(tmp_path: Path) -> None:
    two().save(tmp_path / "ants")
    (data,) = (tmp_path / "ants").glob("data-*")
    (data / "policy-001" / "manifest.json").write_text("{}")
    with pytest.raises(SnapshotCorrupt):
        rlds2buf.load_buffer(tmp_path / "ants")
    with pytest.raises(SnapshotError):
        rlds2buf.load_buffer(tmp_path / "ants", writable=True)


def test_stats() -> None:
    buffer = two(learning_starts=4)
    buffer.add({"a": episode(0, 10)})
    stats = buffer.stats()
    assert stats["num_items"] == stats["env_steps"] == 9 and stats["learning_starts"] == 4
    assert stats["policies"]["a"]["added"] == 9
    assert stats["bytes"] == stats["policies"]["a"]["bytes"] + stats["policies"]["b"]["bytes"]


def test_reservoirs(tmp_path: Path) -> None:
    given = {"r": (SPEC, {"kind": "reservoir", "capacity": 10}), "u": (SPEC, {"capacity": 10})}
    buffer = rlds2buf.make_multi_agent(given, seed=0, replay_ratio=0.5)
    for number in range(100):
        buffer.add({"r": transition(number), "u": transition(number)})
    assert {name: len(one) for name, one in buffer.policies.items()} == {"r": 10, "u": 10}
    batch = buffer.sample(8)
    assert batch.num_new == {"r": 4, "u": 4}
    held = buffer.policies["r"].all().observation["count"]
    assert batch["r"].data.observation["count"][:4].tolist() == held[:4].tolist()
    assert (np.diff(held) > 0).all()
    state = buffer.state_dict()
    buffer.save(tmp_path / "saved")
    later = buffer.sample(8)
    buffer.load_state_dict(state)
    assert_same_batch(buffer.sample(8), later)
    assert_same_batch(rlds2buf.load_buffer(tmp_path / "saved").sample(8), later)
