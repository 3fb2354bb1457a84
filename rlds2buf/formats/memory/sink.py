"""Episodes into a list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.spec import StepSpec
from rlds2buf.io.sink import Sink

__all__ = ["MemorySink"]


class MemorySink(Sink):
    """Appends to a list; the reference that other sinks are held against.

    Args:
        episodes: the list; what it already holds stays.

    Attributes:
        spec: of the episodes, from `open`.
        provenance: of the episodes, from `open`.

    >>> sink = MemorySink()
    >>> sink.episodes
    []
    """

    name = "memory"
    holds_last_actions = True

    def __init__(self, episodes: list[Episode] | None = None) -> None:
        self.episodes: list[Episode] = [] if episodes is None else episodes
        self.spec: StepSpec | None = None
        self.provenance: dict[str, Any] = {}
        self._kept = len(self.episodes)

    def open(self, spec: StepSpec, provenance: Mapping[str, Any]) -> None:
        """Remember the spec and where the list ended."""
        self.spec = spec
        self.provenance = dict(provenance)
        self._kept = len(self.episodes)

    def write_batch(self, batch: EpisodeBatch) -> int:
        """Append; an episode is an item.

        Raises:
            SpecMismatch: they don't fit the spec; nothing was appended.
        """
        assert self.spec is not None, "write before open"
        self.spec.check(batch.rows)
        self.episodes.extend(batch)
        return len(batch)

    def commit(self) -> None:
        """Keep what was appended."""
        self._kept = len(self.episodes)

    def abort(self) -> None:
        """Take out again what was appended since `open`."""
        del self.episodes[self._kept :]
