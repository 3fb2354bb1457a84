"""Burn-in and initial states of sampled sequences: worked tables, a naive twin, and every kind of buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlds2buf
from rlds2buf import Episode, FieldSpec, StepSpec
from rlds2buf.buffers.read.view import View
from rlds2buf.core import nest
from tests.buffers.numbered import SPEC, episode, transition, transitions
from tests.reference.replay import ListReplay
from tests.reference.sequences import burn_in_of, sequence_of


def steps(count: int) -> Episode:
    """An episode of `count` transitions, whose rewards are 1, 2, ... and whose recurrent state is 10, 20, ..."""
    number = np.arange(1.0, count + 2)
    state = {"h": (number * 10)[:, None].astype(np.float32), "c": (number * 10 + 1).astype(np.float32)}
    return Episode(
        observation=number,
        action=number,
        reward=number,
        discount=np.ones(count + 1),
        is_last=number == count + 1,
        extras={"lstm": state, "pair": (number, -number)},
    )


def rows_of(batch: Any) -> list[list[int]]:
    return np.asarray(batch.reward).astype(int).tolist()


def lengths_of(batch: Any) -> list[int]:
    return batch.mask.sum(1).tolist()


# -- worked tables ------------------------------------------------------------------------------------


def test_slices_of_a_log_with_burn_in() -> None:
    """12 steps cut at 0, 5 and 10, burn-in 3: RLlib's table, but the three zeros are not counted as data.

    Its replay_sequence_length counts the burn-in (10 = 3 + 7), and cuts are where the data's seq_lens
    [5, 5, 2] say; ours are the keys asked for, each sequence ending where the next one starts.
    """
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(steps(12)), 100)
    keys = buffer.add(steps(12))
    batch = buffer.get(keys[[0, 5]], sequence_length=5, burn_in=3)
    assert rows_of(batch) == [[0, 0, 0, 1, 2, 3, 4, 5], [3, 4, 5, 6, 7, 8, 9, 10]]
    assert batch.mask.tolist() == [[False] * 3 + [True] * 5] * 2
    assert batch.burn_in.tolist() == [[False] * 8, [True] * 3 + [False] * 5]
    batch = buffer.get(keys[[10]], sequence_length=5, burn_in=3)
    assert rows_of(batch) == [[8, 9, 10, 11, 12, 0, 0, 0]]
    assert batch.mask.tolist() == [[False] * 3 + [True] * 2 + [False] * 3]
    assert batch.burn_in.tolist() == [[True] * 3 + [False] * 5]
    batch = buffer.get(keys[[0, 5, 10]], sequence_length=7, burn_in=3)
    assert batch.mask.shape == (3, 10) and lengths_of(batch) == [7, 7, 2]


def test_two_episodes() -> None:
    """Episodes of two steps, burn-in 1: nothing of the first one before the second one."""
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(steps(2)), 100)
    keys = np.concatenate([buffer.add(steps(2)), buffer.add(steps(2))])
    batch = buffer.get(keys[[0, 2]], sequence_length=2, burn_in=1)
    assert rows_of(batch) == [[0, 1, 2], [0, 1, 2]]
    assert not batch.burn_in.any() and lengths_of(batch) == [2, 2]


def test_an_end_inside_a_sequence_erases_nothing() -> None:
    """RLlib cuts [0, 0, 0, 1, 1, 1] by seq_lens [4, 2] and overwrites three real steps; here the end splits."""
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(steps(3)), 100)
    keys = np.concatenate([buffer.add(steps(3)), buffer.add(steps(3))])
    batch = buffer.get(keys, sequence_length=4, burn_in=2)
    assert rows_of(batch) == [
        [0, 0, 1, 2, 3, 0],
        [0, 1, 2, 3, 0, 0],
        [1, 2, 3, 0, 0, 0],
        [0, 0, 1, 2, 3, 0],
        [0, 1, 2, 3, 0, 0],
        [1, 2, 3, 0, 0, 0],
    ]
    assert lengths_of(batch) == [3, 2, 1, 3, 2, 1]
    assert batch.burn_in.sum(1).tolist() == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("length", range(1, 9))
@pytest.mark.parametrize("slice_length", range(1, 6))
def test_slices_end(length: int, slice_length: int) -> None:
    """Slices of a log come to an end, also where their length does not divide the log's, and lose nothing.

    RLlib's SampleBatch.timeslices never ends there.
    """
    ep = steps(length)
    view = rlds2buf.windows(ep, slice_length, stride=slice_length)
    assert view.reward[view.mask].tolist() == ep.reward.tolist()
    assert len(view.mask) == -(-(length + 1) // slice_length)


def test_evicted_steps_are_no_burn_in() -> None:
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(steps(9)), 10)
    keys = buffer.add(steps(9))
    buffer.add(steps(3))  # the first four rows leave
    batch = buffer.get(keys[[4, 5, 8]], sequence_length=1, burn_in=3)
    assert rows_of(batch) == [[0, 0, 0, 5], [0, 0, 5, 6], [6, 7, 8, 9]]


def test_interleaved_sources() -> None:
    buffer = rlds2buf.make_circular(SPEC, 50)
    keys = buffer.add(transitions(0, 6), source_id=[0, 1, 0, 1, 0, 1])
    more = [buffer.add(transitions(10, 1), source_id=1), buffer.add(transitions(20, 1), source_id=0)]
    batch = buffer.get(np.concatenate([keys, *more]), sequence_length=1, burn_in=4)
    assert batch.observation["count"].tolist() == [
        [0, 0, 0, 0, 0],
        [0, 0, 0, 0, 1],
        [0, 0, 0, 0, 2],
        [0, 0, 0, 1, 3],
        [0, 0, 0, 2, 4],
        [0, 0, 1, 3, 5],
        [0, 1, 3, 5, 10],
        [0, 0, 2, 4, 20],
    ]
    assert batch.burn_in.sum(1).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


# -- against the twin ---------------------------------------------------------------------------------


def check(buffer: Any, twin: ListReplay, named: dict[int, int], length: int, burn_in: int) -> None:
    keys = buffer.keys()
    if not len(keys):
        return
    batch = buffer.get(keys, sequence_length=length, burn_in=burn_in)
    assert batch.mask.shape == batch.burn_in.shape == (len(keys), burn_in + length)
    plain = buffer.get(keys, sequence_length=length)
    for path, column in nest.flatten(plain._replace(burn_in=(), initial_state=())):
        np.testing.assert_array_equal(
            nest.get(batch._asdict(), (plain._fields[path[0]], *path[1:]))[:, burn_in:], column
        )
    serials = {serial: key for key, serial in named.items()}
    for i, key in enumerate(keys.tolist()):
        before = burn_in_of(twin, named[key], burn_in)
        own = sequence_of(twin, named[key], length)
        assert batch.burn_in[i].tolist() == [False] * (burn_in - len(before)) + [True] * len(before) + [False] * length
        assert batch.mask[i].tolist() == [False] * burn_in + [True] * len(own) + [False] * (length - len(own))
        if before:
            single = buffer.get([serials[serial] for serial in before])
            real = batch.burn_in[i]
            for name in ("observation", "action", "reward", "discount", "next_observation", "is_done", "extras"):
                theirs = nest.map_structure(lambda c, i=i, real=real: c[i][real], getattr(batch, name))
                for (_, mine), (_, other) in zip(
                    nest.flatten(theirs), nest.flatten(getattr(single, name)), strict=True
                ):
                    np.testing.assert_array_equal(mine, other)
        for _, column in nest.flatten(batch._replace(initial_state=())):
            assert not column[i, : burn_in - len(before)].any()


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("episode"), st.integers(1, 6), st.sampled_from(["terminated", "truncated", "open"])),
        st.tuples(
            st.just("steps"), st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0, 0, 0, 1, 2])), max_size=7)
        ),
        st.tuples(st.just("one"), st.integers(0, 2), st.sampled_from([0, 0, 0, 0, 1])),
        st.tuples(st.just("look"), st.integers(1, 4), st.integers(1, 5)),
        st.tuples(st.just("resize"), st.integers(6, 20)),
        st.tuples(st.just("clear")),
        st.tuples(st.just("reload")),
    ),
    max_size=25,
)


@settings(max_examples=120, deadline=None)
@given(OPERATIONS, st.integers(6, 20))
def test_random_operations(operations: list[Any], capacity: int) -> None:
    buffer, twin = rlds2buf.make_circular(SPEC, capacity), ListReplay(capacity)
    named: dict[int, int] = {}
    number = 0
    for operation in operations:
        name, *arguments = operation
        if name == "episode":
            ep = episode(number, *arguments)
            named.update(zip(buffer.add(ep, source_id=1).tolist(), twin.add_episode(ep, 1), strict=True))
        elif name in ("steps", "one"):
            given_steps = arguments[0] if name == "steps" else [tuple(arguments)]
            items = [transition(number + i, is_done=code) for i, (_, code) in enumerate(given_steps)]
            sources = [source for source, _ in given_steps]
            keys = [buffer.add(item, source_id=source) for item, source in zip(items, sources, strict=True)]
            if keys:
                named.update(zip(np.concatenate(keys).tolist(), twin.add_transitions(items, sources), strict=True))
        elif name == "look":
            check(buffer, twin, named, *arguments)
        elif name == "resize":
            buffer.resize(arguments[0])
            twin.resize(arguments[0])
        elif name == "clear":
            buffer.clear()
            twin.clear()
        else:
            buffer.load_state_dict(buffer.state_dict())
        number += 10
    check(buffer, twin, named, 3, 4)


@pytest.mark.parametrize("seed", range(6))
def test_blocks_of_interleaved_sources(seed: int) -> None:
    rng = np.random.default_rng(seed)
    capacity = int(rng.integers(5, 40))
    buffer, twin = rlds2buf.make_circular(SPEC, capacity), ListReplay(capacity)
    named: dict[int, int] = {}
    for turn in range(40):
        count = int(rng.integers(1, 9))
        sources = rng.integers(0, 3, count)
        items = [transition(100 * turn + i, is_done=int(rng.choice([0, 0, 0, 1, 2]))) for i in range(count)]
        stacked = nest.map_structure(lambda *leaves: np.stack(leaves), *items)
        keys = buffer.add(stacked, source_id=sources)
        named.update(zip(keys.tolist(), twin.add_transitions(items, sources.tolist()), strict=True))
        if turn % 3 == 0:
            check(buffer, twin, named, 2, 5)
    check(buffer, twin, named, 3, 9)


# -- initial states -----------------------------------------------------------------------------------


def test_stored_state_of_the_first_real_step() -> None:
    """Also of the very first slice without burn-in, for which RLlib gives an empty array."""
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(steps(6)), 100)
    keys = buffer.add(steps(6))
    how: dict[str, Any] = {"sequence_length": 2, "initial_state": "stored"}
    batch = buffer.get(keys[[0, 4]], **how, state=("lstm/h", "lstm/c"))
    assert batch.burn_in is None
    assert batch.initial_state["lstm/h"].tolist() == [[10], [50]] and batch.initial_state["lstm/h"].dtype == np.float32
    assert batch.initial_state["lstm/c"].tolist() == [11, 51]
    batch = buffer.get(keys[[0, 1, 4]], **how, burn_in=3, state="lstm")
    assert batch.initial_state["lstm"]["h"].tolist() == [[10], [10], [20]]
    batch = buffer.get(keys[[4]], **how, state="pair/1")
    assert batch.initial_state["pair/1"].tolist() == [-5]


def test_zero_state() -> None:
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(steps(6)), 100, seed=0)
    buffer.add(steps(6))
    batch = buffer.sample(4, sequence_length=3, burn_in=2, initial_state="zeros", state=["lstm"]).data
    assert batch.initial_state["lstm"]["h"].tolist() == [[0]] * 4
    assert batch.initial_state["lstm"]["c"].shape == (4,)


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ({"burn_in": 2}, "sequence_length"),
        ({"initial_state": "zeros", "state": "lstm"}, "sequence_length"),
        ({"sequence_length": 2, "burn_in": -1}, "burn_in"),
        ({"sequence_length": 2, "initial_state": "stored"}, "need each other"),
        ({"sequence_length": 2, "state": "lstm"}, "need each other"),
        ({"sequence_length": 2, "initial_state": "last", "state": "lstm"}, "'stored' or 'zeros'"),
        ({"sequence_length": 2, "initial_state": "zeros", "state": "gru"}, "lstm/c, lstm/h"),
        ({"sequence_length": 2, "initial_state": "stored", "state": "pair/2"}, "pair/0"),
    ],
)
def test_what_does_not_fit_is_said(how: dict[str, Any], what: str) -> None:
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(steps(6)), 100, seed=0)
    buffer.add(steps(6))
    with pytest.raises(ValueError, match=what):
        buffer.sample(4, **how)


def test_as_a_buffers_own_view(tmp_path: Any) -> None:
    view = {"sequence_length": 3, "burn_in": 2, "initial_state": "stored", "state": ["lstm/c"]}
    buffer = rlds2buf.make_prioritized(rlds2buf.spec_of(steps(6)), 100, seed=0, view=view)
    buffer.add(steps(6))
    buffer.save(tmp_path / "saved")
    for one in (buffer, rlds2buf.load_buffer(tmp_path / "saved")):
        data = one.sample(4).data
        assert data.mask.shape == (4, 5) and list(data.initial_state) == ["lstm/c"]
        assert one.sample(4, burn_in=0).data.burn_in is None
        assert one.sample(4, n_step=2).data.steps.shape == (4,)


def test_views() -> None:
    assert View(sequence_length=2, burn_in=1).changed(gamma=0.5) == View(1, 0.5, 2, 1)
    assert View(2).changed(sequence_length=4, burn_in=2) == View(1, 1.0, 4, 2)
    assert View(sequence_length=2, burn_in=1).changed(n_step=3) == View(3)


# -- fields -------------------------------------------------------------------------------------------


def test_strings_and_missing_rewards() -> None:
    spec = StepSpec(observation=FieldSpec((), np.object_), action=FieldSpec((), np.int64), reward=None, discount=None)
    words = np.array([b"a", b"b", b"c", b"d"], object)
    buffer = rlds2buf.make_circular(spec, 10)
    keys = buffer.add(Episode(observation=words, action=np.arange(4)))
    batch = buffer.get(keys[[0, 2]], sequence_length=2, burn_in=1)
    assert batch.observation.tolist() == [[b"", b"a", b"b"], [b"b", b"c", b""]]
    assert batch.reward is None
    assert batch.is_first.tolist() == [[False, True, False], [False] * 3]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sources", [1, 3])
def test_reservoirs(seed: int, sources: int) -> None:
    """What comes before is there exactly if the very step before is held; steps leave at random."""
    rng = np.random.default_rng(seed)
    buffer = rlds2buf.make_reservoir(SPEC, 60, seed=seed)
    newest = np.arange(sources) * 10_000
    ended: set[int] = set()
    for _ in range(40):
        count = int(rng.integers(1, 12))
        owner = rng.integers(0, sources, count)
        codes = rng.choice([0, 0, 0, 0, 1], count)
        items = []
        for source, code in zip(owner.tolist(), codes.tolist(), strict=True):
            items.append(transition(int(newest[source]), is_done=code))
            ended |= {int(newest[source])} if code else set()
            newest[source] += 1
        buffer.add(nest.map_structure(lambda *leaves: np.stack(leaves), *items), source_id=owner)
        held = set(buffer.all().observation["count"].tolist())
        batch = buffer.get(buffer.keys(), sequence_length=1, burn_in=4)
        for row, mask, burn_in in zip(batch.observation["count"], batch.mask, batch.burn_in, strict=True):
            expected = [int(row[mask][0])]
            while len(expected) < 5 and expected[0] - 1 in held and expected[0] - 1 not in ended:
                expected.insert(0, expected[0] - 1)
            assert row[mask | burn_in].tolist() == expected
