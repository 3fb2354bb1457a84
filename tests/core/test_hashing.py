"""Choices that are the same in every run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2buf.core.hashing import unit_interval, unit_intervals

GOLDEN = [0.5249496665071642, 0.3658380753716226, 0.2222565991790535]
LATE = 0.12922848641985263


def test_the_numbers_never_change() -> None:
    """A split made by an older version must stay what it was."""
    assert [unit_interval(0, i) for i in range(3)] == GOLDEN
    assert unit_interval(3, 10**12, "sample") == LATE


@given(st.integers(-(2**70), 2**70), st.integers(0, 300), st.text(max_size=5), st.integers(0, 2**40))
def test_one_by_one_and_all_at_once_agree(seed: int, count: int, purpose: str, start: int) -> None:
    together = unit_intervals(seed, count, purpose, start=start)
    assert together.dtype == np.float64 and together.shape == (count,)
    assert together.tolist() == [unit_interval(seed, start + index, purpose) for index in range(count)]


def test_spread_evenly_and_without_memory() -> None:
    drawn = unit_intervals(5, 100_000)
    counts = np.histogram(drawn, bins=100, range=(0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 160  # chi squared with 99 degrees; 0.01% lies above
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 0.015
    assert 0 <= drawn.min() and drawn.max() < 1


@pytest.mark.parametrize("other", [unit_intervals(6, 20_000), unit_intervals(5, 20_000, "sample")])
def test_other_seeds_and_purposes_are_independent(other: np.ndarray) -> None:
    assert abs(np.corrcoef(unit_intervals(5, 20_000), other)[0, 1]) < 0.03


def test_no_negative_index() -> None:
    with pytest.raises(ValueError, match="negative"):
        unit_interval(0, -1)
