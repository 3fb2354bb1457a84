from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2buf import FieldSpec, StepSpec, item_spec, spec_of, step_pairs, transitions, windows
from rlds2buf.core import nest
from tests.views.episodes import episodes


def assert_fits(item, spec, *, axes=1):
    found = {path: leaf for path, leaf in nest.flatten(tuple(item)) if leaf is not None}
    expected = {path: field for path, field in nest.flatten(tuple(spec)) if field is not None}
    assert list(found) == list(expected)
    for path, field in expected.items():
        assert field.accepts(found[path].shape[axes:], found[path].dtype), (item._fields[path[0]], path, field)


@given(episodes(), st.integers(1, 5))
def test_transitions_are_what_their_spec_says(episode, n_step):
    assert_fits(transitions(episode, n_step=n_step, gamma=0.9), item_spec(spec_of(episode)))


@given(episodes())
def test_pairs_are_what_their_spec_says(episode):
    assert_fits(step_pairs(episode), item_spec(spec_of(episode), "pairs"))


@given(episodes(), st.integers(1, 20), st.integers(1, 5))
def test_windows_are_what_their_spec_says(episode, length, stride):
    assert_fits(windows(episode, length, stride=stride), item_spec(spec_of(episode), "windows", length=length))


def test_limits_and_values_are_kept_where_an_axis_is_added():
    steps = StepSpec(
        observation=FieldSpec((2,), np.float32, low=[-1, -1], high=[1, 1]),
        action=FieldSpec((), np.int64, values=(0, 1)),
    )
    pair = item_spec(steps, "pairs", length=2)
    assert pair.action == FieldSpec((2,), np.int64, values=(0, 1))
    assert pair.observation == FieldSpec((2, 2), np.float32, low=[-1, -1], high=[1, 1])
    assert (pair.discount.low, pair.discount.high) == (0.0, 1.0)


def test_views_that_can_not_be():
    steps = StepSpec(observation=FieldSpec((), np.float32))
    with pytest.raises(ValueError, match="view must be one of"):
        item_spec(steps, "triples")
    with pytest.raises(ValueError, match="no action"):
        item_spec(steps, "pairs")
    with pytest.raises(ValueError, match="no observation"):
        item_spec(StepSpec())
    with pytest.raises(ValueError, match="length"):
        item_spec(steps, "windows")
    assert item_spec(steps, "windows", length=3).action is None
    assert item_spec(steps).action is None
