"""Uniform draws from a ring of slots."""

from __future__ import annotations

import numba

__all__ = ["draw_uniform"]


@numba.njit(nogil=True, cache=True)
def draw_uniform(ring, head, count, uniforms, out):  # type: ignore[no-untyped-def]
    """Fill `out` with the ring's entries at uniform positions.

    Args:
        ring: ``[capacity]`` unsigned; ``count`` live entries from position `head` on, wrapping.
        head, count: int64; count at least 1.
        uniforms: ``[B] float64`` in [0, 1).
        out: ``[B] int64``.
    """
    capacity = ring.shape[0]
    for i in range(uniforms.shape[0]):
        position = head + min(int(uniforms[i] * count), count - 1)
        if position >= capacity:
            position -= capacity
        out[i] = ring[position]
