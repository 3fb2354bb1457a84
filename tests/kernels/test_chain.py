"""Walking chains against walking them step by step in Python."""

from __future__ import annotations

import numpy as np
import pytest

from rlds2buf.core.row_flags import BREAK, CODE, LINKED
from rlds2buf.kernels.chain import finish, walk

OTHER_BITS = 0b00111100


def follow(flags: list[int], links: list[int], start: int, limit: int) -> list[int]:
    """One chain, one slot at a time."""
    visited = [start]
    while len(visited) < limit:
        flag = flags[visited[-1]]
        if flag & (CODE | BREAK):
            break
        following = links[visited[-1]] if flag & LINKED else (visited[-1] + 1) % len(flags)
        if flags[following] & CODE == 3:  # it left
            break
        visited.append(following)
    return visited


@pytest.mark.parametrize("capacity", [1, 2, 3, 7, 8, 9, 100])
@pytest.mark.parametrize("limit", [1, 2, 5, 23])
def test_walk(capacity: int, limit: int) -> None:
    rng = np.random.default_rng(100 * capacity + limit)
    for _ in range(20):
        flags = rng.choice([0, 0, 0, 1, 2, 3, BREAK, LINKED, LINKED | BREAK, LINKED | 1], capacity).astype(np.uint8)
        flags |= rng.integers(0, 256, capacity).astype(np.uint8) & np.uint8(OTHER_BITS)  # of no meaning here
        links = rng.integers(0, capacity, capacity)
        starts = rng.integers(0, capacity, 17)
        out, steps = np.full((17, limit), -1, np.int64), np.full(17, -1, np.int32)
        walk(flags, links, starts, out, steps)
        for i, start in enumerate(starts.tolist()):
            expected = follow(flags.tolist(), links.tolist(), start, limit)
            assert steps[i] == len(expected)
            assert out[i].tolist() == expected + [expected[-1]] * (limit - len(expected))


def test_walk_without_links_or_starts() -> None:
    out, steps = np.zeros((2, 3), np.int64), np.zeros(2, np.int32)
    walk(np.array([0, 0, 1], np.uint8), np.zeros(0, np.int64), np.array([0, 1]), out, steps)
    assert out.tolist() == [[0, 1, 2], [1, 2, 2]] and steps.tolist() == [3, 2]
    walk(np.zeros(3, np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 3), np.int64), steps[:0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_finish(dtype: type) -> None:
    rng = np.random.default_rng(0)
    flags = rng.integers(0, 256, 50).astype(np.uint8)
    codes = flags & CODE
    discount = rng.random(50).astype(dtype)
    logged = discount.copy()
    steps, bootstrap = np.zeros(50, np.int32), np.zeros(50, np.float32)
    finish(flags, discount, 0.5, steps, bootstrap)
    assert flags.tolist() == codes.tolist() and (steps == 1).all()
    expected = [0.0 if code == 1 else float(d) for code, d in zip(codes, logged, strict=True)]
    assert discount.tolist() == expected
    assert bootstrap.tolist() == [np.float32(0.5 * value) for value in expected]
