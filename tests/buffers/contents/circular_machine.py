"""A Hypothesis machine that drives a circular buffer beside its naive twin."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

import rlds2buf
from rlds2buf import EpisodeError, NotEnoughItems, UnknownKey
from tests.buffers.compare import assert_sequences, assert_transitions
from tests.buffers.numbered import SPEC, episode, transition
from tests.reference.replay import ListReplay

CAPACITIES = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33]
UNITS = ["rows", "transitions", "episodes"]
IDS = st.one_of(
    st.just({}),
    st.fixed_dictionaries({}, optional={"episode_id": st.sampled_from([0, 1, "a"]), "t": st.integers(0, 3)}),
)


class CircularMachine(RuleBasedStateMachine):
    """One buffer, one twin; `named` gives the twin's serial of every key ever handed out."""

    in_files = False
    spec: Any = SPEC
    episode: Any = staticmethod(episode)
    transition: Any = staticmethod(transition)
    view: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())

    @initialize(capacity=st.sampled_from(CAPACITIES), unit=st.sampled_from(UNITS), seed=st.integers(0, 9))
    def start(self, capacity: int, unit: str, seed: int) -> None:
        directory = self.folder / "columns" if self.in_files else None
        self.buffer: Any = rlds2buf.make_circular(
            self.spec, capacity, capacity_unit=unit, seed=seed, directory=directory, view=self.view
        )
        self.twin = ListReplay(capacity, unit)
        self.named: dict[int, int] = {}
        self.number = 0
        self.saves = 0

    def _numbers(self, rows: int) -> int:
        self.number += rows
        return self.number - rows

    def _remember(self, keys: np.ndarray, serials: list[int]) -> None:
        assert keys.dtype == np.uint64
        assert not set(keys.tolist()) & set(self.named)
        self.named.update(zip(keys.tolist(), serials, strict=True))

    @rule(
        rows=st.integers(1, 12),
        end=st.sampled_from(["terminated", "truncated", "open"]),
        source=st.integers(0, 2),
    )
    def add_episode(self, rows: int, end: str, source: int) -> None:
        ep = self.episode(self._numbers(rows), rows, end)
        size = {"rows": rows, "transitions": rows - 1, "episodes": 1}[self.twin.unit]
        if size > self.twin.capacity:
            with pytest.raises(EpisodeError):
                self.buffer.add(ep, source_id=source)
            return
        self._remember(self.buffer.add(ep, source_id=source), self.twin.add_episode(ep, source))

    @precondition(lambda self: self.twin.unit != "episodes")
    @rule(
        codes=st.lists(st.sampled_from([0, 0, 0, 1, 2]), min_size=1, max_size=20),
        sources=st.lists(st.integers(0, 2), min_size=20, max_size=20),
        mixed=st.booleans(),
        said=st.lists(IDS, min_size=20, max_size=20),
    )
    def add_transitions(self, codes: list[int], sources: list[int], mixed: bool, said: list[Any]) -> None:
        start = self._numbers(len(codes))
        steps = [{**self.transition(start + i, code), **said[i]} for i, code in enumerate(codes)]
        ids: Any = sources[: len(steps)] if mixed else sources[0]
        self._remember(self.buffer.add(steps, source_id=ids), self.twin.add_transitions(steps, ids))

    @precondition(lambda self: self.twin.unit != "episodes")
    @rule(code=st.sampled_from([0, 1, 2]), source=st.integers(0, 2), said=IDS)
    def add_one(self, code: int, source: int, said: dict[str, Any]) -> None:
        step = {**self.transition(self._numbers(1), code), **said}
        self._remember(self.buffer.add(step, source_id=source), self.twin.add_transitions([step], source))

    @rule(nothing=st.sampled_from([None, [], {}, "", [{}]]))
    def add_nothing(self, nothing: Any) -> None:
        assert self.buffer.add(nothing).shape == (0,)

    @rule(capacity=st.sampled_from([0, *CAPACITIES]))
    def resize(self, capacity: int) -> None:
        self.buffer.resize(capacity)
        self.twin.resize(capacity)

    @rule()
    def clear(self) -> None:
        self.buffer.clear()
        self.twin.clear()

    @rule(
        n_step=st.integers(1, 6),
        gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
        source=st.one_of(st.none(), st.integers(0, 3)),
        replace=st.booleans(),
    )
    def sample(self, n_step: int, gamma: float, source: int | None, replace: bool) -> None:
        held = self.twin.keys() if source is None else self.twin.of_source(source)
        size = 9 if replace else max(1, len(held))
        if not held:
            with pytest.raises(NotEnoughItems):
                self.buffer.sample(size, n_step=n_step, gamma=gamma, source_id=source, replace=replace)
            return
        batch = self.buffer.sample(size, n_step=n_step, gamma=gamma, source_id=source, replace=replace)
        serials = [self.named[key] for key in batch.info.key.tolist()]
        assert set(serials) <= set(held)
        assert replace or len(set(serials)) == size
        assert batch.info.table_size == len(held)
        assert (batch.info.probability == 1 / len(held)).all()
        assert (batch.info.weight == 1).all() and (batch.info.priority == 1).all()
        assert_transitions(batch.data, self.twin, serials, n_step, gamma)

    @rule(length=st.integers(1, 7))
    def sequences(self, length: int) -> None:
        keys = self.buffer.keys()
        serials = [self.named[key] for key in keys.tolist()]
        assert_sequences(self.buffer.get(keys, sequence_length=length), self.twin, serials, length)

    @rule(n_step=st.integers(1, 6))
    def everything(self, n_step: int) -> None:
        keys = self.buffer.keys()
        serials = [self.named[key] for key in keys.tolist()]
        assert_transitions(self.buffer.get(keys, n_step=n_step, gamma=0.5), self.twin, serials, n_step, 0.5)

    @rule(again=st.booleans())
    def save_and_load(self, again: bool) -> None:
        path = self.folder / f"saved{0 if again else self.saves}"
        self.saves += 1
        self.buffer.save(path, overwrite=True)
        expected = self.buffer.sample(5).data.reward.tolist() if len(self.buffer) else None
        self.buffer = rlds2buf.load_buffer(path)
        if expected is not None:
            assert self.buffer.sample(5).data.reward.tolist() == expected

    @rule()
    def state(self) -> None:
        state = self.buffer.state_dict()
        expected = self.buffer.sample(5).data.reward.tolist() if len(self.buffer) else None
        self.buffer = rlds2buf.make_circular(
            self.spec, self.twin.capacity, capacity_unit=self.twin.unit, view=self.view
        )
        self.buffer.load_state_dict(state)
        if expected is not None:
            assert self.buffer.sample(5).data.reward.tolist() == expected

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "buffer"):
            return
        self.buffer.check_valid()
        held = [self.named[key] for key in self.buffer.keys().tolist()]
        assert held == self.twin.keys()  # the same ones, oldest first
        assert len(self.buffer) == len(held)
        stats = self.buffer.stats()
        assert stats["num_items"] == len(held)
        assert stats["capacity"] == self.twin.capacity
        assert stats["added"] == len(self.named)
        assert stats["evicted"] == len(self.named) - len(held)
        if self.twin.unit == "rows":
            assert stats["num_rows"] == len(self.twin.rows) <= self.twin.capacity
        gone = next((key for key, serial in self.named.items() if serial not in held), None)
        if gone is not None:
            with pytest.raises(UnknownKey):
                self.buffer.get([gone])
        assert_transitions(self.buffer.all(), self.twin, held)

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


# derandomize: the same examples every time, so that a failure is a change of the code.
SETTINGS = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
