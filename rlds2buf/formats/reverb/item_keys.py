"""Keys that say what an item is: the same item gets the same key in every run, wherever it was read.

Reverb treats an insert of a key that is there as an update, so a repeated push changes nothing.
The mixing function is that of SplitMix64 (Steele, Lea and Flood, 2014, "Fast splittable pseudorandom
number generators").
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import crc32c
import numpy as np

from rlds2buf.formats.reverb.content_hash import content_hashes
from rlds2buf.formats.reverb.occurrences import UNKNOWN, EpisodeCounts

__all__ = [
    "BY_CONTENT",
    "BY_NUMBER",
    "BY_SOURCE",
    "CONTENT",
    "ContentKeys",
    "EpisodeKeys",
    "KeyMaker",
    "checksum",
    "checksums",
    "keys_of",
    "seed_of",
]

_GOLDEN = 0x9E3779B97F4A7C15

_SHORT_BYTES = 16 << 10
"""Episodes of up to so many bytes are copied to take their checksums; a call for each column costs more."""


BY_CONTENT, BY_SOURCE, BY_NUMBER = "content", "source", "number"
"""What keeps equal items apart: nothing, that they come from sources of other names, or fingerprint and number."""

CONTENT: Final = np.dtype([("name", "<u8"), ("check", "<u8"), ("occurrence", "<u4")])
"""What an episode is called by its content: a hash, another one, and how many equal ones came before it."""

_NAME_MASK = np.uint64(2**64 - 1)
"""Which bits of a hash are used; tests use few of them."""


class EpisodeKeys:
    """The keys of E episodes; see :class:`ContentKeys` and :class:`KeyMaker`.

    Attributes:
        names: ``[E]``, what a journal calls the episodes: numbers, or records of :data:`CONTENT`.
    """

    def __init__(
        self,
        item: np.ndarray,
        chunk: np.ndarray,
        episode: np.ndarray,
        numbers: np.ndarray,
        *,
        owner: np.ndarray | None = None,
        names: np.ndarray | None = None,
    ) -> None:
        self._item, self._chunk, self._episode, self._numbers = item, chunk, episode, numbers
        self._owner = np.zeros(len(numbers), np.uint64) if owner is None else owner
        self.names = numbers if names is None else names

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def episode_ids(self) -> np.ndarray:
        """``[E] uint64``, by which Reverb counts a table's episodes."""
        return keys_of(self._episode, self._numbers, np.zeros(1, np.int64))

    @property
    def marks(self) -> list[Any]:
        """`names` as plain values: numbers, or the bytes of each record."""
        plain = self.names if self.names.dtype.names is None else self.names.view(f"V{self.names.itemsize}")
        return plain.tolist()

    def items(self, of: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """``[I] uint64`` for the items of these numbers; `of` says, from 0 on, whose each is."""
        return keys_of(self._item[of], self._numbers[of], numbers)

    def chunks(self, of: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """``[J] uint64`` for the chunks of these numbers."""
        return keys_of(self._chunk[of], self._numbers[of], numbers)

    def owners(self, servers: int) -> np.ndarray:
        """``[E]``: which of so many servers each episode belongs to, the same in every run."""
        return self._owner % np.uint64(servers)

    def take(self, which: Any) -> EpisodeKeys:
        """Some of the episodes, as an index of numpy says."""
        columns = (self._item, self._chunk, self._episode, self._numbers)
        return EpisodeKeys(*(one[which] for one in columns), owner=self._owner[which], names=self.names[which])


class ContentKeys:
    """Keys for one push into a table by a pattern, from what reaches the table and nothing else.

    Into a key go the episode's rows as the pattern lays them out (those of neighbours included, where items cross
    borders), how many equal episodes of the same source came before, the step, the table and the pattern; not the
    file, its format, its order or what else is in it.

    Args:
        provenance: as a sink is given it.
        table: the table's name.
        pattern: the pattern's text.
        chunk_length: steps per chunk.
        distinct_by: ``"content"``: equal episodes have equal keys; ``"source"``: only those of sources of one name.
        occurrences: the number of an episode to how many equal ones are before it in the whole source, where only
            a part of that is pushed; None counts them as they come.

    >>> maker = ContentKeys({"source": "memory"}, "replay", "pairs", 16)
    >>> one = [np.array([1.0, 2, 1, 2, 1, 3])]
    >>> keys = maker.episodes(np.arange(3), one, np.array([0, 2, 4, 6]))
    >>> keys.names["occurrence"].tolist()
    [0, 1, 0]
    >>> other = ContentKeys({"source": "another"}, "replay", "pairs", 16)
    >>> same = other.episodes(np.arange(1), [np.array([1.0, 3])], np.array([0, 2]))
    >>> same.items(np.array([0]), np.array([0])) == keys.items(np.array([2]), np.array([0]))
    array([ True])
    """

    def __init__(
        self,
        provenance: Mapping[str, Any],
        table: str,
        pattern: str,
        chunk_length: int,
        *,
        distinct_by: str = BY_CONTENT,
        occurrences: Mapping[int, int] | None = None,
    ) -> None:
        self._source = str(provenance["source"])
        apart = (source_name(self._source),) if distinct_by == BY_SOURCE else ()
        self._item = seed_of("item by content", table, pattern, *apart)
        self._chunk = seed_of("chunk by content", str(self._item), str(chunk_length))
        self._episode = seed_of("episode by content", table, *apart)
        self._given = occurrences
        self._counts = EpisodeCounts(self._source)

    def episodes(self, numbers: np.ndarray, tensors: Sequence[np.ndarray], edges: np.ndarray) -> EpisodeKeys:
        """The keys of the next episodes of the source, from the rows that are stored of them.

        Args:
            numbers: ``[E] int64``, which episodes of the source they are.
            tensors: arrays ``[R, ...]``, the rows of all of them.
            edges: ``[E+1] int64``: the first row of each, then R.

        Raises:
            SinkError: two episodes that differ would get the same keys.
        """
        hashes = content_hashes(tensors, edges)
        hashes[:, 0] &= _NAME_MASK
        names = np.empty(len(hashes), CONTENT)
        names["name"], names["check"] = hashes.T
        names["occurrence"] = self._counts.add(hashes, numbers)
        if self._given is not None:
            names["occurrence"] = [self._given.get(number, 0) for number in numbers.tolist()]
        content, times = names["name"], names["occurrence"].astype(np.int64)
        item, chunk, episode = (np.uint64(seed) ^ content for seed in (self._item, self._chunk, self._episode))
        return EpisodeKeys(item, chunk, episode, times, owner=keys_of(content, times, np.zeros(1)), names=names)

    def take_back(self, keys: EpisodeKeys) -> None:
        """Forget that these episodes came: they were not written, or will come once more."""
        self._counts.take_back(_pairs(keys.names))

    def go_on_from(self, names: np.ndarray) -> None:
        """Take it that these episodes (records of :data:`CONTENT`) of the source came in an earlier run."""
        self._counts.add(_pairs(names), [UNKNOWN] * len(names))


def _pairs(names: np.ndarray) -> np.ndarray:
    return np.stack([names["name"], names["check"]], axis=1)


def source_name(name: str) -> str:
    """A source's name, by which its items are kept apart from others': the whole path, where it is a path."""
    path = name.partition(" [")[0]  # PATH [train]: what is in two splits of one dataset is the same
    return os.path.realpath(path) if os.path.exists(path) else name


class KeyMaker:
    """Keys as journals of version 1 have them, from the dataset's fingerprint and the episode's number.

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
        """As :meth:`ContentKeys.episodes`."""
        content = checksums(tensors, edges)
        item, chunk, episode = (np.uint64(seed) ^ content for seed in (self._item, self._chunk, self._episode))
        return EpisodeKeys(item, chunk, episode, numbers, owner=keys_of(self._shard, numbers, np.zeros(1)))

    def take_back(self, keys: EpisodeKeys) -> None:
        """As :meth:`ContentKeys.take_back`; nothing is counted here."""

    def go_on_from(self, names: np.ndarray) -> None:
        """As :meth:`ContentKeys.go_on_from`; nothing is counted here."""


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
