from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf import Episode
from rlds2buf.check.continuity import ContinuityCheck, observation_matrix
from tests.check.episodes import flags, good, jump_rows
from tests.reference import continuity as naive


def walk(rows, seed, dims=6):
    return np.cumsum(np.random.default_rng(seed).normal(size=(rows, dims)), axis=0)


def episode(observation, end="truncated", **facts):
    return Episode(observation=observation, **flags(len(observation), end), **facts)


def found(*episodes):
    check = ContinuityCheck()
    return [[(f.rule, f.step, f.count) for f in check.faults(ep)] for ep in episodes]


@settings(max_examples=150)
@given(
    rows=st.integers(2, 60),
    dims=st.integers(1, 6),
    resets=st.lists(st.integers(1, 59), max_size=3),
    still=st.integers(0, 2),
    size=st.sampled_from([1.0, 5.0, 30.0]),
    seed=st.integers(0, 10**6),
)
def test_jumps_are_those_of_the_plain_definition(rows, dims, resets, still, size, seed):
    rng = np.random.default_rng(seed)
    # Quarters, so that sums are exact and no threshold is met within rounding.
    table = np.cumsum(np.round(rng.normal(size=(rows, dims)) * 4) / 4, axis=0)
    for row in resets:
        table[min(row, rows) :] += np.round(rng.normal(size=dims) * size)
    table[:, :still] = 3.0
    assert jump_rows(table).tolist() == naive.jumps(table.tolist())


@settings(max_examples=150)
@given(
    rows=st.integers(2, 40),
    away=st.sampled_from([0.0, 0.5, 1.0, 2.0, 10.0]),
    straight=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_going_on_is_that_of_the_plain_definition(rows, away, straight, seed):
    rng = np.random.default_rng(seed)
    steps = np.ones((rows, 4)) * 3 if straight else np.round(rng.normal(size=(rows, 4)) * 4)
    steps[:, 3] = 0
    table = np.cumsum(steps, axis=0)
    first = table[-1] + np.round(rng.normal(size=4) * away * 3)
    second = np.concatenate([first[None], first + walk(5, seed, 4)])
    expected = [("no-reset", 0, 1)] if naive.goes_on(table.tolist(), first.tolist()) else []
    assert [x for x in found(episode(table), episode(second))[1] if x[0] == "no-reset"] == expected


def test_two_episodes_glued_into_one_jump_where_the_second_starts():
    one, two = walk(80, 1), walk(60, 2)
    one += np.arange(80)[:, None] * 2  # walks away from where it started
    (faults,) = found(episode(np.concatenate([one, two])))
    assert faults == [("jump", 80, 1)]


def test_a_crash_that_does_not_lead_home_is_no_jump():
    rows = walk(80, 1) + np.arange(80)[:, None] * 2
    rows[50:] += 60
    assert found(episode(rows)) == [[]]


def test_one_flag_that_flips_is_no_jump():
    rows = walk(100, 3)
    rows[60:, 0] += 1000
    rows[90:, 0] -= 1000
    assert found(episode(rows)) == [[]]


def test_an_episode_cut_in_two_is_named_and_a_terminated_one_is_not():
    rows = np.cumsum(np.ones((90, 3)), axis=0)
    parts = rows[:40], rows[40:]
    assert found(episode(parts[0]), episode(parts[1])) == [[], [("no-reset", 0, 1)]]
    assert found(episode(parts[0], "terminated"), episode(parts[1])) == [[], []]
    # Episodes in between were left out, so these are not neighbours.
    assert found(episode(parts[0], index=3), episode(parts[1], index=5)) == [[], []]
    assert found(episode(parts[0], index=3), episode(parts[1], index=4))[1] == [("no-reset", 0, 1)]


def test_the_same_final_observation_twice():
    one, two = walk(30, 1), walk(40, 2)
    two[-1] = one[-1]
    assert found(episode(one), episode(two)) == [[], [("same-final-observation", 39, 1)]]


def test_equal_episodes_have_equal_ends_and_that_is_fine():
    rows = walk(30, 1)
    assert found(episode(rows), episode(rows.copy())) == [[], []]


def test_zero_final_rows_have_a_rule_of_their_own():
    one, two = walk(30, 1) + 50, walk(40, 2) + 50
    one[-1] = two[-1] = 0
    zero = "zero-final-observation"
    assert found(episode(one, "terminated"), episode(two, "terminated")) == [[(zero, 29, 1)], [(zero, 39, 1)]]
    # Not far from the origin: only repetition tells.
    one, two = walk(5, 1), walk(6, 2)
    one[-1] = two[-1] = 0
    assert found(episode(one), episode(two)) == [[], [(zero, 5, 1)]]


def test_a_marked_placeholder_is_not_looked_at():
    one, two = walk(30, 1) + 50, walk(40, 2) + 50
    one[-1] = two[-1] = 0
    marked = {"placeholder_final_row": True}
    eps = [episode(rows, "terminated", metadata=marked) for rows in (one, two)]
    assert found(*eps) == [[], []]
    assert found(episode(np.zeros((1, 2)), "terminated", metadata=marked)) == [[]]


def test_what_has_no_float_observations_is_left_alone():
    images = np.random.default_rng(0).integers(0, 255, (30, 8, 8, 3), np.uint8)
    ep = Episode(observation={"image": images, "big": np.zeros((30, 2000), np.float32)})
    assert observation_matrix(ep) is None
    assert found(ep, ep) == [[], []]
    assert found(Episode(action=np.zeros(30))) == [[]]


def test_half_precision_does_not_overflow():
    rows = (walk(60, 4) + np.arange(60)[:, None] * 30).astype(np.float16)
    assert found(episode(np.concatenate([rows, rows]))) == [[("jump", 60, 1)]]


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_values_without_a_scale_give_no_findings_and_no_warnings(value):
    rows = walk(60, 4).astype(np.float32)
    rows[30] = value
    rows[31] = -value
    assert found(episode(rows), good(30)) == [[], []]


def test_episodes_of_other_widths_are_not_compared():
    assert found(good(30), episode(walk(30, 5, 3))) == [[], []]


def test_what_is_kept_does_not_alias_the_episode():
    rows = np.cumsum(np.ones((60, 3)), axis=0)
    check = ContinuityCheck()
    first = rows[:30].copy()
    check.faults(episode(first))
    first[:] = 77
    assert [f.rule for f in check.faults(episode(rows[30:]))] == ["no-reset"]


@pytest.mark.parametrize("size, jumps", [(2.5, []), (3.5, [48])])
def test_a_jump_goes_beyond_three_times_what_the_dimensions_do_anyway(size, jumps):
    # Mostly still, now and then a quarter forth or back.
    moves = np.zeros((100, 4))
    moves[5::5] = 0.25
    moves[10::10] = -0.25
    moves[48] = -0.25 * size  # from a quarter away to the other side of the first row
    rows = np.cumsum(moves, axis=0)
    assert jump_rows(rows).tolist() == naive.jumps(rows.tolist()) == jumps


@pytest.mark.parametrize("away, rules", [(0.4, ["no-reset"]), (0.7, [])])
def test_the_course_of_the_last_step_may_be_left_by_half_an_ordinary_step(away, rules):
    moves = np.ones((41, 3))
    moves[-1] = 3.0  # the mean change is 1.05
    rows = np.cumsum(moves, axis=0)
    following = rows[-1] + 3.0 + away + np.zeros((2, 3))
    check = ContinuityCheck()
    check.faults(episode(rows))
    assert [f.rule for f in check.faults(episode(following))] == rules
