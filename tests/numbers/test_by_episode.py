"""The ten numbers of each episode of a block, against each episode alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf.numbers.by_episode import KEYS, statistics_by_episode
from tests.numbers.columns import columns
from tests.reference.numbers import by_episode


@settings(max_examples=120, deadline=None)
@given(column=columns(400), data=st.data())
def test_numbers_of_a_block_are_those_of_its_episodes(column: np.ndarray, data: st.DataObject) -> None:
    cuts = data.draw(st.sets(st.integers(1, max(1, len(column) - 1)), max_size=40))
    starts = np.array(sorted({0, *cuts} & set(range(len(column)))))
    found = statistics_by_episode(column, starts)
    assert tuple(found) == KEYS
    for i, expected in enumerate(by_episode(column, starts)):
        for name in KEYS:
            exact = name not in ("mean", "std")
            assert found[name].shape[0] == len(starts)
            if exact:
                np.testing.assert_array_equal(found[name][i], expected[name], err_msg=name)
            else:
                scale = np.abs(column.astype(np.float64)).max(initial=0)
                np.testing.assert_allclose(found[name][i], expected[name], rtol=1e-12, atol=1e-12 * scale)
        assert found["min"].dtype == found["max"].dtype == column.dtype and found["mean"].dtype == np.float64


def test_an_episode_s_numbers_do_not_depend_on_those_beside_it() -> None:
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, 60, 200)
    starts = np.cumsum(lengths) - lengths
    column = rng.standard_normal((lengths.sum(), 5)).astype(np.float32)
    together = statistics_by_episode(column, starts)
    for i in (0, 17, 199):
        alone = statistics_by_episode(column[starts[i] : starts[i] + lengths[i]], np.zeros(1, np.int64))
        for name in KEYS:
            np.testing.assert_array_equal(together[name][i], alone[name][0], err_msg=name)


def test_nan_make_a_dimension_of_their_episode_nan() -> None:
    column = np.array([[1.0, 1.0], [np.nan, 3.0], [5.0, 5.0]])
    found = statistics_by_episode(column, np.array([0, 2]))
    for name in set(KEYS) - {"count"}:
        assert np.isnan(found[name][0, 0]) and not np.isnan(found[name][0, 1]), name
        assert not np.isnan(found[name][1]).any(), name
    assert found["count"].tolist() == [2, 1]


@pytest.mark.parametrize("value", [0.1, 1e300, -7])
def test_a_constant_has_no_deviation(value: float) -> None:
    found = statistics_by_episode(np.full(1000, value), np.array([0, 7, 500]))
    assert found["std"].tolist() == [0, 0, 0] and found["mean"].tolist() == [value] * 3


def test_values_in_the_other_order_of_bytes() -> None:
    column = np.arange(6, dtype=">f4")
    found = statistics_by_episode(column, np.array([0, 4]))
    assert found["max"].tolist() == [3, 5] and found["max"].dtype == np.float32
