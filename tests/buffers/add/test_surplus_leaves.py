"""No leaf of explicit transitions is lost in silence: what the spec lacks is refused, by its name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import FieldSpec, SpecMismatch, StepSpec
from tests.buffers.numbered import SPEC, episode, transition, transitions

NUMBER = FieldSpec((), np.float64)
FLAT = StepSpec(observation=NUMBER, action=NUMBER, reward=NUMBER)
NESTED = StepSpec(
    observation={"arm": (NUMBER, NUMBER), "base": NUMBER},
    action=(NUMBER,),
    reward=NUMBER,
    extras={"lstm": {"h": NUMBER}},
)
ONE = np.ones(2)
OTHERS = {
    "circular": rlds2buf.make_circular,
    "reservoir": rlds2buf.make_reservoir,
    "sequences": lambda spec, n: rlds2buf.make_circular(spec, n, storage_unit="sequences", item_length=2),
}


def flat(**more: Any) -> dict[str, Any]:
    return {"observation": ONE, "action": ONE, "reward": ONE, "next_observation": ONE, "is_done": [0, 1]} | more


def nested(**more: Any) -> dict[str, Any]:
    seen = {"arm": (ONE, ONE), "base": ONE}
    extras = {"lstm": {"h": ONE}}
    return flat(observation=seen, next_observation=seen, action=(ONE,), extras=extras) | more


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize(
    ("spec", "data", "leaf"),
    [
        (FLAT, flat(extras={"cost": ONE}), "extras/cost"),
        (FLAT, flat(extras={"info": {"a": None, "b": (ONE,)}}), "extras/info/b/0"),
        (NESTED, nested(extras={"lstm": {"h": ONE, "c": ONE}}), "extras/lstm/c"),
        (NESTED, nested(extras={"lstm": {"h": ONE}, "cost": ONE}), "extras/cost"),
        (NESTED, nested(observation={"arm": (ONE, ONE), "base": ONE, "gaze": ONE}), "observation/gaze"),
        (NESTED, nested(observation={"arm": (ONE, ONE, ONE), "base": ONE}), "observation/arm/2"),
        (NESTED, nested(next_observation={"arm": (ONE, ONE), "base": ONE, "gaze": ONE}), "next_observation/gaze"),
        (NESTED, nested(action=(ONE, ONE)), "action/1"),
        (NESTED, nested(action=[ONE, ONE]), "action/1"),
        (StepSpec(observation=NUMBER, reward=NUMBER), flat(), "action"),
        (StepSpec(observation=NUMBER, action=NUMBER, reward=None), flat(), "reward"),
        (StepSpec(NUMBER, NUMBER, NUMBER, discount=None), flat(discount=[0.5, 1.0]), "discount"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused(kind: str, spec: StepSpec, data: dict[str, Any], leaf: str) -> None:
    buffer = OTHERS[kind](spec, 20)
    for call in (buffer.add, buffer.check):
        with pytest.raises(SpecMismatch, match="not in the spec") as caught:
            call(data)
        assert caught.value.path == leaf
    assert len(buffer) == 0


@pytest.mark.parametrize(
    ("spec", "data"),
    [
        (FLAT, flat(extras={})),
        (FLAT, flat(extras=None)),
        (FLAT, flat(extras={"cost": None, "more": {}})),
        (NESTED, nested()),
        (StepSpec(observation=NUMBER, reward=NUMBER), flat(action=None)),
        (StepSpec(NUMBER, NUMBER, NUMBER, discount=None), flat(discount=[1.0, 0.0])),
    ],
)
def test_what_holds_nothing_is_taken(spec: StepSpec, data: dict[str, Any]) -> None:
    buffer = rlds2buf.make_circular(spec, 20)
    buffer.check(data)
    assert len(buffer.add(data)) == 2


def test_one_step_too() -> None:
    buffer = rlds2buf.make_circular(SPEC, 20)
    step = transition(3)
    with pytest.raises(SpecMismatch, match="extras/cost"):
        buffer.add({**step, "extras": {**step["extras"], "cost": 1.0}})
    assert len(buffer.add(step)) == 1


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_what_a_buffer_gives_it_takes(gamma: float) -> None:
    """Also where the data have no discount, which transitions have in any case."""
    ep = episode(0, 6).replace(discount=None)
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(ep), 50, view={"gamma": gamma}, seed=0)
    buffer.add(ep)
    other = rlds2buf.make_circular(buffer.spec, 50)
    assert len(other.add(buffer.all())) == 5
    assert len(other.add(buffer.sample(4).data, consecutive=False)) == 4


def test_lockstep_takes_ids_as_extras_that_are_not_kept() -> None:
    buffer = rlds2buf.make_multi_agent({"a": (SPEC, {"capacity": 9})}, mode="lockstep")
    data = transitions(0, 2)._asdict()
    data["extras"] = {**data["extras"], "episode_id": [0, 0], "t": [0, 1], "agent_index": [0, 0]}
    assert len(buffer.add({"a": data})["a"]) == 2
    with pytest.raises(SpecMismatch, match="extras/cost"):
        buffer.add({"a": {**data, "extras": {**data["extras"], "cost": [1.0, 1.0]}}}, t=[2, 3])
