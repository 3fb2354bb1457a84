"""Algorithm R (Vitter 1985), one item at a time."""

from __future__ import annotations

import random
from typing import Any

__all__ = ["ListReservoir"]


class ListReservoir:
    """After n items each of them is held with probability ``min(1, capacity / n)``."""

    def __init__(self, capacity: int, rng: random.Random) -> None:
        self.capacity = capacity
        self.rng = rng
        self.items: list[Any] = []
        self.seen = 0

    def add(self, item: Any) -> None:
        self.seen += 1
        if len(self.items) < self.capacity:
            self.items.append(item)
            return
        slot = self.rng.randrange(self.seen)
        if slot < self.capacity:
            self.items[slot] = item
