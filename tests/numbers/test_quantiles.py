"""Selection by rank and quantiles, against sorting and numpy.quantile."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf.numbers import quantiles
from rlds2buf.numbers.quantiles import LEVELS, order_statistics, places, quantiles_of_sorted, weighted
from tests.numbers.columns import DTYPES, column, columns


def chosen(values: np.ndarray, pieces: int = 3) -> np.ndarray:
    """Quantiles by selection of a column in pieces."""
    below, above, weight = places(len(values))
    found = order_statistics(lambda: np.array_split(values, pieces), len(values), [*below, *above])
    low, high = found.astype(np.float64).reshape(2, -1)
    return weighted(low, high, weight)


@settings(max_examples=150, deadline=None)
@given(values=columns(), few=st.sampled_from([1, 4, 100, 1 << 16]), held=st.sampled_from([0, 1 << 12, 1 << 26]))
def test_quantiles_are_numpy_s_to_the_last_bit_however_few_values_are_sorted(
    values: np.ndarray, few: int, held: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantiles, "_FEW", few)
        patch.setattr(quantiles, "_HELD_BYTES", held)
        for one in values.reshape(len(values), -1).T:
            one = np.ascontiguousarray(one)
            np.testing.assert_array_equal(chosen(one), np.quantile(one.astype(np.float64), LEVELS))


@pytest.mark.parametrize("many", [0, 1 << 60], ids=["compiled", "numpy"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", ["wide", "narrow", "ties", "constant"])
def test_of_many_values_of_each_type(dtype: str, how: str, many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantiles, "_MANY", many)
    if many:
        monkeypatch.delitem(sys.modules, "numba", raising=False)
    values = column(dtype, (200_000,), how, np.random.default_rng(3))
    np.testing.assert_array_equal(chosen(values), np.quantile(values.astype(np.float64), LEVELS))


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64", "float32", "int8"])
def test_every_rank_at_the_ends_of_a_type(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantiles, "_FEW", 2)
    kind = np.dtype(dtype)
    info = np.finfo(kind) if kind.kind == "f" else np.iinfo(kind)
    edges = [info.min, info.max, 0, 1] + ([info.tiny, -info.tiny, np.inf, -np.inf, -0.0] if kind.kind == "f" else [])
    values = np.array(edges * 3, kind)
    found = order_statistics(lambda: [values[:5], values[5:]], len(values), np.arange(len(values)))
    assert found.dtype == kind
    np.testing.assert_array_equal(found, np.sort(values))
    assert not np.signbit(found[found == 0]).any() if kind.kind == "f" else True


def test_the_few_of_a_rank_are_found_where_almost_all_lie_in_one_bucket() -> None:
    values = np.full(300_000, 1.0)
    values[:3] = [-5, 7, 7]
    found = order_statistics(lambda: [values], len(values), [0, 1, 150_000, len(values) - 2, len(values) - 1])
    assert found.tolist() == [-5, 1, 1, 7, 7]


@settings(max_examples=60, deadline=None)
@given(values=columns(200))
def test_quantiles_of_sorted_rows(values: np.ndarray) -> None:
    ordered = np.sort(np.moveaxis(values, 0, -1), axis=-1)
    np.testing.assert_array_equal(quantiles_of_sorted(ordered), np.quantile(values.astype(np.float64), LEVELS, axis=0))
