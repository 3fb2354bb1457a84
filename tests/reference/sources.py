"""Sources read one episode at a time, as slowly and plainly as can be."""

from __future__ import annotations

from collections.abc import Sequence

from rlds2buf import Episode, EpisodeError

__all__ = ["in_memory"]


def in_memory(episodes: Sequence[Episode], source: str = "memory", index: int = 0) -> list[Episode | EpisodeError]:
    """Each made anew, so that what was changed in it shows, with its place, which is `index` for the first."""
    found: list[Episode | EpisodeError] = []
    for number, episode in enumerate(episodes, index):
        try:
            found.append(episode.replace(source=source, index=number))
        except EpisodeError as error:
            found.append(error)
    return found
