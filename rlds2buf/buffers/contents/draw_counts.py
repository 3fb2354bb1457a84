"""How often items were sampled before they left."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

__all__ = ["Hits"]

_WINDOW = 1000
_QUANTILES = (0.0, 0.1, 0.5, 0.9, 1.0)


class Hits:
    """Counts draws of each held item, and remembers the counts of the last 1000 that left.

    Counts are not saved: a loaded buffer counts anew.

    Args:
        slots: rows of the store; 4 bytes each.

    >>> hits = Hits(4)
    >>> hits.drawn(np.array([0, 0, 1]))
    >>> hits.left(np.array([0, 1]))
    >>> hits.summary()["mean"]
    1.5
    """

    def __init__(self, slots: int) -> None:
        self.counts = np.zeros(slots, np.uint32)
        self._last: deque[int] = deque(maxlen=_WINDOW)

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        return int(self.counts.nbytes)

    def drawn(self, slots: np.ndarray) -> None:
        """Items in ``slots [B] int64`` were sampled; of repeated ones each counts."""
        np.add.at(self.counts, slots, 1)

    def left(self, slots: np.ndarray) -> None:
        """Items in ``slots [n] int64`` left, oldest first; -1 is one that came and left at once."""
        last = slots[-_WINDOW:]
        drawn = np.zeros(len(last), np.uint32)
        drawn[last >= 0] = self.counts[last[last >= 0]]
        self._last.extend(drawn.tolist())
        self.counts[slots[slots >= 0]] = 0

    def moved(self, before: np.ndarray, after: np.ndarray, slots: int) -> None:
        """Items that were in slots `before` are in `after` now, of so many slots."""
        counts = np.zeros(slots, np.uint32)
        counts[after] = self.counts[before]
        self.counts = counts

    def summary(self) -> dict[str, Any]:
        """``count`` of evictions looked at, and ``mean``, ``std`` and ``quantiles`` of their draws (NaN for none)."""
        last = np.array(self._last, np.float64)
        if not len(last):
            return {"count": 0, "mean": np.nan, "std": np.nan, "quantiles": dict.fromkeys(_QUANTILES, np.nan)}
        quantiles = np.quantile(last, _QUANTILES).tolist()
        return {
            "count": len(last),
            "mean": float(last.mean()),
            "std": float(last.std()),
            "quantiles": dict(zip(_QUANTILES, quantiles, strict=True)),
        }
