"""Settings of made buffers: a hindsight buffer's can be read and changed, and no buffer takes one that it has not."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import GoalMap, MixedBuffers
from tests.buffers.compare import assert_same_nest
from tests.buffers.goals import GOALS, episode, make, reward_fn
from tests.buffers.numbered import SPEC as OTHER
from tests.buffers.read.filled import batches, filled

NAMES = ["goals", "reward_fn", "done_fn", "strategy", "num_goals", "include_current", "vectorized", "while_sampling"]


def twice(observation: Any, action: Any, after: Any) -> Any:
    return 2 * reward_fn(observation, action, after)


def always(observation: Any, action: Any, after: Any) -> Any:
    return np.ones(len(action), bool)


CHANGES: list[dict[str, Any]] = [
    {"strategy": "future"},
    {"strategy": "episode", "num_goals": 9},
    {"strategy": "future", "include_current": False},
    {"num_goals": 1},
    {"goals": [GoalMap(("state", [2, 1]), "goal")]},
    {"reward_fn": twice},
    {"done_fn": always},
    {"while_sampling": False},
]


@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: " ".join(changes))
@pytest.mark.parametrize("kind", ["hindsight", "hindsight_prioritized"])
def test_changed_is_as_if_made_so(kind: str, changes: dict[str, Any], tmp_path: Path) -> None:
    more = {"alpha": 0.7} if kind == "hindsight_prioritized" else {}
    buffer, made = filled(**more), filled(**{**more, **changes})
    for name, value in changes.items():
        setattr(buffer, name, value)
        assert getattr(buffer, name) == (tuple(value) if name == "goals" else value)
    assert buffer.kind == kind
    for name in NAMES:
        assert getattr(buffer, name) == getattr(made, name)
    for mine, theirs in zip(batches(buffer), batches(made), strict=True):
        assert_same_nest(mine, theirs)
    assert_same_nest(buffer.generate_hindsight(2)._asdict(), made.generate_hindsight(2)._asdict())
    buffer.check_valid()
    buffer.save(tmp_path / "saved")
    loaded = rlds2buf.load_buffer(tmp_path / "saved", reward_fn=buffer.reward_fn, done_fn=buffer.done_fn)
    assert [getattr(loaded, name) for name in NAMES] == [getattr(buffer, name) for name in NAMES]


def test_changed_back_and_forth_while_it_fills() -> None:
    """The index of episodes is carried on, and stays right."""
    buffer, made = make(40, seed=4), make(40, seed=4)
    for i in range(30):
        buffer.strategy = ("future", "episode", "final")[i % 3]
        made.engine.rng.bit_generator.state = buffer.engine.rng.bit_generator.state
        for one in (buffer, made):
            one.add(episode(100 * i, 2 + i % 7))
        made.strategy = buffer.strategy
        assert_same_nest(buffer.sample(16).data._asdict(), made.sample(16).data._asdict())


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("strategy", "furthest", ValueError, "strategy must be one of final, episode, future, got 'furthest'"),
        ("num_goals", 0, ValueError, "num_goals must be a whole number from 1 up"),
        ("num_goals", 1.5, ValueError, "num_goals must be a whole number from 1 up"),
        ("goals", [], ValueError, "at least one GoalMap"),
        ("goals", [GoalMap("nowhere", "goal")], ValueError, "no array 'nowhere'"),
        ("goals", "goal", TypeError, "goals is a list of GoalMap"),
        ("reward_fn", None, ValueError, "reward_fn must be a function"),
        ("done_fn", 3, ValueError, "done_fn must be a function"),
        ("while_sampling", "no", TypeError, "while_sampling must be True or False"),
        ("vectorized", 1, TypeError, "vectorized must be True or False"),
        ("include_current", None, TypeError, "include_current must be True or False"),
    ],
)
def test_what_the_factory_refuses(name: str, value: Any, error: type[Exception], message: str) -> None:
    buffer = filled()
    before = [getattr(buffer, each) for each in NAMES]
    with pytest.raises(error, match=message):
        setattr(buffer, name, value)
    assert [getattr(buffer, each) for each in NAMES] == before
    with pytest.raises(error, match=message):
        make(10, **{name: value})


def test_a_list_of_goals_can_not_be_changed_behind_its_back() -> None:
    given = list(GOALS)
    buffer = make(10, goals=given)
    given.append(GoalMap(("state", [0, 1]), "goal"))
    assert buffer.goals == tuple(GOALS)


def test_batches_drawn_ahead_are_of_one_setting() -> None:
    """Each batch keeps the goals that it was drawn with, whenever they change."""
    buffer, stop = filled(), threading.Event()
    swapped = [GoalMap(("state", [2]), ("goal", [0])), GoalMap(("state", [1]), ("goal", [1]))]

    def change() -> None:
        while not stop.is_set():
            buffer.goals = swapped
            buffer.strategy = "future"
            buffer.goals = GOALS
            buffer.strategy = "final"

    thread = threading.Thread(target=change, daemon=True)
    thread.start()
    try:
        for batch in buffer.batches(64, steps=150):
            one, other = batch.data.observation["goal"].T
            new = one != -1.0
            assert set(np.abs(one - other)[new].tolist()) <= {0.5}
    finally:
        stop.set()
        thread.join(30)
    assert not thread.is_alive()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("maker", ["make_circular", "make_prioritized", "make_reservoir"])
def test_other_buffers_have_none(maker: str, name: str) -> None:
    buffer = getattr(rlds2buf, maker)(OTHER, 10)
    assert not hasattr(buffer, name)
    with pytest.raises(AttributeError, match=f"knows no goals and has no {name}; make_hindsight"):
        setattr(buffer, name, "future")


# -- stray attributes ---------------------------------------------------------------------------------

BUFFERS: dict[str, Any] = {
    "circular": lambda: rlds2buf.make_circular(OTHER, 10),
    "hindsight": lambda: make(10),
    "multi_agent": lambda: rlds2buf.make_multi_agent({"a": (OTHER, {"capacity": 10})}),
    "mixed": lambda: MixedBuffers([rlds2buf.make_circular(OTHER, 10)]),
    "on_policy": lambda: rlds2buf.make_on_policy(OTHER, 10),
    "cost_replay": lambda: rlds2buf.make_cost_replay(OTHER, 10),
}


@pytest.mark.parametrize(
    ("kind", "name", "near"),
    [
        ("circular", "capacty", "capacity"),
        ("circular", "size", "resize(n)"),
        ("hindsight", "stratgy", "strategy"),
        ("hindsight", "Strategy", "strategy"),
        ("hindsight", "NumGoalSamples", "num_goals"),
        ("hindsight", "GoalConditionInfo", "goals"),
        ("hindsight", "RewardFcn", "reward_fn"),
        ("multi_agent", "env_step", "env_steps"),
        ("mixed", "buffer", "buffers"),
        ("on_policy", "setings", "settings"),
        ("cost_replay", "penalty_coef", "penalty_coefficient"),
    ],
)
def test_stray_attributes_are_refused(kind: str, name: str, near: str) -> None:
    buffer = BUFFERS[kind]()
    with pytest.raises(AttributeError) as caught:
        setattr(buffer, name, 3)
    assert f"has no attribute {name!r}; did you mean {near}?" in str(caught.value)
    assert not hasattr(buffer, name)


@pytest.mark.parametrize("kind", BUFFERS)
def test_attributes_that_are_there_can_be_set_and_classes_derived(kind: str) -> None:
    buffer = BUFFERS[kind]()
    for name in ("provenance", "env_steps", "batch_size"):
        if hasattr(buffer, name):
            setattr(buffer, name, getattr(buffer, name))
    with pytest.raises(AttributeError, match=r"has no attribute 'qqq'$"):
        buffer.qqq = 1
    derived = type("Mine", (type(buffer),), {"__module__": "elsewhere"})
    own = derived.__new__(derived)
    own.qqq = 1
    assert own.qqq == 1


def test_a_penalty_is_checked_when_it_is_set() -> None:
    buffer = BUFFERS["cost_replay"]()
    buffer.penalty_coefficient = 2
    assert buffer.penalty_coefficient == 2.0
    with pytest.raises(ValueError, match="at least 0"):
        buffer.penalty_coefficient = -1
    assert buffer.penalty_coefficient == 2.0
