"""The circular buffer: the shared contract, and what only it promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import EpisodeError, NotEnoughItems, SnapshotExists, StepSpec, UnknownKey
from tests.buffers.compare import assert_sequences, assert_transitions
from tests.buffers.numbered import SPEC, episode, rows_to_transition, transition, transitions
from tests.contracts.buffer import BufferContract
from tests.reference.replay import ListReplay


class TestRows(BufferContract):
    def make(self, spec: StepSpec, capacity: int, seed: int | None = None) -> Any:
        return rlds2buf.make_circular(spec, capacity, seed=seed)


class TestTransitions(BufferContract):
    counted = "num_items"

    def make(self, spec: StepSpec, capacity: int, seed: int | None = None) -> Any:
        return rlds2buf.make_circular(spec, capacity, capacity_unit="transitions", seed=seed)


class TestInFiles(BufferContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self.folders = tmp_path_factory

    def make(self, spec: StepSpec, capacity: int, seed: int | None = None) -> Any:
        return rlds2buf.make_circular(spec, capacity, seed=seed, directory=self.folders.mktemp("buffer") / "columns")


class TestLoaded(BufferContract):
    """A buffer that was saved empty and opened again."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self.folders = tmp_path_factory

    def make(self, spec: StepSpec, capacity: int, seed: int | None = None) -> Any:
        folder = self.folders.mktemp("buffer") / "saved"
        rlds2buf.make_circular(spec, capacity, seed=seed).save(folder)
        return rlds2buf.load_buffer(folder)


def numbers(buffer: Any) -> list[int]:
    return buffer.all().observation["count"].tolist()


# -- capacity -----------------------------------------------------------------------------------


def test_rows_leave_one_by_one() -> None:
    buffer = rlds2buf.make_circular(SPEC, 8)
    old = buffer.add(episode(0, 5))
    buffer.add(episode(10, 3))
    assert numbers(buffer) == [0, 1, 2, 3, 10, 11]
    buffer.add(transition(20))  # row 0 leaves, the rest of its episode stays
    assert numbers(buffer) == [1, 2, 3, 10, 11, 20]
    with pytest.raises(UnknownKey):
        buffer.get(old[:1])
    assert buffer.get(old[1:], n_step=9, gamma=1.0).steps.tolist() == [3, 2, 1]
    buffer.add(transitions(21, 3))  # rows 1, 2, 3 leave; row 4, the last observation, starts nothing
    assert numbers(buffer) == [10, 11, 20, 21, 22, 23]
    buffer.check_valid()


def test_unit_transitions() -> None:
    buffer = rlds2buf.make_circular(SPEC, 6, capacity_unit="transitions")
    assert buffer.capacity_unit == "transitions"
    buffer.add(episode(0, 5))
    buffer.add(episode(10, 3))
    assert numbers(buffer) == [0, 1, 2, 3, 10, 11]
    buffer.add(episode(20, 1))  # a lone observation is no transition
    assert numbers(buffer) == [0, 1, 2, 3, 10, 11]
    buffer.add(transitions(30, 2))
    assert numbers(buffer) == [2, 3, 10, 11, 30, 31]
    buffer.add(episode(40, 7))
    assert numbers(buffer) == [40, 41, 42, 43, 44, 45]
    with pytest.raises(EpisodeError):
        buffer.add(episode(60, 8))
    buffer.resize(2)
    assert numbers(buffer) == [44, 45]
    buffer.check_valid()


def test_unit_episodes() -> None:
    buffer = rlds2buf.make_circular(SPEC, 2, capacity_unit="episodes")
    assert buffer.capacity_unit == "episodes"
    buffer.add(episode(0, 5))
    buffer.add(episode(10, 3))
    assert numbers(buffer) == [0, 1, 2, 3, 10, 11]
    buffer.add(episode(20, 2))  # the oldest leaves whole
    assert numbers(buffer) == [10, 11, 20]
    buffer.add(episode(100, 3000))
    assert numbers(buffer) == [20, *range(100, 3099)]
    buffer.resize(3)
    buffer.add(episode(30, 2))
    assert numbers(buffer) == [20, *range(100, 3099), 30]
    buffer.resize(1)
    assert numbers(buffer) == [30]
    buffer.resize(0)
    assert numbers(buffer) == []
    with pytest.raises(EpisodeError):
        buffer.add(episode(0, 3))
    buffer.check_valid()


def test_unit_episodes_takes_no_loose_transitions() -> None:
    buffer = rlds2buf.make_circular(SPEC, 2, capacity_unit="episodes")
    buffer.add(episode(0, 3))
    for call in (buffer.check, buffer.add):
        with pytest.raises((EpisodeError, ValueError), match="episode"):
            call(transition(5))
    assert numbers(buffer) == [0, 1]
    buffer.check_valid()


