"""Episodes in a list or another iterable."""

from __future__ import annotations

from typing import Any

from rlds2buf.io.format import Format

__all__ = ["FORMATS"]


def _is_episodes(value: Any) -> bool:
    from rlds2buf.core.episode import Episode

    named = isinstance(value, str | bytes | dict | Episode) or hasattr(value, "dtype")
    return hasattr(value, "__iter__") and not named


FORMATS = (
    Format(
        "memory",
        "a list of episodes",
        source="rlds2buf.formats.memory.source:MemorySource",
        sink="rlds2buf.formats.memory.sink:MemorySink",
        fits_object=_is_episodes,
        writes_to=lambda target: isinstance(target, list),
    ),
)
