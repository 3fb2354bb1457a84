"""What a filter can ask of an episode, answered for all episodes of a batch at once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.transform.tree import find, near_miss, tree_of

__all__ = ["FACTS", "FUNCTIONS", "Facts", "episode_return", "episode_returns"]

FACTS: Final = ("length", "return", "end", "index")
"""Facts that every episode has; ``metadata/...`` and the step fields are the data's own."""

FUNCTIONS: Final = ("any", "all", "min", "max", "mean", "sum")
"""What can be asked of a field."""

PADDED: Final = ("action", "reward", "discount")
"""Fields whose last row is padding in RLDS."""

_SHORT = 128
"""Up to so many values numpy sums in one go, so that rows of a matrix give the bits that each would give alone."""

Test = Callable[[np.ndarray], Any]


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


def episode_returns(batch: EpisodeBatch) -> np.ndarray | None:
    """``[E] float64``: :func:`episode_return` of each, to the bit; None where there is no reward to sum.

    >>> episode_returns(EpisodeBatch.of([Episode(reward=[1.0, 2.0, 99.0]), Episode(reward=[4.0])])).tolist()
    [3.0, 0.0]
    """
    reward = batch.rows.reward
    if not isinstance(reward, np.ndarray) or reward.ndim != 1 or reward.dtype == object:
        return None
    return _sums(reward, batch.starts, batch.ends)


class Facts:
    """The answers of a batch's episodes, of one at a time; what is never asked for is never computed.

    Args:
        batch: as it comes out.
        original: the same episodes as the source had them, for fields that were dropped.

    Attributes:
        position: whose answers are given: its number in the batch.

    >>> facts = Facts(EpisodeBatch.of([Episode(reward=[1.0, 2.0, 0.0], metadata={"task": {"name": b"push"}})]))
    >>> facts.fact("return"), facts.metadata(["task", "name"]), facts.reduced("max", "reward")
    (3.0, 'push', 2.0)
    """

    def __init__(self, batch: EpisodeBatch, original: EpisodeBatch | None = None) -> None:
        self.position = 0
        self._batch = batch
        self._original = batch if original is None else original
        self._answers: dict[Any, list[Any]] = {}

    def fact(self, name: str) -> Any:
        """One of `FACTS`: rows, return (None without rewards), ``terminated``, ``truncated`` or ``open``, number."""
        return self._answer(name, lambda: self._facts(name))

    def metadata(self, path: list[str]) -> Any:
        """A value of the episode's metadata: bytes as text, arrays of text as lists of it; None if not there."""
        here: Any = self._metadata[self.position]
        for part in path:
            if isinstance(here, tuple | list) and part.isdecimal() and int(part) < len(here):
                here = here[int(part)]
            elif isinstance(here, Mapping) and part in here:
                here = here[part]
            else:
                return None
        return _plain(here)

    def reduced(self, function: str, name: str, test: Test | None = None) -> Any:
        """One of `FUNCTIONS` of a field's values of all its steps; without the padding row of action, reward, discount.

        Args:
            function: of no values: False, True, None, None, None and 0.
            name: the field.
            test: for any and all: what is asked of the values; by default whether they are not 0.

        Raises:
            ValueError: the episodes lack the field, or it is a nest or text.
        """
        return self._answer((function, name, test), lambda: self._reduced(function, name, test))

    def _answer(self, question: Any, compute: Callable[[], list[Any]]) -> Any:
        if question not in self._answers:
            self._answers[question] = compute()
        return self._answers[question][self.position]

    def _facts(self, name: str) -> list[Any]:
        batch = self._batch
        if name == "length":
            return batch.lengths.tolist()
        if name == "return":
            returns = episode_returns(batch)
            return [None] * len(batch) if returns is None else returns.tolist()
        if name == "index":
            return [None] * len(batch) if batch.index is None else batch.index.tolist()
        terminal, last = (flag[batch.ends].tolist() for flag in (batch.rows.is_terminal, batch.rows.is_last))
        return [
            "terminated" if ended else "truncated" if flagged else "open"
            for ended, flagged in zip(terminal, last, strict=True)
        ]

    @functools.cached_property
    def _metadata(self) -> list[dict[str, Any]]:
        return list(self._batch.facts())

    def _reduced(self, function: str, name: str, test: Test | None) -> list[Any]:
        batch, path = self._found(name)
        column = nest.get(tree_of(batch.rows), path)
        if not isinstance(column, np.ndarray) or column.dtype.kind not in "biuf":
            raise ValueError(f"{name!r} is no field of numbers")
        starts, stops = batch.starts, batch.ends + (path[0] not in PADDED)  # the last row is padding
        if function in ("any", "all"):
            column = column != 0 if test is None else np.asarray(test(column))
        width = column[:1].size
        return _REDUCE[function](column.reshape(-1), starts * width, stops * width)

    def _found(self, name: str) -> tuple[EpisodeBatch, nest.Path]:
        """Which of the two has the field, and where."""
        for batch in (self._batch, self._original):
            path = find(tree_of(batch.rows), name)
            if path is not None:
                return batch, path
        raise ValueError(f"no field {name!r}{near_miss(tree_of(self._batch.rows), name)}")


def _sums(column: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """``[E] float64``: ``column[start:stop].sum(dtype=np.float64)`` of each, to the bit; a column ``[N]``."""
    out = np.zeros(len(starts), np.float64)
    counts = stops - starts
    order = np.argsort(counts, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(counts[order])) + 1)
    for group in groups:
        count = int(counts[group[0]])
        if count > _SHORT:
            for i in group.tolist():
                out[i] = column[starts[i] : stops[i]].sum(dtype=np.float64)
        elif count:
            out[group] = column[starts[group, None] + np.arange(count)].astype(np.float64).sum(axis=1)
    return out


def _sum(column: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> list[Any]:
    return _sums(column, starts, stops).tolist()


def _mean(column: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> list[Any]:
    counts = stops - starts
    means = _sums(column, starts, stops) / np.maximum(counts, 1)
    return _or_none(means, counts)


def _any(column: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> list[Any]:
    return (_true(column, starts, stops) > 0).tolist()


def _all(column: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> list[Any]:
    return (_true(column, starts, stops) == stops - starts).tolist()


def _true(column: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """How many are true of each."""
    before = np.append(0, np.cumsum(column, dtype=np.int64))
    return before[stops] - before[starts]


def _extreme(function: np.ufunc) -> Callable[[np.ndarray, np.ndarray, np.ndarray], list[Any]]:
    def extreme(column: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> list[Any]:
        if not len(column):
            return [None] * len(starts)
        edges = np.minimum(np.stack([starts, stops], axis=1).reshape(-1), len(column) - 1)
        if stops[-1] == len(column):
            edges = edges[:-1]  # the last one goes up to the end
        return _or_none(function.reduceat(column, edges)[::2], stops - starts)

    return extreme


def _or_none(values: np.ndarray, counts: np.ndarray) -> list[Any]:
    """The values; None for those of nothing."""
    found: list[Any] = values.tolist()
    for i in np.flatnonzero(counts == 0).tolist():
        found[i] = None
    return found


_REDUCE: Final[Mapping[str, Callable[[np.ndarray, np.ndarray, np.ndarray], list[Any]]]] = {
    "any": _any,
    "all": _all,
    "min": _extreme(np.minimum),
    "max": _extreme(np.maximum),
    "mean": _mean,
    "sum": _sum,
}


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.size == 1):
        value = value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "OS":
        return [_plain(item) for item in value.ravel().tolist()]
    return value.decode(errors="replace") if isinstance(value, bytes) else value
