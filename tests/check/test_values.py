from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rlds2buf import Episode
from rlds2buf.check.report import Checker
from rlds2buf.check.values import discount_faults, final_reward_faults, nonfinite_faults, one_step_faults
from tests.check.episodes import flags, good
from tests.reference.continuity import finite_rows


def findings(episode, **options):
    return [(i.rule, i.step, i.path) for i in Checker(None, **options).check(episode)]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("step", [0, 7, 29])
def test_one_number_that_is_not_finite_is_found_in_any_leaf(dtype, value, step):
    rows = np.zeros((30, 3, 2), dtype)
    rows[step, 2, 1] = value
    episode = good(observation={"a": np.zeros((30, 2), np.int32), "b": (np.zeros(30), rows)})
    assert findings(episode) == [("nonfinite", step, "observation/b/1")]
    assert findings(episode, allow_nonfinite=True) == []


@given(hnp.arrays(np.float32, st.tuples(st.integers(1, 12), st.integers(0, 4))))
def test_which_rows_are_not_finite(rows):
    bad = finite_rows(rows.tolist())
    faults = nonfinite_faults([(("observation",), rows)])
    assert [(f.rule, f.step, f.count) for f in faults] == ([("nonfinite", bad[0], len(bad))] if bad else [])


def test_the_largest_finite_numbers_are_finite():
    rows = np.full((50, 4), np.finfo(np.float32).max, np.float32)
    rows[::2] *= -1
    assert findings(good(50, observation=rows)) == []


def test_strings_integers_and_bools_have_nothing_to_be_finite():
    extras = {"text": np.array([b"a", b"b"], object), "id": np.arange(2), "flag": np.ones(2, bool)}
    assert findings(good(2, extras=extras)) == []


def test_strided_columns_are_read_as_they_are():
    table = np.zeros((10, 6), np.float32)
    table[4, 1] = np.nan
    seen = nonfinite_faults([(("observation",), table[:, ::2]), (("action",), table[::-1, 1])])
    assert [(f.path, f.step) for f in seen] == [("action", 5)]


def test_padding_that_is_not_finite_is_only_a_warning():
    reward, action = np.zeros(4), np.zeros((4, 2))
    reward[-1], action[-1, 0] = np.nan, np.inf
    action[1, 1] = np.nan
    issues = Checker(None).check(good(4, reward=reward, action=action))
    assert [(i.rule, i.severity, i.step, i.path) for i in issues] == [
        ("nonfinite", "error", 1, "action"),
        ("padding-values", "warning", 3, "action"),
        ("padding-values", "warning", 3, "reward"),
    ]


@pytest.mark.parametrize(
    "discount, expected",
    [
        ([0.0, 1.0, 0.5], []),
        ([1.1, 1.0, 0.5], [("discount-range", 0)]),
        ([1.0, -0.1, 0.5], [("discount-range", 1)]),
        ([1.0, 2.0, -1.0], [("discount-range", 1), ("padding-values", 2)]),
        ([1.0, 1.0, -1.0], [("padding-values", 2)]),
        ([np.nan, 3.0, 1.0], [("discount-range", 1)]),
        ([np.inf, 0.0, 1.0], []),  # nonfinite reports it
        (np.array([1, 1, 0], np.int32), []),
        (np.array([1, 5, 0], np.uint8), [("discount-range", 1)]),
    ],
)
def test_discounts_in_range(discount, expected):
    episode = Episode(observation=np.zeros(3), discount=np.asarray(discount))
    assert [(f.rule, f.step) for f in discount_faults(episode)] == expected


@given(hnp.arrays(np.float64, st.integers(1, 8), elements=st.floats(-2, 2) | st.just(math.nan)))
def test_discounts_in_range_row_by_row(discount):
    bad = [t for t, d in enumerate(discount) if d < 0 or d > 1]
    inner = [t for t in bad if t < len(discount) - 1]
    expected = [("discount-range", inner[0], len(inner))] if inner else []
    expected += [("padding-values", len(discount) - 1, 1)] if bad and bad[-1] == len(discount) - 1 else []
    faults = discount_faults(Episode(observation=np.zeros(len(discount)), discount=discount))
    assert [(f.rule, f.step, f.count) for f in faults] == expected


@pytest.mark.parametrize(
    "end, discount, warned",
    [
        ("terminated", [1, 1, 0, 0], False),
        ("terminated", [1, 1, 1, 0], True),
        ("terminated", [1, 1, 0.99, 1], True),
        ("truncated", [1, 1, 1, 1], False),
    ],
)
def test_a_terminal_whose_transition_keeps_its_discount(end, discount, warned):
    episode = Episode(observation=np.zeros(4), discount=np.array(discount, float), **flags(4, end))
    faults = discount_faults(episode)
    assert [(f.rule, f.step, f.path) for f in faults] == ([("terminal-discount", 2, "discount")] if warned else [])


def test_the_last_reward_is_named_with_the_option_that_keeps_it():
    reward = np.array([0, 0, 2.5])
    (fault,) = final_reward_faults(Episode(observation=np.zeros(3), reward=reward, **flags(3, "terminated")))
    assert (fault.rule, fault.step, fault.path) == ("final-reward", 2, "reward")
    assert "2.5" in fault.message and "final_transition='keep' keeps it" in fault.message
    (fault,) = final_reward_faults(Episode(observation=np.zeros(3), reward=reward))
    assert "no observation follows it" in fault.message  # so that keeping it is not promised
    assert final_reward_faults(Episode(observation=np.zeros(3), reward=np.array([1, 1, 0.0]))) == []
    assert final_reward_faults(Episode(observation=np.zeros(3))) == []
    assert len(final_reward_faults(Episode(observation=np.zeros(2), reward=np.array([[0, 0], [0, 1]])))) == 1


def test_one_step():
    assert [f.rule for f in one_step_faults(good(1, "truncated"))] == ["one-step"]
    assert one_step_faults(good(2)) == []
