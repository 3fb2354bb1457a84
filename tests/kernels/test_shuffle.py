"""A shuffle that is computed place by place: a permutation, the same as its naive twin's, and a fair one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2buf.buffers.select.shuffle import Shuffle
from rlds2buf.kernels.shuffle import ROUNDS, shuffled, shuffled_numpy
from tests.reference.shuffle import place_in_shuffle

WORDS = st.lists(st.integers(0, (1 << 64) - 1), min_size=ROUNDS, max_size=ROUNDS)


@given(st.integers(1, 3000), st.integers(0, 9), st.integers(1, 5), WORDS)
def test_as_its_naive_twin(count: int, first: int, step: int, words: list[int]) -> None:
    keys = np.array(words, np.uint64)
    bits = max(2, (count - 1).bit_length())
    places = range(first % count, count, step)[:40]
    expected = [place_in_shuffle(place, count, bits, words) for place in places]
    for kernel in (shuffled, shuffled_numpy):
        out = np.empty(len(places), np.int64)
        kernel(places.start, step, count, bits, keys, out)
        assert out.tolist() == expected


@given(st.integers(1, 1 << 61), st.integers(0, 1 << 61), WORDS)
def test_of_numbers_without_end(count: int, place: int, words: list[int]) -> None:
    bits = max(2, (count - 1).bit_length())
    out = np.empty(1, np.int64)
    shuffled(place % count, 1, count, bits, np.array(words, np.uint64), out)
    assert int(out[0]) == place_in_shuffle(place % count, count, bits, words) < count


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 31, 32, 33, 1000, 1 << 16, (1 << 16) + 1, 100_003])
def test_every_number_once(count: int) -> None:
    order = Shuffle(count, [7, count])
    assert np.array_equal(np.sort(order.at(0, 1, count)), np.arange(count))
    if count > 6:
        assert order.at(1, 3, 2).tolist() == order.at(0, 1, 5)[1::3].tolist()


def test_another_seed_is_another_order() -> None:
    for count in (1000, 100_003):
        first, second, again = (Shuffle(count, seed).at(0, 1, count) for seed in ([1, 2], [2, 1], [1, 2]))
        assert np.array_equal(first, again) and (first == second).mean() < 0.01


@pytest.mark.parametrize("count", [65_537, 100_003, 131_072])
def test_the_order_is_fair(count: int) -> None:
    """Where an item comes says nothing of where it was, nor of where its neighbours or the next epoch's come."""
    order = Shuffle(count, [3]).at(0, 1, count)
    place = np.arange(count)
    table = np.zeros((32, 32))
    np.add.at(table, (place * 32 // count, order * 32 // count), 1)
    expected = np.outer(table.sum(1), table.sum(0)) / count
    assert ((table - expected) ** 2 / expected).sum() < 961 + 6 * np.sqrt(2 * 961)
    for other in (np.roll(order, 1), np.roll(order, 2), Shuffle(count, [4]).at(0, 1, count)):
        assert abs(np.corrcoef(order, other)[0, 1]) < 6 / np.sqrt(count)
    # Runs up: of n places, half are followed by a larger number.
    assert abs((np.diff(order) > 0).mean() - 0.5) < 6 * np.sqrt(1 / 12 / count)
    assert (order == place).sum() < 12  # as a rule one
