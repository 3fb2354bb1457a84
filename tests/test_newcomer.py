"""Mistakes that a newcomer makes, and what he is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import FieldSpec, SpecMismatch, StepSpec

SPEC = StepSpec(observation=FieldSpec((), np.float64), action=FieldSpec((), np.int64))
STEP: dict[str, Any] = {"observation": 0.0, "action": 0, "reward": 1.0, "next_observation": 1.0}


@pytest.mark.parametrize("name", ["done", "dones", "terminal", "is_terminal", "info"])
def test_a_transition_with_another_name_for_its_end_is_refused(name: str) -> None:
    buffer = rlds2buf.make_circular(SPEC, 10)
    for data in ({**STEP, name: True}, [{**STEP, name: True}]):
        for call in (buffer.add, buffer.check):
            with pytest.raises(SpecMismatch, match=r"no such field.*terminated") as caught:
                call(data)
            assert caught.value.path == name
    assert len(buffer) == 0


def test_a_transition_as_sampled_goes_in_again() -> None:
    buffer = rlds2buf.make_circular(SPEC, 10, seed=0)
    buffer.add({**STEP, "terminated": True})
    buffer.add(buffer.sample(3).data)
    assert buffer.all().is_done.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("name", ["done", "dones", "terminal", "terminals"])
def test_steps_with_another_name_for_their_end_are_refused(name: str) -> None:
    steps = [{"observation": 0.0, name: i == 2} for i in range(3)]
    with pytest.raises(SpecMismatch, match="is_terminal"):
        list(rlds2buf.open_source([steps]))
    named = [{**step, "is_terminal": i == 2} for i, step in enumerate(steps)]
    (episode,) = rlds2buf.open_source([named])
    assert episode.end == "terminated" and name in episode.extras


@pytest.mark.parametrize("make", [rlds2buf.make_circular, rlds2buf.make_prioritized, rlds2buf.make_reservoir])
def test_what_buffers_are_made_of(make: Any) -> None:
    for wrong in (None, (1, 2), rlds2buf.open_source([[{"observation": 0.0}]])):
        with pytest.raises(TypeError, match="spec must be a StepSpec"):
            make(wrong, 10)


def test_capacities_are_integers() -> None:
    for wrong in (1e6, "5", True):
        with pytest.raises(TypeError, match="capacity must be an integer"):
            rlds2buf.make_circular(SPEC, wrong)  # type: ignore[arg-type]
