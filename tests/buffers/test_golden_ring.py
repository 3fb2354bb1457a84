"""The worked examples of the experience ring, on the naive twin and on the circular buffer."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import FieldSpec, NotEnoughItems, StepSpec
from tests.data import GOLDEN
from tests.reference.ring import ListRing

TABLE = json.loads((GOLDEN / "ring.json").read_text())
SPEC = StepSpec(
    observation=FieldSpec((), np.float64),
    action=FieldSpec((), np.int64),
    reward=FieldSpec((), np.float64),
    discount=None,
)


class BufferRing:
    """The circular buffer of explicit transitions, seen as a ring of their observations."""

    def __init__(self, capacity: int) -> None:
        self.buffer = rlds2buf.make_circular(SPEC, capacity, seed=0)

    def extend(self, values: list[int]) -> None:
        column = np.asarray(values, np.float64)
        self.buffer.add(
            rlds2buf.Transition(
                observation=column,
                action=np.zeros(len(values), np.int64),
                reward=column,
                discount=None,
                next_observation=column + 0.5,
                is_done=np.zeros(len(values), np.uint8),
            )
        )

    def append(self, value: int) -> None:
        self.extend([value])

    def resize(self, capacity: int) -> None:
        self.buffer.resize(capacity)

    @property
    def values(self) -> list[int]:
        everything = self.buffer.all()
        assert everything.next_observation.tolist() == [value + 0.5 for value in everything.observation]
        return [int(value) for value in everything.observation]


@pytest.fixture(params=[ListRing, BufferRing])
def make(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_single_appends(make: Any) -> None:
    case = TABLE["single_appends"]
    ring = make(TABLE["capacity"])
    for value, expected in zip(case["appended"], case["oldest_first_after_each"], strict=True):
        ring.append(value)
        assert ring.values == expected


def test_bulk_longer_than_capacity(make: Any) -> None:
    ring = make(TABLE["capacity"])
    ring.extend(TABLE["bulk"]["appended"])
    assert ring.values == TABLE["bulk"]["oldest_first"]


def test_resize(make: Any) -> None:
    ring = make(TABLE["capacity"])
    for case in TABLE["resize"]:
        verb, _, argument = case["op"].partition(" ")
        if verb == "start":
            ring.extend([0, 1, *case["oldest_first"]])
        elif verb == "resize":
            ring.resize(int(argument))
        else:
            assert verb == "append"
            ring.extend([int(value) for value in argument.split(",")])
        assert ring.values == case["oldest_first"], case["op"]


@pytest.mark.parametrize("text", TABLE["empty_append"]["inputs"])
def test_empty_append_does_nothing(text: str) -> None:
    assert TABLE["empty_append"]["expected"] == "no-op"
    ring = BufferRing(TABLE["capacity"])
    ring.extend([1, 2])
    keys = ring.buffer.add({"[]": [], "{}": {}, "None": None}[text])
    assert keys.dtype == np.uint64 and keys.shape == (0,)
    assert ring.values == [1, 2]


def test_sample_empty_is_an_error() -> None:
    assert TABLE["sample_empty"] == "error"
    with pytest.raises(NotEnoughItems):
        BufferRing(TABLE["capacity"]).buffer.sample(1)


def test_sample_more_than_stored_is_allowed() -> None:
    assert TABLE["sample_more_than_stored"].startswith("allowed, with replacement")
    ring = BufferRing(TABLE["capacity"])
    ring.extend([1, 2])
    assert set(ring.buffer.sample(50).data.observation.tolist()) == {1.0, 2.0}
