"""Uniform draws from a ring of slots."""

from __future__ import annotations

import numpy as np

from rlds2buf.kernels.compiled import compiled

__all__ = ["draw_uniform", "keys_of"]


def draw_uniform_numpy(
    ring: np.ndarray, head: int, count: int, uniforms: np.ndarray, slots: np.ndarray, facts: np.ndarray
) -> None:
    """:func:`draw_uniform`."""
    position = head + np.minimum((uniforms * count).astype(np.int64), count - 1)
    position[position >= len(ring)] -= len(ring)
    slots[:] = ring[position]
    facts[0], facts[1:] = 1.0 / count, 1.0


def keys_of_numpy(slots: np.ndarray, capacity: int, oldest_slot: int, oldest_key: int, keys: np.ndarray) -> None:
    """:func:`keys_of`."""
    age = slots - oldest_slot
    age[age < 0] += capacity
    keys[:] = oldest_key + age


@compiled(twin=draw_uniform_numpy)
def draw_uniform(ring, head, count, uniforms, slots, facts):  # type: ignore[no-untyped-def]
    """Fill `slots` with the ring's entries at uniform positions.

    Args:
        ring: ``[capacity]`` unsigned; ``count`` live entries from position `head` on, wrapping.
        head, count: int64; count at least 1.
        uniforms: ``[B] float64`` in [0, 1).
        slots: ``[B] int64``.
        facts: ``[3, B] float64``, filled with each draw's probability, priority 1 and weight 1.
    """
    capacity = ring.shape[0]
    for i in range(uniforms.shape[0]):
        position = head + min(int(uniforms[i] * count), count - 1)
        if position >= capacity:
            position -= capacity
        slots[i] = ring[position]
        facts[0, i] = 1.0 / count
        facts[1, i] = 1.0
        facts[2, i] = 1.0


@compiled(twin=keys_of_numpy)
def keys_of(slots, capacity, oldest_slot, oldest_key, keys):  # type: ignore[no-untyped-def]
    """Fill `keys` ``[B] uint64`` with those of rows in a ring, whose oldest row and key are given."""
    for i in range(slots.shape[0]):
        age = slots[i] - oldest_slot
        if age < 0:
            age += capacity
        keys[i] = oldest_key + age
