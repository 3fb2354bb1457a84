"""Episodes and transitions with goals, each of whose next observations tells which row it belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import rlds2buf
from rlds2buf import Episode, GoalMap, Transition
from tests.reference.hindsight import relabel
from tests.reference.replay import ListReplay

__all__ = [
    "GOALS",
    "SPEC",
    "WANTED",
    "assert_relabelled",
    "done_fn",
    "episode",
    "make",
    "reward_fn",
    "steps",
    "wanted_of",
]

WANTED = -1.0
"""Every stored goal; nothing is ever there."""

GOALS = [GoalMap(("state", [1, 2]), "goal")]


def _state(number: np.ndarray) -> np.ndarray:
    return np.stack([-number, number, number + 0.5], axis=-1).astype(np.float64)


def episode(
    start: int, rows: int, end: str = "terminated", discount: float = 0.9, placeholder: bool = False
) -> Episode:
    """`rows` rows numbered from `start`; a placeholder's last row is zeros."""
    number = np.arange(start, start + rows, dtype=np.float64)
    is_last, is_terminal = np.zeros(rows, bool), np.zeros(rows, bool)
    is_last[-1], is_terminal[-1] = end != "open", end == "terminated"
    state = _state(number)
    if placeholder:
        state[-1] = 0
    return Episode(
        observation={"state": state, "goal": np.full((rows, 2), WANTED)},
        action=number.astype(np.int64),
        reward=np.full(rows, -5.0),
        discount=np.full(rows, discount, np.float32),
        is_last=is_last,
        is_terminal=is_terminal,
        metadata={"placeholder_final_row": True} if placeholder else {},
    )


def steps(start: int, codes: Sequence[int], discount: float = 0.9) -> list[dict[str, Any]]:
    """Explicit transitions numbered from `start`, with these ends; what they reach is `number` + 500000."""
    return [
        {
            "observation": {"state": _state(np.float64(start + i)), "goal": np.full(2, WANTED)},
            "action": np.int64(start + i),
            "reward": np.float64(-5.0),
            "discount": np.float32(discount),
            "next_observation": {"state": _state(np.float64(500_000 + start + i)), "goal": np.full(2, WANTED)},
            "is_done": np.uint8(code),
        }
        for i, code in enumerate(codes)
    ]


SPEC = rlds2buf.spec_of(episode(0, 3))


def _gap(next_observation: Any) -> Any:
    return np.abs(next_observation["state"][..., 1:] - next_observation["goal"]).sum(-1)


def reward_fn(observation: Any, action: Any, next_observation: Any) -> Any:
    """Minus the distance to the goal, and a little of the action; of one transition or of a batch."""
    assert np.array_equal(observation["goal"], next_observation["goal"])
    return -_gap(next_observation) - 1e-3 * action


def done_fn(observation: Any, action: Any, next_observation: Any) -> Any:
    """Whether the goal is met."""
    return _gap(next_observation) == 0


def make(capacity: int, seed: int | None = 0, **options: Any) -> Any:
    """A hindsight buffer of this module's data; prioritized if any option of that is given."""
    prioritized = {"alpha", "stratified", "normalise"} & set(options)
    factory: Any = rlds2buf.make_hindsight_prioritized if prioritized else rlds2buf.make_hindsight
    given = {"goals": GOALS, "reward_fn": reward_fn, "done_fn": done_fn, "strategy": "future", **options}
    return factory(SPEC, capacity, seed=seed, **given)


def wanted_of(batch: Transition) -> np.ndarray:
    """Number ``[B]`` of what each transition's goal was reached by, WANTED for one that keeps its own."""
    assert np.array_equal(batch.observation["goal"], batch.next_observation["goal"])
    return batch.observation["goal"][:, 0]


def assert_relabelled(
    batch: Transition, twin: ListReplay, serials: Sequence[int], picked: Sequence[int | None], gamma: float = 1.0
) -> None:
    """Each transition is the twin's of that serial, with the goal that the picked one reached (None: its own)."""
    for i, (serial, pick) in enumerate(zip(serials, picked, strict=True)):
        stored = twin.transition(serial)
        expected = {**stored, "discount": stored["discount"]}
        if pick is not None:
            # The reference takes trajectories: one of the transition and of what it is relabelled by.
            pair = [
                {"obs": item["observation"], "next_obs": item["next_observation"], **item}
                for item in (stored, twin.transition(pick))
            ]
            goal = (("state", [1, 2]), ("goal", [0, 1]))
            new = relabel(pair, [goal], [[1], []], reward_fn, done_fn)[0]
            code = int(new["is_done"])
            same = {0: stored["discount"] if stored["is_done"] == 0 else 1.0, 1: 0.0, 2: stored["discount"]}
            expected.update(
                observation=new["obs"],
                next_observation=new["next_obs"],
                reward=new["reward"],
                is_done=code,
                discount=same[code],
            )
        for side in ("observation", "next_observation"):
            for name in ("state", "goal"):
                np.testing.assert_array_equal(getattr(batch, side)[name][i], expected[side][name])
        assert batch.action[i] == expected["action"]
        assert batch.reward[i] == expected["reward"]
        assert batch.is_done[i] == expected["is_done"]
        np.testing.assert_allclose(batch.discount[i], expected["discount"], rtol=1e-6)
        np.testing.assert_allclose(batch.bootstrap_discount[i], gamma * expected["discount"], rtol=1e-6)
        assert batch.steps[i] == 1
