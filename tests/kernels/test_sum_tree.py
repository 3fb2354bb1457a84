"""The wide sum tree against a list of leaves."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from rlds2buf.kernels.sum_tree import FANOUT, SumTree, sum_before
from tests.buffers.frequencies import p_value
from tests.reference.sum_tree import ListTree

SIZES = [1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 257, 4095, 4096, 4097]
EIGHTHS = st.integers(0, 64).map(lambda k: k / 8)
"""Values whose sums are exact, so that intervals have no rounding in them."""


def filled(values: np.ndarray) -> SumTree:
    tree = SumTree(len(values))
    tree.set(np.arange(len(values)), values)
    tree.check_valid()
    return tree


class TreeMachine(RuleBasedStateMachine):
    """Exact values: the tree and its twin agree to the bit."""

    @initialize(size=st.sampled_from([s for s in SIZES if s <= 257]))
    def start(self, size: int) -> None:
        self.tree, self.twin, self.size = SumTree(size), ListTree(size), size

    @rule(data=st.data(), count=st.integers(0, 40))
    def set(self, data: st.DataObject, count: int) -> None:
        indices = data.draw(st.lists(st.integers(0, self.size - 1), min_size=count, max_size=count))
        values = data.draw(st.lists(EIGHTHS, min_size=count, max_size=count))
        self.tree.set(np.array(indices, np.int64), np.array(values))
        self.twin.set(indices, values)

    @rule(start=st.floats(0, 1), value=EIGHTHS)
    def set_a_run(self, start: float, value: float) -> None:
        indices = np.arange(int(start * self.size), self.size)
        self.tree.set(indices, np.full(len(indices), value))
        self.twin.set(indices.tolist(), [value] * len(indices))

    @rule(uniforms=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=20))
    def sample(self, uniforms: list[float]) -> None:
        total = self.twin.total
        if total:
            targets = np.minimum(np.array(uniforms) * total, np.nextafter(total, 0))
            before = targets.copy()
            # Targets at a multiple of 1/8 lie on borders between leaves: those go to the right.
            targets = np.concatenate([targets, np.floor(targets * 8) / 8])
            got = self.tree.sample(targets)
            assert got.dtype == np.int64
            assert got.tolist() == self.twin.sample(targets.tolist())
            assert np.array_equal(targets[: len(before)], before)  # the caller's array is left alone

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "tree"):
            return
        self.tree.check_valid()
        assert self.tree.total == self.twin.total
        everything = np.arange(self.size)
        assert self.tree.get(everything).tolist() == self.twin.leaves == self.twin.get(everything.tolist())


def test_against_the_twin() -> None:
    run_state_machine_as_test(
        TreeMachine,
        settings=settings(max_examples=60, stateful_step_count=15, deadline=None, derandomize=True, database=None),
    )


@pytest.mark.parametrize("size", SIZES)
def test_every_leaf_is_found(size: int) -> None:
    tree = SumTree(size)
    assert tree.total == 0
    for leaf in {0, 1, size // 2, size - 2, size - 1} & set(range(size)):
        tree.set(np.array([leaf]), np.array([2.0]))
        tree.check_valid()
        assert tree.total == 2.0
        assert tree.sample(np.array([0.0, 1.0, np.nextafter(2.0, 0)])).tolist() == [leaf] * 3
        tree.set(np.array([leaf]), np.array([0.0]))
        assert tree.total == 0
    tree.set(np.arange(size), np.ones(size))
    assert tree.total == size
    assert tree.sample(np.arange(size, dtype=float)).tolist() == list(range(size))
    assert tree.sample(np.arange(size) + 0.999).tolist() == list(range(size))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("spread", [1.0, 1e-300, 1e12])
def test_zero_leaves_are_never_drawn(size: int, spread: float) -> None:
    """Whatever rounding does, and at both ends of the range of targets."""
    rng = np.random.default_rng(size)
    values = np.where(rng.random(size) < 0.5, 0.0, rng.random(size) ** 8) * spread
    values[rng.integers(size)] = spread
    tree = filled(values)
    targets = np.concatenate([rng.random(3000) * tree.total, [0.0, np.nextafter(tree.total, 0), tree.total]])
    assert (values[tree.sample(targets)] > 0).all()


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300), st.lists(st.floats(0, 1, exclude_max=True), min_size=1))
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
def test_targets_lie_in_the_intervals_of_their_leaves(values: list[float], uniforms: list[float]) -> None:
    twin = ListTree(len(values))
    twin.set(range(len(values)), values)
    tree = filled(np.array(values))
    assert math.isclose(tree.total, twin.total, rel_tol=1e-12)
    if tree.total == 0:
        return
    targets = np.array(uniforms) * tree.total
    slack = 1e-12 * tree.total
    for target, leaf in zip(targets.tolist(), tree.sample(targets).tolist(), strict=True):
        low, high = twin.interval(leaf)
        assert values[leaf] > 0 and low - slack <= target < high + slack


def test_last_of_repeated_indices_wins() -> None:
    tree = SumTree(20)
    tree.set(np.array([3, 19, 3, 3, 19]), np.array([1.0, 2.0, 8.0, 4.0, 16.0]))
    tree.check_valid()
    assert tree.get(np.array([3, 19, 0])).tolist() == [4.0, 16.0, 0.0]
    assert tree.total == 20.0


def test_no_drift_after_many_updates() -> None:
    """The root is the sum of the leaves after 1e5 random updates over twelve orders of magnitude."""
    rng = np.random.default_rng(0)
    size = 1000
    tree = SumTree(size)
    for _ in range(1000):
        indices = rng.integers(0, size, 100)
        tree.set(indices, 10.0 ** rng.uniform(-9, 3, 100))
    tree.check_valid()
    leaves = tree.get(np.arange(size))
    assert math.isclose(tree.total, math.fsum(leaves), rel_tol=1e-14)
    tree.set(np.arange(size), np.zeros(size))
    assert tree.total == 0.0  # exactly: nothing is left over from what was there
    tree.set(np.arange(size), np.full(size, 1e-9))
    assert math.isclose(tree.total, size * 1e-9, rel_tol=1e-12)


@pytest.mark.parametrize("size", [5, 16, 17, 300])
def test_frequencies(size: int) -> None:
    rng = np.random.default_rng(size)
    values = rng.random(size) + 0.2
    values[size // 3] = 0.0
    tree = filled(values)
    counts = np.bincount(tree.sample(rng.random(100_000) * tree.total), minlength=size)
    assert counts[size // 3] == 0
    kept = values > 0
    assert p_value(counts[kept], values[kept] / values.sum()) > 1e-3


def test_empty_tree_and_empty_calls() -> None:
    tree = SumTree(0)
    assert tree.total == 0
    tree.check_valid()
    tree = filled(np.ones(5))
    tree.set(np.zeros(0, np.int64), np.zeros(0))
    assert tree.sample(np.zeros(0)).shape == (0,) and tree.get(np.zeros(0, np.int64)).shape == (0,)
    assert tree.total == 5


def test_memory_is_a_fifteenth_more_than_the_leaves() -> None:
    size = 1_000_000
    assert SumTree(size).nodes.nbytes <= size * 8 * (1 + 1 / (FANOUT - 1)) * 1.001


@pytest.mark.parametrize("size", SIZES)
def test_sum_before(size: int) -> None:
    values = np.random.default_rng(size).integers(0, 9, size).astype(float)
    tree = filled(values)
    for index in {0, 1, size // 3, size - 1}:
        if index < size:
            assert sum_before(tree.nodes, tree.offsets, index) == values[:index].sum()
