"""What a filter can ask of an episode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.episode import Episode
from rlds2buf.transform.tree import find, near_miss, tree_of

__all__ = ["FACTS", "Facts", "episode_return"]

FACTS: Final = ("length", "return", "end", "index")
"""Facts that every episode has; ``metadata/...`` and the step fields are the data's own."""

PADDED: Final = ("action", "reward", "discount")
"""Fields whose last row is padding in RLDS."""


def episode_return(episode: Episode) -> float | None:
    """The sum of the rewards of an episode's transitions: the final row's is padding.

    None where there is no reward, or it is not one number a step.

    >>> episode_return(Episode(reward=[1.0, 2.0, 99.0]))
    3.0
    """
    reward = episode.reward
    if not isinstance(reward, np.ndarray) or reward.ndim != 1 or reward.dtype == object:
        return None
    return float(reward[:-1].sum(dtype=np.float64))


class Facts:
    """One episode's answers; what is never asked for is never computed.

    Args:
        episode: as it comes out.
        original: as the source had it, for fields that were dropped.

    >>> facts = Facts(Episode(reward=[1.0, 2.0, 0.0], metadata={"task": {"name": b"push"}}))
    >>> facts.fact("return"), facts.metadata(["task", "name"]), facts.column("reward").tolist()
    (3.0, 'push', [1.0, 2.0])
    """

    def __init__(self, episode: Episode, original: Episode | None = None) -> None:
        self.episode = episode
        self._original = episode if original is None else original

    def fact(self, name: str) -> Any:
        """One of `FACTS`: rows, return (None without rewards), ``terminated``, ``truncated`` or ``open``, number."""
        if name == "length":
            return self.episode.num_steps
        if name == "return":
            return episode_return(self.episode)
        return self.episode.end if name == "end" else self.episode.index

    def metadata(self, path: list[str]) -> Any:
        """A value of the episode's metadata: bytes as text, arrays of text as lists of it; None if not there."""
        here: Any = self.episode.metadata
        for part in path:
            if isinstance(here, tuple | list) and part.isdecimal() and int(part) < len(here):
                here = here[int(part)]
            elif isinstance(here, Mapping) and part in here:
                here = here[part]
            else:
                return None
        return _plain(here)

    def column(self, name: str) -> np.ndarray:
        """A field's values of all its steps; without the padding row for action, reward and discount.

        Raises:
            ValueError: the episode lacks it, or it is a nest or text.
        """
        for episode in (self.episode, self._original):
            tree = tree_of(episode)
            path = find(tree, name)
            if path is not None:
                column = nest.get(tree, path)
                if not isinstance(column, np.ndarray) or column.dtype.kind not in "biuf":
                    raise ValueError(f"{name!r} is no field of numbers")
                return column[:-1] if path[0] in PADDED else column
        raise ValueError(f"no field {name!r}{near_miss(tree_of(self.episode), name)}")


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.size == 1):
        value = value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "OS":
        return [_plain(item) for item in value.ravel().tolist()]
    return value.decode(errors="replace") if isinstance(value, bytes) else value
