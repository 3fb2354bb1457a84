"""Which transitions belong together, and picks among them, against the naive twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlds2buf.kernels.runs import EPISODE, FINAL, FUTURE
from tests.buffers.goals import episode, make, steps
from tests.reference import runs as reference
from tests.reference.replay import ListReplay

CODES = {"final": FINAL, "episode": EPISODE, "future": FUTURE}
ENDS = ("terminated", "truncated", "open")


class Both:
    """The same operations on a buffer and on the twin."""

    def __init__(self, capacity: int, unit: str = "rows", **options: Any) -> None:
        self.buffer = make(capacity, capacity_unit=unit, **options)
        self.twin = ListReplay(capacity, unit)
        self.serial: dict[int, int] = {}
        self.unrecorded: set[int] = set()
        self.count = 0
        self.alone = 10**6

    def add_episode(self, rows: int, end: str = "terminated", placeholder: bool = False, source: int = 0) -> None:
        ep = episode(self.count, rows, end, placeholder=placeholder)
        self.count += rows
        self._note(self.buffer.add(ep, source_id=source), self.twin.add_episode(ep, source))
        if placeholder and rows > 1:
            self.unrecorded.add(max(self.serial.values()))

    def add_steps(self, codes: list[int], sources: Any = 0, consecutive: bool = True) -> None:
        items = steps(self.count, codes)
        self.count += len(codes)
        given = sources
        if not consecutive:  # a source that nothing else is of
            given = list(range(self.alone, self.alone + len(codes)))
            self.alone += len(codes)
        batch = {
            name: {key: np.stack([item[name][key] for item in items]) for key in ("state", "goal")}
            if isinstance(items[0][name], dict)
            else np.stack([item[name] for item in items])
            for name in items[0]
        }
        keys = self.buffer.add(batch, source_id=sources, consecutive=consecutive)
        self._note(keys, self.twin.add_transitions(items, given))

    def _note(self, keys: np.ndarray, serials: list[int]) -> None:
        self.serial.update(zip(keys.tolist(), serials, strict=True))

    def check(self, u: float = 0.5) -> None:
        """Runs and picks are the twin's."""
        buffer, index = self.buffer, self.buffer.engine.hindsight.episodes
        index.update(buffer.engine.contents.waiting.values())
        expected = sorted(reference.runs(self.twin))
        assert sorted([self.serial[key] for key in run] for run in index.runs()) == expected
        keys = buffer.keys().astype(np.int64)
        chains = {serial: chain for chain in expected for serial in chain}
        slots = np.asarray(buffer.engine.store.slot_of(keys))
        for name, code in CODES.items():
            for current in (True, False):
                picked, chosen, room = index.pick(slots, np.stack([slots * 0.0, slots * 0.0 + u]), 0.5, code, current)
                by = buffer.engine.store.key_of(picked).tolist()
                for key, pick, got, left in zip(keys.tolist(), by, chosen.tolist(), room.tolist(), strict=True):
                    serial = self.serial[key]
                    chain = chains[serial]
                    allowed = reference.picks(chain, serial, name, current, self.unrecorded)
                    assert got == bool(allowed)
                    assert self.serial[pick] == (allowed[int(u * len(allowed))] if allowed else serial)
                    real = [each for each in chain[chain.index(serial) :] if each not in self.unrecorded]
                    assert left == len(real)
        unchosen = index.pick(slots, np.stack([slots * 0.0 + 0.5, slots * 0.0]), 0.5, FINAL, True)
        assert not unchosen[1].any() and unchosen[0].tolist() == slots.tolist()
        for key in keys.tolist():
            run, real_count = index.run_of(key)
            assert [self.serial[each] for each in run.tolist()] == chains[self.serial[key]]
            assert real_count == len([each for each in chains[self.serial[key]] if each not in self.unrecorded])


