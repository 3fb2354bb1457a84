"""All that is held, in each form, and what a buffer says of its fields."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import FieldSpec, StepSpec, Trajectory, Transition
from tests.buffers.compare import assert_same_nest
from tests.buffers.numbered import SPEC, episode, transitions

MAKERS: dict[str, Any] = {
    "circular": lambda: rlds2buf.make_circular(SPEC, 12),
    "episodes": lambda: rlds2buf.make_circular(SPEC, 12, storage_unit="episodes"),
    "reservoir": lambda: rlds2buf.make_reservoir(SPEC, 9, seed=0),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_forms_of_all(kind: str) -> None:
    buffer = MAKERS[kind]()
    for i in range(4):
        buffer.add(episode(100 * i, 6, ("terminated", "truncated")[i % 2]))
    batch = buffer.all()
    assert isinstance(batch, Transition)
    count = len(batch.reward)
    assert count == buffer.stats()["num_transitions"] > 5
    assert_same_nest(buffer.all(concatenate="batch")._asdict(), batch._asdict())

    row = buffer.all(concatenate="sequence")
    assert isinstance(row, Trajectory)
    assert row.mask.shape == (1, count) and row.mask.all()
    for name in ("observation", "action", "reward", "discount", "next_observation", "extras", "is_done"):
        long, wide = getattr(row, name), getattr(batch, name)
        if isinstance(long, dict):
            assert_same_nest({key: column[0] for key, column in long.items()}, wide)
        else:
            assert_same_nest(long[0], wide)

    single = buffer.all(concatenate=None)
    assert isinstance(single, list) and len(single) == count
    for i, each in enumerate(single):
        assert isinstance(each, Transition)
        assert each.observation["place"].tolist() == batch.observation["place"][i].tolist()
        assert each.reward == batch.reward[i] and each.reward.shape == ()
        assert each.is_done == batch.is_done[i]


def test_forms_of_nothing() -> None:
    buffer = rlds2buf.make_circular(SPEC, 12)
    assert buffer.all(concatenate=None) == []
    assert buffer.all(concatenate="sequence").mask.shape == (1, 0)
    with pytest.raises(ValueError, match="'batch', 'sequence'"):
        buffer.all(concatenate="rows")  # type: ignore[call-overload]


def test_specs_keep_limits_and_finite_sets() -> None:
    spec = StepSpec(
        observation={"angle": FieldSpec((2,), np.float32, low=[-1.0, -2.0], high=[1.0, 2.0])},
        action=FieldSpec((), np.int64, values=(-1, 0, 1)),
    )
    buffer = rlds2buf.make_prioritized(spec, 10)
    assert buffer.observation_spec is spec.observation
    assert buffer.observation_spec["angle"].low == [-1.0, -2.0]
    assert buffer.action_spec.values == (-1, 0, 1)


def test_checking_does_not_add() -> None:
    buffer = rlds2buf.make_circular(SPEC, 12)
    assert buffer.check(transitions(0, 5)) is None
    assert len(buffer) == 0 and buffer.stats()["added"] == 0
