"""Drawing by priority and setting priorities, each in one compiled call."""

from __future__ import annotations

import math

import numpy as np

from rlds2buf.kernels.compiled import compiled
from rlds2buf.kernels.prefetch import prefetch
from rlds2buf.kernels.sum_tree import (
    descend,
    descend_numpy,
    refresh,
    refresh_numpy,
    sum_before,
    sum_before_numpy,
)

__all__ = ["draw_prioritized", "update_priorities"]


def draw_prioritized_numpy(
    nodes: np.ndarray,
    offsets: np.ndarray,
    first: int,
    priority: np.ndarray,
    uniforms: np.ndarray,
    count: int,
    beta: float,
    least: float,
    slots: np.ndarray,
    facts: np.ndarray,
) -> None:
    """:func:`draw_prioritized`."""
    total = float(nodes[-1])
    if len(uniforms):
        targets = uniforms * total + sum_before_numpy(nodes, offsets, first)
        targets[targets >= total] -= total
        np.minimum(targets, np.nextafter(total, 0.0), out=targets)
        descend_numpy(nodes, offsets, targets, slots)
    leaves = nodes[slots]
    smallest = least or leaves.min(initial=np.inf)
    facts[0] = leaves / total
    facts[1] = priority[slots]
    facts[2] = _powers(smallest / leaves, beta)


def update_priorities_numpy(
    nodes: np.ndarray,
    offsets: np.ndarray,
    priority: np.ndarray,
    slots: np.ndarray,
    values: np.ndarray,
    alpha: float,
    eps: float,
) -> float:
    """:func:`update_priorities`."""
    raw = values + eps
    priority[slots] = raw
    nodes[slots] = _powers(raw, alpha)
    refresh_numpy(nodes, offsets, slots)
    return float(raw.max(initial=0.0))


def _powers(values: np.ndarray, exponent: float) -> list[float]:
    """By C's ``pow``, as compiled code has them: numpy's own may differ in the last bit."""
    return [math.pow(value, exponent) for value in values.tolist()]


@compiled(twin=draw_prioritized_numpy)
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


@compiled(twin=update_priorities_numpy)
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
