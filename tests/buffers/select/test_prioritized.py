"""Prioritized sampling: worked figures, frequencies, and a naive twin under random operations."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import rlds2buf
from rlds2buf import InvalidPriority, NotEnoughItems, ReplayError, SnapshotError, StepSpec
from tests.buffers.compare import assert_sequences, assert_transitions
from tests.buffers.frequencies import p_value
from tests.buffers.numbered import SPEC, episode, transition, transitions
from tests.contracts.buffer import BufferContract
from tests.reference.prioritized import ListPriorities
from tests.reference.replay import ListReplay


class TestContract(BufferContract):
    def make(self, spec: StepSpec, capacity: int, seed: int | None = None) -> Any:
        return rlds2buf.make_prioritized(spec, capacity, seed=seed)


class TestContractByBufferStratified(BufferContract):
    counted = "num_items"

    def make(self, spec: StepSpec, capacity: int, seed: int | None = None) -> Any:
        return rlds2buf.make_prioritized(
            spec, capacity, seed=seed, normalise="buffer", stratified=True, capacity_unit="transitions", beta_steps=10
        )


class TestContractInFiles(BufferContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self.folders = tmp_path_factory

    def make(self, spec: StepSpec, capacity: int, seed: int | None = None) -> Any:
        folder = self.folders.mktemp("buffer") / "columns"
        return rlds2buf.make_prioritized(spec, capacity, seed=seed, directory=folder)


def of(priorities: list[float], **options: Any) -> tuple[Any, np.ndarray]:
    """A buffer of loose transitions with these raw priorities, and its keys."""
    buffer = rlds2buf.make_prioritized(SPEC, len(priorities), eps=0.0, seed=0, **options)
    keys = buffer.add(transitions(0, len(priorities)))
    assert buffer.update_priorities(keys, np.array(priorities)).shape == (0,)
    buffer.check_valid()
    return buffer, keys


def draw_until(buffer: Any, keys: np.ndarray, wanted: set[int], size: int) -> Any:
    """A batch of `size` that holds exactly the `wanted` positions, by the luck of the draws."""
    for _ in range(10_000):
        batch = buffer.sample(size)
        if {int(np.flatnonzero(keys == key)[0]) for key in batch.info.key} == wanted:
            return batch
    raise AssertionError("the luck of the draws")


# -- worked figures -----------------------------------------------------------------------------

RAW = [0.1, 0.5, 1.0, 2.0]
PROBABILITY = [0.073304, 0.192536, 0.291829, 0.442331]
BY_BUFFER = [1.0, 0.679590, 0.575440, 0.487251]
BY_BATCH_123 = [1.0, 0.846745, 0.716978]


def test_twin_gives_the_worked_figures() -> None:
    twin = ListPriorities(4, alpha=0.6, beta=0.4, eps=0.0, normalise="buffer")
    twin.add(range(4))
    assert twin.update(range(4), RAW) == []
    assert [twin.probability(i) for i in range(4)] == pytest.approx(PROBABILITY, abs=5e-7)
    assert twin.weights(range(4)) == pytest.approx(BY_BUFFER, abs=5e-7)
    twin.normalise = "batch"
    assert twin.weights([1, 2, 3]) == pytest.approx(BY_BATCH_123, abs=5e-7)
    assert twin.weights([0, 1, 2, 3]) == pytest.approx(BY_BUFFER, abs=5e-7)


def test_probabilities_and_weights_by_buffer() -> None:
    buffer, keys = of(RAW, alpha=0.6, beta=0.4, normalise="buffer")
    info = buffer.sample(500).info
    place = np.searchsorted(keys, info.key)
    assert set(place.tolist()) == {0, 1, 2, 3}
    np.testing.assert_allclose(info.probability, np.array(PROBABILITY)[place], atol=5e-7)
    np.testing.assert_allclose(info.weight, np.array(BY_BUFFER)[place], atol=5e-7)
    np.testing.assert_allclose(info.priority, np.array(RAW)[place], rtol=1e-12)
    assert info.table_size == 4


def test_weights_by_batch() -> None:
    buffer, keys = of(RAW, alpha=0.6, beta=0.4)
    info = draw_until(buffer, keys, {1, 2, 3}, 3).info
    by_place = dict(zip(np.searchsorted(keys, info.key).tolist(), info.weight.tolist(), strict=True))
    assert [by_place[i] for i in (1, 2, 3)] == pytest.approx(BY_BATCH_123, abs=5e-7)
    info = draw_until(buffer, keys, {3}, 2).info
    assert info.weight.tolist() == [1.0, 1.0]


def test_beta_schedule() -> None:
    """From 0.4 to 1 in 10 updates: 0.7 after 5, 1 after 10, and it stays there."""
    buffer, keys = of(RAW, alpha=0.6, beta=0.4, beta_steps=10, normalise="buffer")
    twin = ListPriorities(4, alpha=0.6, beta=0.4, beta_steps=10, eps=0.0, normalise="buffer")
    twin.add(range(4))
    twin.update(range(4), RAW)  # `of` has made one update
    for update in range(1, 14):
        assert twin.updates == update
        info = buffer.sample(40).info
        place = np.searchsorted(keys, info.key).tolist()
        np.testing.assert_allclose(info.weight, twin.weights(place), rtol=1e-9)
        assert twin.beta == pytest.approx(min(1.0, 0.4 + 0.06 * update))
        if update == 5:
            assert twin.beta == pytest.approx(0.7)
        buffer.update_priorities(keys[:1], [RAW[0]])
        twin.update([0], [RAW[0]])


def test_beta_of_one_call() -> None:
    buffer, keys = of(RAW, alpha=0.6, beta=0.4, normalise="buffer")
    twin = ListPriorities(4, alpha=0.6, eps=0.0, normalise="buffer")
    twin.add(range(4))
    twin.update(range(4), RAW)
    for beta in (0.0, 0.3, 1.0):
        info = buffer.sample(40, beta=beta).info
        np.testing.assert_allclose(info.weight, twin.weights(np.searchsorted(keys, info.key).tolist(), beta), rtol=1e-9)
    with pytest.raises(ValueError, match="beta"):
        buffer.sample(4, beta=-0.1)
    with pytest.raises(ValueError, match="beta"):
        buffer.sample(4, beta=float("nan"))


def test_beta_zero_gives_weights_of_one() -> None:
    for normalise in ("batch", "buffer"):
        buffer, _ = of(RAW, beta=0.0, normalise=normalise)
        assert (buffer.sample(200).info.weight == 1).all()


# -- priorities ---------------------------------------------------------------------------------


def priorities(buffer: Any, keys: np.ndarray) -> list[float]:
    """Raw priorities, read off many draws."""
    found: dict[int, float] = {}
    for _ in range(300):
        info = buffer.sample(200).info
        found.update(zip(info.key.tolist(), info.priority.tolist(), strict=True))
        if len(found) == len(keys):
            break
    return [found[key] for key in keys.tolist()]


def test_new_ones_come_in_at_the_running_maximum() -> None:
    buffer = rlds2buf.make_prioritized(SPEC, 10, eps=0.5, seed=0)
    keys = buffer.add(transitions(0, 2))
    assert priorities(buffer, keys) == [1.0, 1.0]
    buffer.update_priorities(keys, [0.25, 3.0])
    keys = np.concatenate([keys, buffer.add(transition(2))])
    assert priorities(buffer, keys) == [0.75, 3.5, 3.5]
    buffer.update_priorities(keys, [0.0, 0.0, 0.0])  # the maximum never falls
    keys = np.concatenate([keys, buffer.add(episode(10, 2))])
    assert priorities(buffer, keys) == [0.5, 0.5, 0.5, 3.5]
    buffer.clear()
    assert priorities(buffer, buffer.add(transition(3))) == [1.0]  # empty as new


def test_priorities_given_with_the_data_raise_the_maximum() -> None:
    buffer = rlds2buf.make_prioritized(SPEC, 20, seed=0)
    twin = ListPriorities(20)
    keys = buffer.add(transitions(0, 2), priorities=[0.5, 7.0])
    twin.add([0], 0.5)
    twin.add([1], 7.0)
    keys = np.concatenate(
        [keys, buffer.add(episode(10, 3)), buffer.add([episode(20, 2), transition(30)], priorities=[2, 3])]
    )
    twin.add([2, 3])
    twin.add([4], 2.0)
    twin.add([5], 3.0)
    assert priorities(buffer, keys) == [twin.priority[i] for i in range(6)] == [0.5, 7.0, 7.0, 7.0, 2.0, 3.0]
    buffer.check_valid()
    before = buffer.keys().tolist()
    for bad in ([float("nan"), 1.0], [-1.0, 1.0], [1.0, float("inf")]):
        with pytest.raises(InvalidPriority):
            buffer.add(transitions(50, 2), priorities=bad)
    with pytest.raises(ValueError, match="2"):
        buffer.add(transitions(50, 2), priorities=[1.0])
    assert buffer.keys().tolist() == before


def test_priorities_of_a_block_longer_than_the_capacity() -> None:
    buffer = rlds2buf.make_prioritized(SPEC, 3, seed=0)
    keys = buffer.add(transitions(0, 5), priorities=[9.0, 8.0, 1.0, 2.0, 3.0])
    assert priorities(buffer, keys[2:]) == [1.0, 2.0, 3.0]
    buffer.check_valid()


def test_last_of_repeated_keys_wins() -> None:
    buffer, keys = of([1.0, 1.0, 1.0], alpha=1.0)
    buffer.update_priorities(keys[[0, 2, 0, 2, 0]], [5.0, 7.0, 3.0, 4.0, 2.0])
    buffer.check_valid()
    assert priorities(buffer, keys) == [2.0, 1.0, 4.0]


def test_unknown_and_evicted_keys_are_reported() -> None:
    buffer = rlds2buf.make_prioritized(SPEC, 4, eps=0.0, seed=0)
    old = buffer.add(transitions(0, 3))
    new = buffer.add(transitions(3, 3))
    unknown = np.array([10**9, 2**63 + 5], np.uint64)
    gone = buffer.update_priorities(np.concatenate([old, unknown, new]), np.arange(8.0) + 1)
    assert gone.dtype == np.uint64
    assert gone.tolist() == [*old[:2].tolist(), *unknown.tolist()]
    assert priorities(buffer, np.concatenate([old[2:], new])) == [3.0, 6.0, 7.0, 8.0]
    buffer.check_valid()
    assert buffer.update_priorities(np.zeros(0, np.uint64), np.zeros(0)).shape == (0,)


def test_key_of_a_final_row_is_unknown() -> None:
    buffer = rlds2buf.make_prioritized(SPEC, 20, seed=0)
    keys = buffer.add(episode(0, 4))
    every = np.arange(int(keys[0]), int(keys[-1]) + 6, dtype=np.uint64)
    assert set(buffer.update_priorities(every, np.ones(len(every))).tolist()) == set(every.tolist()) - set(
        keys.tolist()
    )
    buffer.check_valid()


@pytest.mark.parametrize("bad", [float("nan"), -1.0, -1e-9, float("inf"), float("-inf")])
def test_bad_priorities_change_nothing(bad: float) -> None:
    buffer, keys = of(RAW)
    with pytest.raises(InvalidPriority):
        buffer.update_priorities(keys, [9.0, bad, 9.0, 9.0])
    assert priorities(buffer, keys) == RAW
    buffer.check_valid()


def test_wrong_number_of_priorities() -> None:
    buffer, keys = of(RAW)
    with pytest.raises(ValueError, match="3"):
        buffer.update_priorities(keys, [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="4"):
        buffer.update_priorities(keys, np.ones((4, 1)))
    assert priorities(buffer, keys) == RAW


def test_uniform_buffers_keep_none() -> None:
    buffer = rlds2buf.make_circular(SPEC, 4)
    with pytest.raises(ReplayError):
        buffer.update_priorities(buffer.add(transition(0)), [1.0])


def test_zero_priority_is_never_drawn_but_counted() -> None:
    buffer, keys = of([0.0, 1.0, 0.0, 1.0, 0.0], alpha=0.6)
    assert set(buffer.sample(3000).info.key.tolist()) == {int(keys[1]), int(keys[3])}
    assert len(buffer) == 5 and buffer.sample(1).info.table_size == 5
    assert sorted(buffer.sample(2, replace=False).info.key.tolist()) == [int(keys[1]), int(keys[3])]
    with pytest.raises(NotEnoughItems):
        buffer.sample(3, replace=False)
    buffer.update_priorities(keys, np.zeros(5))
    with pytest.raises(NotEnoughItems):
        buffer.sample(1)
    eps = rlds2buf.make_prioritized(SPEC, 5, seed=0)
    keys = eps.add(transitions(0, 5))
    eps.update_priorities(keys, np.zeros(5))  # eps keeps them alive
    assert set(eps.sample(500).info.key.tolist()) == set(keys.tolist())


@pytest.mark.parametrize(
    "options",
    [
        {"alpha": -0.1},
        {"alpha": float("nan")},
        {"beta": -1.0},
        {"beta_final": 2.0},
        {"beta_steps": 0},
        {"eps": -1e-6},
        {"eps": float("nan")},
        {"normalise": "none"},
    ],
    ids=str,
)
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        rlds2buf.make_prioritized(SPEC, 4, **options)


# -- frequencies --------------------------------------------------------------------------------


@pytest.mark.parametrize("stratified", [False, True])
@pytest.mark.parametrize("capacity", [1, 2, 15, 16, 17, 31, 32, 33])
def test_frequencies(capacity: int, stratified: bool) -> None:
    """Against P, after the ring went round, so that leaves were taken over."""
    buffer = rlds2buf.make_prioritized(SPEC, capacity, alpha=0.7, stratified=stratified, seed=capacity)
    rng = np.random.default_rng(capacity)
    for i in range(5):
        keys = buffer.add(transitions(100 * i, 1 + (7 * i) % capacity))
        buffer.update_priorities(keys[-capacity:], rng.random(len(keys[-capacity:])) + 0.2)
    buffer.check_valid()
    keys = buffer.keys()
    info = [buffer.sample(100).info for _ in range(300)]
    drawn = np.concatenate([part.key for part in info])
    probability = {}
    for part in info:
        probability.update(zip(part.key.tolist(), part.probability.tolist(), strict=True))
    expected = np.array([probability[key] for key in keys.tolist()])
    assert expected.sum() == pytest.approx(1)
    counts = np.bincount(np.searchsorted(keys, drawn), minlength=len(keys))
    if len(keys) > 1 and stratified:
        # One draw in each hundredth: no count strays further than its leaf's share of each batch.
        assert np.abs(counts / len(info) - expected * 100).max() <= 1.0
    elif len(keys) > 1:
        assert p_value(counts, expected) > 1e-3


@pytest.mark.parametrize("raw", [[0.1, 5.0, 1e-9, 3.0, 0.7], [0.0, 5.0, 0.0, 3.0, 0.7]])
def test_alpha_zero_is_exactly_uniform(raw: list[float]) -> None:
    buffer, keys = of(raw, alpha=0.0)
    info = buffer.sample(20_000).info
    assert (info.probability == 0.2).all() and (info.weight == 1).all()
    counts = np.bincount(np.searchsorted(keys, info.key), minlength=5)
    assert p_value(counts, np.full(5, 0.2)) > 1e-3


def test_stratified_draws_one_of_each_part() -> None:
    buffer, keys = of([1.0] * 8, alpha=1.0, stratified=True)
    for _ in range(50):
        assert buffer.sample(8).info.key.tolist() == keys.tolist()


def test_without_replacement_follows_the_priorities() -> None:
    """The first of two draws has P, the second P among the rest."""
    weights = np.array([1.0, 2.0, 3.0, 4.0])
    buffer, keys = of(weights.tolist(), alpha=1.0)
    pairs = np.zeros((4, 4))
    for _ in range(20_000):
        first, second = np.searchsorted(keys, buffer.sample(2, replace=False).info.key)
        pairs[first, second] += 1
    assert np.trace(pairs) == 0
    share = weights / weights.sum()
    expected = share[:, None] * share / (1 - share[:, None])
    off = ~np.eye(4, dtype=bool)
    assert p_value(pairs[off], expected[off]) > 1e-3


def test_of_one_source() -> None:
    buffer = rlds2buf.make_prioritized(SPEC, 8, alpha=1.0, eps=0.0, seed=0)
    keys = buffer.add(transitions(0, 8), source_id=[0, 1] * 4)
    buffer.update_priorities(keys, [1, 9, 2, 9, 3, 9, 4, 9])
    info = buffer.sample(20_000, source_id=0).info
    counts = np.bincount(np.searchsorted(keys, info.key), minlength=8)
    assert counts[1::2].sum() == 0
    assert p_value(counts[::2], np.array([0.1, 0.2, 0.3, 0.4])) > 1e-3
    np.testing.assert_allclose(info.probability, np.array([0.1, 0.2, 0.3, 0.4])[np.searchsorted(keys, info.key) // 2])
    assert info.table_size == 4


def test_full_overwrite_resets_the_leaves() -> None:
    buffer, keys = of([1e6, 1.0, 1e-6, 5.0], alpha=1.0)
    fresh = buffer.add(transitions(10, 4))
    buffer.check_valid()
    info = buffer.sample(100).info
    assert (info.priority == 1e6).all() and (info.probability == 0.25).all()
    assert buffer.update_priorities(keys, np.ones(4)).tolist() == keys.tolist()
    assert set(info.key.tolist()) == set(fresh.tolist())


# -- the twin under random operations -----------------------------------------------------------


class PrioritizedMachine(RuleBasedStateMachine):
    """Probabilities, priorities and weights of every draw are the twin's."""

    @initialize(
        capacity=st.sampled_from([1, 2, 3, 7, 8, 9, 15, 16, 17, 33]),
        alpha=st.sampled_from([0.0, 0.6, 1.0]),
        normalise=st.sampled_from(["batch", "buffer"]),
        beta_steps=st.sampled_from([None, 3, 10]),
        eps=st.sampled_from([0.0, 1e-6, 0.5]),
        stratified=st.booleans(),
        seed=st.integers(0, 5),
    )
    def start(self, capacity: int, seed: int, stratified: bool, **options: Any) -> None:
        self.options = {**options, "stratified": stratified}
        self.buffer: Any = rlds2buf.make_prioritized(SPEC, capacity, seed=seed, **self.options)
        self.rows = ListReplay(capacity)
        self.twin = ListPriorities(10**9, **options)
        self.named: dict[int, int] = {}
        self.number = 0

    def _took(self, keys: np.ndarray, serials: list[int]) -> None:
        self.named.update(zip(keys.tolist(), serials, strict=True))
        self.twin.add(serials)
        self._forget()

    def _forget(self) -> None:
        held = set(self.rows.keys())
        self.twin.priority = {serial: p for serial, p in self.twin.priority.items() if serial in held}

    @rule(rows=st.integers(1, 9), source=st.integers(0, 1))
    def add_episode(self, rows: int, source: int) -> None:
        if rows <= self.rows.capacity:
            ep = episode(self.number, rows)
            self.number += rows
            self._took(self.buffer.add(ep, source_id=source), self.rows.add_episode(ep, source))

    @rule(count=st.integers(1, 40), source=st.integers(0, 1))
    def add_transitions(self, count: int, source: int) -> None:
        steps = [transition(self.number + i) for i in range(count)]
        self.number += count
        self._took(self.buffer.add(steps, source_id=source), self.rows.add_transitions(steps, source))

    @precondition(lambda self: self.named)
    @rule(data=st.data(), count=st.integers(1, 12))
    def update(self, data: st.DataObject, count: int) -> None:
        keys = data.draw(st.lists(st.sampled_from(sorted(self.named)), min_size=count, max_size=count))
        values = data.draw(st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 1e3)), min_size=count, max_size=count))
        serials = [self.named[key] for key in keys]
        gone = self.twin.update(serials, values)
        assert [self.named[key] for key in self.buffer.update_priorities(keys, values).tolist()] == gone

    @rule(n_step=st.integers(1, 3), beta=st.one_of(st.none(), st.floats(0, 1)))
    def sample(self, n_step: int, beta: float | None) -> None:
        drawable = {s for s, p in self.twin.priority.items() if p > 0 or self.twin.alpha == 0}
        if not drawable:
            with pytest.raises(NotEnoughItems):
                self.buffer.sample(7)
            return
        batch = self.buffer.sample(7, n_step=n_step, gamma=0.5, beta=beta)
        serials = [self.named[key] for key in batch.info.key.tolist()]
        assert set(serials) <= drawable
        assert_transitions(batch.data, self.rows, serials, n_step, 0.5)
        assert batch.info.table_size == len(self.rows)
        np.testing.assert_allclose(batch.info.priority, [self.twin.priority[s] for s in serials], rtol=1e-12)
        np.testing.assert_allclose(batch.info.probability, [self.twin.probability(s) for s in serials], rtol=1e-9)
        np.testing.assert_allclose(batch.info.weight, self.twin.weights(serials, beta), rtol=1e-6)

    @rule()
    def sequences(self) -> None:
        if any(p > 0 for p in self.twin.priority.values()):
            batch = self.buffer.sample(3, sequence_length=4)
            assert_sequences(batch.data, self.rows, [self.named[key] for key in batch.info.key.tolist()], 4)

    @rule(capacity=st.sampled_from([0, 1, 2, 5, 16, 17, 40]))
    def resize(self, capacity: int) -> None:
        self.buffer.resize(capacity)
        self.rows.resize(capacity)
        self._forget()

    @rule()
    def clear(self) -> None:
        self.buffer.clear()
        self.rows.clear()
        self._forget()
        self.twin.maximum, self.twin.updates = 1.0, 0

    @rule()
    def state(self) -> None:
        other = rlds2buf.make_prioritized(SPEC, self.rows.capacity or 1, **self.options)
        other.resize(self.rows.capacity)
        other.load_state_dict(self.buffer.state_dict())
        self.buffer = other

    @invariant()
    def agree(self) -> None:
        if hasattr(self, "buffer"):
            self.buffer.check_valid()
            assert [self.named[key] for key in self.buffer.keys().tolist()] == self.rows.keys()


