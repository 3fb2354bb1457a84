"""Algorithm R (Vitter 1985), one item at a time."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from rlds2buf.core.episode import Episode
from tests.reference.replay import ListReplay

__all__ = ["ListReservoir", "ReservoirReplay"]


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


class ReservoirReplay(ListReplay):
    """A replay buffer that remembers every row there ever was, and lets only transitions held be seen."""

    def __init__(self, capacity: int, rng: Any) -> None:
        super().__init__(10**9)
        self.held = ListReservoir(capacity, rng)

    def add_episode(self, episode: Episode, source: int = 0) -> list[int]:
        return self._offer(super().add_episode(episode, source))

    def add_transitions(self, items: Sequence[Mapping[str, Any]], sources: int | Sequence[int] = 0) -> list[int]:
        return self._offer(super().add_transitions(items, sources))

    def _offer(self, serials: list[int]) -> list[int]:
        for serial in serials:
            self.held.add(serial)
        return serials

    def keys(self) -> list[int]:
        return sorted(self.held.items)

    def of_source(self, source: int) -> list[int]:
        return [serial for serial in self.keys() if self.rows[self._position(serial)].source == source]

    def _after(self, i: int) -> int | None:
        following = super()._after(i)
        return None if following is None or self.rows[following].serial not in self.held.items else following