@pytest.mark.parametrize("capacity", [1, 2, 3, 4, 5, 7, 8, 9])
@pytest.mark.parametrize("unit", ["rows", "transitions", "episodes"])
def test_units_against_the_twin(capacity: int, unit: str) -> None:
    rng = np.random.default_rng(capacity)
    buffer = rlds2buf.make_circular(SPEC, capacity, capacity_unit=unit)
    twin = ListReplay(capacity, unit)
    named: dict[int, int] = {}
    for i in range(40):
        if unit == "episodes" or rng.random() < 0.5:
            most = {"rows": capacity, "transitions": capacity + 1, "episodes": 9}[unit]
            ep = episode(100 * i, int(rng.integers(1, most + 1)), end=["terminated", "truncated", "open"][i % 3])
            keys, serials = buffer.add(ep), twin.add_episode(ep)
        else:
            steps = [transition(100 * i + k, is_done=int(rng.integers(0, 3))) for k in range(rng.integers(1, 12))]
            keys, serials = buffer.add(steps), twin.add_transitions(steps)
        named.update(zip(keys.tolist(), serials, strict=True))
        buffer.check_valid()
        assert [named[key] for key in buffer.keys().tolist()] == twin.keys()
        assert_transitions(buffer.get(buffer.keys(), n_step=3, gamma=0.5), twin, twin.keys(), 3, 0.5)


def test_bulk_longer_than_capacity_keeps_the_newest() -> None:
    buffer = rlds2buf.make_circular(SPEC, 4)
    buffer.add(episode(90, 3))
    keys = buffer.add(transitions(0, 11))
    assert len(set(keys.tolist())) == 11  # keys of all, of those already gone too
    assert numbers(buffer) == [7, 8, 9, 10]
    assert buffer.keys().tolist() == keys[7:].tolist()
    for key in keys[:7]:
        with pytest.raises(UnknownKey):
            buffer.get([key])
    stats = buffer.stats()
    assert (stats["added"], stats["evicted"], stats["num_items"]) == (13, 9, 4)
    assert buffer.get(keys[7:], n_step=9).steps.tolist() == [4, 3, 2, 1]
    buffer.check_valid()


def test_capacity_zero() -> None:
    buffer = rlds2buf.make_circular(SPEC, 4)
    buffer.add(transitions(0, 3))
    buffer.resize(0)
    assert len(buffer) == 0 and buffer.capacity == 0
    keys = buffer.add(transitions(3, 2))
    assert len(keys) == 2 and len(buffer) == 0
    with pytest.raises(EpisodeError):
        buffer.add(episode(0, 2))
    with pytest.raises(NotEnoughItems):
        buffer.sample(1)
    buffer.resize(5)
    buffer.add(transitions(5, 2))
    assert numbers(buffer) == [5, 6]
    buffer.check_valid()


@pytest.mark.parametrize("bad", [-1, -100])
def test_negative_capacity(bad: int) -> None:
    with pytest.raises(ValueError, match="capacity"):
        rlds2buf.make_circular(SPEC, bad)
    buffer = rlds2buf.make_circular(SPEC, 4)
    buffer.add(transitions(0, 3))
    with pytest.raises(ValueError, match="capacity"):
        buffer.resize(bad)
    assert buffer.capacity == 4 and numbers(buffer) == [0, 1, 2]


def test_unknown_unit() -> None:
    with pytest.raises(ValueError, match=r"rows.*transitions.*episodes"):
        rlds2buf.make_circular(SPEC, 4, capacity_unit="steps")


def test_resize_keeps_chains_and_order() -> None:
    for grown in (5, 8, 9, 100):
        buffer, twin = rlds2buf.make_circular(SPEC, 8), ListReplay(8)
        steps = [transition(i) for i in range(11)]
        sources = [i % 2 for i in range(11)]
        named = dict(
            zip(buffer.add(steps, source_id=sources).tolist(), twin.add_transitions(steps, sources), strict=True)
        )
        buffer.resize(grown)
        twin.resize(grown)
        buffer.check_valid()
        more = [transition(20 + i) for i in range(3)]
        named.update(zip(buffer.add(more, source_id=1).tolist(), twin.add_transitions(more, 1), strict=True))
        held = buffer.keys().tolist()
        assert [named[key] for key in held] == twin.keys()
        assert_transitions(buffer.get(held, n_step=6, gamma=0.5), twin, twin.keys(), 6, 0.5)


# -- what may be added --------------------------------------------------------------------------


