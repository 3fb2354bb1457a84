"""A wide sum tree: draws proportional to leaf values, in logarithmic time.

Sixteen children a node: a node's children are two cache lines side by side, and a million leaves
are five levels, where a binary tree has twenty, each a miss.  Parents are always recomputed from
their children, never adjusted by differences, so that no error builds up.
"""

from __future__ import annotations

import itertools

import numpy as np

from rlds2buf.kernels.compiled import compiled
from rlds2buf.kernels.prefetch import prefetch

__all__ = ["FANOUT", "SumTree", "descend", "refresh", "refresh_least", "sum_before", "write_leaves"]

_BITS = 4
FANOUT = 1 << _BITS
_FAMILY = np.arange(FANOUT)


def refresh_numpy(nodes: np.ndarray, offsets: np.ndarray, indices: np.ndarray) -> None:
    """:func:`refresh`; the sums run from the first child to the last, as there."""
    for level in range(len(offsets) - 1):
        indices = _parents(indices)
        families = nodes[int(offsets[level]) + indices[:, None] * FANOUT + _FAMILY]
        nodes[offsets[level + 1] + indices] = families.cumsum(axis=1)[:, -1]


def refresh_least_numpy(nodes: np.ndarray, offsets: np.ndarray, indices: np.ndarray) -> None:
    """:func:`refresh_least`."""
    for level in range(len(offsets) - 1):
        indices = _parents(indices)
        nodes[offsets[level + 1] + indices] = nodes[int(offsets[level]) + indices[:, None] * FANOUT + _FAMILY].min(1)


def _parents(indices: np.ndarray) -> np.ndarray:
    parents = indices // FANOUT
    return parents[np.append(True, parents[1:] != parents[:-1])] if len(parents) else parents


def write_leaves_numpy(nodes: np.ndarray, offsets: np.ndarray, indices: np.ndarray, values: np.ndarray) -> None:
    """:func:`write_leaves`."""
    nodes[indices] = values
    refresh_numpy(nodes, offsets, indices)


def descend_numpy(nodes: np.ndarray, offsets: np.ndarray, targets: np.ndarray, out: np.ndarray) -> None:
    """:func:`descend`."""
    out[:] = 0
    for level in range(len(offsets) - 2, -1, -1):
        families = nodes[int(offsets[level]) + out[:, None] * FANOUT + _FAMILY]
        reached = families.cumsum(axis=1)
        chosen = (targets[:, None] >= reached).sum(axis=1)
        passed = np.where(chosen > 0, reached[np.arange(len(out)), np.minimum(chosen, FANOUT) - 1], 0.0)
        beyond = np.flatnonzero(chosen == FANOUT)
        for i in beyond.tolist():
            chosen[i] = np.flatnonzero(families[i] > 0.0)[-1:].sum()
            passed[i] = targets[i]
        targets -= passed
        out[:] = out * FANOUT + chosen


def sum_before_numpy(nodes: np.ndarray, offsets: np.ndarray, index: int) -> float:
    """:func:`sum_before`."""
    total = 0.0
    for offset in offsets[:-1].tolist():
        first = index // FANOUT * FANOUT
        for value in nodes[offset + first : offset + index].tolist():
            total += value
        index //= FANOUT
    return total


@compiled(twin=refresh_numpy)
def refresh(nodes, offsets, indices):  # type: ignore[no-untyped-def]
    """Recompute all ancestors of the leaves ``indices [K] int64``, level by level.

    Args:
        nodes: all levels one after the other, leaves first, each padded to whole families.
        offsets: ``[L + 1] int64``, where each level starts in `nodes`; the last one is the root's.
    """
    shift = 0
    for level in range(offsets.shape[0] - 1):
        below, here = offsets[level], offsets[level + 1]
        shift += _BITS
        previous = -1
        for i in range(indices.shape[0]):
            parent = indices[i] >> shift  # a division would be most of the work
            if parent == previous:  # neighbours share it, as rows added in bulk do
                continue
            previous = parent
            start = below + parent * FANOUT
            total = 0.0
            for j in range(FANOUT):
                total += nodes[start + j]
            nodes[here + parent] = total


@compiled(twin=refresh_least_numpy)
def refresh_least(nodes, offsets, indices):  # type: ignore[no-untyped-def]
    """As :func:`refresh`, with the smallest child in place of the sum."""
    shift = 0
    for level in range(offsets.shape[0] - 1):
        below, here = offsets[level], offsets[level + 1]
        shift += _BITS
        previous = -1
        for i in range(indices.shape[0]):
            parent = indices[i] >> shift  # a division would be most of the work
            if parent == previous:
                continue
            previous = parent
            start = below + parent * FANOUT
            least = nodes[start]
            for j in range(1, FANOUT):
                least = min(least, nodes[start + j])
            nodes[here + parent] = least


