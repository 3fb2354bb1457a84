"""Keys that say what an item is: the same item gets the same key in every run.

Reverb treats an insert of a key that is there as an update, so a repeated push changes nothing.
The mixing function is that of SplitMix64 (Steele, Lea and Flood, 2014, "Fast splittable pseudorandom
number generators").
"""

from __future__ import annotations

import hashlib

import numpy as np

__all__ = ["keys_of", "seed_of", "shard_of"]

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


def seed_of(*parts: str) -> int:
    """A 64-bit number from texts; their borders count.

    >>> seed_of("ab", "c") == seed_of("a", "bc")
    False
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return int.from_bytes(digest.digest(), "little")


def keys_of(seed: int, episode: int, numbers: np.ndarray) -> np.ndarray:
    """Keys ``[I] uint64`` of things numbered `numbers` (``[I]``, distinct) in an episode; distinct inside it.

    Two things of different episodes meet with the chance of random 64-bit numbers.

    >>> keys_of(1, 0, np.arange(2)) == keys_of(1, 0, np.array([0, 1]))
    array([ True,  True])
    """
    start = _mix(np.array([(seed + _GOLDEN * (episode + 1)) & _MASK], np.uint64))
    steps = np.asarray(numbers).astype(np.uint64) + np.uint64(1)
    return _mix(start + steps * np.uint64(_GOLDEN))


def shard_of(seed: int, episode: int, shards: int) -> int:
    """Which of `shards` an episode belongs to, the same in every run.

    >>> shard_of(7, 0, 1)
    0
    """
    return int(keys_of(seed, episode, np.zeros(1, np.int64))[0] % np.uint64(shards))


def _mix(values: np.ndarray) -> np.ndarray:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
