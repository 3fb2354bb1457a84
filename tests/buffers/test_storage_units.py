"""Items of several transitions: cut, stored, drawn and dropped whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import EpisodeBatch, EpisodeError, NotEnoughItems, SnapshotError, UnknownKey
from rlds2buf.core import nest
from tests.buffers.compare import assert_same_nest, assert_sequences, assert_transitions
from tests.buffers.crew import LOOSE, Crew, Work, check_sequences, check_transitions
from tests.buffers.frequencies import p_value
from tests.buffers.numbered import SPEC, episode, rows_to_transition, transition, transitions
from tests.reference.items import ItemReplay, Whole

UNITS: list[dict[str, Any]] = [
    {"storage_unit": "sequences", "item_length": 3},
    {"storage_unit": "sequences", "item_length": 1},
    {"storage_unit": "episodes"},
    {"storage_unit": "fragments"},
]
MAKERS = [rlds2buf.make_circular, rlds2buf.make_prioritized]


class Pair:
    """A buffer and its twin, driven by the same operations."""

    def __init__(self, capacity: int, unit: str, kwargs: dict[str, Any], make: Any = rlds2buf.make_circular) -> None:
        self.buffer = make(SPEC, capacity, capacity_unit=unit, seed=0, **kwargs)
        self.twin = ItemReplay(capacity, unit, **kwargs)
        self.serials: dict[int, int] = {}
        self.number = 0

    def add_episode(self, rows: int, end: str = "terminated", source: int = 0) -> None:
        ep = episode(self.number, rows, end)
        self.number += rows
        self._note(self.buffer.add(ep, source_id=source), self.twin.add_episode(ep, source))

    def add_transitions(self, codes: list[int], sources: Any = 0) -> None:
        items = [transition(self.number + i, code) for i, code in enumerate(codes)]
        self.number += len(codes)
        ids = sources if isinstance(sources, int) else np.array(sources)
        self._note(self.buffer.add(rows_to_transition(items), source_id=ids), self.twin.add_transitions(items, sources))

    def _note(self, keys: np.ndarray, serials: list[int]) -> None:
        assert keys.dtype == np.uint64 and len(keys) == len(serials)
        self.serials.update(zip(keys.tolist(), serials, strict=True))

    def check(self) -> None:
        buffer, twin = self.buffer, self.twin
        buffer.check_valid()
        keys = buffer.keys()
        held = [self.serials[key] for key in keys.tolist()]
        assert held == twin.keys() and len(buffer) == len(held)
        stats = buffer.stats()
        assert stats["num_rows"] == twin.held_rows()
        assert stats["evicted"] == twin.evicted == stats["added"] - len(held)
        everything = [serial for item in twin.items for serial in item]
        assert stats["num_transitions"] == len(everything)
        assert_transitions(buffer.all(), twin, everything)
        if held:
            longest = max(len(item) for item in twin.items)
            assert_sequences(buffer.get(keys), Whole(twin), held, longest)
            assert_sequences(buffer.get(keys, sequence_length=4), twin, held, 4)
            assert_transitions(buffer.get(keys, n_step=3, gamma=0.5), twin, held, 3, 0.5)


@pytest.mark.parametrize("kwargs", UNITS, ids=str)
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(("capacity", "unit"), [(16, "rows"), (17, "rows"), (15, "transitions"), (4, "items")])
def test_any_operations(kwargs: dict[str, Any], make: Any, capacity: int, unit: str) -> None:
    rng = np.random.default_rng(capacity)
    pair = Pair(capacity, unit, kwargs, make)
    whole_only = kwargs["storage_unit"] == "episodes"
    for step in range(30):
        if rng.random() < 0.5:
            pair.add_episode(int(rng.integers(2, 15)), ("terminated", "truncated", "open")[rng.integers(3)], 1)
        else:
            count = int(rng.integers(1, 9))
            codes = rng.choice([0, 0, 1, 2], count)
            ids = np.sort(rng.integers(0, 3, count))
            if rng.random() < 0.5:
                rng.shuffle(ids)
            if whole_only:  # each source ends with an end
                for source in ids:
                    codes[np.flatnonzero(ids == source)[-1]] = 1
            pair.add_transitions(codes.tolist(), ids.tolist())
        if step % 3 == 0:
            pair.check()
    pair.buffer.resize(7 if unit != "items" else 2)
    pair.twin.limit = 7 if unit != "items" else 2
    while pair.twin.used() > pair.twin.limit:
        pair.twin.items.pop(0)
        pair.twin.evicted += 1
    pair.check()
    pair.add_episode(4)
    pair.check()


def test_one_call_may_bring_more_than_fits() -> None:
    """The newest items of an episode stay; the others have keys, as if they had come before."""
    pair = Pair(12, "rows", {"storage_unit": "sequences", "item_length": 4})
    pair.add_episode(5)
    pair.add_episode(40)
    pair.check()
    assert len(pair.buffer) == 3 and len(pair.serials) == 11
    pair.add_transitions([0] * 50)
    pair.check()


# -- RLlib's worked examples, put right ---------------------------------------------------------------


def test_sample_gives_whole_items() -> None:
    """5 items of 5 steps concatenated are 25 steps."""
    buffer = rlds2buf.make_circular(SPEC, 100, storage_unit="fragments", seed=0)
    for i in range(4):
        buffer.add(transitions(10 * i, 5))
    batch = buffer.sample(5)
    assert batch.data.mask.shape == (5, 5) and batch.data.mask.all()
    assert batch.info.key.shape == (5,) and batch.info.table_size == 4
    buffer = rlds2buf.make_circular(SPEC, 100, storage_unit="fragments", seed=0)
    for i in range(4):
        buffer.add(transitions(10 * i, 5))
    flat = buffer.sample(5, concatenate=True)
    assert flat.data.reward.shape == (25,) and flat.info.key.shape == (25,)
    assert flat.data.reward.tolist() == batch.data.reward.reshape(-1).tolist()
    assert flat.info.key.tolist() == np.repeat(batch.info.key, 5).tolist()


def test_the_bound_on_held_steps_is_real() -> None:
    """Items that grow, 1 to 10 steps: never more than 10 held, oldest first out."""
    buffer = rlds2buf.make_circular(SPEC, 10, storage_unit="fragments", seed=0)
    for i in range(1, 11):
        buffer.add(transitions(100 * i, i))
        assert buffer.stats()["num_rows"] <= 10
    assert buffer.all().observation["count"].tolist() == list(range(1000, 1010))


@pytest.mark.parametrize("kwargs", UNITS, ids=str)
def test_too_long_an_item_is_refused(kwargs: dict[str, Any]) -> None:
    capacity = kwargs.get("item_length", 8) - (1 if "item_length" in kwargs else 0)
    buffer = rlds2buf.make_circular(SPEC, capacity or 1, capacity_unit="transitions", **kwargs)
    buffer.resize(capacity)
    buffer.add(episode(0, 2)) if capacity else None
    before = len(buffer)
    for call in (buffer.check, buffer.add):
        with pytest.raises(EpisodeError, match=rf"more than the capacity of {capacity}") as caught:
            call(episode(0, 40))
        assert caught.value.rule == "longer-than-capacity"
    assert len(buffer) == before
    buffer.check_valid()


def test_incomplete_episodes_are_refused() -> None:
    """RLlib drops them and says so once per process."""
    buffer = rlds2buf.make_circular(SPEC, 100, storage_unit="episodes")
    with pytest.raises(EpisodeError, match="transition 4") as caught:
        buffer.add(transitions(0, 5, [0, 1, 0, 2, 0]))
    assert caught.value.step == 4
    with pytest.raises(EpisodeError):
        buffer.add(transition(0))
    with pytest.raises(EpisodeError):  # source 1 goes on, source 2 does not
        buffer.add(transitions(0, 4, [0, 0, 0, 1]), source_id=[2, 1, 1, 2])
    assert len(buffer) == 0
    assert len(buffer.add(transitions(0, 5, [0, 1, 0, 0, 2]))) == 2


def test_items_of_no_transition_are_none() -> None:
    for kwargs in UNITS:
        buffer = rlds2buf.make_circular(SPEC, 100, **kwargs)
        assert buffer.add(episode(0, 1)).shape == (0,)
        assert buffer.add([episode(0, 1), episode(5, 3), None]).shape[0] >= 1
        buffer.check_valid()


@pytest.mark.parametrize("kwargs", [{}, *UNITS], ids=str)
@pytest.mark.parametrize("make", [*MAKERS, rlds2buf.make_reservoir])
def test_batches_of_episodes(kwargs: dict[str, Any], make: Any) -> None:
    """The same as the episodes one by one, those without a transition and those left open among them."""
    ends = ("terminated", "truncated", "open")
    lengths = [1, 5, 1, 1, 2, 9, 4, 1]
    episodes = [episode(20 * i, rows, ends[i % 3]) for i, rows in enumerate(lengths)]
    capacity = {"capacity": 12} if make is rlds2buf.make_reservoir else {"capacity": 300}
    buffers = [make(SPEC, seed=1, **capacity, **kwargs) for _ in range(2)]
    for _ in range(4):
        keys = [buffers[0].add(EpisodeBatch.of(episodes), source_id=3), buffers[1].add(episodes, source_id=3)]
        assert len(keys[0]) == len(keys[1])
        for buffer in buffers:
            buffer.check_valid()
        everything = [buffer.all() for buffer in buffers]
        assert_same_nest(everything[0]._asdict(), everything[1]._asdict())
        views = [{"n_step": 3}, {"sequence_length": 4}, {}]
        for view in views:
            same = [buffer.get(buffer.keys(), **view)._asdict() for buffer in buffers]
            assert_same_nest(*same)


# -- drawing ----------------------------------------------------------------------------------------


def test_short_items_are_as_likely_as_long_ones() -> None:
    buffer = rlds2buf.make_circular(SPEC, 200, storage_unit="episodes", seed=1)
    lengths = [2, 30, 3, 12, 60]
    for i, rows in enumerate(lengths):
        buffer.add(episode(100 * i, rows))
    batch = buffer.sample(5000)
    counts = np.bincount(batch.data.observation["count"][:, 0] // 100, minlength=5)
    assert 1e-3 < p_value(counts, np.full(5, 0.2))
    assert batch.data.mask.sum(1).tolist() == [lengths[i] - 1 for i in batch.data.observation["count"][:, 0] // 100]
    np.testing.assert_allclose(batch.info.probability, 0.2)


@pytest.mark.parametrize("view", [{"n_step": 1}, {"n_step": 3}, {"sequence_length": 4}], ids=str)
def test_steps_inside_items(view: dict[str, Any]) -> None:
    """A random step of each item; what starts there is what `get` gives for its key."""
    buffer = rlds2buf.make_circular(SPEC, 200, storage_unit="episodes", seed=1)
    for i, rows in enumerate([3, 6]):
        buffer.add(episode(100 * i, rows))
    batch = buffer.sample(4000, gamma=0.5, **view)
    assert_same_nest(batch.data._asdict(), buffer.get(batch.info.key, gamma=0.5, **view)._asdict())
    start = nest.get(batch.data.observation, ("count",)).reshape(4000, -1)[:, 0]
    places = [0, 1, 100, 101, 102, 103, 104]
    counts = [int((start == place).sum()) for place in places]
    chance = [0.25] * 2 + [0.1] * 5
    assert 1e-3 < p_value(counts, chance)
    np.testing.assert_allclose(batch.info.probability, np.where(start < 100, 0.25, 0.1))


def test_a_key_inside_an_item() -> None:
    buffer = rlds2buf.make_circular(SPEC, 20, storage_unit="episodes", seed=1)
    for i in range(4):
        keys = buffer.add(episode(100 * i, 6))
    middle = buffer.get(keys + np.uint64(2))
    assert middle.observation["count"].tolist() == [[302, 303, 304]] and middle.mask.all()
    with pytest.raises(UnknownKey):
        buffer.get(keys + np.uint64(5))  # the final row


def test_fragments_hold_ends_of_episodes() -> None:
    buffer = rlds2buf.make_circular(SPEC, 20, storage_unit="fragments")
    keys = buffer.add(transitions(0, 6, [0, 1, 0, 0, 2, 0]))
    whole = buffer.get(keys)
    assert whole.is_done.tolist() == [[0, 1, 0, 0, 2, 0]] and whole.mask.all()
    assert buffer.get(keys, sequence_length=6).mask.tolist() == [[True, True, False, False, False, False]]
    buffer.add(transitions(6, 3))  # goes on in another fragment: not followed
    assert buffer.get(keys + np.uint64(5), n_step=4).steps.tolist() == [1]


def test_only_one_source_in_an_item() -> None:
    buffer = rlds2buf.make_circular(SPEC, 40, storage_unit="fragments", seed=0)
    buffer.add(transitions(0, 6), source_id=[1, 0, 1, 0, 0, 2])
    found = buffer.get(buffer.keys())
    got = [row[mask].tolist() for row, mask in zip(found.observation["count"], found.mask, strict=True)]
    assert got == [[1, 3, 4], [0, 2], [5]]
    assert set(buffer.sample(50, source_id=1).data.observation["count"][:, 0].tolist()) == {0}
    with pytest.raises(NotEnoughItems, match="source 7"):
        buffer.sample(1, source_id=7)


def test_priorities_are_of_items() -> None:
    buffer = rlds2buf.make_prioritized(SPEC, 100, storage_unit="episodes", alpha=1.0, eps=0.0, seed=2)
    keys = np.concatenate([buffer.add(episode(100 * i, rows), priorities=[1.0]) for i, rows in enumerate([3, 9, 5])])
    inner = keys + np.array([1, 5, 0], np.uint64)  # any step of an item stands for it
    assert buffer.update_priorities(inner, [1.0, 3.0, 0.0]).shape == (0,)
    batch = buffer.sample(4000)
    counts = np.bincount(batch.data.observation["count"][:, 0] // 100, minlength=3)
    assert counts[2] == 0 and 1e-3 < p_value(counts[:2], [0.25, 0.75])
    assert set(zip(batch.info.key.tolist(), batch.info.priority.tolist(), strict=True)) == {
        (int(keys[0]), 1.0),
        (int(keys[1]), 3.0),
    }
    with pytest.raises(ValueError, match="3 items"):
        buffer.add([episode(0, 3), episode(3, 3), episode(6, 3)], priorities=[1.0])
    buffer.check_valid()


def test_concatenate_is_for_whole_items() -> None:
    whole = rlds2buf.make_circular(SPEC, 20, storage_unit="episodes")
    whole.add(episode(0, 4))
    plain = rlds2buf.make_circular(SPEC, 20)
    plain.add(episode(0, 4))
    for buffer, view in ((plain, {}), (whole, {"n_step": 2}), (whole, {"sequence_length": 2})):
        with pytest.raises(ValueError, match="concatenate"):
            buffer.sample(2, concatenate=True, **view)


# -- eviction statistics -------------------------------------------------------------------------------


def test_hits_of_what_left() -> None:
    buffer = rlds2buf.make_circular(SPEC, 3, capacity_unit="items", storage_unit="episodes", seed=3)
    assert buffer.stats(debug=True)["evicted_hits"]["count"] == 0
    counted: dict[int, int] = {}
    left: list[int] = []
    for i in range(30):
        before = buffer.keys().tolist()
        counted[int(buffer.add(episode(100 * i, 2 + i % 5))[0])] = 0
        left += [counted[key] for key in before if key not in buffer.keys().tolist()]
        for key in buffer.sample(7).info.key.tolist():
            counted[key] += 1
        if i == 15:
            buffer.resize(4)
    summary = buffer.stats(debug=True)["evicted_hits"]
    assert summary["count"] == len(left) == 26
    np.testing.assert_allclose([summary["mean"], summary["std"]], [np.mean(left), np.std(left)])
    assert list(summary["quantiles"].values()) == np.quantile(left, [0, 0.1, 0.5, 0.9, 1]).tolist()
    assert "evicted_hits" not in buffer.stats()


@pytest.mark.parametrize("make", [rlds2buf.make_circular, rlds2buf.make_prioritized, rlds2buf.make_reservoir])
def test_hits_of_steps_where_asked_for(make: Any) -> None:
    plain = make(SPEC, 4, seed=0)
    assert plain.stats(debug=True)["evicted_hits"] is None
    buffer = make(SPEC, 4, seed=0, count_hits=True)
    buffer.add(transitions(0, 4))
    buffer.sample(40)
    if make is rlds2buf.make_reservoir:
        for i in range(400):
            buffer.add(transitions(4 + 10 * i, 10))
        summary = buffer.stats(debug=True)["evicted_hits"]
        assert summary["count"] > 4 and summary["mean"] * summary["count"] == 40  # all that was drawn has left
    else:
        buffer.add(transitions(4, 4))
        summary = buffer.stats(debug=True)["evicted_hits"]
        assert (summary["count"], summary["mean"]) == (4, 10.0)


# -- state ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kwargs", UNITS, ids=str)
@pytest.mark.parametrize("make", MAKERS)
def test_saved_and_loaded(tmp_path: Path, kwargs: dict[str, Any], make: Any) -> None:
    buffer = make(SPEC, 30, seed=5, **kwargs)
    for i in range(9):
        buffer.add(episode(100 * i, 3 + i % 6), source_id=i % 2)
    if make is rlds2buf.make_prioritized:
        buffer.update_priorities(buffer.keys(), np.arange(len(buffer)) + 1.0)
    buffer.sample(3)
    buffer.save(tmp_path / "saved")
    state = buffer.state_dict()
    other = make(SPEC, 30, seed=9, **kwargs)
    other.load_state_dict(state)
    copies = [other, rlds2buf.load_buffer(tmp_path / "saved"), rlds2buf.load_buffer(tmp_path / "saved", writable=True)]
    expected = buffer.sample(20), buffer.sample(8, n_step=3)
    for i in range(9, 30):
        buffer.add(episode(100 * i, 3 + i % 6))
    for each in copies:
        each.check_valid()
        assert each.storage_unit == kwargs["storage_unit"]
        for got, view in zip((each.sample(20), each.sample(8, n_step=3)), expected, strict=True):
            assert got.info.key.tolist() == view.info.key.tolist()
            assert_same_nest(got.data._asdict(), view.data._asdict())
        for i in range(9, 30):
            each.add(episode(100 * i, 3 + i % 6))
        each.check_valid()
        assert each.keys().tolist() == buffer.keys().tolist()
        assert_same_nest(each.all()._asdict(), buffer.all()._asdict())
    with pytest.raises(SnapshotError, match=r"storage_unit|item_length"):
        make(SPEC, 30).load_state_dict(state)


def test_in_files_and_with_a_view(tmp_path: Path) -> None:
    buffer = rlds2buf.make_circular(
        SPEC, 50, storage_unit="episodes", directory=tmp_path / "live", view={"gamma": 0.5}, seed=0
    )
    for i in range(20):
        buffer.add(episode(100 * i, 8))
    assert buffer.sample(3).data.mask.shape == (3, 7)
    flat = buffer.sample(3, concatenate=True).data
    np.testing.assert_allclose(flat.bootstrap_discount, 0.5 * flat.discount)
    buffer.save()
    held = buffer.keys().tolist()
    again = rlds2buf.load_buffer(tmp_path / "live", writable=True)
    again.check_valid()
    again.add(episode(9000, 8))
    assert again.keys().tolist()[:-1] == held[1:]
    steps = rlds2buf.make_circular(SPEC, 50, storage_unit="episodes", view={"n_step": 2}, seed=0)
    steps.add(episode(0, 8))
    assert steps.sample(3).data.reward.shape == (3,)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"storage_unit": "steps"},
        {"storage_unit": "sequences"},
        {"item_length": 4},
        {"storage_unit": "episodes", "item_length": 4},
        {"storage_unit": "sequences", "item_length": 0},
        {"storage_unit": "sequences", "item_length": 4, "capacity_unit": "episodes"},
        {"storage_unit": "fragments", "capacity_unit": "episodes"},
    ],
    ids=str,
)
def test_bad_options(kwargs: dict[str, Any]) -> None:
    for make in MAKERS:
        with pytest.raises(ValueError, match=r"unit|length"):
            make(SPEC, 10, **kwargs)


def test_one_writer_and_several_samplers() -> None:
    buffer = rlds2buf.make_prioritized(SPEC, 400, storage_unit="episodes", seed=1)
    buffer.add(episode(0, 100))
    work, crew = Work(buffer), Crew()
    numbers = iter(range(1000, LOOSE, 50))

    def write(_: int) -> None:
        number = next(numbers, 1000)
        buffer.add(episode(number, 2 + number // 50 % 40))

    def sample_whole(_: int) -> None:
        batch = buffer.sample(8)
        check_sequences(batch.data)
        assert (batch.data.observation["count"][:, 0] % 50 == 0).all()  # from each one's first step on
        buffer.update_priorities(batch.info.key, np.arange(8.0) + 1)

    crew.hire("writer", write)
    crew.hire("one", sample_whole)
    crew.hire("two", lambda _: check_transitions(buffer.sample(64, n_step=1).data))
    crew.hire("three", work.sample_long)
    crew.work(1.0)
    buffer.check_valid()
    assert buffer.stats()["evicted"] > 100
    assert all(rounds > 5 for rounds in crew.rounds.values()), crew.rounds