@compiled(twin=write_leaves_numpy)
def write_leaves(nodes, offsets, indices, values):  # type: ignore[no-untyped-def]
    """Set leaves, the last of repeated indices winning, and their ancestors."""
    for i in range(indices.shape[0]):
        nodes[indices[i]] = values[i]
    refresh(nodes, offsets, indices)


@compiled(twin=descend_numpy)
def descend(nodes, offsets, targets, out):  # type: ignore[no-untyped-def]
    """Find for each target the leaf whose cumulative interval holds it.

    All targets go down together, one level at a time, so that their cache misses overlap.

    Args:
        targets: ``[B] float64`` with ``0 <= target < root``; overwritten.
        out: ``[B] int64``, filled with leaves of positive value.
    """
    count = targets.shape[0]
    base = nodes.ctypes.data
    for i in range(count):
        out[i] = 0
    for level in range(offsets.shape[0] - 2, -1, -1):
        below = offsets[level]
        for i in range(count):
            start = below + out[i] * FANOUT
            target = targets[i]
            # Count the children whose interval ends at or before the target: no branch that the
            # processor would guess wrong, and a child of value 0 is never where the counting stops.
            chosen = 0
            reached = 0.0
            passed = 0.0
            for j in range(FANOUT):
                reached += nodes[start + j]
                if target >= reached:
                    chosen += 1
                    passed = reached
            if chosen == FANOUT:
                # Rounding left the target beyond the last child: the last positive one it is.
                chosen, passed = _last_positive(nodes, start), target
            targets[i] = target - passed
            out[i] = out[i] * FANOUT + chosen
            if level:
                family = base + (offsets[level - 1] + out[i] * FANOUT) * 8
                prefetch(family)
                prefetch(family + 64)


@compiled
def _last_positive(nodes, start):  # type: ignore[no-untyped-def]
    for j in range(FANOUT - 1, -1, -1):
        if nodes[start + j] > 0.0:
            return j
    return 0


@compiled(twin=sum_before_numpy)
def sum_before(nodes, offsets, index):  # type: ignore[no-untyped-def]
    """The sum of the leaves in front of leaf `index`."""
    total = 0.0
    for level in range(offsets.shape[0] - 1):
        for j in range(index // FANOUT * FANOUT, index):
            total += nodes[offsets[level] + j]
        index //= FANOUT
    return total


class SumTree:
    """Values ``float64`` of `capacity` leaves, and their sums.

    Args:
        capacity: how many leaves, at least 0; all 0 at first.

    >>> tree = SumTree(5)
    >>> tree.set(np.array([0, 3, 4]), np.array([1.0, 2.0, 1.0]))
    >>> tree.total, tree.sample(np.array([0.5, 1.0, 2.9, 3.5])).tolist()
    (4.0, [0, 3, 3, 4])
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        widths = [max(capacity, 1)]
        while widths[-1] > 1:
            widths.append(-(-widths[-1] // FANOUT))
        # Every level but the root is read as whole families.
        padded = [-(-width // FANOUT) * FANOUT for width in widths[:-1]] + [1]
        self.offsets = np.concatenate([[0], np.cumsum(padded[:-1])]).astype(np.int64)
        self.nodes = np.zeros(int(sum(padded)), np.float64)

    @property
    def total(self) -> float:
        """The sum of all leaves."""
        return float(self.nodes[-1])

    @property
    def leaves(self) -> np.ndarray:
        """``[capacity] float64``; a view, not to be written."""
        return self.nodes[: self.capacity]

    @property
    def nbytes(self) -> int:
        """Bytes of all levels."""
        return int(self.nodes.nbytes)

    def set(self, indices: np.ndarray, values: np.ndarray) -> None:
        """Set leaves ``indices [K] int64`` to ``values [K] float64``, 0 or more; the last duplicate wins."""
        write_leaves(self.nodes, self.offsets, indices, values)

    def get(self, indices: np.ndarray) -> np.ndarray:
        """Values ``[K] float64`` of leaves."""
        return self.nodes[indices]

    def sample(self, targets: np.ndarray) -> np.ndarray:
        """Leaves ``[B] int64`` for targets ``[B] float64`` in ``[0, total)``; the total must be positive."""
        out = np.empty(len(targets), np.int64)
        descend(self.nodes, self.offsets, np.array(targets, np.float64), out)
        return out

    def check_valid(self) -> None:
        """Assert that every parent is the sum of its children; for tests."""
        assert (self.nodes >= 0).all()
        levels = np.split(self.nodes, self.offsets[1:])
        for below, here in itertools.pairwise(levels):
            families = below.reshape(-1, FANOUT)
            sums = np.zeros(len(families))
            for j in range(FANOUT):
                sums = sums + families[:, j]
            assert np.array_equal(here[: len(families)], sums)
            assert not here[len(families) :].any()
