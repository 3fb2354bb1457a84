"""Reservoirs: what is held is a fair sample of all there was, and what comes out is what went in."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import NotEnoughItems, ReplayError, SnapshotError, StepSpec, UnknownKey
from tests.buffers.compare import assert_same_nest, assert_sequences, assert_transitions
from tests.buffers.contents.choices import Choices
from tests.buffers.crew import Crew, Work
from tests.buffers.frequencies import p_value
from tests.buffers.numbered import SPEC, episode, rows_to_transition, transition, transitions
from tests.contracts.buffer import BufferContract
from tests.reference.reservoir import ReservoirReplay

CAPACITIES = [1, 2, 3, 7, 8, 9, 33]


class TestReservoir(BufferContract):
    rows_filled = 11  # each transition by itself

    def make(self, spec: StepSpec, capacity: int, seed: int | None = None) -> Any:
        return rlds2buf.make_reservoir(spec, capacity, seed=seed)

    def test_too_long_an_episode(self) -> None:
        """There is none: every transition of it is offered."""
        buffer = self.make(SPEC, 10, seed=0)
        assert len(buffer.add(episode(50, 13))) == 12
        assert len(buffer) == 10
        buffer.check_valid()


class TestReservoirInFiles(TestReservoir):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self.folders = tmp_path_factory

    def make(self, spec: StepSpec, capacity: int, seed: int | None = None) -> Any:
        return rlds2buf.make_reservoir(spec, capacity, seed=seed, directory=self.folders.mktemp("buffer") / "columns")


# -- which are held: against Algorithm R, one item at a time, with the same random numbers ------------


class Pair:
    """A buffer and its twin, driven by the same operations."""

    def __init__(self, capacity: int, seed: int) -> None:
        self.capacity = capacity
        self.buffer = rlds2buf.make_reservoir(SPEC, capacity, seed=seed)
        self.choices = Choices(seed)
        self.twin = ReservoirReplay(capacity, self.choices)
        self.serials: dict[int, int] = {}
        self.number = 0

    def add_episode(self, rows: int, end: str, source: int) -> None:
        ep = episode(self.number, rows, end)
        self.number += rows
        self.choices.offer(self.twin.held.seen, rows - 1, self.capacity)
        self._note(self.buffer.add(ep, source_id=source), self.twin.add_episode(ep, source))

    def add_transitions(self, codes: list[int], sources: Any) -> None:
        items = [transition(self.number + i, code) for i, code in enumerate(codes)]
        self.number += len(codes)
        self.choices.offer(self.twin.held.seen, len(codes), self.capacity)
        data: Any = items[0] if len(items) == 1 else rows_to_transition(items)
        ids = sources if isinstance(sources, int) else np.array(sources)
        self._note(self.buffer.add(data, source_id=ids), self.twin.add_transitions(items, sources))

    def _note(self, keys: np.ndarray, serials: list[int]) -> None:
        assert len(keys) == len(serials)
        self.serials.update(zip(keys.tolist(), serials, strict=True))

    def check(self) -> None:
        buffer, twin = self.buffer, self.twin
        buffer.check_valid()
        keys = buffer.keys()
        held = [self.serials[key] for key in keys.tolist()]
        assert held == twin.keys()
        assert_transitions(buffer.all(), twin, held)
        assert_transitions(buffer.get(keys, n_step=4, gamma=0.5), twin, held, 4, 0.5)
        assert_sequences(buffer.get(keys, sequence_length=3), twin, held, 3)
        stats = buffer.stats()
        assert (stats["num_items"], stats["added"]) == (len(held), twin.held.seen)
        assert stats["num_rows"] == len(held) == stats["added"] - stats["evicted"]


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("seed", [0, 1])
def test_any_operations(capacity: int, seed: int) -> None:
    """Episodes and steps of interleaved sources, far more than fit, the log packed again and again."""
    rng = np.random.default_rng(1000 * capacity + seed)
    pair = Pair(capacity, seed)
    for step in range(40):
        kind = rng.integers(3)
        if kind == 0:
            end = ("terminated", "truncated", "open")[rng.integers(3)]
            pair.add_episode(int(rng.integers(2, 9)), end, int(rng.integers(3)))
        else:
            codes = rng.choice([0, 0, 0, 0, 1, 2], int(rng.integers(1, 7))).tolist()
            mixed = rng.integers(0, 3, len(codes)).tolist()
            pair.add_transitions(codes, mixed if kind == 1 and len(codes) > 1 else int(mixed[0]))
        if step % 4 == 0:
            pair.check()
    pair.check()
    gone = set(pair.serials) - set(pair.buffer.keys().tolist())
    assert gone
    for key in list(gone)[:5]:
        with pytest.raises(UnknownKey, match=str(key)):
            pair.buffer.get(key)


def test_one_source_only_is_drawn() -> None:
    pair = Pair(9, 3)
    for i in range(12):
        pair.add_episode(5, "terminated", i % 3)
    keys = pair.buffer.sample(500, source_id=1).info.key
    expected = [serial for serial in pair.twin.of_source(1)]
    assert sorted({pair.serials[key] for key in keys.tolist()}) == expected
    assert 0 < len(expected) < 9


# -- fairness ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [1, 2, 5, 16])
@pytest.mark.parametrize("blocks", [[20], [1] * 20, [7, 1, 12], [3] * 6 + [2]], ids=len)
def test_every_position_is_as_likely(capacity: int, blocks: list[int]) -> None:
    """One of those held, drawn: it is the i-th of 20 with chance 1/20, for each i."""
    buffer = rlds2buf.make_reservoir(SPEC, capacity, seed=17 * capacity + len(blocks))
    counts = np.zeros(20, int)
    parts, number = [], 0
    for size in blocks:
        parts.append(transitions(number, size))
        number += size
    for _ in range(500):
        buffer.clear()
        for part in parts:
            buffer.add(part)
        counts[buffer.sample(1).data.observation["count"]] += 1
    assert 1e-3 < p_value(counts, np.full(20, 1 / 20))


def test_every_set_is_as_likely() -> None:
    buffer = rlds2buf.make_reservoir(SPEC, 2, seed=5)
    sets = {pair: i for i, pair in enumerate(itertools.combinations(range(5), 2))}
    counts = np.zeros(len(sets), int)
    first, second = transitions(0, 3), transitions(3, 2)
    for _ in range(2000):
        buffer.clear()
        buffer.add(first)
        buffer.add(second)
        counts[sets[tuple(sorted(buffer.all().observation["count"].tolist()))]] += 1
    assert 1e-3 < p_value(counts, np.full(10, 0.1))


@pytest.mark.parametrize("lengths", [[2, 3, 9, 2, 5, 2, 12, 4], [12] + [2] * 7], ids=str)
def test_long_items_are_as_likely(lengths: list[int]) -> None:
    """8 episodes into room for 3: each stays with chance 3/8, however long and wherever it came."""
    buffer = rlds2buf.make_reservoir(SPEC, 3, storage_unit="episodes", seed=len(lengths) + lengths[0])
    episodes = [episode(100 * i, rows) for i, rows in enumerate(lengths)]
    counts = np.zeros(8, int)
    for _ in range(800):
        buffer.clear()
        for ep in episodes:
            buffer.add(ep)
        counts[int(buffer.sample(1).data.observation["count"][0, 0]) // 100] += 1
    buffer.check_valid()
    assert 1e-3 < p_value(counts, np.full(8, 1 / 8))


def test_sampling_is_uniform_over_what_is_held() -> None:
    buffer = rlds2buf.make_reservoir(SPEC, 7, seed=1)
    buffer.add(transitions(0, 50))
    order = {key: i for i, key in enumerate(buffer.keys().tolist())}
    counts = np.bincount([order[key] for key in buffer.sample(7000).info.key.tolist()], minlength=7)
    assert 1e-3 < p_value(counts, np.full(7, 1 / 7))


# -- capacity ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_holds_all_of_its_capacity(capacity: int) -> None:
    buffer = rlds2buf.make_reservoir(SPEC, capacity, seed=0)
    for i in range(capacity + 5):
        buffer.add(transition(i))
        assert len(buffer) == min(i + 1, capacity)


def test_capacity_none() -> None:
    buffer = rlds2buf.make_reservoir(SPEC, 1)
    buffer.resize(0)
    assert len(buffer.add(episode(0, 5))) == 4
    assert len(buffer) == 0 and buffer.stats()["evicted"] == 4
    buffer.check_valid()
    with pytest.raises(NotEnoughItems):
        buffer.sample(1)


def test_long_items_take_room_but_never_more_places() -> None:
    buffer = rlds2buf.make_reservoir(SPEC, 5, storage_unit="fragments", seed=2)
    for i in range(60):
        buffer.add(transitions(100 * i, 1 + i))
        assert len(buffer) == min(i + 1, 5)
        buffer.check_valid()
    stats = buffer.stats()
    assert (
        stats["num_rows"]
        == stats["num_transitions"]
        == sum(len(np.unique(buffer.get(key).reward[0])) for key in buffer.keys())
    )


def test_resize() -> None:
    buffer = rlds2buf.make_reservoir(SPEC, 20, seed=3)
    buffer.add(episode(0, 16))
    buffer.resize(40)  # nothing has left yet
    buffer.add(episode(100, 16))
    assert len(buffer) == 30
    buffer.resize(8)
    buffer.check_valid()
    assert len(buffer) == 8 and buffer.capacity == 8
    held = buffer.keys()
    assert_same_nest(buffer.get(held)._asdict(), buffer.all()._asdict())
    with pytest.raises(ReplayError, match=r"8 of 30"):
        buffer.resize(9)
    buffer.add(transitions(500, 100))
    assert len(buffer) == 8
    buffer.check_valid()
    buffer.clear()
    buffer.resize(9)
    assert buffer.capacity == 9


def test_shrinking_is_fair() -> None:
    """16 of which 6 stay, then 4 more offered: each of the 20 is held with chance 6/20."""
    counts = np.zeros(20, int)
    for seed in range(600):
        buffer = rlds2buf.make_reservoir(SPEC, 16, seed=seed)
        buffer.add(transitions(0, 16))
        buffer.resize(6)
        buffer.add(transitions(16, 4))
        counts[buffer.sample(1).data.observation["count"]] += 1
    assert 1e-3 < p_value(counts, np.full(20, 1 / 20))


@pytest.mark.parametrize(
    "kwargs",
    [
        {"capacity_unit": "episodes"},
        {"capacity_unit": "rows", "storage_unit": "episodes"},
        {"capacity_unit": "transitions", "storage_unit": "fragments"},
        {"capacity_unit": "episodes", "storage_unit": "sequences", "item_length": 3},
        {"capacity_unit": "steps"},
        {"storage_unit": "sequences"},
        {"storage_unit": "steps"},
        {"item_length": 3},
        {"storage_unit": "sequences", "item_length": 0},
    ],
    ids=str,
)
def test_bad_options(kwargs: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"capacity|unit|length|room"):
        rlds2buf.make_reservoir(SPEC, 10, **kwargs)


# -- state ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["timesteps", "episodes", "fragments"])
def test_saved_goes_on_as_if_nothing_had_happened(tmp_path: Path, unit: str) -> None:
    """Contents, the choices to come and the draws: all as in the buffer that was not saved."""
    buffer = rlds2buf.make_reservoir(SPEC, 6, storage_unit=unit, seed=4)
    for i in range(15):
        buffer.add(episode(100 * i, 3 + i % 4), source_id=i % 2)
    buffer.sample(4)
    buffer.save(tmp_path / "saved")
    state = buffer.state_dict()
    other = rlds2buf.make_reservoir(SPEC, 6, storage_unit=unit, seed=99)
    other.load_state_dict(state)
    copies = [other, rlds2buf.load_buffer(tmp_path / "saved"), rlds2buf.load_buffer(tmp_path / "saved", writable=True)]
    for each in (buffer, *copies):
        for i in range(15, 40):
            each.add(episode(100 * i, 3 + i % 4), source_id=i % 2)
        each.check_valid()
    expected = buffer.all()._asdict(), buffer.keys().tolist(), buffer.sample(30).info.key.tolist(), buffer.stats()
    for each in copies:
        assert_same_nest(each.all()._asdict(), expected[0])
        assert each.keys().tolist() == expected[1]
        assert each.sample(30).info.key.tolist() == expected[2]
        assert {k: v for k, v in each.stats().items() if k != "bytes"} == {
            k: v for k, v in expected[3].items() if k != "bytes"
        }


def test_directory_backed_goes_on(tmp_path: Path) -> None:
    buffer = rlds2buf.make_reservoir(SPEC, 6, seed=4, directory=tmp_path / "live")
    for i in range(15):
        buffer.add(episode(100 * i, 4))
    buffer.save()
    before = buffer.all()._asdict()
    del buffer
    again = rlds2buf.load_buffer(tmp_path / "live", writable=True)
    assert_same_nest(again.all()._asdict(), before)
    again.add(episode(9000, 60))
    again.check_valid()
    assert len(again) == 6


def test_state_of_another_unit_is_refused() -> None:
    steps = rlds2buf.make_reservoir(SPEC, 6, seed=4)
    episodes = rlds2buf.make_reservoir(SPEC, 6, storage_unit="episodes", seed=4)
    steps.add(episode(0, 5))
    with pytest.raises(SnapshotError, match="storage_unit"):
        episodes.load_state_dict(steps.state_dict())
    assert len(episodes) == 0
    episodes.check_valid()
    with pytest.raises(SnapshotError, match="kind"):
        rlds2buf.make_circular(SPEC, 6, capacity_unit="items").load_state_dict(steps.state_dict())


def test_a_new_seed_for_a_saved_one(tmp_path: Path) -> None:
    buffer = rlds2buf.make_reservoir(SPEC, 4, seed=4)
    buffer.add(transitions(0, 20))
    buffer.save(tmp_path / "saved")
    held = []
    for seed in (1, 1, 2):
        loaded = rlds2buf.load_buffer(tmp_path / "saved", seed=seed)
        loaded.add(transitions(100, 200))
        held.append(loaded.keys().tolist())
    assert held[0] == held[1] != held[2]


def test_strings_and_unseeded() -> None:
    def named(start: int) -> rlds2buf.Episode:
        text = np.array([f"row {start + i}".encode() for i in range(5)], object)
        return rlds2buf.Episode(observation=text, action=np.arange(5), reward=np.ones(5), discount=np.ones(5))

    buffer = rlds2buf.make_reservoir(rlds2buf.spec_of(named(0)), 6)
    for i in range(10):
        buffer.add(named(10 * i))
    rows = buffer.all()
    assert [int(b.split()[1]) + 1 for b in rows.observation] == [int(a.split()[1]) for a in rows.next_observation]
    assert [int(b.split()[1]) % 10 for b in rows.observation] == rows.action.tolist()


def test_one_writer_and_several_samplers() -> None:
    buffer = rlds2buf.make_reservoir(SPEC, 300, seed=1)
    buffer.add(episode(0, 100))
    work, crew = Work(buffer), Crew()
    crew.hire("writer", work.write)
    for name in ("one", "two"):
        crew.hire(name, work.sample)
    crew.hire("three", work.sample_long)
    crew.hire("four", work.sample_each_once)
    crew.work(1.0)
    buffer.check_valid()
    assert buffer.stats()["evicted"] > 300
    assert all(rounds > 5 for rounds in crew.rounds.values()), crew.rounds
