"""A first pass over a source whose parts are pushed apart: which episodes are there more than once."""

from __future__ import annotations

from typing import Any

from rlds2buf.formats.reverb.occurrences import CountingSink
from rlds2buf.formats.reverb.patterns.make import make_pattern
from rlds2buf.pipeline.conversion import convert

__all__ = ["count_occurrences"]


def count_occurrences(
    source: Any,
    *,
    pattern: str = "trajectory",
    pattern_options: dict[str, Any] | None = None,
    on_invalid: str = "raise",
    final_transition: str = "drop",
    allow_nonfinite: bool = False,
    **options: Any,
) -> dict[int, int]:
    """How many equal episodes come before each episode of a source.

    The key of an item says which of several equal episodes it is of.  A push counts them as they come; pushes of
    parts of one source, each by itself and in any order, are told by :func:`rlds2buf.push`'s ``occurrences``.

    Args:
        source: a Source, or whatever :func:`rlds2buf.open_source` takes; the whole one.
        pattern, pattern_options: as the pushes will have them, the options by name; equal is what the pattern lays
            out equally.
        on_invalid, final_transition, allow_nonfinite: as the pushes will have them; an episode that is left out does
            not count.
        options: for :func:`rlds2buf.open_source`, if `source` is not a Source.

    Returns:
        Episode number to count; episodes that nothing equals before them are left out.

    Raises:
        SinkError: two episodes that differ have the same hash, so their items would get the same keys.
        EpisodeError, SourceError, ValueError: as for :func:`rlds2buf.push`.

    >>> import numpy as np
    >>> from rlds2buf import Episode
    >>> a, b = (Episode(observation=np.arange(3.0) + i, action=np.ones(3), reward=np.ones(3)) for i in range(2))
    >>> count_occurrences([a, b, a, a])
    {2: 1, 3: 2}
    """
    sink = CountingSink(make_pattern(pattern, **(pattern_options or {})))
    convert(
        source,
        sink,
        on_invalid=on_invalid,
        final_transition=final_transition,
        allow_nonfinite=allow_nonfinite,
        **options,
    )
    return sink.occurrences
