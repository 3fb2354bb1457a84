"""A ring of values as a plain list: the oldest leave first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["ListRing"]


class ListRing:
    """At most `capacity` values, oldest first in `values`."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.values: list[Any] = []

    def append(self, value: Any) -> None:
        self.values.append(value)
        self._evict()

    def extend(self, values: Iterable[Any]) -> None:
        for value in values:
            self.append(value)

    def resize(self, capacity: int) -> None:
        self.capacity = capacity
        self._evict()

    def _evict(self) -> None:
        while len(self.values) > self.capacity:
            self.values.pop(0)
