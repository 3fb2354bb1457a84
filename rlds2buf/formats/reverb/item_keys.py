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

__all__ = ["EpisodeKeys", "KeyMaker", "checksum", "checksums", "keys_of", "seed_of"]

_GOLDEN = 0x9E3779B97F4A7C15

_SHORT_BYTES = 16 << 10
"""Episodes of up to so many bytes are copied to take their checksums; a call for each column costs more."""


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
    >>> keys = maker.episodes(np.array([0]), [np.arange(3.0)], np.array([0, 3]))
    >>> of = np.zeros(2, np.int64)
    >>> len({*keys.items(of, np.arange(2)).tolist(), *keys.chunks(of[:1], of[:1]).tolist(), *keys.episode_ids.tolist()})
    4
    """

    def __init__(self, provenance: Mapping[str, Any], table: str, pattern: str, chunk_length: int) -> None:
        fingerprint = str(provenance["fingerprint"])
        final = str(provenance["options"].get("final_transition", "drop"))
        self._item = seed_of("item", fingerprint, table, pattern, final)
        self._chunk = seed_of("chunk", str(self._item), str(chunk_length))
        self._episode = seed_of("episode", fingerprint, table, final)
        self._shard = seed_of("shard", fingerprint)

    def episodes(self, numbers: np.ndarray, tensors: Sequence[np.ndarray], edges: np.ndarray) -> EpisodeKeys:
        """The keys of some episodes, from the rows that are stored of them.

        Args:
            numbers: ``[E] int64``, which episodes of the dataset they are.
            tensors: arrays ``[R, ...]``, the rows of all of them.
            edges: ``[E+1] int64``: the first row of each, then R.
        """
        content = checksums(tensors, edges)
        item, chunk, episode = (np.uint64(seed) ^ content for seed in (self._item, self._chunk, self._episode))
        return EpisodeKeys(item, chunk, episode, numbers)

    def shards(self, numbers: np.ndarray, shards: int) -> np.ndarray:
        """``[E]``: which of `shards` servers each episode belongs to, the same in every run."""
        return keys_of(self._shard, numbers, np.zeros(len(numbers), np.int64)) % np.uint64(shards)


class EpisodeKeys:
    """The keys of E episodes; see :class:`KeyMaker`.

    Attributes:
        episode_ids: ``[E] uint64``, by which Reverb counts a table's episodes.
    """

    def __init__(self, item: np.ndarray, chunk: np.ndarray, episode: np.ndarray, numbers: np.ndarray) -> None:
        self._item, self._chunk, self._numbers = item, chunk, numbers
        self.episode_ids = keys_of(episode, numbers, np.zeros(len(numbers), np.int64))

    def items(self, of: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """``[I] uint64`` for the items of these numbers; `of` says, from 0 on, whose each is."""
        return keys_of(self._item[of], self._numbers[of], numbers)

    def chunks(self, of: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """``[J] uint64`` for the chunks of these numbers."""
        return keys_of(self._chunk[of], self._numbers[of], numbers)


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


def checksums(tensors: Sequence[np.ndarray], edges: np.ndarray) -> np.ndarray:
    """``[E] uint64``: :func:`checksum` of each of E episodes, whose rows begin at these edges.

    >>> one, other = np.arange(2), np.arange(3)
    >>> checksums([np.concatenate([one, other])], np.array([0, 2, 5])).tolist() == [checksum([one]), checksum([other])]
    True
    """
    rows = np.diff(edges)
    out = np.zeros(len(rows), np.uint64)
    row_bytes = sum(tensor[:1].nbytes for tensor in tensors)
    together = not any(tensor.dtype == object for tensor in tensors)
    for count in np.unique(rows).tolist():
        which = np.flatnonzero(rows == count)
        if together and count * row_bytes <= _SHORT_BYTES and len(which) > 1:
            out[which] = _together(tensors, edges[which], count)
            continue
        for i in which.tolist():
            out[i] = checksum([tensor[edges[i] : edges[i + 1]] for tensor in tensors])
    return out


def _together(tensors: Sequence[np.ndarray], starts: np.ndarray, rows: int) -> np.ndarray:
    """Of episodes of so many rows: the bytes of each laid side by side, so that it takes one call."""
    parts = []
    index = (starts[:, None] + np.arange(rows)).reshape(-1)
    for tensor in tensors:
        head = f"{tensor.dtype}{(rows, *tensor.shape[1:])}".encode()
        parts.append(np.broadcast_to(np.frombuffer(head, np.uint8), (len(starts), len(head))))
        parts.append(np.ascontiguousarray(tensor[index]).reshape(-1).view(np.uint8).reshape(len(starts), -1))
    laid = np.concatenate(parts, axis=1)
    width, data = laid.shape[1], laid.reshape(-1).data
    crcs = [crc32c.crc32c(data[at : at + width]) for at in range(0, len(data), width)]
    return _mix(np.array(crcs, np.uint64))


def keys_of(seed: Any, episode: Any, numbers: np.ndarray) -> np.ndarray:
    """Keys ``[I] uint64`` of things numbered `numbers` (``[I]``, distinct) in an episode; distinct inside it.

    Two things of different episodes meet with the chance of random 64-bit numbers.

    Args:
        seed, episode: a number each, or ``[I]`` where they differ.

    >>> keys_of(1, 0, np.arange(2)) == keys_of(1, 0, np.array([0, 1]))
    array([ True,  True])
    """
    golden = np.uint64(_GOLDEN)
    seeds, episodes = np.atleast_1d(np.asarray(seed, np.uint64)), np.atleast_1d(episode).astype(np.uint64)
    start = _mix(seeds + golden * (episodes + np.uint64(1)))
    return _mix(start + (np.asarray(numbers).astype(np.uint64) + np.uint64(1)) * golden)


def _mix(values: np.ndarray) -> np.ndarray:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
