"""The worked examples of hindsight relabelling: on the naive twin, the view and the hindsight buffer."""

from __future__ import annotations

import copy
import json
import math
import random
from typing import Any

import pytest

from tests.buffers.read.her_columns import MISS, check, goals, view
from tests.data import GOLDEN
from tests.reference.hindsight import pick, relabel

TABLE = json.loads((GOLDEN / "her.json").read_text())


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


@pytest.fixture(params=["twin", "view"])
def way(request: pytest.FixtureRequest) -> Any:
    return {"twin": twin, "view": view}[request.param]


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
