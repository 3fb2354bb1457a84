"""The kernels against sums by definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rlds2buf.kernels import returns as kernels
from tests.reference import returns as reference

FRACTIONS = st.floats(0, 1)


def numbers(shape: tuple[int, int], dtype: type, low: float = -10, high: float = 10) -> st.SearchStrategy[np.ndarray]:
    return hnp.arrays(dtype, shape, elements=st.floats(low, high, width=32))


@st.composite
def streams(draw: st.DrawFn) -> tuple[np.ndarray, ...]:
    """reward, value, successor, ratio ``[T, B]``, and end codes whose last row is an end."""
    shape = (draw(st.integers(1, 12)), draw(st.integers(1, 3)))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    reward, value, successor = (draw(numbers(shape, dtype)) for _ in range(3))
    ratio = draw(numbers(shape, dtype, 0, 4))
    end = draw(hnp.arrays(np.uint8, shape, elements=st.sampled_from([0, 0, 0, 1, 2])))
    end[-1] = np.where(end[-1] == 0, 2, end[-1])
    # The kernels promise not to read what follows a terminated step.
    successor[end == 1] = np.nan
    return reward, value, successor, ratio, end


def tolerance(array: np.ndarray) -> dict[str, float]:
    return {"rtol": 1e-6, "atol": 1e-5} if array.dtype == np.float32 else {"rtol": 1e-12, "atol": 1e-10}


@settings(deadline=None)
@given(streams(), FRACTIONS)
def test_discounted_equals_the_sum(data: tuple[np.ndarray, ...], gamma: float) -> None:
    reward, _, successor, _, end = data
    out = np.empty_like(reward)
    kernels.discounted(reward, successor, end, gamma, out)
    for b in range(reward.shape[1]):
        expected = reference.discounted(reward[:, b], successor[:, b], end[:, b], gamma)
        np.testing.assert_allclose(out[:, b], expected, **tolerance(out))


@settings(deadline=None)
@given(streams(), FRACTIONS, FRACTIONS)
def test_gae_equals_the_sum(data: tuple[np.ndarray, ...], gamma: float, lam: float) -> None:
    reward, value, successor, _, end = data
    advantage, target = np.empty_like(reward), np.empty_like(reward)
    kernels.gae(reward, value, successor, end, gamma, gamma * lam, advantage, target)
    for b in range(reward.shape[1]):
        expected = reference.gae(reward[:, b], value[:, b], successor[:, b], end[:, b], gamma, lam)
        np.testing.assert_allclose(advantage[:, b], expected[0], **tolerance(target))
        np.testing.assert_allclose(target[:, b], expected[1], **tolerance(target))


@settings(deadline=None)
@given(streams(), FRACTIONS, FRACTIONS, st.floats(0, 3), FRACTIONS)
def test_vtrace_equals_the_definition(
    data: tuple[np.ndarray, ...], gamma: float, lam: float, rho_bar: float, part: float
) -> None:
    reward, value, successor, ratio, end = data
    c_bar = rho_bar * part
    out = [np.empty_like(reward) for _ in range(3)]
    kernels.vtrace(reward, value, successor, ratio, end, gamma, lam, rho_bar, c_bar, *out)
    for b in range(reward.shape[1]):
        columns = (column[:, b] for column in (reward, value, successor, ratio, end))
        expected = reference.vtrace(*columns, gamma, lam, rho_bar, c_bar)
        for got, want in zip(out, expected, strict=True):
            # Products of up to 12 ratios of up to 3: errors grow with the numbers.
            scale = max(1.0, float(np.abs(want).max()))
            np.testing.assert_allclose(got[:, b] / scale, np.array(want) / scale, **tolerance(got))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_are_kept_in_float64(dtype: type) -> None:
    steps = 100_000
    reward = np.full((steps, 1), 0.1, dtype)
    end = np.zeros((steps, 1), np.uint8)
    end[-1] = 1
    out = np.empty_like(reward)
    kernels.discounted(reward, np.zeros_like(reward), end, 1.0, out)
    # A float32 accumulator would be off by about 0.5 here.
    assert out[0, 0] == pytest.approx(steps * float(dtype(0.1)), rel=1e-7)


def test_no_steps_and_no_streams() -> None:
    for shape in ((0, 2), (3, 0)):
        empty = np.zeros(shape)
        out = np.empty_like(empty)
        kernels.discounted(empty, empty, np.zeros(shape, np.uint8), 0.9, out)
        assert out.shape == shape
