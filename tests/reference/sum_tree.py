"""A sum tree as a list of leaves, added up afresh every time."""

from __future__ import annotations

import math
from collections.abc import Iterable

__all__ = ["ListTree"]


class ListTree:
    """`capacity` non-negative leaves."""

    def __init__(self, capacity: int) -> None:
        self.leaves = [0.0] * capacity

    @property
    def total(self) -> float:
        return math.fsum(self.leaves)

    def set(self, indices: Iterable[int], values: Iterable[float]) -> None:
        """One after the other, so the last of several equal indices stays."""
        for index, value in zip(indices, values, strict=True):
            self.leaves[int(index)] = float(value)

    def get(self, indices: Iterable[int]) -> list[float]:
        return [self.leaves[int(index)] for index in indices]

    def interval(self, index: int) -> tuple[float, float]:
        """The targets ``[low, high)`` that belong to a leaf."""
        low = math.fsum(self.leaves[:index])
        return low, math.fsum(self.leaves[: index + 1])

    def sample(self, targets: Iterable[float]) -> list[int]:
        """For each target the leaf whose interval of the running sum holds it; ties go right."""
        out = []
        for target in targets:
            if not 0 <= target < self.total:
                raise ValueError(f"the target must be in [0, {self.total}), got {target}")
            running, found = 0.0, -1
            for index, leaf in enumerate(self.leaves):
                running += leaf
                if leaf > 0 and target < running:
                    found = index
                    break
            if found < 0:  # rounding of the running sum: the last leaf that isn't empty
                found = max(i for i, leaf in enumerate(self.leaves) if leaf > 0)
            out.append(found)
        return out
