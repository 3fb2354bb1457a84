"""Buffers made from Gymnasium's spaces, and values compared with the limits that these state."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import rlds2buf
from rlds2buf import Episode, FieldSpec, GoalMap, SpecMismatch, StepSpec
from rlds2buf.core.limits import Limits

OBSERVATION = spaces.Box(-2.0, np.array([1.0, np.inf], np.float32), (2,), np.float32)
ACTION = spaces.Discrete(3, start=1)
PAIR = (OBSERVATION, ACTION)


def reached(observation: Any, action: Any, after: Any) -> Any:
    return after[:, 0] == after[:, 1]


GOALS: dict[str, Any] = {"goals": [GoalMap(((), [0]), ((), [1]))], "reward_fn": reached, "done_fn": reached}

OFF_POLICY: dict[str, Callable[..., Any]] = {
    "circular": rlds2buf.make_circular,
    "prioritized": rlds2buf.make_prioritized,
    "reservoir": rlds2buf.make_reservoir,
    "hindsight": lambda spec, *args, **more: rlds2buf.make_hindsight(spec, *args, **GOALS, **more),
    "hindsight_prioritized": lambda spec, *args, **more: rlds2buf.make_hindsight_prioritized(
        spec, *args, **GOALS, **more
    ),
}


def transitions(**changes: Any) -> dict[str, Any]:
    """Three transitions within the limits of PAIR, unless changed."""
    seen = np.array([[0.0, 1.0], [1.0, 9.0], [-2.0, 3.0]], np.float32)
    plain = {"observation": seen, "action": np.array([1, 3, 2]), "reward": np.ones(3), "next_observation": seen}
    return {**plain, "truncated": [False, False, True], **changes}


@pytest.mark.parametrize("kind", OFF_POLICY)
def test_a_pair_of_spaces_makes_a_buffer(kind: str) -> None:
    buffer = OFF_POLICY[kind](PAIR, 100, seed=0)
    assert buffer.observation_spec == FieldSpec((2,), np.float32, -2.0, [1.0, float("inf")])
    assert buffer.action_spec == FieldSpec((), np.int64, values=(1, 2, 3))
    assert buffer.spec.reward == FieldSpec((), np.float32)
    buffer.add(transitions())
    assert buffer.all().observation.tolist() == transitions()["observation"].tolist()


@pytest.mark.parametrize("kind", OFF_POLICY)
def test_the_capacity_is_10000_unless_given(kind: str) -> None:
    assert OFF_POLICY[kind](PAIR).capacity == 10_000


def test_limits_of_every_kind_of_space() -> None:
    seen = spaces.Dict(
        camera=spaces.Box(0, 255, (4, 4, 3), np.uint8),
        arm=spaces.Tuple((spaces.Box(-1, 1, (2,)), spaces.MultiBinary([3, 2]))),
        note=spaces.Text(5),
        level=spaces.Discrete(1000, start=-5),
        keys=spaces.MultiDiscrete([3, 4], start=[0, 1]),
    )
    assert rlds2buf.make_circular((seen, ACTION)).observation_spec == {
        "camera": FieldSpec((4, 4, 3), np.uint8, 0, 255),
        "arm": (FieldSpec((2,), np.float32, -1.0, 1.0), FieldSpec((3, 2), np.int8, values=(0, 1))),
        "note": FieldSpec((), object),
        "level": FieldSpec((), np.int64, -5, 994),
        "keys": FieldSpec((2,), np.int64, [0, 1], [2, 4]),
    }


def test_an_environment_of_gymnasium_goes_all_the_way() -> None:
    env = gymnasium.make("CartPole-v1")
    buffer = rlds2buf.make_circular((env.observation_space, env.action_space), seed=0)
    observation, _ = env.reset(seed=0)
    for _ in range(30):
        action = env.action_space.sample()
        following, reward, terminated, truncated, _ = env.step(action)
        step = {"observation": observation, "action": action, "reward": reward, "next_observation": following}
        buffer.add({**step, "terminated": terminated, "truncated": truncated}, check_limits=True)
        observation = env.reset()[0] if terminated or truncated else following
    assert len(buffer) == 30 and buffer.action_spec.values == (0, 1)


@pytest.mark.parametrize("odd", [spaces.Graph(OBSERVATION, None), spaces.Sequence(OBSERVATION), spaces.OneOf(PAIR)])
def test_a_space_without_a_fixed_shape_is_refused(odd: Any) -> None:
    with pytest.raises(TypeError, match=f"observation/odd: {type(odd).__name__} has no fixed shape"):
        rlds2buf.make_circular((spaces.Dict(odd=odd), ACTION), 10)


@pytest.mark.parametrize("wrong", [OBSERVATION, (OBSERVATION,), (np.zeros(2), np.zeros(())), (1, 2)])
def test_what_is_no_pair_of_spaces_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"or a pair \(observation space, action space\)"):
        rlds2buf.make_circular(wrong, 10)


def test_policies_take_spaces_and_a_default_capacity() -> None:
    dicts = (spaces.Dict(a=OBSERVATION), spaces.Dict(b=ACTION))
    buffer = rlds2buf.make_multi_agent(
        {"ant": (PAIR, {"capacity": 50}), "bee": (PAIR, {"kind": "prioritized"}), "cow": PAIR, "dog": dicts}
    )
    assert {name: policy.capacity for name, policy in buffer.policies.items()} == {
        "ant": 50,
        "bee": 10_000,
        "cow": 10_000,
        "dog": 10_000,
    }
    for spec_or_spaces in (PAIR, dicts):  # options that are none are not an action space without actions
        alone = rlds2buf.make_multi_agent({"eel": (spec_or_spaces, {})}).policies["eel"]
        assert alone.spec == rlds2buf.make_circular(spec_or_spaces).spec
    assert buffer.policies["dog"].action_spec == {"b": FieldSpec((), np.int64, values=(1, 2, 3))}
    shards = rlds2buf.make_multi_agent({"ant": PAIR}, num_shards=4)
    assert shards.policies["ant"].capacity == 2_500


# What is outside.

OUTSIDE: list[tuple[dict[str, Any], str]] = [
    ({"observation": np.array([[0, 0], [0, 0], [1.5, 0]])}, r"step 2, observation: 1.5 is above 1 \(element 0\)"),
    ({"observation": np.array([[0, 0], [0, -3.0], [0, 0]])}, r"step 1, observation: -3 is below -2 \(element 1\)"),
    ({"next_observation": np.full((3, 2), -9.0)}, r"step 0, next_observation: -9 is below -2 \(element 0\)"),
    ({"action": [1, 4, 0]}, "step 1, action: 4 is none of 1, 2, 3"),
]


@pytest.mark.parametrize(("changes", "what"), OUTSIDE)
@pytest.mark.parametrize("kind", OFF_POLICY)
def test_values_outside_are_refused_where_that_is_asked_for(kind: str, changes: dict[str, Any], what: str) -> None:
    buffer = OFF_POLICY[kind](PAIR, 100)
    bad = transitions(**changes)
    with pytest.raises(SpecMismatch, match=what) as caught:
        buffer.check(bad)
    assert caught.value.rule == "out-of-range"
    with pytest.raises(SpecMismatch, match=what):
        buffer.add(bad, check_limits=True)
    assert len(buffer) == 0
    buffer.check(bad, check_limits=False)
    assert len(buffer.add(bad)) == 3  # not looked at unless asked for
    buffer.check(transitions())


def episode(action: Any, **more: Any) -> Episode:
    seen = np.zeros((len(action), 2), np.float32)
    reward = np.ones(len(action), np.float32)
    return Episode(observation=seen, action=np.asarray(action), reward=reward, **more)


@pytest.mark.parametrize("storage_unit", ["timesteps", "episodes", "fragments"])
def test_padding_is_not_compared(storage_unit: str) -> None:
    buffer = rlds2buf.make_circular(PAIR, storage_unit=storage_unit)
    buffer.add(episode([1, 3, 0]), check_limits=True)  # the last row's action starts no transition
    with pytest.raises(SpecMismatch, match="step 1, action: 0 is none of"):
        buffer.add(episode([1, 0, 1]), check_limits=True)
    strange = episode([1, 2, 0])
    strange.observation[-1] = -7
    with pytest.raises(SpecMismatch, match="step 2, observation: -7 is below"):
        buffer.check(strange)
    buffer.check(strange.replace(metadata={"placeholder_final_row": True}))


def test_other_fields_that_have_limits() -> None:
    spec = StepSpec(
        observation={"word": FieldSpec((), object, values=("go", "stop")), "path": FieldSpec((None,), np.float32, 0.0)},
        action=FieldSpec((), np.float32, low=0.1, high=0.9),
        reward=FieldSpec((), np.float32, high=1.0),
        discount=None,
    )
    buffer = rlds2buf.make_circular(spec, 10)
    seen = {"word": "go", "path": np.ones(3, np.float32)}
    step = {"observation": seen, "action": np.float32(0.1), "reward": np.nan, "next_observation": seen}
    buffer.check(step)  # 0.1 in float32 is 0.1, and NaN is another matter
    for changes, what in (
        ({"observation": {**seen, "word": "run"}}, "observation/word: 'run' is none of 'go', 'stop'"),
        ({"observation": {**seen, "path": np.array([1, -1], np.float32)}}, r"path: -1 is below 0 \(element 1\)"),
        ({"reward": 1.25}, "reward: 1.25 is above 1"),
    ):
        with pytest.raises(SpecMismatch, match=what):
            buffer.check({**step, **changes})


@pytest.mark.parametrize(
    "field",
    [
        FieldSpec((2,), np.float32, low=[0.0, 0.0, 0.0], high="much"),
        FieldSpec((2,), np.float32, low=[[0.0], [0.0, 1.0]], high=[5.0]),
        FieldSpec((2,), np.float32, values=("a", "b")),
        FieldSpec((2,), np.float32, low=-np.inf, high=[np.inf, np.inf]),
        FieldSpec((2,), np.int8, low=-128, high=[127, 1000]),
        FieldSpec((2,), object, low=3, values=None),
        FieldSpec((None,), object, values=("a",)),
        FieldSpec((), object, values=("a",), image=FieldSpec((4, 4, 3), np.uint8)),
    ],
)
def test_what_says_nothing_is_not_compared(field: FieldSpec) -> None:
    # Spaces in files need not fit the data beside them.
    assert Limits.of(field) is None


def test_limits_of_some_axes_and_of_no_bytes() -> None:
    limits = Limits.of(FieldSpec((2, 2), np.int64, low=[[0, 0], [0, 5]], high=9))
    assert limits is not None
    assert limits.outside(np.array([[[0, 0], [0, 5]], [[0, 0], [0, 4]], [[10, 0], [0, 5]]])).tolist() == [
        False,
        True,
        True,
    ]
    assert limits.reason(np.array([[0, 0], [0, 4]])) == "4 is below 5 (element 1, 1)"
    assert limits.reason(np.array([[10, 0], [0, 5]])) == "10 is above 9 (element 0, 0)"
    both = Limits.of(FieldSpec((), np.int64, high=2, values=(1, 2, 3)))
    assert both is not None and both.outside(np.array([1, 2, 3, 4])).tolist() == [False, False, True, True]
    sparse = Limits.of(FieldSpec((), np.int64, values=(1, 3)))
    assert sparse is not None and sparse.outside(np.array([1, 2, 3])).tolist() == [False, True, False]
    texts = Limits.of(FieldSpec((), object, values=("go", b"stop")))
    assert texts is not None
    assert texts.outside(np.array(["go", b"go", b"stop", b"run"], object)).tolist() == [False, False, False, True]


@pytest.mark.parametrize("mode", ["independent", "lockstep"])
def test_several_policies(mode: str) -> None:
    buffer = rlds2buf.make_multi_agent({"ant": PAIR, "bee": PAIR}, mode=mode)
    ids = {"episode_id": 0, "t": np.arange(3), "agent_index": 0} if mode == "lockstep" else {}
    with pytest.raises(SpecMismatch, match="action: 9 is none of"):
        buffer.add({"ant": transitions(), "bee": transitions(action=[9, 1, 1])}, check_limits=True, **ids)
    assert len(buffer) == 0
    buffer.add({"ant": transitions(), "bee": transitions(action=[9, 1, 1])}, **ids)
    assert [len(policy) for policy in buffer.policies.values()] == [3, 3]


def test_on_policy_and_cost_buffers() -> None:
    rollout = rlds2buf.make_on_policy(PAIR, 8)
    step = {"observation": [0.0, 0.0], "action": 5, "reward": 1.0}
    with pytest.raises(SpecMismatch, match="action: 5 is none of 1, 2, 3"):
        rollout.store(**step, check_limits=True)
    rollout.store(**step)
    assert len(rollout) == 1
    costs = rlds2buf.make_cost_replay(PAIR, 8)
    following = [0.0, -4.0]
    with pytest.raises(SpecMismatch, match="next_observation: -4 is below -2"):
        costs.store(**{**step, "action": 1}, cost=0.0, next_observation=following, check_limits=True)
    costs.store(**step, cost=0.0, next_observation=following)
    assert len(costs) == 1


# Kept, and told.


def test_limits_are_kept_in_a_saved_buffer_and_validate_tells(tmp_path: Path) -> None:
    buffer = rlds2buf.make_circular(PAIR, 100)
    buffer.add([episode([1, 0, 0, 3]), episode([1, 2])])
    buffer.save(tmp_path / "saved")
    assert rlds2buf.load_buffer(tmp_path / "saved").spec == buffer.spec
    report = rlds2buf.validate(tmp_path / "saved")
    assert report.ok and report.counts["out-of-range"] == 1
    (issue,) = [issue for issue in report.issues if issue.rule == "out-of-range"]
    assert (issue.severity, issue.episode, issue.step, issue.path) == ("warning", 0, 1, "action")
    assert issue.message == "action 0 is none of 1, 2, 3, and 2 rows in all are out of range"


def test_a_state_without_limits_is_taken_by_a_buffer_with_them() -> None:
    # Version 0.1.0 left the limits of spaces out.
    plain = StepSpec(FieldSpec((2,), np.float32), FieldSpec((), np.int64), discount=None)
    old, new = rlds2buf.make_cost_replay(plain, 4, seed=0), rlds2buf.make_cost_replay(PAIR, 4, seed=1)
    old.store(observation=[0.0, 0.0], action=1, reward=1.0, cost=0.0, next_observation=[0.0, 0.0])
    new.load_state_dict(old.state_dict())
    assert len(new) == 1
    one, other = rlds2buf.make_circular(plain, 4), rlds2buf.make_circular(PAIR, 4)
    one.add(transitions())
    other.load_state_dict(one.state_dict())
    assert len(other) == 3 and other.action_spec.values == (1, 2, 3)


def test_spaces_are_known_without_importing_gymnasium() -> None:
    code = """
import sys
from types import SimpleNamespace
import numpy as np
import rlds2buf
box = SimpleNamespace(shape=(2,), dtype=np.dtype("float32"), low=np.zeros(2), high=np.ones(2))
buffer = rlds2buf.make_circular((box, SimpleNamespace(shape=(), dtype=np.dtype("int64"), n=2)))
assert "gymnasium" not in sys.modules
print(buffer.observation_spec, buffer.action_spec.values)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "float32[2] (0, 1)\n"
