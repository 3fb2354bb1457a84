"""Which transitions belong together, and picks among them, against the naive twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.buffers.rows.both import Both, operations, perform


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
