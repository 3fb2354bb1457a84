"""What a filter asks of one episode, by numpy's functions of its own columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlds2buf import Episode
from rlds2buf.core import nest
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.transform.facts import Facts, episode_return
from rlds2buf.transform.tree import find, tree_of
from rlds2buf.transform.where import Where

__all__ = ["EpisodeFacts", "faults"]


class EpisodeFacts:
    """What :class:`~rlds2buf.transform.facts.Facts` answers for one of a batch."""

    def __init__(self, episode: Episode, original: Episode) -> None:
        self.episode, self.original = episode, original
        self.metadata = Facts(EpisodeBatch.of_one(episode)).metadata

    def fact(self, name: str) -> Any:
        ep = self.episode
        return {"length": len(ep), "return": episode_return(ep), "end": ep.end, "index": ep.index}[name]

    def reduced(self, function: str, name: str, test: Callable[[np.ndarray], Any] | None = None) -> Any:
        for episode in (self.episode, self.original):
            path = find(tree_of(episode), name)
            if path is not None:
                break
        assert path is not None
        column = nest.get(tree_of(episode), path)
        column = column[:-1] if path[0] in ("action", "reward", "discount") else column
        if function in ("any", "all"):
            return bool(getattr(np, function)(column if test is None else test(column)))
        if function == "sum":
            return float(column.sum(dtype=np.float64))
        if not column.size:
            return None
        return float(column.mean(dtype=np.float64)) if function == "mean" else getattr(column, function)().item()


def faults(episode: Episode, original: Episode, **how: Any) -> Iterator[tuple[str, str]]:
    """The rules that leave one episode out, and why, one by one."""
    for name, value in (("length", len(episode)), ("return", episode_return(episode))):
        low, high = how.get(f"min_{name}"), how.get(f"max_{name}")
        if low is not None and not value >= low:
            yield f"filter-min-{name}", f"the {name} {value:g} is below {low:g}"
        if high is not None and not value <= high:
            yield f"filter-max-{name}", f"the {name} {value:g} is above {high:g}"
    where = how.get("where")
    if isinstance(where, str) and not Where(where)(EpisodeFacts(episode, original)):  # type: ignore[arg-type]
        yield "filter-where", f"not where {where}"
    elif callable(where) and not where(episode):
        yield "filter-where", f"{where.__module__}.{where.__qualname__} says no"
