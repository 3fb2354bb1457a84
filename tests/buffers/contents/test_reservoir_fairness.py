"""Reservoirs, seen from outside: who is held, by counting over many seeds, and what follows whom."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import UnknownKey
from tests.buffers.compare import assert_same_nest, assert_sequences, assert_transitions
from tests.buffers.frequencies import p_value
from tests.buffers.numbered import SPEC, episode, transition, transitions
from tests.reference.replay import ListReplay
from tests.reference.reservoir import ListReservoir


def included(trials: np.ndarray, capacity: int) -> float:
    """Chi-square p of inclusion counts: ``trials [T, n] bool``, each row with `capacity` True of n."""
    rounds, n = trials.shape
    assert (trials.sum(1) == min(capacity, n)).all()
    counts = trials.sum(0)
    # Counts of a sample of fixed size spread less than independent ones, by (n - capacity) / (n - 1).
    mean = rounds * capacity / n
    shrink = ((n - capacity) / (n - 1)) ** 0.5
    stretched = mean + (counts - mean) / shrink
    return p_value(stretched, np.full(n, 1 / n))


def reservoirs(rounds: int, capacity: int, **options: Any) -> Iterator[Any]:
    """Empty ones: ten rounds with each seed, for making one takes as long as filling it."""
    for number in range(rounds):
        if number % 10 == 0:
            buffer = rlds2buf.make_reservoir(SPEC, capacity, seed=number // 10, **options)
        else:
            buffer.clear()
        yield buffer


def numbers(buffer: Any) -> list[int]:
    return buffer.all().observation["count"].tolist()


def test_twin_is_fair() -> None:
    rng = random.Random(0)
    trials = np.zeros((4000, 11), bool)
    for row in trials:
        reservoir = ListReservoir(4, rng)
        for item in range(11):
            reservoir.add(item)
        row[reservoir.items] = True
    assert included(trials, 4) > 1e-3


WAYS = {
    "one by one": lambda n: [transition(i) for i in range(n)],
    "at once": lambda n: [transitions(0, n)],
    "in parts": lambda n: [transitions(0, 3), transition(3), transitions(4, n - 4)],
    "as episodes": lambda n: [episode(0, 4), episode(3, n - 3 + 1)],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("capacity", "n"), [(1, 6), (3, 9), (4, 11), (5, 40), (10, 11)])
def test_every_step_is_held_with_the_same_chance(way: str, capacity: int, n: int) -> None:
    rounds = 12_000 // n
    parts = WAYS[way](n)
    trials = np.zeros((rounds, n), bool)
    for row, buffer in zip(trials, reservoirs(rounds, capacity), strict=True):
        for part in parts:
            buffer.add(part)
        row[numbers(buffer)] = True
    assert included(trials, capacity) > 1e-3


def test_every_pair_is_held_with_the_same_chance() -> None:
    capacity, n, rounds = 3, 7, 2000
    first, second = transitions(0, 4), transitions(4, 3)
    pairs = np.zeros((n, n))
    for buffer in reservoirs(rounds, capacity):
        buffer.add(first)
        buffer.add(second)
        held = numbers(buffer)
        pairs[np.ix_(held, held)] += 1
    upper = np.triu_indices(n, 1)
    expected = rounds * capacity * (capacity - 1) / (n * (n - 1))
    share = expected / rounds
    # Pairs depend on each other, so each is held against its own five standard deviations.
    assert np.abs(pairs[upper] - expected).max() < 5 * (rounds * share * (1 - share)) ** 0.5


def test_up_to_capacity_everything_is_held() -> None:
    for capacity in (1, 2, 7, 8, 9):
        buffer = rlds2buf.make_reservoir(SPEC, capacity, seed=0)
        for i in range(capacity):
            buffer.add(transition(i))
            assert numbers(buffer) == list(range(i + 1))  # RLlib's holds one fewer, and none of one
        buffer.add(transitions(100, 50))
        assert len(buffer) == capacity
        buffer.check_valid()


def test_sampling_is_uniform_over_what_is_held() -> None:
    buffer = rlds2buf.make_reservoir(SPEC, 12, seed=3)
    for i in range(9):
        buffer.add(episode(100 * i, 9))
    keys = buffer.keys()
    info = buffer.sample(20_000).info
    counts = np.bincount(np.searchsorted(keys, info.key), minlength=12)
    assert p_value(counts, np.full(12, 1 / 12)) > 1e-3
    assert (info.probability == 1 / 12).all() and info.table_size == 12


def test_what_is_turned_away_has_a_key_that_is_unknown() -> None:
    buffer = rlds2buf.make_reservoir(SPEC, 5, seed=1)
    keys = np.concatenate([buffer.add(transitions(10 * i, 10)) for i in range(10)])
    assert len(np.unique(keys)) == 100
    held = buffer.keys()
    assert set(held.tolist()) <= set(keys.tolist())
    for key in set(keys.tolist()) - set(held.tolist()):
        with pytest.raises(UnknownKey):
            buffer.get([key])
    place = np.searchsorted(keys, held)
    assert buffer.get(held).observation["count"].tolist() == place.tolist() == numbers(buffer)
    stats = buffer.stats()
    assert (stats["added"], stats["evicted"], stats["num_items"]) == (100, 95, 5)


@pytest.mark.parametrize("capacity", [1, 2, 3, 8, 9, 40])
def test_horizons_follow_true_successors_that_are_held(capacity: int) -> None:
    """Whatever has left in between, a step is followed by its own successor or by nothing."""
    rng = np.random.default_rng(capacity)
    buffer = rlds2buf.make_reservoir(SPEC, capacity, seed=capacity)
    everything = ListReplay(10**9)
    named: dict[int, int] = {}
    number = 0
    for _ in range(60):
        if rng.random() < 0.4:
            ep = episode(number, int(rng.integers(1, 12)), ["terminated", "truncated", "open"][rng.integers(3)])
            source = int(rng.integers(0, 2))
            keys, serials = buffer.add(ep, source_id=source), everything.add_episode(ep, source)
            number += len(ep)
        else:
            count = int(rng.integers(1, 9))
            steps = [transition(number + i, int(rng.choice([0, 0, 0, 1, 2]))) for i in range(count)]
            sources = rng.integers(0, 2, count).tolist()
            keys, serials = buffer.add(steps, source_id=sources), everything.add_transitions(steps, sources)
            number += count
        assert len(keys) == len(serials)
        named.update(zip(keys.tolist(), serials, strict=True))
        buffer.check_valid()
        assert len(buffer) == min(capacity, len(named))
        held = buffer.keys().tolist()
        assert held == sorted(held)
        twin = Thinned(everything, {named[key] for key in held})
        serials = [named[key] for key in held]
        assert_transitions(buffer.get(held), twin, serials)
        assert_transitions(buffer.get(held, n_step=4, gamma=0.5), twin, serials, 4, 0.5)
        assert_sequences(buffer.get(held, sequence_length=5), twin, serials, 5)


class Thinned(ListReplay):
    """All that was ever offered, of which only some steps are held."""

    def __init__(self, everything: ListReplay, held: set[int]) -> None:
        self.rows, self.held = everything.rows, held
        self.places = {row.serial: i for i, row in enumerate(self.rows)}

    def _position(self, serial: int) -> int:
        assert serial in self.held
        return self.places[serial]

    def _after(self, i: int) -> int | None:
        after = super()._after(i)
        return after if after is not None and self.rows[after].serial in self.held else None


# -- items of several steps ---------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [1, 3])
def test_every_episode_is_held_with_the_same_chance(capacity: int) -> None:
    """Long ones as likely as short ones, and never more than the capacity."""
    lengths = [2, 9, 3, 30, 2, 5, 4]
    starts = np.cumsum([0, *lengths])[:-1]
    episodes = [episode(start, rows) for start, rows in zip(starts.tolist(), lengths, strict=True)]
    trials = np.zeros((600, len(lengths)), bool)
    for seed, row in enumerate(trials):
        buffer = rlds2buf.make_reservoir(SPEC, capacity, storage_unit="episodes", seed=seed)
        buffer.add(episodes)
        assert len(buffer) == capacity
        firsts = {int(number) for number in buffer.all().observation["count"]} & set(starts.tolist())
        row[np.searchsorted(starts, sorted(firsts))] = True
    assert included(trials, capacity) > 1e-3


def test_every_sequence_is_held_with_the_same_chance() -> None:
    """Twelve steps are four sequences of three; seven more are three, the last of one step."""
    starts = np.array([0, 3, 6, 9, 100, 103, 106])
    trials = np.zeros((800, 7), bool)
    for seed, row in enumerate(trials):
        buffer = rlds2buf.make_reservoir(SPEC, 3, storage_unit="sequences", item_length=3, seed=seed)
        buffer.add(episode(0, 13))
        buffer.add(episode(100, 8))
        assert len(buffer) == 3
        held = set(buffer.all().observation["count"].tolist())
        row[:] = [start in held for start in starts.tolist()]
    assert included(trials, 3) > 1e-3


# -- state --------------------------------------------------------------------------------------


def test_going_on_after_a_snapshot_is_as_if_nothing_had_been(tmp_path: Path) -> None:
    buffer = rlds2buf.make_reservoir(SPEC, 20, seed=3)
    for i in range(6):
        buffer.add(episode(100 * i, 12))
    buffer.save(tmp_path / "saved")
    state = buffer.state_dict()
    other = rlds2buf.make_reservoir(SPEC, 20)
    other.load_state_dict(state)
    copies = [rlds2buf.load_buffer(tmp_path / "saved"), other]
    for i in range(6, 12):
        buffer.add(episode(100 * i, 12))
        for copy in copies:
            copy.add(episode(100 * i, 12))
            copy.check_valid()
    for copy in copies:
        assert copy.keys().tolist() == buffer.keys().tolist()
        assert_same_nest(copy.all()._asdict(), buffer.all()._asdict())
        assert copy.stats()["added"] == buffer.stats()["added"]
    expected = buffer.sample(30).info.key.tolist()
    assert [copy.sample(30).info.key.tolist() for copy in copies] == [expected, expected]


def test_inclusion_after_a_resize_is_still_fair() -> None:
    trials = np.zeros((1200, 12), bool)
    for seed, row in enumerate(trials):
        buffer = rlds2buf.make_reservoir(SPEC, 6, seed=seed)
        buffer.add(transitions(0, 9))
        buffer.resize(4)
        buffer.add(transitions(9, 3))
        row[numbers(buffer)] = True
    assert included(trials, 4) > 1e-3
