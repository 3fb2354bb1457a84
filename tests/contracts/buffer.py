"""What every buffer promises, whatever its sampler, remover and storage.

A test class inherits :class:`BufferContract` and says in `make` how its buffer is made.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import (
    EpisodeError,
    NotEnoughItems,
    SnapshotError,
    SnapshotExists,
    SpecMismatch,
    StepSpec,
    UnknownKey,
)
from rlds2buf.core import nest
from tests.buffers.compare import assert_same_nest, assert_sequences, assert_transitions
from tests.buffers.numbered import SPEC, episode, transition, transitions
from tests.reference.replay import ListReplay

__all__ = ["BufferContract"]

EMPTY: list[Any] = [None, [], {}, "", [{}], [None], ()]


class BufferContract:
    """The shared suite; a capacity of 64 holds everything that its tests add."""

    capacity = 64
    counted = "num_rows"
    """What of the stats the capacity bounds."""
    rows_filled = 13
    """Rows that :meth:`filled` stores: the final rows of two episodes are among them."""

    def make(self, spec: StepSpec, capacity: int, seed: int | None = None) -> Any:
        """A new, empty buffer."""
        raise NotImplementedError

    def load(self, path: Path | str) -> Any:
        """A saved one of these."""
        return rlds2buf.load_buffer(path)

    def filled(self, seed: int | None = 7) -> tuple[Any, ListReplay, dict[int, int]]:
        """A buffer of two episodes and three transitions, its twin, and serials by key."""
        buffer, twin = self.make(SPEC, self.capacity, seed), ListReplay(self.capacity)
        first, second = episode(0, 6), episode(100, 4, end="truncated")
        steps = [transition(200 + i, is_done=code) for i, code in enumerate((0, 2, 0))]
        keys = [buffer.add(first), buffer.add(second, source_id=3), buffer.add(steps, source_id=5)]
        serials = [twin.add_episode(first), twin.add_episode(second, 3), twin.add_transitions(steps, 5)]
        named = dict(zip(np.concatenate(keys).tolist(), np.concatenate(serials).tolist(), strict=True))
        buffer.check_valid()
        return buffer, twin, named

    # -- empty ----------------------------------------------------------------------------------

    def test_starts_empty(self) -> None:
        buffer = self.make(SPEC, self.capacity)
        assert len(buffer) == 0
        assert buffer.spec == SPEC
        assert buffer.capacity == self.capacity
        assert buffer.keys().dtype == np.uint64 and buffer.keys().shape == (0,)
        everything = buffer.all()
        assert everything.observation["place"].shape == (0, 2)
        assert everything.next_observation["count"].shape == (0,)
        stats = buffer.stats()
        assert stats["num_rows"] == stats["num_items"] == stats["added"] == stats["evicted"] == stats["sampled"] == 0

    @pytest.mark.parametrize("kwargs", [{}, {"n_step": 3}, {"sequence_length": 2}, {"replace": False}])
    def test_sampling_empty_names_size_and_minimum(self, kwargs: dict[str, Any]) -> None:
        with pytest.raises(NotEnoughItems, match=r"\b0\b.*\b[14]\b"):
            self.make(SPEC, self.capacity).sample(4, **kwargs)

    @pytest.mark.parametrize("nothing", EMPTY, ids=repr)
    def test_adding_nothing_does_nothing(self, nothing: Any) -> None:
        for buffer in (self.make(SPEC, self.capacity), self.filled()[0]):
            before = buffer.stats(), buffer.keys().tolist()
            keys = buffer.add(nothing)
            assert keys.dtype == np.uint64 and keys.shape == (0,)
            assert (buffer.stats(), buffer.keys().tolist()) == before
            buffer.check(nothing)

    # -- adding and getting ---------------------------------------------------------------------

    def test_keys_of_what_was_added(self) -> None:
        buffer, twin, named = self.filled()
        assert len(named) == len(buffer) == len(twin) == 11
        keys = buffer.keys()
        assert keys.dtype == np.uint64
        assert [named[key] for key in keys.tolist()] == twin.keys()

    def test_get_and_all_equal_the_twin(self) -> None:
        buffer, twin, named = self.filled()
        keys = np.array(list(named), np.uint64)
        order = np.random.default_rng(3).permutation(len(keys))
        assert_transitions(buffer.get(keys[order]), twin, [named[key] for key in keys[order].tolist()])
        assert_transitions(buffer.all(), twin, [named[key] for key in buffer.keys().tolist()])
        assert buffer.get(np.zeros(0, np.uint64)).reward.shape == (0,)

    @pytest.mark.parametrize(("n_step", "gamma"), [(1, 0.5), (2, 0.9), (3, 1.0), (5, 0.5), (100, 0.99), (4, 0.0)])
    def test_n_step_equals_the_twin(self, n_step: int, gamma: float) -> None:
        buffer, twin, named = self.filled()
        batch = buffer.get(list(named), n_step=n_step, gamma=gamma)
        assert_transitions(batch, twin, list(named.values()), n_step, gamma)

    @pytest.mark.parametrize("length", [1, 2, 3, 5, 8])
    def test_sequences_equal_the_twin(self, length: int) -> None:
        buffer, twin, named = self.filled()
        assert_sequences(buffer.get(list(named), sequence_length=length), twin, list(named.values()), length)

    def test_unknown_keys_are_named(self) -> None:
        buffer, _, named = self.filled()
        with pytest.raises(UnknownKey, match="123456") as caught:
            buffer.get([next(iter(named)), 123456])
        assert isinstance(caught.value, KeyError)
        assert not str(caught.value).startswith(("'", '"'))
        with pytest.raises(UnknownKey, match=str(2**64 - 1)):
            buffer.get(np.array([2**64 - 1], np.uint64))

    def test_what_is_no_key(self) -> None:
        """Never another item: a fraction is not rounded to a key, a negative number not wrapped round."""
        buffer, _, named = self.filled()
        key = next(iter(named))
        for keys in ([key + 0.5], [float(key)], ["a"], [None], [key == key]):
            with pytest.raises((TypeError, ValueError)):
                buffer.get(keys)
        for keys in ([-1], np.array([-1]), [2**64], [key, -(2**63)]):
            with pytest.raises(UnknownKey):
                buffer.get(keys)
        assert buffer.get(key).reward.shape == (1,)
        assert buffer.get(np.int64(key)).reward.shape == (1,)

    def test_batches_are_not_live(self) -> None:
        buffer, _, _ = self.filled()
        before = buffer.all()
        for batch in (buffer.all(), buffer.get(buffer.keys()), buffer.sample(20).data):
            for _, column in nest.flatten(batch._asdict()):
                column[...] = 0
        assert_same_nest(buffer.all()._asdict(), before._asdict())

    def test_input_may_change_afterwards(self) -> None:
        buffer = self.make(SPEC, self.capacity)
        ep = episode(0, 5)
        buffer.add(ep)
        before = buffer.all()
        for _, column in ep.flatten():
            column[...] = 0
        assert_same_nest(buffer.all()._asdict(), before._asdict())

    # -- sampling -------------------------------------------------------------------------------

    def test_sample_is_get_of_its_keys(self) -> None:
        buffer, twin, named = self.filled()
        batch = buffer.sample(40)
        assert batch.info.key.dtype == np.uint64 and batch.info.key.shape == (40,)
        for name in ("probability", "priority", "weight"):
            column = getattr(batch.info, name)
            assert column.shape == (40,) and column.dtype == np.float64 and (column > 0).all()
        assert batch.info.table_size == len(buffer)
        assert_transitions(batch.data, twin, [named[key] for key in batch.info.key.tolist()])
        batch = buffer.sample(40, n_step=3, gamma=0.5)
        assert_transitions(batch.data, twin, [named[key] for key in batch.info.key.tolist()], 3, 0.5)
        batch = buffer.sample(40, sequence_length=3)
        assert_sequences(batch.data, twin, [named[key] for key in batch.info.key.tolist()], 3)

    def test_sample_of_one_source(self) -> None:
        buffer, twin, named = self.filled()
        for source in (0, 3, 5):
            batch = buffer.sample(60, source_id=source)
            assert {named[key] for key in batch.info.key.tolist()} == set(twin.of_source(source))
            assert_transitions(batch.data, twin, [named[key] for key in batch.info.key.tolist()])
            assert batch.info.table_size == len(twin.of_source(source))
        with pytest.raises(NotEnoughItems):
            buffer.sample(1, source_id=4)

    def test_without_replacement(self) -> None:
        buffer, _, named = self.filled()
        keys = buffer.sample(len(named), replace=False).info.key
        assert sorted(keys.tolist()) == sorted(named)
        with pytest.raises(NotEnoughItems, match=rf"\b{len(named)}\b.*\b{len(named) + 1}\b"):
            buffer.sample(len(named) + 1, replace=False)

    @pytest.mark.parametrize(
        "kwargs",
        [
            {"n_step": 2, "sequence_length": 2},
            {"n_step": 0},
            {"n_step": -1},
            {"gamma": 1.5},
            {"gamma": -0.1},
            {"gamma": float("nan")},
            {"sequence_length": 0},
        ],
        ids=str,
    )
    def test_bad_arguments(self, kwargs: dict[str, Any]) -> None:
        buffer, _, named = self.filled()
        with pytest.raises(ValueError, match=r"n_step|gamma|sequence_length"):
            buffer.sample(4, **kwargs)
        with pytest.raises(ValueError, match=r"n_step|gamma|sequence_length"):
            buffer.get(list(named), **kwargs)
        with pytest.raises(ValueError, match="batch_size"):
            buffer.sample(-1)

    def test_seed_decides(self) -> None:
        def draws(seed: int) -> list[list[int]]:
            buffer, _, _ = self.filled(seed)
            return [
                buffer.sample(8).info.key.tolist(),
                buffer.sample(8, n_step=2).info.key.tolist(),
                buffer.sample(8, sequence_length=2).info.key.tolist(),
                buffer.sample(8, source_id=0).info.key.tolist(),
                buffer.sample(8, replace=False).info.key.tolist(),
            ]

        assert draws(1) == draws(1)
        assert draws(1) != draws(2)

    # -- bad data -------------------------------------------------------------------------------

    def bad_data(self) -> list[tuple[str, Any]]:
        good = episode(0, 4)
        step = transition(7)
        whole = transitions(0, 3)
        return [
            (
                "observation/place",
                good.replace(observation={**good.observation, "place": np.zeros((4, 3), np.float32)}),
            ),
            ("observation/count", good.replace(observation={"place": good.observation["place"]})),
            ("observation/more", good.replace(observation={**good.observation, "more": np.zeros(4)})),
            ("action", good.replace(action=np.zeros(4, np.float32))),
            ("reward", good.replace(reward=None)),
            ("extras/note", good.replace(extras={})),
            ("action", {**step, "action": np.float32(0.5)}),
            ("next_observation/count", {**step, "next_observation": {"place": step["next_observation"]["place"]}}),
            ("observation/place", {**step, "observation": {"place": np.zeros(3, np.float32), "count": np.int64(0)}}),
            ("is_done", {**step, "is_done": np.uint8(3)}),
            ("reward", whole._replace(reward=np.zeros(2))),
        ]

    def test_data_that_do_not_fit_change_nothing(self) -> None:
        buffer, _, _ = self.filled()
        before = buffer.all()._asdict(), buffer.stats()
        for path, data in self.bad_data():
            for call in (buffer.check, buffer.add):
                with pytest.raises(SpecMismatch) as caught:
                    call(data)
                assert caught.value.path == path
                with pytest.raises(SpecMismatch):
                    call([transition(1), data])  # the good one before it is not added either
        assert_same_nest(buffer.all()._asdict(), before[0])
        assert buffer.stats() == before[1]
        with pytest.raises(TypeError):
            buffer.add(3.0)
        buffer.check_valid()

    @pytest.mark.parametrize("source_id", [-1, 0.5, [0, 1], "a", None], ids=repr)
    def test_bad_source_ids(self, source_id: Any) -> None:
        buffer = self.make(SPEC, self.capacity)
        with pytest.raises((ValueError, TypeError), match="source_id"):
            buffer.add(transitions(0, 3), source_id=source_id)
        assert len(buffer) == 0

    # -- shrinking, clearing --------------------------------------------------------------------

    def test_clear(self) -> None:
        buffer, _, named = self.filled()
        buffer.clear()
        buffer.check_valid()
        assert len(buffer) == 0 and buffer.stats()["num_rows"] == 0
        with pytest.raises(NotEnoughItems):
            buffer.sample(1)
        with pytest.raises(UnknownKey):
            buffer.get(list(named)[:1])
        keys = buffer.add(episode(0, 5))
        assert not set(keys.tolist()) & set(named)  # keys are never used twice
        assert len(buffer) == 4

    def test_clear_breaks_chains(self) -> None:
        buffer = self.make(SPEC, self.capacity)
        buffer.add(transition(1))
        buffer.clear()
        keys = buffer.add(transitions(2, 2))
        assert buffer.get(keys, n_step=5).steps.tolist() == [2, 1]

    def test_never_more_rows_than_capacity(self) -> None:
        buffer = self.make(SPEC, 10, seed=0)
        for i in range(30):
            buffer.add(episode(100 * i, 2 + i % 8) if i % 3 else transitions(100 * i, 1 + i % 12))
            assert buffer.stats()[self.counted] <= 10
            assert len(buffer) == len(buffer.keys()) <= 10
            buffer.check_valid()

    def test_stats(self) -> None:
        buffer, _, named = self.filled()
        buffer.sample(5)
        stats = buffer.stats()
        assert stats["num_items"] == stats["added"] == len(named)
        assert stats["num_rows"] == self.rows_filled
        assert stats["capacity"] == self.capacity
        assert stats["sampled"] == 5
        assert stats["evicted"] == 0
        assert stats["bytes"] >= self.rows_filled * SPEC.row_bytes

    # -- state ----------------------------------------------------------------------------------

    def test_state_round_trip(self) -> None:
        buffer, _, _ = self.filled()
        buffer.sample(3)
        state = buffer.state_dict()
        before = buffer.all()._asdict()
        expected = [buffer.sample(16).info.key.tolist(), buffer.sample(8, sequence_length=3).data.reward.tolist()]
        buffer.add(episode(900, 9))  # the state is a copy: later adds don't change it
        for other in (buffer, self.make(SPEC, self.capacity, seed=99)):
            other.load_state_dict(state)
            other.check_valid()
            assert_same_nest(other.all()._asdict(), before)
            got = [other.sample(16).info.key.tolist(), other.sample(8, sequence_length=3).data.reward.tolist()]
            assert got == expected

    def test_loaded_state_is_a_copy(self) -> None:
        buffer, _, _ = self.filled()
        state = buffer.state_dict()
        before = buffer.all()._asdict()
        other = self.make(SPEC, self.capacity)
        other.load_state_dict(state)
        for i in range(12):
            other.add(episode(1000 + 10 * i, 9))
        again = self.make(SPEC, self.capacity)
        again.load_state_dict(state)
        assert_same_nest(again.all()._asdict(), before)

    def test_adding_goes_on_after_a_state_was_loaded(self) -> None:
        buffer, twin, named = self.filled()
        other = self.make(SPEC, self.capacity)
        other.load_state_dict(buffer.state_dict())
        key = other.add(transition(203), source_id=5).tolist()[0]  # follows the third explicit one
        assert key not in named
        named[key] = twin.add_transitions([transition(203)], 5)[0]
        assert_transitions(other.get(list(named), n_step=4, gamma=0.5), twin, list(named.values()), 4, 0.5)

    def test_state_of_another_capacity_or_spec_is_refused(self) -> None:
        buffer, _, _ = self.filled()
        state = buffer.state_dict()
        other_spec = rlds2buf.spec_of(episode(0, 3).replace(action=np.zeros((3, 2), np.float32)))
        for other in (self.make(SPEC, self.capacity - 1), self.make(other_spec, self.capacity)):
            with pytest.raises(SnapshotError):
                other.load_state_dict(state)
            assert len(other) == 0
            other.check_valid()

    # -- snapshots ------------------------------------------------------------------------------

    def test_save_and_load(self, tmp_path: Path) -> None:
        buffer, twin, named = self.filled()
        buffer.sample(3)
        buffer.save(tmp_path / "saved")
        before = buffer.all()._asdict()
        expected = [buffer.sample(16).info.key.tolist(), buffer.sample(8, n_step=3).data.reward.tolist()]
        for path in (tmp_path / "saved", str(tmp_path / "saved")):
            loaded = self.load(path)
            loaded.check_valid()
            assert (loaded.spec, loaded.capacity, len(loaded)) == (buffer.spec, buffer.capacity, len(buffer))
            assert loaded.keys().tolist() == buffer.keys().tolist()
            assert_same_nest(loaded.all()._asdict(), before)
            got = [loaded.sample(16).info.key.tolist(), loaded.sample(8, n_step=3).data.reward.tolist()]
            assert got == expected
        key = loaded.add(transition(203), source_id=5).tolist()[0]
        assert key not in named
        named[key] = twin.add_transitions([transition(203)], 5)[0]
        assert_transitions(loaded.get(list(named), n_step=4, gamma=0.5), twin, list(named.values()), 4, 0.5)
        # What was done to the loaded one has not reached the files.
        assert_same_nest(self.load(tmp_path / "saved").all()._asdict(), before)

    def test_a_wrapped_buffer_draws_the_same_once_loaded(self, tmp_path: Path) -> None:
        """Draws depend on what is held, in order of age, not on where in the ring it lies."""
        buffer = self.make(SPEC, 20, seed=5)
        for i in range(7):
            buffer.add(episode(100 * i, 4 + i % 3))
            buffer.add(transitions(100 * i + 50, 2), source_id=1)
        buffer.save(tmp_path / "saved")
        state = buffer.state_dict()

        def draws(one: Any) -> list[list[int]]:
            return [
                one.sample(16).info.key.tolist(),
                one.sample(8, replace=False).info.key.tolist(),
                one.sample(8, source_id=0).info.key.tolist(),
                one.sample(8, sequence_length=3).info.key.tolist(),
            ]

        expected = draws(buffer)
        assert draws(self.load(tmp_path / "saved")) == expected
        other = self.make(SPEC, 20)
        other.load_state_dict(state)
        assert draws(other) == expected

    def test_save_of_an_empty_buffer(self, tmp_path: Path) -> None:
        self.make(SPEC, self.capacity, seed=3).save(tmp_path / "saved")
        loaded = self.load(tmp_path / "saved")
        assert len(loaded) == 0 and loaded.capacity == self.capacity
        assert len(loaded.add(episode(0, 4))) == len(loaded) == 3

    def test_a_target_that_exists(self, tmp_path: Path) -> None:
        first, _, _ = self.filled()
        target = tmp_path / "saved"
        first.save(target)
        second = self.make(SPEC, self.capacity)
        second.add(episode(500, 4))
        with pytest.raises(SnapshotExists):
            second.save(target)
        assert len(self.load(target)) == len(first)
        second.save(target, overwrite=True)
        assert_same_nest(self.load(target).all()._asdict(), second.all()._asdict())
        assert [path.name for path in tmp_path.iterdir()] == ["saved"]

    def test_too_long_an_episode(self) -> None:
        buffer = self.make(SPEC, 10, seed=0)
        buffer.add(episode(0, 4))
        before = buffer.all()._asdict()
        with pytest.raises(EpisodeError, match=r"1[12]\b.*10"):
            buffer.add(episode(50, 12))
        assert_same_nest(buffer.all()._asdict(), before)
        buffer.check_valid()