def test_forms_of_a_transition() -> None:
    steps = [transition(i, is_done=i % 3) for i in range(4)]
    whole = rows_to_transition(steps)
    forms: list[Any] = [
        steps,
        tuple(steps),
        whole,
        whole._asdict(),
        [whole],
        [rows_to_transition(steps[:1]), steps[1], rows_to_transition(steps[2:])],
        [rlds2buf.Transition(**step) for step in steps],
    ]
    twin = ListReplay(10)
    serials = twin.add_transitions(steps)
    for form in forms:
        buffer = rlds2buf.make_circular(SPEC, 10)
        keys = buffer.add(form)
        assert len(keys) == 4
        assert_transitions(buffer.get(keys), twin, serials)
        assert_transitions(buffer.get(keys, n_step=3, gamma=0.5), twin, serials, 3, 0.5)


def test_one_transition_without_a_batch_axis() -> None:
    for form in (transition(3), rlds2buf.Transition(**transition(3))):
        buffer = rlds2buf.make_circular(SPEC, 10)
        keys = buffer.add(form)
        assert keys.shape == (1,)
        assert numbers(buffer) == [3]


def test_discount_and_is_done_are_optional() -> None:
    whole = transitions(0, 3)._asdict()
    for absent in ("discount", "is_done"):
        buffer = rlds2buf.make_circular(SPEC, 10)
        buffer.add({name: value for name, value in whole.items() if name != absent and value is not None})
        batch = buffer.all()
        assert batch.discount.tolist() == ([1.0] * 3 if absent == "discount" else [pytest.approx(0.9)] * 3)
        assert batch.is_done.tolist() == [0, 0, 0]
    buffer = rlds2buf.make_circular(SPEC, 10)
    buffer.add(whole | {"discount": None, "is_done": np.array([0, 2, 1], np.uint8)})
    assert buffer.all().discount.tolist() == [1.0, 1.0, 0.0]


def test_terminated_and_truncated_instead_of_is_done() -> None:
    whole = {name: value for name, value in transitions(0, 4)._asdict().items() if name != "is_done"}
    buffer = rlds2buf.make_circular(SPEC, 10)
    buffer.add(
        whole | {"terminated": np.array([False, True, False, True]), "truncated": np.array([False, False, True, True])}
    )
    assert buffer.all().is_done.tolist() == [0, 1, 2, 1]  # terminated wins


def test_lists_of_everything_with_their_sources() -> None:
    buffer, twin = rlds2buf.make_circular(SPEC, 40), ListReplay(40)
    first, step, second = episode(0, 4), transition(50), episode(60, 3, end="open")
    keys = buffer.add([first, None, step, {}, second], source_id=[1, 9, 2, 9, 3])
    serials = [*twin.add_episode(first, 1), *twin.add_transitions([step], 2), *twin.add_episode(second, 3)]
    assert_transitions(buffer.get(keys), twin, serials)
    for source in (1, 2, 3):
        got = buffer.sample(30, source_id=source).data.observation["count"]
        assert set(got.tolist()) == {int(twin.transition(s)["observation"]["count"]) for s in twin.of_source(source)}


def test_a_list_with_one_episode_too_long_adds_nothing() -> None:
    buffer = rlds2buf.make_circular(SPEC, 5)
    with pytest.raises(EpisodeError):
        buffer.add([episode(0, 3), episode(10, 6)])
    with pytest.raises(EpisodeError):
        buffer.check([episode(0, 3), episode(10, 6)])
    assert len(buffer) == 0 and buffer.stats()["added"] == 0


def test_error_names_the_episode() -> None:
    buffer = rlds2buf.make_circular(SPEC, 5)
    ep = episode(0, 6).replace(source="somewhere/data", index=17)
    with pytest.raises(EpisodeError) as caught:
        buffer.add(ep)
    assert (caught.value.source, caught.value.episode) == ("somewhere/data", 17)


def test_large_source_ids() -> None:
    buffer = rlds2buf.make_circular(SPEC, 10)
    buffer.add(transition(1), source_id=2**31)
    buffer.add(transition(2), source_id=np.int64(7))
    assert buffer.sample(3, source_id=2**31).data.observation["count"].tolist() == [1, 1, 1]
    assert buffer.sample(3, source_id=7).data.observation["count"].tolist() == [2, 2, 2]


def test_long_list_of_single_transitions() -> None:
    """As an actor would send them: a list of many small dicts is taken in linear time."""
    buffer = rlds2buf.make_circular(SPEC, 4000)
    buffer.add([transition(i) for i in range(4000)])
    assert numbers(buffer) == list(range(4000))


# -- chains -------------------------------------------------------------------------------------


