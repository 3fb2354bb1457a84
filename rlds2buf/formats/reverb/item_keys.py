"""Keys that say what an item is: the same item gets the same key in every run.

Reverb treats an insert of a key that is there as an update, so a repeated push changes nothing.
The mixing function is that of SplitMix64 (Steele, Lea and Flood, 2014, "Fast splittable pseudorandom
number generators").
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import crc32c
import numpy as np

__all__ = ["EpisodeKeys", "KeyMaker", "checksum", "keys_of", "seed_of"]

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


class KeyMaker:
    """Keys for one push: of a dataset, into a table, by a pattern.

    Beside where an item comes from (dataset, episode, step) and what it is (table, pattern), the
    checksum of its episode's rows goes into its key: not every source can tell by its fingerprint
    that its data have changed, and an item with other rows must not pass for the old one.

    Args:
        provenance: as a sink is given it; its fingerprint names the dataset.
        table: the table's name.
        pattern: the pattern's text.
        chunk_length: steps per chunk.

    >>> maker = KeyMaker({"fingerprint": "1", "options": {}}, "replay", "pairs", 16)
    >>> keys = maker.episode(0, [np.arange(3.0)])
    >>> len({*keys.items(np.arange(2)).tolist(), *keys.chunks(1).tolist(), keys.episode_id})
    4
    """

    def __init__(self, provenance: Mapping[str, Any], table: str, pattern: str, chunk_length: int) -> None:
        fingerprint = str(provenance["fingerprint"])
        final = str(provenance["options"].get("final_transition", "drop"))
        self._item = seed_of("item", fingerprint, table, pattern, final)
        self._chunk = seed_of("chunk", str(self._item), str(chunk_length))
        self._episode = seed_of("episode", fingerprint, table, final)
        self._shard = seed_of("shard", fingerprint)

    def episode(self, number: int, tensors: Sequence[np.ndarray]) -> EpisodeKeys:
        """The keys of one episode, from the rows that are stored of it."""
        content = checksum(tensors)
        return EpisodeKeys(self._item ^ content, self._chunk ^ content, self._episode ^ content, number)

    def shard(self, number: int, shards: int) -> int:
        """Which of `shards` servers an episode belongs to, the same in every run."""
        return int(keys_of(self._shard, number, np.zeros(1, np.int64))[0] % np.uint64(shards))


class EpisodeKeys:
    """The keys of one episode; see :class:`KeyMaker`.

    Attributes:
        episode_id: by which Reverb counts a table's episodes.
    """

    def __init__(self, item: int, chunk: int, episode: int, number: int) -> None:
        self._item, self._chunk, self._number = item, chunk, number
        self.episode_id = int(keys_of(episode, number, np.zeros(1, np.int64))[0])

    def items(self, numbers: np.ndarray) -> np.ndarray:
        """``[I] uint64`` for the episode's items of these numbers."""
        return keys_of(self._item, self._number, numbers)

    def chunks(self, count: int) -> np.ndarray:
        """``[J] uint64`` for the episode's J chunks."""
        return keys_of(self._chunk, self._number, np.arange(count))


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


def checksum(tensors: Sequence[np.ndarray]) -> int:
    """A 64-bit number from the tensors' bytes, shapes and dtypes.

    >>> checksum([np.zeros(2)]) == checksum([np.zeros(2), np.zeros(0)])
    False
    """
    crc = 0
    for tensor in tensors:
        crc = crc32c.crc32c(f"{tensor.dtype}{tensor.shape}".encode(), crc)
        if tensor.dtype == object:
            values = [bytes(value) for value in tensor.reshape(-1)]
            crc = crc32c.crc32c(repr([len(value) for value in values]).encode() + b"".join(values), crc)
        else:
            crc = crc32c.crc32c(np.ascontiguousarray(tensor).data, crc)
    return int(_mix(np.array([crc], np.uint64))[0])


def keys_of(seed: int, episode: int, numbers: np.ndarray) -> np.ndarray:
    """Keys ``[I] uint64`` of things numbered `numbers` (``[I]``, distinct) in an episode; distinct inside it.

    Two things of different episodes meet with the chance of random 64-bit numbers.

    >>> keys_of(1, 0, np.arange(2)) == keys_of(1, 0, np.array([0, 1]))
    array([ True,  True])
    """
    start = _mix(np.array([(seed + _GOLDEN * (episode + 1)) & _MASK], np.uint64))
    steps = np.asarray(numbers).astype(np.uint64) + np.uint64(1)
    return _mix(start + steps * np.uint64(_GOLDEN))


def _mix(values: np.ndarray) -> np.ndarray:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
