"""How many items a dataset becomes."""

from __future__ import annotations

import contextlib

from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.errors import EpisodeError
from rlds2buf.formats.reverb.patterns.base import Pattern
from rlds2buf.io.source import Source

__all__ = ["count_items", "known_count"]


def known_count(source: Source, pattern: Pattern) -> int | None:
    """How many items a dataset becomes, where its own counts tell; None where only reading it would."""
    if source.num_steps is None or source.num_episodes is None:
        return None
    return pattern.count(source.num_steps, source.num_episodes)


def count_items(source: Source, pattern: Pattern) -> int:
    """How many items a dataset becomes; reads it through where its counts don't tell.

    Episodes that can't be read, or that lack a field, give none.

    Raises:
        SourceError: the source can't be read.
    """
    known = known_count(source, pattern)
    if known is not None:
        return known
    pattern.reset()
    total = 0
    for batch in source.read_batches():
        if isinstance(batch, EpisodeBatch):
            with contextlib.suppress(EpisodeError):
                total += int(pattern.lay(batch).counts.sum())
    pattern.reset()
    return total
