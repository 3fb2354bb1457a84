"""Drawing by priority and setting priorities, each in one compiled call."""

from __future__ import annotations

import numpy as np

from rlds2buf.kernels.compiled import compiled
from rlds2buf.kernels.prefetch import prefetch
from rlds2buf.kernels.sum_tree import descend, refresh, sum_before

__all__ = ["draw_prioritized", "update_priorities"]


@compiled
def draw_prioritized(nodes, offsets, first, priority, uniforms, count, beta, least, slots, facts):  # type: ignore[no-untyped-def]
    """Draw leaves and say what their importance is.

    Args:
        nodes, offsets: of the sum tree over ``priority**alpha``.
        first: the oldest row's slot. Uniforms run from there on, so that a draw depends on what is
            held and not on where it lies.
        priority: ``[capacity] float64``, raw.
        uniforms: ``[B] float64`` in [0, 1); empty if `slots` are chosen already.
        count: N, how many transitions there are.
        beta: exponent of the weights.
        least: the smallest leaf of the buffer to normalise by, or 0 for the batch's largest weight.
        slots: ``[B] int64``, filled.
        facts: ``[3, B] float64``, filled with probability, raw priority and weight.
    """
    total = nodes[nodes.shape[0] - 1]
    if uniforms.shape[0]:
        ahead = sum_before(nodes, offsets, first)
        targets = uniforms * total + ahead
        for i in range(targets.shape[0]):
            if targets[i] >= total:
                targets[i] -= total
            targets[i] = min(targets[i], np.nextafter(total, 0.0))
        descend(nodes, offsets, targets, slots)
    column = priority.ctypes.data
    for i in range(slots.shape[0]):
        prefetch(column + slots[i] * 8)  # its misses pass while the weights are worked out
    smallest = least
    if least == 0.0:
        smallest = np.inf
        for i in range(slots.shape[0]):
            smallest = min(smallest, nodes[slots[i]])
    for i in range(slots.shape[0]):
        leaf = nodes[slots[i]]
        facts[0, i] = leaf / total
        # (N * P)**-beta over the largest such: N and the total cancel.
        facts[2, i] = (smallest / leaf) ** beta
    for i in range(slots.shape[0]):
        facts[1, i] = priority[slots[i]]


@compiled
def update_priorities(nodes, offsets, priority, slots, values, alpha, eps):  # type: ignore[no-untyped-def]
    """Set raw priorities to ``values + eps`` and the tree accordingly; returns the largest set.

    The last of repeated slots wins.
    """
    top = 0.0
    for i in range(slots.shape[0]):
        raw = values[i] + eps
        top = max(top, raw)
        priority[slots[i]] = raw
        nodes[slots[i]] = raw**alpha
    refresh(nodes, offsets, slots)
    return top
