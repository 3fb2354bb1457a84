"""`episode_id` and `t` of explicit transitions: borders that no flag tells, in every kind of buffer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlds2buf
from rlds2buf import EpisodeError, FieldSpec, GoalMap, SpecMismatch, StepSpec
from tests.buffers.compare import assert_sequences, assert_transitions
from tests.buffers.contents.choices import Choices
from tests.buffers.numbered import SPEC, rows_to_transition, transition, transitions
from tests.buffers.read.her_columns import never
from tests.reference.items import ItemReplay, Whole
from tests.reference.replay import ListReplay
from tests.reference.reservoir import ReservoirReplay

NUMBER = FieldSpec((), np.float64)
PLAIN = StepSpec(observation=NUMBER, action=NUMBER, reward=NUMBER)


def steps(values: list[float], done: Any = 0, **ids: Any) -> dict[str, Any]:
    value = np.array(values, np.float64)
    codes = np.broadcast_to(done, len(value))
    return {
        "observation": value,
        "action": value,
        "reward": value,
        "next_observation": value + 1,
        "is_done": codes,
    } | ids


HINDSIGHT = {"goals": [GoalMap(("place", [0]), ("place", [1]))], "reward_fn": never, "done_fn": never}
MAKERS: dict[str, Any] = {
    "circular": rlds2buf.make_circular,
    "prioritized": rlds2buf.make_prioritized,
    "hindsight": lambda spec, capacity, **options: rlds2buf.make_hindsight(
        spec, capacity, **HINDSIGHT, while_sampling=False, **options
    ),
    "reservoir": rlds2buf.make_reservoir,
}


# -- worked tables ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ids",
    [
        {"episode_id": [0, 0, 1, 1], "t": [0, 1, 0, 1]},
        {"episode_id": [0, 0, 1, 1]},
        {"episode_id": ["x", "x", "y", "y"]},
        {"episode_id": np.array([b"x", b"x", b"y", b"y"], object)},
        {"t": [0, 1, 0, 1]},
        {"t": [3, 4, 6, 7]},  # a step is missing
        {"t": [3, 4, 4, 5]},
        {"agent_index": [0, 0, 1, 1]},
    ],
    ids=str,
)
@pytest.mark.parametrize("one_by_one", [False, True])
def test_episodes_without_end_flags_stay_apart(ids: dict[str, Any], one_by_one: bool) -> None:
    """100 is not summed into the episode before it: 102 in version 0.1.0."""
    buffer = rlds2buf.make_circular(PLAIN, 20)
    data = steps([1, 2, 100, 200], **ids)
    if one_by_one:
        keys = np.concatenate([buffer.add({name: column[i] for name, column in data.items()}) for i in range(4)])
    else:
        keys = buffer.add(data)
    two = buffer.get(keys, n_step=2)
    assert two.reward.tolist() == [3.0, 2.0, 300.0, 200.0] and two.steps.tolist() == [2, 1, 2, 1]
    assert two.is_done.tolist() == [0, 0, 0, 0] and two.bootstrap_discount.tolist() == [1.0] * 4
    assert buffer.get(keys, sequence_length=4).mask.sum(1).tolist() == [2, 1, 2, 1]
    behind = buffer.get(keys, sequence_length=1, burn_in=3)
    assert behind.burn_in.sum(1).tolist() == [0, 1, 0, 1]


def test_what_only_one_says_says_nothing() -> None:
    buffer = rlds2buf.make_circular(PLAIN, 20)
    first = buffer.add(steps([1], episode_id=[5], t=[0]))
    buffer.add(steps([2]))
    buffer.add(steps([4], episode_id=[6]))
    assert buffer.get(first, n_step=5).reward.tolist() == [7.0]
    more = buffer.add(steps([8], t=[0]))  # but an episode begins with its step 0 in any case
    assert buffer.get(first, n_step=5).reward.tolist() == [7.0] and buffer.get(more).reward.tolist() == [8.0]


def test_sources_have_ids_of_their_own() -> None:
    """Interleaved sources, each in an episode of its own, one of which begins a new one."""
    buffer = rlds2buf.make_circular(PLAIN, 20)
    data = steps([1, 10, 2, 20, 4, 40], episode_id=[7, 8, 7, 8, 9, 8], t=[0, 4, 1, 5, 0, 6])
    keys = buffer.add(data, source_id=[0, 1, 0, 1, 0, 1])
    assert buffer.get(keys, n_step=3).reward.tolist() == [3.0, 70.0, 2.0, 60.0, 4.0, 40.0]
    later = buffer.add(steps([8, 80], episode_id=[9, 9], t=[1, 7]), source_id=[0, 1])
    assert buffer.get(keys[[4, 5]], n_step=3).reward.tolist() == [12.0, 40.0]
    assert buffer.get(later).reward.tolist() == [8.0, 80.0]


def test_goals_are_of_the_same_episode() -> None:
    buffer = MAKERS["hindsight"](SPEC, 50, seed=0)
    buffer.add({**transitions(0, 6)._asdict(), "episode_id": np.repeat([0, 1], 3)} | {"steps": None})
    assert len(buffer.generate_hindsight(3).reward) == 3
    with pytest.raises(ValueError, match="the newest one has 3"):
        buffer.generate_hindsight(4)
    assert buffer.engine.hindsight.episodes.runs() == [[0, 1, 2], [3, 4, 5]]


# -- whole items --------------------------------------------------------------------------------------


def test_whole_episodes_want_whole_ones() -> None:
    buffer = rlds2buf.make_circular(PLAIN, 20, storage_unit="episodes")
    with pytest.raises(EpisodeError, match=r"transition 1 is the last one of its episode here.*whole ones") as caught:
        buffer.add(steps([1, 2, 3, 4], [0, 0, 0, 1], episode_id=[0, 0, 1, 1]))
    assert (caught.value.step, caught.value.rule) == (1, "open-episode")
    with pytest.raises(EpisodeError, match=r"transition 2 is the first one.*t is not 0") as caught:
        buffer.add(steps([1, 2, 3, 4], [0, 1, 0, 1], t=[0, 1, 3, 4]))
    assert (caught.value.step, caught.value.rule) == (2, "incomplete-episode")
    with pytest.raises(EpisodeError, match="transition 1 is the first"):  # named as it was given, not as it is sorted
        buffer.check(steps([1, 2], [1, 1], t=[0, 3]) | {"episode_id": [1, 1]})
    assert len(buffer) == 0
    buffer.add(steps([1, 2, 3, 4], [0, 1, 0, 2], episode_id=[0, 0, 1, 1], t=[0, 1, 0, 1]))
    assert len(buffer) == 2
    with pytest.raises(EpisodeError, match="transition 0 is the first"):
        buffer.add(steps([1, 2], [1, 1], t=[3, 0]), source_id=[1, 0])


def test_sequences_are_cut_and_fragments_are_not() -> None:
    data = steps([1, 2, 3, 4, 5], episode_id=[0, 0, 1, 1, 1])
    sequences = rlds2buf.make_circular(PLAIN, 20, storage_unit="sequences", item_length=3)
    assert sequences.get(sequences.add(data)).mask.sum(1).tolist() == [2, 3]
    fragments = rlds2buf.make_circular(PLAIN, 20, storage_unit="fragments")
    keys = fragments.add(data)
    assert fragments.get(keys).mask.sum(1).tolist() == [5]
    assert fragments.get(keys, n_step=5).reward.tolist() == [3.0]  # but nothing is summed across the border


# -- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ({"t": "nonsense"}, "t: expected integers, got <U8"),
        ({"t": [0.0, 1.0]}, "t: expected integers, got float64"),
        ({"t": [True, False]}, "t: expected integers, got bool"),
        ({"t": [0, -1]}, "t: steps of an episode count from 0 up, got -1"),
        ({"t": np.array([1 << 63, 0], np.uint64)}, "t: steps of an episode count from 0 up, got 9223372036854775808"),
        ({"t": [0, 1, 2]}, r"t: expected 2 of them, got shape \[3\]"),
        ({"episode_id": [0.5, 1.0]}, "episode_id: expected integers or strings, got float64"),
        ({"episode_id": [None, 1]}, "episode_id: expected integers or strings, got None"),
        ({"agent_index": [[0, 1]]}, r"agent_index: expected 2 of them, got shape \[1, 2\]"),
    ],
)
@pytest.mark.parametrize("kind", ["circular", "reservoir"])
def test_ids_that_are_none(kind: str, ids: dict[str, Any], message: str) -> None:
    buffer = MAKERS[kind](PLAIN, 20)
    with pytest.raises(SpecMismatch, match=message):
        buffer.add(steps([1, 2], **ids))
    with pytest.raises(SpecMismatch, match=message):
        buffer.check(steps([1, 2], **ids))
    assert len(buffer) == 0


def test_lockstep_goes_by_time() -> None:
    buffer = rlds2buf.make_multi_agent({"a": (SPEC, {"capacity": 20})}, mode="lockstep")
    for t in (0, 1, 3):
        buffer.add({"a": transition(t)}, episode_id=0, t=t, agent_index=0)
    policy = buffer.policies["a"]
    assert policy.get(policy.keys(), n_step=3).steps.tolist() == [2, 1, 1]
    keys = buffer.add({"a": transitions(10, 4)}, episode_id=1, t=[0, 0, 1, 2], agent_index=[0, 1, 1, 0])["a"]
    assert policy.get(keys, n_step=3).steps.tolist() == [1, 2, 1, 1]
    with pytest.raises(SpecMismatch, match="count from 0"):
        buffer.add({"a": transition(1)}, episode_id=0, t=-1, agent_index=0)


# -- against the twins --------------------------------------------------------------------------------

STEP = st.fixed_dictionaries(
    {"code": st.sampled_from([0, 0, 0, 1, 2]), "source": st.integers(0, 2)},
    optional={"episode_id": st.integers(0, 1), "t": st.integers(0, 2), "agent_index": st.integers(0, 1)},
)
CALLS = st.lists(st.tuples(st.lists(STEP, min_size=1, max_size=8), st.booleans()), min_size=1, max_size=10)
IDS = ("episode_id", "t", "agent_index")


def call(start: int, given: list[dict[str, Any]], alone: bool) -> tuple[list[dict[str, Any]], Any, list[int]]:
    """Naive steps, the same as ``add`` takes them, and their sources; ids are there for all of them or for none."""
    names = [name for name in IDS if all(name in each for each in given)]
    items = [
        {**transition(start + i, each["code"]), **{name: each[name] for name in names}} for i, each in enumerate(given)
    ]
    sources = [given[0]["source"] if alone else each["source"] for each in given]
    columns = {name: part for name, part in rows_to_transition(items)._asdict().items() if part is not None}
    return items, {**columns, **{name: np.array([item[name] for item in items]) for name in names}}, sources


@pytest.mark.parametrize("kind", sorted(MAKERS))
@given(calls=CALLS, capacity=st.sampled_from([3, 7, 16, 100]))
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_any_ids(kind: str, calls: Any, capacity: int) -> None:
    buffer, choices = MAKERS[kind](SPEC, capacity, seed=1), Choices(1)
    twin: Any = ReservoirReplay(capacity, choices) if kind == "reservoir" else ListReplay(capacity)
    serials: dict[int, int] = {}
    number = 0
    for given_steps, alone in calls:
        items, data, sources = call(number, given_steps, alone)
        number += len(items)
        if kind == "reservoir":
            choices.offer(twin.held.seen, len(items), capacity)
        keys = buffer.add(data, source_id=sources[0] if alone else np.array(sources))
        serials.update(zip(keys.tolist(), twin.add_transitions(items, sources), strict=True))
        buffer.check_valid()
        held = [serials[key] for key in buffer.keys().tolist()]
        assert held == twin.keys()
        assert_transitions(buffer.get(buffer.keys(), n_step=4, gamma=0.5), twin, held, 4, 0.5)
        assert_sequences(buffer.get(buffer.keys(), sequence_length=3), twin, held, 3)
        if kind == "hindsight":
            assert sorted(map(tuple, runs_of(buffer, serials))) == sorted(map(tuple, chains_of(twin)))


def runs_of(buffer: Any, serials: dict[int, int]) -> list[list[int]]:
    episodes = buffer.engine.hindsight.episodes
    episodes.update(buffer.engine.contents.waiting.values())
    return [[serials[key] for key in run] for run in episodes.runs()]


def chains_of(twin: ListReplay) -> list[list[int]]:
    """The held transitions, those that go on into one another together."""
    following = {serial: twin._after(twin._position(serial)) for serial in twin.keys()}
    after = {serial: None if i is None else twin.rows[i].serial for serial, i in following.items()}
    chains = []
    for serial in sorted(set(after) - set(after.values())):
        chain: list[int] = []
        here: int | None = serial
        while here is not None:
            chain.append(here)
            here = after[here]
        chains.append(chain)
    return chains


@pytest.mark.parametrize(
    "unit", [{"storage_unit": "sequences", "item_length": 2}, {"storage_unit": "fragments"}], ids=str
)
@given(calls=CALLS)
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_any_ids_in_items(unit: dict[str, Any], calls: Any) -> None:
    buffer, twin = rlds2buf.make_circular(SPEC, 20, **unit), ItemReplay(20, "rows", **unit)
    serials: dict[int, int] = {}
    number = 0
    for given_steps, alone in calls:
        items, data, sources = call(number, given_steps, alone)
        number += len(items)
        keys = buffer.add(data, source_id=sources[0] if alone else np.array(sources))
        serials.update(zip(keys.tolist(), twin.add_transitions(items, sources), strict=True))
        buffer.check_valid()
        held = [serials[key] for key in buffer.keys().tolist()]
        assert held == twin.keys()
        longest = max(len(item) for item in twin.items)
        assert_sequences(buffer.get(buffer.keys()), Whole(twin), held, longest)
        assert_transitions(buffer.get(buffer.keys(), n_step=4, gamma=0.5), twin, held, 4, 0.5)


@pytest.mark.parametrize("kind", ["circular", "reservoir"])
def test_saved_and_loaded_in_the_middle_of_an_episode(kind: str, tmp_path: Path) -> None:
    buffer = MAKERS[kind](PLAIN, 20, seed=0)
    buffer.add(steps([1, 10], episode_id=["a", "b"], t=[4, 0]), source_id=[0, 1])
    buffer.save(tmp_path / "saved")
    again, other = rlds2buf.load_buffer(tmp_path / "saved"), MAKERS[kind](PLAIN, 20, seed=0)
    other.load_state_dict(buffer.state_dict())
    for one in (buffer, again, other):
        one.add(steps([2, 20], episode_id=["a", "c"], t=[5, 1]), source_id=[0, 1])
        assert one.get(one.keys(), n_step=2).reward.tolist() == [3.0, 10.0, 2.0, 20.0]
