"""The worked examples of hindsight relabelling: on the naive twin, the view and the hindsight buffer."""

from __future__ import annotations

import copy
import json
import math
import random
from typing import Any

import numpy as np
import pytest

from rlds2buf import Transition
from rlds2buf.views.goals import GoalMap
from rlds2buf.views.hindsight import relabel as relabelled
from tests.data import GOLDEN
from tests.reference.hindsight import pick, relabel

TABLE = json.loads((GOLDEN / "her.json").read_text())
MISS = {"one": -0.01, "two": 0.0}


def goals(info: list[Any]) -> list[Any]:
    return [((a, elements), (d, targets)) for a, elements, d, targets in info]


def distance(info: list[Any], next_obs: Any) -> float:
    gaps = [
        next_obs[a][e] - next_obs[d][t]
        for a, elements, d, targets in info
        for e, t in zip(elements, targets, strict=True)
    ]
    return math.hypot(*gaps)


def twin(info: list[Any], trajectory: list[Any], picks: list[list[int]], miss: float) -> list[dict[str, Any]]:
    return relabel(
        trajectory,
        goals(info),
        picks,
        lambda obs, action, next_obs: 1.0 if distance(info, next_obs) < 0.1 else miss,
        lambda obs, action, next_obs: distance(info, next_obs) < 0.1,
    )


class Columns:
    """A trajectory of the tables as columns, observations and actions as tuples of channels."""

    def __init__(self, trajectory: list[dict[str, Any]]) -> None:
        def channels(name: str) -> tuple[np.ndarray, ...]:
            rows = [step[name] for step in trajectory]
            return tuple(np.array([row[i] for row in rows], np.float64) for i in range(len(rows[0])))

        self.transition = Transition(
            observation=channels("obs"),
            action=channels("action"),
            reward=np.array([step["reward"] for step in trajectory], np.float64),
            discount=np.ones(len(trajectory)),
            next_observation=channels("next_obs"),
            is_done=np.array([step["is_done"] for step in trajectory], np.uint8),
        )

    @staticmethod
    def rows(batch: Transition) -> list[dict[str, Any]]:
        """Back to the tables' form."""
        return [
            {
                "obs": [channel[i].tolist() for channel in batch.observation],
                "action": [channel[i].tolist() for channel in batch.action],
                "next_obs": [channel[i].tolist() for channel in batch.next_observation],
                "reward": float(batch.reward[i]),
                "is_done": int(batch.is_done[i]),
            }
            for i in range(len(batch.reward))
        ]


def maps(info: list[Any]) -> list[GoalMap]:
    return [GoalMap(achieved=(a, elements), desired=(d, targets)) for a, elements, d, targets in info]


def functions(info: list[Any], miss: float) -> tuple[Any, Any]:
    """Reward and end of a batch, for the view and the buffer."""

    def met(observation: Any, action: Any, next_observation: Any) -> np.ndarray:
        gaps = [
            next_observation[a][:, e] - next_observation[d][:, t]
            for a, elements, d, targets in info
            for e, t in zip(elements, targets, strict=True)
        ]
        return np.linalg.norm(gaps, axis=0) < 0.1

    return lambda *arguments: np.where(met(*arguments), 1.0, miss), met


def view(info: list[Any], trajectory: list[Any], picks: list[list[int]], miss: float) -> list[dict[str, Any]]:
    columns = Columns(trajectory)
    return columns.rows(relabelled(columns.transition, picks, maps(info), *functions(info, miss)))


@pytest.fixture(params=["twin", "view"])
def way(request: pytest.FixtureRequest) -> Any:
    return {"twin": twin, "view": view}[request.param]


def check(got: list[dict[str, Any]], expected: list[dict[str, Any]], trajectory: list[dict[str, Any]]) -> None:
    """Everything as the table has it, but for the code of a cut episode whose goal is not met, which stays 2."""
    last = trajectory[-1]
    assert len(got) == len(expected)
    for mine, theirs in zip(got, expected, strict=True):
        code = theirs["is_done"]
        if code == 0 and theirs["action"] == last["action"] and last["is_done"] == 2:
            code = 2
        assert mine == {**theirs, "is_done": code}


def test_final(way: Any) -> None:
    trajectory = TABLE["trajectory"]
    before = copy.deepcopy(trajectory)
    picks = pick("final", len(trajectory), 7, random.Random(0))
    got = way(TABLE["goal_info"], trajectory, picks, MISS["one"])
    assert len(got) == TABLE["final"]["expected_count"]
    check(got, TABLE["final"]["expected"], trajectory)
    assert [step["reward"] for step in got] == [-0.01, -0.01, -0.01, 1.0]
    assert trajectory == before


@pytest.mark.parametrize("strategy", ["episode", "future"])
def test_random_goals_with_fixed_picks(way: Any, strategy: str) -> None:
    table = TABLE[strategy]
    got = way(TABLE["goal_info"], TABLE["trajectory"], table["picks"], MISS["one"])
    assert len(got) == table["expected_count"]
    check(got, table["expected"], TABLE["trajectory"])


def test_future_picks_are_not_in_the_past() -> None:
    assert TABLE["future"]["constraint"].startswith("pick k for step t satisfies k>=t")
    assert all(k >= t for t, chosen in enumerate(TABLE["future"]["picks"]) for k in chosen)
    rng = random.Random(0)
    for include_current in (True, False):
        seen: set[tuple[int, int]] = set()
        for _ in range(200):
            picks = pick("future", 4, TABLE["future"]["num_goal_samples"], rng, include_current)
            assert [len(chosen) for chosen in picks] == [2, 2, 2, 2]
            seen |= {(t, k) for t, chosen in enumerate(picks) for k in chosen}
        least = 0 if include_current else 1
        assert seen == {(t, k) for t in range(4) for k in range(4) if k - t >= least or t == k == 3}


def test_the_other_reading_of_future_gives_fewer() -> None:
    table = TABLE["future_alternative_reading"]
    kept = [[k for k in chosen if k >= t] for t, chosen in enumerate(table["picks_drawn"])]
    assert kept == table["kept"]
    assert len(twin(TABLE["goal_info"], TABLE["trajectory"], kept, MISS["one"])) == table["count"]


def test_two_channels_two_goals(way: Any) -> None:
    table = TABLE["two_channels_two_goals"]
    picks = pick("final", len(table["trajectory"]), 1, random.Random(0))
    check(way(table["goal_info"], table["trajectory"], picks, MISS["two"]), table["expected"], table["trajectory"])
