"""How often each episode came already: equal episodes of one source are items of their own."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import SinkError
from rlds2buf.formats.reverb.content_hash import content_hashes
from rlds2buf.formats.reverb.patterns.base import Pattern, check_batch
from rlds2buf.io.sink import Sink

__all__ = ["CountingSink", "EpisodeCounts"]

UNKNOWN = -1
"""The number of an episode that only a journal tells of."""


class EpisodeCounts:
    """The episodes of one source so far, by what :func:`~.content_hash.content_hashes` says of them.

    Args:
        source: its name, for messages.

    >>> counts = EpisodeCounts("memory")
    >>> a, b = [1, 2], [3, 4]
    >>> counts.add(np.array([a, b, a], np.uint64), [0, 1, 2]).tolist()
    [0, 0, 1]
    >>> counts.take_back(np.array([a], np.uint64))
    >>> counts.add(np.array([a, b], np.uint64), [2, 3]).tolist()
    [1, 1]
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._place: dict[int, int] = {}  # of an episode's first number in the arrays
        self._checks, self._counts, self._numbers = array("Q"), array("Q"), array("q")

    def add(self, hashes: np.ndarray, numbers: Sequence[int] | np.ndarray) -> np.ndarray:
        """Count E episodes; ``[E] uint32``: how many equal ones came before each.

        Args:
            hashes: ``[E, 2] uint64``; the first number names an episode, the second tells whether it is that one.
            numbers: ``[E]``, which episodes of the source they are; for messages.

        Raises:
            SinkError: two episodes that differ have one name.
        """
        out = np.zeros(len(hashes), np.uint32)
        place, checks, counts = self._place, self._checks, self._counts
        names = hashes[:, 0].tolist()
        if len({*names}) == len(names) and place.keys().isdisjoint(names):
            place.update(zip(names, range(len(checks), len(checks) + len(names)), strict=True))
            checks.frombytes(hashes[:, 1].tobytes())
            counts.frombytes(np.ones(len(names), np.uint64).tobytes())
            self._numbers.frombytes(np.asarray(numbers, np.int64).tobytes())
            return out
        for i, (name, check, number) in enumerate(zip(names, hashes[:, 1].tolist(), numbers, strict=True)):
            at = place.setdefault(name, len(checks))
            if at == len(checks):
                checks.append(check)
                counts.append(1)
                self._numbers.append(int(number))
                continue
            if checks[at] != check:
                raise collision(self._source, self._numbers[at], int(number))
            out[i] = counts[at]
            counts[at] += 1
        return out

    def take_back(self, hashes: np.ndarray) -> None:
        """Count these episodes no more; they were not written, or will be once more."""
        for name in hashes[:, 0].tolist():
            self._counts[self._place[name]] -= 1


def collision(source: str, first: int, second: int) -> SinkError:
    """The error that two episodes which differ would get the same keys."""
    one = "one of an earlier push" if first == UNKNOWN else f"episode {first}"
    return SinkError(
        f"{source}: {one} and episode {second} differ, but have the same hash, so their items would get the same keys "
        "and take each other's place; push one of the two from a source of its own, with distinct_by='source' "
        "(--distinct-by source)"
    )


class CountingSink(Sink):
    """Writes nothing: tells which episodes of a source equal earlier ones, before parts of it are pushed apart.

    What it is given must be checked, changed and left out as it will be for the push.

    Args:
        pattern: what items the episodes will become.

    Attributes:
        occurrences: the number of an episode to how many equal ones are before it; those without any are left out.
    """

    keeps_provenance = False

    def __init__(self, pattern: Pattern) -> None:
        self.name = "counting"
        self.pattern = pattern
        self.occurrences: dict[int, int] = {}
        self._counts = EpisodeCounts("")
        self._spec = StepSpec()
        self._written = 0

    def open(self, spec: StepSpec, provenance: Mapping[str, Any]) -> None:
        """Begin."""
        self.pattern.reset()
        self._spec, self._written = spec, 0
        self._counts = EpisodeCounts(provenance["source"])
        self.occurrences.clear()

    def write_batch(self, batch: EpisodeBatch) -> int:
        """Count some episodes; returns how many items they will become.

        Raises:
            EpisodeError: one does not fit the spec.
            SinkError: two that differ have the same hash.
        """
        if self.pattern.crosses and len(batch) > 1:
            return super().write_batch(batch)  # what is laid out follows from what was
        check_batch(self._spec, batch)
        numbers = np.arange(self._written, self._written + len(batch)) if batch.index is None else batch.index
        laid = self.pattern.lay(batch)
        found = self._counts.add(content_hashes(laid.tensors, laid.edges), numbers)
        for i in np.flatnonzero(found).tolist():
            self.occurrences[int(numbers[i])] = int(found[i])
        self._written += len(batch)
        return len(laid.numbers)

    def commit(self) -> None:
        """Nothing is left to do."""

    def abort(self) -> None:
        """Nothing is there to be taken away."""
