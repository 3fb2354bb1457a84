"""Whose turn it is in a mixture, drawn one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rlds2buf.core.hashing import unit_interval

__all__ = ["turns"]


def turns(counts: Sequence[int], weights: Sequence[float] | None, seed: int, stop: str) -> Iterator[tuple[int, int]]:
    """Yield source and item number."""
    if weights is None:
        for number, count in enumerate(counts):
            for index in range(count):
                yield number, index
        return
    taken = [0] * len(counts)
    turn = 0
    while True:
        gone = [stop != "never" and taken[i] == counts[i] for i in range(len(counts))]
        if all(gone) or (stop == "first" and any(gone)):
            return
        point = unit_interval(seed, turn, "mixture") * sum(w for w, g in zip(weights, gone, strict=True) if not g)
        for number, weight in enumerate(weights):
            if gone[number]:
                continue
            if point < weight or not any(not g for g in gone[number + 1 :]):
                break
            point -= weight
        yield number, taken[number] % counts[number]
        taken[number] += 1
        turn += 1
