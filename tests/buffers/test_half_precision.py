"""Rewards in half precision: what a buffer sums of them is neither infinite nor warned about."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import Episode, GoalMap, returns
from rlds2buf.formats.reverb.patterns.make import make_pattern


def episode(rows: int = 4) -> Episode:
    seen = np.zeros((rows, 2), np.float32)
    return Episode(observation=seen, action=seen, reward=np.full(rows, 60_000, np.float16), discount=np.ones(rows))


def far(observation: Any, action: Any, after: Any) -> np.ndarray:
    return np.full(len(after), 60_000, np.float16)


def never(observation: Any, action: Any, after: Any) -> np.ndarray:
    return np.zeros(len(after), np.bool_)


GOALS = {"goals": [GoalMap(((), [0]), ((), [1]))], "reward_fn": far, "done_fn": never}


@pytest.mark.parametrize(
    ("make", "options"),
    [(rlds2buf.make_circular, {}), (rlds2buf.make_prioritized, {}), (rlds2buf.make_hindsight, GOALS)],
)
def test_sums_are_single(make: Any, options: dict[str, Any]) -> None:
    buffer = make(rlds2buf.spec_of(episode()), 20, seed=0, **options)
    buffer.add(episode())
    for batch in (buffer.sample(20, n_step=3).data, buffer.get(buffer.keys(), n_step=3)):
        assert batch.reward.dtype == np.float32
        assert set(batch.reward.tolist()) <= {60_000.0, 120_000.0, 180_000.0}
    assert buffer.sample(5).data.reward.dtype == np.float16  # a step's own is as it was logged


def test_a_reverb_table_has_what_the_view_gives() -> None:
    for n_step, dtype in ((1, np.float16), (3, np.float32)):
        pattern = make_pattern("transition", n_step=n_step)
        assert pattern.signature(rlds2buf.spec_of(episode())).reward.dtype == dtype
        assert rlds2buf.transitions(episode(), n_step=n_step).reward.dtype == dtype


def test_values_of_successors() -> None:
    values = np.zeros(2, np.float16)
    assert returns.successor_values(values, last_value=1e6).tolist() == [0.0, 1e6]
    assert returns.gae(values, values, last_value=1e6).target.dtype == np.float32
