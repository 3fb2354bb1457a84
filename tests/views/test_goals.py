"""Where goals are, as they can be written down."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import FieldSpec, GoalMap
from rlds2buf.views.goals import resolve_goals

F32 = np.dtype(np.float32)
OBSERVATION = {
    "arm": {"pos": FieldSpec((3,), F32), "all": FieldSpec((2, 4), F32)},
    "goal": FieldSpec((3,), F32),
    "label": FieldSpec((), np.dtype(object)),
    "number": FieldSpec((), np.dtype(np.int64)),
    "pair": (FieldSpec((2,), F32), FieldSpec((), F32)),
}


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("achieved_goal", ("achieved_goal", None)),
        ("arm/pos", ("arm/pos", None)),
        (("arm", "pos"), ("arm/pos", None)),
        (["arm", "pos"], ("arm/pos", None)),
        (("pair", 1), ("pair/1", None)),
        (0, ("0", None)),
        ((), ("", None)),
        (((), [3, 4]), ("", (3, 4))),
        ((0, (1, 2)), ("0", (1, 2))),
        (("state", range(2)), ("state", (0, 1))),
        (("arm/pos", np.array([2, 0])), ("arm/pos", (2, 0))),
        ((("pair", 0), [1]), ("pair/0", (1,))),
    ],
    ids=str,
)
def test_ways_to_write_a_place(given: Any, kept: Any) -> None:
    two = [("x", [5, 6]), ("x", [5])]
    other: Any = "x" if kept[1] is None else two[0] if len(kept[1]) == 2 else two[1]
    goal = GoalMap(given, other)
    assert goal.achieved == kept
    assert GoalMap(other, given).desired == kept
    assert GoalMap.from_json(goal.to_json()) == goal
    assert hash(goal) == hash(GoalMap(given, other))


@pytest.mark.parametrize(
    "given",
    [
        None,
        1.5,
        True,
        ("a", []),
        ("a", [-1]),
        ("a", [0.5]),
        ("a", [[0]]),
        ("a", [True]),
        ("a", None),
        {"a": 1},
        ("a", "b", 0.5),
    ],
    ids=str,
)
def test_what_is_no_place(given: Any) -> None:
    for goal in ((given, "x"), ("x", given)):
        with pytest.raises(ValueError, match=r"achieved|desired"):
            GoalMap(*goal)


def test_elements_belong_together() -> None:
    with pytest.raises(ValueError, match="2 achieved elements for 1 desired"):
        GoalMap(("a", [0, 1]), ("b", [0]))
    with pytest.raises(ValueError, match="twice"):
        GoalMap(("a", [0, 1]), ("b", [2, 2]))
    assert GoalMap(("a", [0, 0]), ("b", [1, 2])).achieved == ("a", (0, 0))  # one measurement, two goals: fine


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        (GoalMap("arm", "goal"), "no array 'arm'.*'arm/pos'"),
        (GoalMap("elsewhere", "goal"), "no array 'elsewhere'"),
        (GoalMap((), "goal"), "no array ''"),
        (GoalMap("arm/all", "goal"), "8 achieved elements for 3 desired"),
        (GoalMap(("arm/pos", [3]), ("goal", [0])), "3 elements, there is no number 3"),
        (GoalMap(("arm/pos", [0]), ("goal", [9])), "3 elements, there is no number 9"),
        (GoalMap("label", "number"), "string"),
        (GoalMap("pair/1", "number"), "float32 can't be written into int64"),
    ],
    ids=str,
)
def test_goals_that_the_observation_does_not_have(goal: GoalMap, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve_goals([goal], OBSERVATION)


def test_goals_that_meet() -> None:
    one = GoalMap(("arm/pos", [0, 1]), ("goal", [0, 1]))
    with pytest.raises(ValueError, match="same elements of 'goal'"):
        resolve_goals([one, GoalMap(("arm/pos", [2]), ("goal", [1]))], OBSERVATION)
    assert len(resolve_goals([one, GoalMap(("arm/pos", [1]), ("goal", [2]))], OBSERVATION)) == 2
    with pytest.raises(ValueError, match="at least one"):
        resolve_goals([], OBSERVATION)


@pytest.mark.parametrize("elements", [None, [0, 1, 2], [1, 2], [2, 1], [0, 2], [2]], ids=str)
@pytest.mark.parametrize("shape", [(3,), (1, 3), (3, 1)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16])
def test_reading_and_writing(elements: list[int] | None, shape: tuple[int, ...], dtype: type) -> None:
    place: Any = () if elements is None else ((), elements)
    numbers = range(3) if elements is None else elements
    rng = np.random.default_rng(0)
    leaf = rng.integers(0, 100, (5, *shape)).astype(dtype)
    (goal,) = resolve_goals([GoalMap(place, place)], leaf)
    rows = leaf.reshape(5, 3)
    got = goal.achieved.read(leaf)
    assert got.shape == (5, len(numbers))
    for i, row in enumerate(rows):
        assert got[i].tolist() == [row[e] for e in numbers]
    for where in (np.ones(5, bool), np.array([True, False, False, True, False]), np.zeros(5, bool)):
        for values in (rng.integers(100, 200, got.shape).astype(dtype), rng.integers(0, 9, got.shape)[:, ::-1]):
            target = leaf.copy()
            if np.can_cast(values.dtype, dtype, "same_kind") or np.dtype(dtype).kind == "i":
                goal.desired.write(target, values, where)
                expected = leaf.reshape(5, 3).copy()
                for i in np.flatnonzero(where):
                    for j, e in enumerate(numbers):
                        expected[i, e] = values[i, j]
                assert np.array_equal(target.reshape(5, 3), expected)


def test_scalars_and_nothing() -> None:
    (goal,) = resolve_goals([GoalMap("a", "b")], {"a": np.zeros(0), "b": np.zeros(0)})
    target = np.zeros(0)
    goal.desired.write(target, goal.achieved.read(np.zeros(0)), np.zeros(0, bool))
    (goal,) = resolve_goals([GoalMap("a", "b")], {"a": np.arange(3.0), "b": np.zeros(3)})
    target = np.zeros(3)
    goal.desired.write(target, goal.achieved.read(np.arange(3.0)), np.array([True, False, True]))
    assert target.tolist() == [0, 0, 2]


def test_public() -> None:
    assert rlds2buf.GoalMap is GoalMap
    goal = GoalMap("a", "b")
    with pytest.raises(AttributeError):
        goal.achieved = "c"  # type: ignore[misc]
