"""Prioritized replay one item at a time (Schaul et al. 2015)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

__all__ = ["ListPriorities"]


class ListPriorities:
    """Raw priorities by key, oldest first.

    Args:
        capacity: items held at most.
        alpha: exponent on priorities; 0 is uniform.
        beta, beta_final, beta_steps: the importance exponent goes in a straight line from `beta` to
            `beta_final` over `beta_steps` updates, then stays; None holds it at `beta`.
        eps: added to the absolute value that an update gives.
        normalise: divide weights by the largest of the mini-batch ("batch") or of all items ("buffer").
    """

    def __init__(
        self,
        capacity: int,
        *,
        alpha: float = 0.6,
        beta: float = 0.4,
        beta_final: float = 1.0,
        beta_steps: int | None = None,
        eps: float = 1e-6,
        normalise: str = "batch",
    ) -> None:
        self.capacity, self.alpha, self.eps, self.normalise = capacity, alpha, eps, normalise
        self.beta_0, self.beta_final, self.beta_steps = beta, beta_final, beta_steps
        self.priority: dict[int, float] = {}
        self.maximum = 1.0
        self.updates = 0

    def add(self, keys: Iterable[int], priority: float | None = None) -> None:
        """New items at the running maximum, or at a given priority, which raises the maximum."""
        for key in keys:
            if priority is not None:
                self.maximum = max(self.maximum, priority)
            self.priority[key] = self.maximum if priority is None else priority
            while len(self.priority) > self.capacity:
                del self.priority[next(iter(self.priority))]

    def update(self, keys: Sequence[int], values: Sequence[float]) -> list[int]:
        """Set priorities to ``abs(value) + eps``; the keys that are not held come back."""
        if any(math.isnan(v) or math.isinf(v) or v < 0 for v in values):
            raise ValueError("priorities must be finite and not negative")
        unknown = []
        for key, value in zip(keys, values, strict=True):
            if key not in self.priority:
                unknown.append(key)
                continue
            self.priority[key] = abs(value) + self.eps
            self.maximum = max(self.maximum, self.priority[key])
        self.updates += 1
        return unknown

    @property
    def beta(self) -> float:
        if self.beta_steps is None:
            return self.beta_0
        progress = min(1.0, self.updates / self.beta_steps)
        return self.beta_0 + (self.beta_final - self.beta_0) * progress

    def probability(self, key: int) -> float:
        total = math.fsum(p**self.alpha for p in self.priority.values())
        return self.priority[key] ** self.alpha / total

    def weights(self, keys: Sequence[int], beta: float | None = None) -> list[float]:
        """Importance weights of a mini-batch; what can't be drawn (probability 0) has none."""
        beta = self.beta if beta is None else beta
        count = len(self.priority)
        chances = {key: self.probability(key) for key in self.priority}
        raw = {key: (count * chance) ** -beta for key, chance in chances.items() if chance > 0}
        largest = max(raw[key] for key in keys) if self.normalise == "batch" else max(raw.values())
        return [raw[key] / largest for key in keys]
