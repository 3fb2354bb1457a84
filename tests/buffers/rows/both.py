"""A buffer and its naive twin, driven by the same operations."""

from __future__ import annotations

from typing import Any

import numpy as np
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