def test_an_episode_ends_its_sources_open_chain() -> None:
    """Loose transitions of a source do not run on into, or over, a whole episode of that source."""
    buffer, twin = rlds2buf.make_circular(SPEC, 20), ListReplay(20)
    parts = [transition(1), transition(2)], episode(10, 3, end="open"), [transition(20), transition(21)]
    keys = [buffer.add(part) for part in parts]
    serials = [twin.add_transitions(parts[0]), twin.add_episode(parts[1]), twin.add_transitions(parts[2])]
    flat = [serial for group in serials for serial in group]
    assert [twin.transition(serial, 9)["steps"] for serial in flat] == [2, 1, 2, 1, 2, 1]
    assert_transitions(buffer.get(np.concatenate(keys), n_step=9), twin, flat, 9)


def test_an_episode_of_another_source_does_not() -> None:
    buffer = rlds2buf.make_circular(SPEC, 20)
    first = buffer.add(transition(1), source_id=4)
    buffer.add(episode(10, 3), source_id=5)
    buffer.add(transition(2), source_id=4)
    batch = buffer.get(first, n_step=9, gamma=0.5)
    assert batch.steps.tolist() == [2]
    assert batch.next_observation["count"].tolist() == [500_002]


def test_open_episode_is_not_continued_by_the_next() -> None:
    buffer = rlds2buf.make_circular(SPEC, 20)
    keys = buffer.add(episode(0, 4, end="open"))
    buffer.add(episode(50, 4))
    batch = buffer.get(keys, n_step=9, gamma=1.0)
    assert batch.steps.tolist() == [3, 2, 1]
    assert batch.is_done.tolist() == [0, 0, 0]
    assert batch.next_observation["count"].tolist() == [3, 3, 3]


def test_newest_transition_does_not_run_on_into_the_oldest() -> None:
    for capacity in (1, 2, 3, 4, 5):
        buffer = rlds2buf.make_circular(SPEC, capacity)
        for i in range(3 * capacity + 1):
            key = buffer.add(transition(i))
            assert buffer.get(key, n_step=5).steps.tolist() == [1]
            held = buffer.keys()
            assert buffer.get(held, n_step=99).steps.tolist() == list(range(len(held), 0, -1))


# -- a view of its own --------------------------------------------------------------------------


def test_view_is_what_sample_gives_unless_told_otherwise(tmp_path: Path) -> None:
    buffer = rlds2buf.make_circular(SPEC, 20, seed=0, view={"n_step": 3, "gamma": 0.5})
    twin = ListReplay(20)
    keys, serials = buffer.add(episode(0, 8)), twin.add_episode(episode(0, 8))
    assert_transitions(buffer.get(keys), twin, serials, 3, 0.5)
    assert_transitions(buffer.get(keys, n_step=1), twin, serials, 1, 0.5)
    assert_transitions(buffer.get(keys, gamma=1.0), twin, serials, 3, 1.0)
    assert_sequences(buffer.get(keys, sequence_length=4), twin, serials, 4)
    batch = buffer.sample(30)
    named = dict(zip(keys.tolist(), serials, strict=True))
    assert_transitions(batch.data, twin, [named[key] for key in batch.info.key.tolist()], 3, 0.5)
    buffer.save(tmp_path / "saved")
    assert_transitions(rlds2buf.load_buffer(tmp_path / "saved").get(keys), twin, serials, 3, 0.5)
    sequences = rlds2buf.make_circular(SPEC, 20, view={"sequence_length": 5})
    keys = sequences.add(episode(0, 8))
    assert_sequences(sequences.get(keys), twin, serials, 5)
    assert_transitions(sequences.get(keys, n_step=2), twin, serials, 2, 1.0)
    for view in ({"n_step": 0}, {"gamma": 2.0}, {"n_step": 2, "sequence_length": 3}):
        with pytest.raises(ValueError, match=r"n_step|gamma"):
            rlds2buf.make_circular(SPEC, 20, view=view)


# -- where columns live -------------------------------------------------------------------------


def test_directory_holds_columns_and_is_refused_if_used(tmp_path: Path) -> None:
    folder = tmp_path / "columns"
    buffer = rlds2buf.make_circular(SPEC, 10_000, directory=folder)
    assert sum(file.stat().st_size for file in folder.rglob("*")) >= 10_000 * SPEC.row_bytes - 10_000 * 3
    buffer.add(episode(0, 2000))
    assert numbers(buffer) == list(range(1999))
    with pytest.raises(SnapshotExists):
        rlds2buf.make_circular(SPEC, 10, directory=folder)


def test_memory_of_stored_rows() -> None:
    """Every row once: at most a tenth more than the rows themselves, however the observation is reached."""
    rows = 20_000
    ep = rlds2buf.Episode(
        observation=np.zeros((rows, 17), np.float32),
        action=np.zeros((rows, 6), np.float32),
        reward=np.zeros(rows, np.float32),
        discount=np.ones(rows, np.float32),
    )
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(ep), rows)
    buffer.add(ep)
    assert buffer.stats()["bytes"] <= 1.1 * rows * (17 + 6 + 1 + 1) * 4
