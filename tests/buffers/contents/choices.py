"""Which episodes a reservoir chooses."""

from __future__ import annotations

import collections

import numpy as np


class Choices:
    """The numbers a buffer's reservoir draws, one at a time."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
        self.ready: collections.deque[int] = collections.deque()

    def offer(self, seen: int, count: int, capacity: int) -> None:
        numbers = np.arange(seen + 1, seen + count + 1)
        self.ready.extend(self.rng.integers(0, numbers[numbers > capacity]).tolist())

    def randrange(self, stop: int) -> int:
        number = self.ready.popleft()
        assert number < stop
        return number