def operations() -> Any:
    ends = st.sampled_from(ENDS)
    codes = st.lists(st.sampled_from([0, 0, 0, 0, 1, 2]), min_size=1, max_size=7)
    source = st.integers(0, 2)
    return st.lists(
        st.one_of(
            st.tuples(st.just("episode"), st.integers(1, 7), ends, st.booleans(), source),
            st.tuples(st.just("steps"), codes, source),
            st.tuples(st.just("alone"), codes),
            st.tuples(st.just("mixed"), codes, st.integers(0, 10**6)),
            st.tuples(st.just("check"), st.floats(0, 1, exclude_max=True)),
            st.tuples(st.just("resize"), st.integers(7, 40)),
            st.tuples(st.just("clear")),
        ),
        min_size=1,
        max_size=40,
    )


def perform(both: Both, operation: tuple[Any, ...]) -> None:
    name, *rest = operation
    if name == "episode":
        both.add_episode(*rest)
    elif name == "steps":
        both.add_steps(*rest)
    elif name == "alone":
        both.add_steps(rest[0], consecutive=False)
    elif name == "mixed":
        sources = np.random.default_rng(rest[1]).integers(0, 3, len(rest[0]))
        both.add_steps(rest[0], sources.tolist())
    elif name == "check":
        both.check(rest[0])
    elif name == "resize":
        both.buffer.resize(rest[0])
        both.twin.resize(rest[0])
    else:
        both.buffer.clear()
        both.twin.clear()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(7, 40), operations())
def test_runs_and_picks_under_random_operations(capacity: int, history: list[tuple[Any, ...]]) -> None:
    both = Both(capacity)
    for operation in history:
        perform(both, operation)
    both.check()
    both.buffer.check_valid()


@settings(max_examples=60, deadline=None)
@given(operations())
def test_runs_of_one_source(history: list[tuple[Any, ...]]) -> None:
    """Without interleaving, positions are keys; grown storage and a count of transitions."""
    both = Both(30, "transitions")
    for operation in history:
        if operation[0] in ("episode", "steps", "check"):
            perform(both, operation[:4] if operation[0] == "episode" else operation[:2])
    both.check()
    assert both.buffer.engine.store.links is None


@pytest.mark.parametrize("capacity", [1, 2, 3, 4, 5, 7, 8, 9, 16, 17])
def test_every_capacity(capacity: int) -> None:
    """One by one, with a look after each: the newest run grows, the oldest is eaten away."""
    rng = np.random.default_rng(capacity)
    both = Both(capacity)
    for i in range(60):
        both.add_steps([int(rng.choice([0, 0, 0, 1, 2]))])
        if i % 3:
            both.check(float(rng.random()))


def test_actors_in_lockstep() -> None:
    """Vector environments: a block of one step of each per add, their episodes of different lengths."""
    rng = np.random.default_rng(0)
    both = Both(150)
    for i in range(120):
        both.add_steps([int(code) for code in rng.choice([0, 0, 0, 0, 0, 1, 2], 4)], [0, 1, 2, 3])
        if i % 7 == 0:
            both.check(float(rng.random()))
    both.check()
    index = both.buffer.engine.hindsight.episodes
    assert both.buffer.engine.store.links is not None
    assert index.nbytes < 150 * 16 * 6  # what has left does not pile up


def test_long_runs_stay_cheap() -> None:
    """A run is not looked at anew when it grows."""
    both = Both(3000)
    for _ in range(300):
        both.add_steps([0] * 10)
        index = both.buffer.engine.hindsight.episodes
        index.update(both.buffer.engine.contents.waiting.values())
        assert index._count - index._head == 1
    both.check(0.999999)


def test_index_forgets_what_left() -> None:
    both = Both(20)
    for _ in range(500):
        both.add_episode(4)
        both.buffer.engine.hindsight.episodes.update([])
    assert both.buffer.engine.hindsight.episodes.nbytes < 24 * 4 * 20
    both.check()
