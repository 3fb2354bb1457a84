"""Uniform draws and keys of a ring, one at a time."""

from __future__ import annotations

import numpy as np
import pytest

from rlds2buf.kernels.ring import draw_uniform, keys_of


@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
@pytest.mark.parametrize(
    ("capacity", "head", "count"), [(1, 0, 1), (5, 0, 5), (5, 3, 5), (5, 4, 3), (8, 7, 1), (9, 2, 4)]
)
def test_draw_uniform(capacity: int, head: int, count: int, dtype: type) -> None:
    ring = (np.arange(capacity) * 10).astype(dtype)
    live = [int(ring[(head + i) % capacity]) for i in range(count)]
    uniforms = np.concatenate([np.linspace(0, 1, 4 * count + 1)[:-1], [np.nextafter(1.0, 0.0)]])
    slots, facts = np.zeros(len(uniforms), np.int64), np.zeros((3, len(uniforms)))
    draw_uniform(ring, head, count, uniforms, slots, facts)
    assert slots.tolist() == [live[min(int(u * count), count - 1)] for u in uniforms]
    assert np.bincount(slots[:-1] // 10).max() == 4  # each entry has its equal part of [0, 1)
    assert set(slots.tolist()) == set(live)
    assert (facts[0] == 1 / count).all() and (facts[1:] == 1).all()


def test_a_uniform_just_below_one_stays_inside() -> None:
    count = (1 << 53) - 1
    assert int(np.nextafter(1.0, 0.0) * count) < count
    for count in (3, 7, 10**6 + 3):
        ring = np.arange(count, dtype=np.uint32)
        slots, facts = np.zeros(1, np.int64), np.zeros((3, 1))
        draw_uniform(ring, 0, count, np.array([np.nextafter(1.0, 0.0)]), slots, facts)
        assert slots[0] == count - 1


@pytest.mark.parametrize("capacity", [1, 2, 7, 8])
@pytest.mark.parametrize("oldest_key", [0, 3, 1_000_003, 1 << 40])
def test_keys_of(capacity: int, oldest_key: int) -> None:
    for oldest_slot in range(capacity):
        slots = np.arange(capacity)
        keys = np.zeros(capacity, np.uint64)
        keys_of(slots, capacity, oldest_slot, oldest_key, keys)
        for age in range(capacity):
            assert keys[(oldest_slot + age) % capacity] == oldest_key + age
