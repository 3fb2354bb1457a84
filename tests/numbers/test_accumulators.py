"""Numbers of columns that come in blocks and parts, within a budget of memory, against numpy on all of them."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf import SinkError
from rlds2buf.numbers import accumulators
from rlds2buf.numbers.accumulators import ColumnNumbers, Columns, Spool
from rlds2buf.numbers.quantiles import LEVEL_NAMES
from tests.numbers.columns import columns
from tests.reference.numbers import of_values


def counted(spool: Spool, values: np.ndarray, cuts: list[int]) -> Columns:
    found = spool.columns(values.shape[1:], values.dtype)
    for rows in np.split(values, cuts):
        found.add(rows)
    return found


def assert_same(one: ColumnNumbers, other: ColumnNumbers) -> None:
    for name in ("count", "min", "max", "mean", "std", "quantiles"):
        first, second = getattr(one, name), getattr(other, name)
        assert first.dtype == second.dtype and first.tobytes() == second.tobytes(), name


def assert_right(found: ColumnNumbers, values: np.ndarray) -> None:
    flat = values.reshape(len(values), -1)
    expected = of_values(flat)
    scale = np.abs(flat.astype(np.float64)).max(initial=0)
    for name in ("min", "max"):
        np.testing.assert_array_equal(getattr(found, name), expected[name], err_msg=name)
    for name in ("mean", "std"):
        np.testing.assert_allclose(getattr(found, name), expected[name], rtol=1e-12, atol=1e-12 * scale, err_msg=name)
    for i, name in enumerate(LEVEL_NAMES):
        np.testing.assert_array_equal(found.quantiles[i], expected[name], err_msg=name)
    assert (found.count == len(values)).all()


@settings(max_examples=80, deadline=None)
@given(values=columns(), memory=st.sampled_from([0, 5000, 1 << 30]), data=st.data())
def test_numbers_are_numpy_s_whatever_the_blocks_and_the_memory(
    values: np.ndarray, memory: int, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=5)))
    with Spool(memory) as spool:
        assert_right(counted(spool, values, cuts).numbers(), values)


@settings(max_examples=60, deadline=None)
@given(values=columns(30_000), memory=st.sampled_from([0, 50_000, 1 << 30]), data=st.data())
def test_parts_that_are_joined_give_the_same_to_the_last_bit(
    values: np.ndarray, memory: int, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=6)))
    with Spool() as alone, Spool(memory) as mine, Spool(memory) as theirs:
        whole = counted(alone, values, [])
        at = data.draw(st.integers(0, len(values)))
        first = counted(mine, values[:at], [cut for cut in cuts if cut < at])
        second = counted(theirs, values[at:], [cut - at for cut in cuts if cut > at])
        first.join(second)
        assert first.rows == whole.rows == len(values)
        assert_same(first.numbers(), whole.numbers())


def test_columns_too_long_to_be_held_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    values = rng.standard_normal((700_000, 2)).astype(np.float32)
    values[::3, 1] = 0.5
    with Spool() as spool:
        expected = counted(spool, values, list(range(16384, len(values), 16384))).numbers()
    assert_right(expected, values)
    with Spool(1 << 20) as spool:
        found = counted(spool, values, list(range(10_000, len(values), 10_000))).numbers()
    assert_same(found, expected)


def test_memory_stays_within_the_budget() -> None:
    rng = np.random.default_rng(7)
    values = rng.standard_normal((50_000, 8))
    tracemalloc.start()
    try:
        with Spool(4 << 20) as spool:
            column = spool.columns((8,), values.dtype)
            for i in range(10):  # 32 MB
                column.add(values + i)
            found = column.numbers()
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.max.tolist() == (values.max(0) + 9).tolist()
    assert most < 24 << 20, most


def test_what_is_not_finite_is_left_out_by_dimension() -> None:
    rng = np.random.default_rng(6)
    values = rng.standard_normal((9000, 4))
    values[::5, 0] = np.nan
    values[7, 1], values[8, 1] = np.inf, -np.inf
    values[:, 2] = np.nan
    for memory in (0, 1 << 30):
        with Spool(memory) as spool:
            found = counted(spool, values, [100, 5000]).numbers()
        assert found.count.tolist() == [7200, 8998, 0, 9000]
        for d in (0, 1, 3):
            expected = of_values(values[np.isfinite(values[:, d]), d])
            assert found.min[d] == expected["min"] and found.max[d] == expected["max"]
            assert found.quantiles[:, d].tolist() == [expected[name] for name in LEVEL_NAMES]
            np.testing.assert_allclose([found.mean[d], found.std[d]], [expected["mean"], expected["std"]], rtol=1e-12)
        assert np.isnan([found.min[2], found.max[2], found.mean[2], found.std[2], *found.quantiles[:, 2]]).all()


def test_of_no_rows() -> None:
    with Spool() as spool:
        found = spool.columns((2,), np.dtype(np.int32)).numbers()
    assert found.count.tolist() == [0, 0] and found.min.tolist() == [0, 0] and np.isnan(found.mean).all()


def test_whole_numbers_beyond_53_bits_keep_their_ends() -> None:
    values = np.array([2**63 - 1, -(2**63) + 1, 5])
    with Spool() as spool:
        found = counted(spool, values, []).numbers()
    assert (int(found.min[0]), int(found.max[0])) == (-(2**63) + 1, 2**63 - 1)


def test_a_constant_has_no_deviation() -> None:
    with Spool() as spool:
        found = counted(spool, np.full((10_000, 1), 0.1, np.float32), []).numbers()
    assert found.std.tolist() == [0.0] and found.mean.tolist() == [float(np.float32(0.1))]


def test_columns_of_different_shapes_are_not_joined() -> None:
    with Spool() as spool, pytest.raises(ValueError, match=r"int32\[3\] can't be joined to float32\[2\]"):
        spool.columns((2,), np.dtype(np.float32)).join(spool.columns((3,), np.dtype(np.int32)))


def test_text_is_not_counted() -> None:
    with Spool() as spool, pytest.raises(TypeError, match="numbers are counted"):
        spool.columns((), np.dtype(object))


def test_the_file_leaves_nothing_behind_and_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    values = np.arange(50_000.0)
    with Spool(1000, folder=str(tmp_path)) as spool:
        assert counted(spool, values, [20_000]).numbers().max.tolist() == [49_999]
    assert not os.listdir(tmp_path)
    with Spool(1000, folder=str(tmp_path / "absent")) as spool, pytest.raises(SinkError, match="absent: No such file"):
        counted(spool, values, [])


def test_leaves_are_counted_from_the_first_row() -> None:
    values = np.random.default_rng(0).standard_normal(3 * accumulators.LEAF + 5)
    with Spool() as spool:
        found = counted(spool, values, [17, 5000]).numbers()
    leaves = [leaf.sum() for leaf in np.split(values, range(accumulators.LEAF, len(values), accumulators.LEAF))]
    assert found.mean[0] == np.sum(leaves) / len(values)