def test_against_the_twin() -> None:
    run_state_machine_as_test(
        PrioritizedMachine,
        settings=settings(max_examples=80, stateful_step_count=25, deadline=None, derandomize=True, database=None),
    )


def test_no_drift_after_many_updates() -> None:
    size = 1000
    buffer = rlds2buf.make_prioritized(SPEC, size, alpha=1.0, eps=0.0, seed=0)
    keys = buffer.add(transitions(0, size))
    rng = np.random.default_rng(0)
    for _ in range(1000):
        buffer.update_priorities(rng.choice(keys, 100), 10.0 ** rng.uniform(-6, 3, 100))
    buffer.check_valid()
    info = buffer.sample(500).info
    share = dict(zip(info.key.tolist(), (info.probability / info.priority).tolist(), strict=True))
    total = 1 / next(iter(share.values()))
    assert all(math.isclose(value * total, 1.0, rel_tol=1e-9) for value in share.values())


# -- saving -------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_files", [False, True])
def test_priorities_survive(tmp_path: Path, in_files: bool) -> None:
    options: dict[str, Any] = {"alpha": 0.8, "beta": 0.3, "beta_steps": 7, "eps": 0.25, "normalise": "buffer"}
    directory = tmp_path / "live" if in_files else None
    buffer = rlds2buf.make_prioritized(SPEC, 20, seed=3, directory=directory, **options)
    for i in range(4):
        keys = buffer.add(episode(100 * i, 7))
        buffer.update_priorities(keys, np.arange(6.0) + i)
    buffer.save(tmp_path / "saved")
    paths = [tmp_path / "saved"]
    if in_files:
        buffer.save()
        paths.append(tmp_path / "live")
    expected = [buffer.sample(50).info for _ in range(3)]
    buffer.update_priorities(buffer.keys(), np.zeros(len(buffer)))
    for path in paths:
        if in_files and path == tmp_path / "live":
            continue  # it has gone on; looked at below
        loaded = rlds2buf.load_buffer(path)
        loaded.check_valid()
        for want in expected:
            got = loaded.sample(50).info
            for name in ("key", "priority"):
                assert getattr(got, name).tolist() == getattr(want, name).tolist(), name
            for name in ("probability", "weight"):
                np.testing.assert_allclose(getattr(got, name), getattr(want, name), rtol=1e-12)
        (key,) = loaded.add(transition(1))
        assert priorities(loaded, np.array([key], np.uint64))[0] == 3 + 5 + 0.25  # the maximum survives
    if in_files:
        buffer.save()
        again = rlds2buf.load_buffer(tmp_path / "live", writable=True)
        again.check_valid()
        assert set(again.sample(100).info.priority.tolist()) == {0.25}
        keys = again.keys()
        again.update_priorities(keys, np.arange(len(keys)) + 1.0)
        again.save()
        del again
        assert priorities(rlds2buf.load_buffer(tmp_path / "live"), keys) == (np.arange(len(keys)) + 1.25).tolist()


def test_states_of_other_kinds_are_refused() -> None:
    uniform, prioritized = rlds2buf.make_circular(SPEC, 9), rlds2buf.make_prioritized(SPEC, 9)
    for one, other in ((uniform, prioritized), (prioritized, uniform)):
        with pytest.raises(SnapshotError):
            one.load_state_dict(other.state_dict())


def test_seed_decides() -> None:
    def run(seed: int) -> list[list[int]]:
        buffer = rlds2buf.make_prioritized(SPEC, 20, seed=seed)
        out = []
        for i in range(8):
            buffer.add(episode(30 * i, 6))
            info = buffer.sample(6).info
            out.append(info.key.tolist())
            buffer.update_priorities(info.key, info.key % 7)
        return out

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_priorities_whose_sum_would_overflow_are_refused() -> None:
    buffer, keys = of([1.0, 1.0], alpha=1.0)
    with pytest.raises(rlds2buf.InvalidPriority, match="1e290"):
        buffer.update_priorities(keys, [1.0, 1e291])
    assert priorities(buffer, keys) == [1.0, 1.0]
    buffer.update_priorities(keys, [1e290, 1e290])
    assert np.isfinite(buffer.sample(4).info.probability).all()
