"""Prioritized draws and updates against the naive twins."""

from __future__ import annotations

import numpy as np
import pytest

from rlds2buf.kernels.priorities import draw_prioritized, update_priorities
from rlds2buf.kernels.sum_tree import SumTree
from tests.reference.prioritized import ListPriorities
from tests.reference.sum_tree import ListTree


def tree_of(leaves: np.ndarray) -> SumTree:
    tree = SumTree(len(leaves))
    tree.set(np.arange(len(leaves)), leaves)
    return tree


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 33, 257])
@pytest.mark.parametrize("whole", [False, True])
def test_draws(size: int, whole: bool) -> None:
    rng = np.random.default_rng(size)
    raw = rng.integers(0, 9, size).astype(float)
    raw[rng.integers(size)] = 5.0
    tree = tree_of(raw)  # alpha 1, whole numbers: every sum is exact
    twin = ListPriorities(size, alpha=1.0, eps=0.0, normalise="buffer" if whole else "batch")
    twin.priority = {i: float(p) for i, p in enumerate(raw) if p > 0}
    least = min(twin.priority.values()) if whole else 0.0
    count = len(twin.priority)
    for first in {0, size // 3, size - 1}:
        # Uniforms count from the oldest slot on.
        order = [(first + i) % size for i in range(size)]
        aged = ListTree(size)
        aged.set(range(size), raw[order])
        uniforms = rng.integers(0, 1 << 20, 50) / (1 << 20)
        slots, facts = np.zeros(50, np.int64), np.zeros((3, 50))
        before = uniforms.copy()
        draw_prioritized(tree.nodes, tree.offsets, first, raw, uniforms, count, 0.4, least, slots, facts)
        assert np.array_equal(uniforms, before)
        assert slots.tolist() == [order[i] for i in aged.sample((uniforms * raw.sum()).tolist())]
        np.testing.assert_allclose(facts[0], [twin.probability(i) for i in slots.tolist()])
        np.testing.assert_allclose(facts[1], raw[slots])
        np.testing.assert_allclose(facts[2], twin.weights(slots.tolist(), 0.4))


def test_chosen_slots_are_described() -> None:
    raw = np.array([1.0, 3.0, 4.0])
    tree = tree_of(raw)
    slots, facts = np.array([2, 0]), np.zeros((3, 2))
    draw_prioritized(tree.nodes, tree.offsets, 0, raw, np.zeros(0), 3, 1.0, 0.0, slots, facts)
    assert slots.tolist() == [2, 0]
    assert facts.tolist() == [[0.5, 0.125], [4.0, 1.0], [0.25, 1.0]]


def test_uniform_just_below_one_gives_a_leaf_above_zero() -> None:
    for size in (3, 17, 1000):
        raw = np.random.default_rng(size).random(size)
        raw[-2:] = 0
        tree = tree_of(raw)
        for first in range(0, size, max(1, size // 7)):
            slots, facts = np.zeros(2, np.int64), np.zeros((3, 2))
            uniforms = np.array([np.nextafter(1.0, 0.0), 0.0])
            draw_prioritized(tree.nodes, tree.offsets, first, raw, uniforms, size, 0.4, 0.0, slots, facts)
            assert (raw[slots] > 0).all()


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_updates(alpha: float) -> None:
    rng = np.random.default_rng(1)
    size = 40
    tree, priority = SumTree(size), np.zeros(size)
    twin = ListPriorities(size, alpha=alpha, eps=0.01)
    twin.add(range(size))
    priority[:] = 1.0
    tree.set(np.arange(size), np.ones(size))
    for _ in range(30):
        slots, values = rng.integers(0, size, 25), rng.random(25) * 10
        top = update_priorities(tree.nodes, tree.offsets, priority, slots, values, alpha, 0.01)
        twin.update(slots.tolist(), values.tolist())
        assert top == values.max() + 0.01
        tree.check_valid()
        np.testing.assert_allclose(priority, [twin.priority[i] for i in range(size)])
        np.testing.assert_allclose(tree.leaves, [twin.priority[i] ** alpha for i in range(size)])
