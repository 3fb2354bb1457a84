"""The order in which an epoch goes through its items."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlds2buf.kernels.shuffle import ROUNDS, shuffled

__all__ = ["Shuffle"]

_FEW = 1 << 16
"""Up to so many numbers are shuffled in memory: any order is as likely then, and it takes 256 KiB at most."""


class Shuffle:
    """A permutation of the numbers from 0 to ``count - 1``, of which any part is there without the rest.

    Args:
        count: at least 1.
        seed: non-negative integers; the same ones give the same permutation.

    >>> order = Shuffle(5, [0])
    >>> sorted(order.at(0, 1, 5).tolist())
    [0, 1, 2, 3, 4]
    >>> order.at(1, 2, 2).tolist() == order.at(0, 1, 5)[1::2].tolist()
    True
    """

    def __init__(self, count: int, seed: Sequence[int]) -> None:
        self.count = count
        self._bits = max(2, (count - 1).bit_length())
        self._kept: np.ndarray | None = None
        if count <= _FEW:
            self._kept = np.random.default_rng(list(seed)).permutation(count).astype(np.uint32)
        else:
            self._keys = np.random.SeedSequence(list(seed)).generate_state(ROUNDS, np.uint64)

    def at(self, first: int, step: int, size: int) -> np.ndarray:
        """``[size] int64``: what stands at the places ``first, first + step, ...``, all of them below `count`."""
        if self._kept is not None:
            return self._kept[first : first + step * size : step].astype(np.int64)
        out = np.empty(size, np.int64)
        shuffled(first, step, self.count, self._bits, self._keys, out)
        return out
