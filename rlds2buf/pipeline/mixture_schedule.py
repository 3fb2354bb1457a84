"""Whose turn it is in a mixture."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from rlds2buf.core.hashing import unit_intervals

__all__ = ["STOPS", "Schedule"]

STOPS = ("all", "first", "never")
_BLOCK = 4096


class Schedule:
    """Turns of several sources: a pure function of their counts, the weights and the seed.

    Turn p is drawn with :func:`~rlds2buf.core.hashing.unit_interval` of index p and purpose
    ``"mixture"``, among the sources that have something left.

    Args:
        counts: how many items each source has.
        weights: one positive number each; None: one source behind the other.
        seed: of the draws.
        stop: ``"all"``, ``"first"`` or ``"never"``: when the turns end.

    Attributes:
        counts: ``[S] int64``.

    Raises:
        ValueError: as :meth:`check`; or the turns should never end, and a source has no items.

    >>> [owners.tolist() for owners in Schedule([2, 3], None, 0, "all").owners()]
    [[0, 0, 1, 1, 1]]
    """

    def __init__(self, counts: Sequence[int], weights: Sequence[float] | None, seed: int, stop: str) -> None:
        self.check(weights, seed, stop)
        if stop == "never" and 0 in counts:
            raise ValueError(f"source {list(counts).index(0)} has no episodes to begin again with")
        self.counts = np.asarray(counts, np.int64)
        self._weights = None if weights is None else np.asarray(weights, np.float64)
        self._seed = seed
        self._stop = stop

    @staticmethod
    def check(weights: Sequence[float] | None, seed: int, stop: str) -> None:
        """Raise unless they are in range.

        Raises:
            ValueError: an unknown `stop`, one other than ``"all"`` without weights, or a weight that is not
                a positive number.
        """
        if stop not in STOPS:
            raise ValueError(f"stop must be one of {', '.join(STOPS)}, got {stop!r}")
        if weights is None and stop != "all":
            raise ValueError(f"stop={stop!r} needs weights: without them the sources follow each other")
        wrong = [weight for weight in weights or () if not (weight > 0 and math.isfinite(weight))]
        if wrong:
            raise ValueError(f"a weight must be a positive number, got {wrong[0]}")

    def __len__(self) -> int:
        """How many turns there are, where they end."""
        return len(self._drawn)

    def owners(self, start: int = 0, stop: int | None = None) -> Iterator[np.ndarray]:
        """Whose the turns ``start`` up to (not with) ``stop`` are, some at a time: ``[n] int32``.

        A source's items come in its own order; where turns never end, it begins again behind its last one.
        """
        if self._stop != "never":
            yield self._drawn[start:stop]
            return
        everyone = np.ones(len(self.counts), np.bool_)
        for first in itertools.count(start, _BLOCK):
            count = _BLOCK if stop is None else min(_BLOCK, stop - first)
            if count <= 0:
                return
            yield self._draw(first, count, everyone)

    def taken(self, turn: int) -> np.ndarray:
        """``[S] int64``: how many turns each source has had before this one."""
        taken = np.zeros(len(self.counts), np.int64)
        for owners in self.owners(0, turn):
            taken += np.bincount(owners, minlength=len(taken))
        return taken

    @functools.cached_property
    def _drawn(self) -> np.ndarray:
        """``[turns] int32``: whose each turn is."""
        if self._weights is None:
            return np.repeat(np.arange(len(self.counts), dtype=np.int32), self.counts)
        left, parts, total = self.counts.copy(), [np.zeros(0, np.int32)], 0
        ended = (left == 0).any() if self._stop == "first" else False
        while left.any() and not ended:
            # Nobody runs out before the first that reaches its count, so up to there the odds stay.
            drawn = self._draw(total, int(left.sum()), left > 0)
            ends = [np.flatnonzero(drawn == number)[count - 1 : count] for number, count in enumerate(left) if count]
            known = [int(end[0]) for end in ends if len(end)]
            drawn = drawn[: min(known) + 1]
            parts.append(drawn)
            total += len(drawn)
            left -= np.bincount(drawn, minlength=len(left))
            ended = self._stop == "first"
        return np.concatenate(parts)

    def _draw(self, start: int, count: int, among: np.ndarray) -> np.ndarray:
        assert self._weights is not None
        shares = np.cumsum(np.where(among, self._weights, 0))
        points = unit_intervals(self._seed, count, "mixture", start=start) * shares[-1]
        last = np.flatnonzero(among)[-1]  # rounding may put a point on the far edge
        return np.minimum(np.searchsorted(shares, points, side="right"), last).astype(np.int32)
