"""Chance that can be repeated: numbers that follow from a seed and an episode's index alone."""

from __future__ import annotations

import hashlib

import numpy as np

__all__ = ["unit_interval", "unit_intervals", "unit_intervals_of"]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def unit_interval(seed: int, index: int, purpose: str = "split") -> float:
    """A number in ``[0, 1)`` that looks random and depends on nothing but the arguments.

    So a choice made by it is the same in every process, whatever was read before, and when a killed
    run goes on.  A split into train and validation compares it with the fraction::

        is_validation = unit_interval(seed, episode.index) < val_fraction

    The generator is SplitMix64 (Steele, Lea, Flood 2014, https://doi.org/10.1145/2714064.2660195),
    started from a BLAKE2b hash of seed and purpose.

    Args:
        seed: any integer.
        index: 0 or more: which number of the sequence, usually an episode's index in its source.
        purpose: choices of different purpose are independent of each other.

    Raises:
        ValueError: the index is negative.

    >>> [round(unit_interval(0, index), 3) for index in range(4)]
    [0.525, 0.366, 0.222, 0.408]
    """
    if index < 0:
        raise ValueError(f"index must not be negative, got {index}")
    z = (_key(seed, purpose) + (index + 1) * _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * _FIRST) & _MASK
    z = ((z ^ (z >> 27)) * _SECOND) & _MASK
    return ((z ^ (z >> 31)) >> 11) * 2.0**-53


def unit_intervals(seed: int, count: int, purpose: str = "split", *, start: int = 0) -> np.ndarray:
    """:func:`unit_interval` of `count` indices from `start` on, as ``[count] float64``.

    >>> bool(unit_intervals(7, 100)[42] == unit_interval(7, 42))
    True
    """
    return unit_intervals_of(seed, np.arange(start, start + count), purpose)


def unit_intervals_of(seed: int, indices: np.ndarray, purpose: str = "split") -> np.ndarray:
    """:func:`unit_interval` of each of some indices, 0 or more, ``[n]``, as ``[n] float64``.

    >>> unit_intervals_of(0, np.array([3, 1])).round(3).tolist()
    [0.408, 0.366]
    """
    z = (indices.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN) + np.uint64(_key(seed, purpose))
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_FIRST)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_SECOND)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53


def _key(seed: int, purpose: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{purpose}:{seed}".encode(), digest_size=8).digest(), "little")
