"""Which episodes are left out for what they are."""

from __future__ import annotations

import hashlib
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from rlds2buf.core.arguments import integer
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.nest import Nest
from rlds2buf.core.spec import FieldSpec
from rlds2buf.transform.facts import Facts, episode_returns
from rlds2buf.transform.where import Where

__all__ = ["Fault", "Filters"]

Fault = tuple[str, str]
"""A rule that leaves an episode out, and why, in words."""


class Filters:
    """Thresholds, an expression, a function; an episode is kept if it passes all that are given.

    Args:
        min_return, max_return: inclusive limits of the sum of the rewards of its transitions.  A return
            that is not a number (NaN) passes neither.
        min_length, max_length: inclusive limits of its rows (one more than its transitions).
        where: an expression (:class:`~rlds2buf.transform.where.Where`), or a function of the
            :class:`~rlds2buf.core.episode.Episode` that says whether to keep it.

    Raises:
        ExpressionError: the expression can't be read.
        ValueError: a lower limit is above its upper one, a length is negative, or a return is NaN.
        TypeError: `where` is neither text nor a function.

    >>> filters = Filters(min_return=3)
    >>> filters.fault(Episode(reward=[1.0, 1.0, 9.0]))
    ('filter-min-return', 'the return 2 is below 3')
    """

    def __init__(
        self,
        *,
        min_return: float | None = None,
        max_return: float | None = None,
        min_length: int | None = None,
        max_length: int | None = None,
        where: str | Callable[[Episode], Any] | None = None,
    ) -> None:
        self._returns = (min_return, max_return)
        self._lengths = (min_length, max_length)
        for name, (low, high) in (("return", self._returns), ("length", self._lengths)):
            if low is not None and high is not None and low > high:
                raise ValueError(f"min_{name}={low} is above max_{name}={high}: no episode would be left")
        for name, length in (("min_length", min_length), ("max_length", max_length)):
            if length is not None:
                integer(name, length, 0)
        for name, limit in (("min_return", min_return), ("max_return", max_return)):
            if limit is not None and np.isnan(limit):
                raise ValueError(f"{name} must be a number, got {limit}: no episode would be left")
        if where is not None and not isinstance(where, str) and not callable(where):
            raise TypeError(f"where is an expression or a function, got {type(where).__name__}")
        self._where = Where(where) if isinstance(where, str) else None
        self._function = where if callable(where) else None

    def __bool__(self) -> bool:
        limits = any(limit is not None for limit in (*self._returns, *self._lengths))
        return limits or self._where is not None or self._function is not None

    def check(self, tree: Mapping[str, Nest], original: Mapping[str, Nest]) -> None:
        """Raise unless data of this spec can be asked; trees of FieldSpec as they come out, and as they were.

        Raises:
            ValueError: there is no reward to sum, or a field is not there.
        """
        reward = tree.get("reward")
        if self._returns != (None, None) and not (isinstance(reward, FieldSpec) and reward.shape == ()):
            found = "none" if reward is None else reward
            raise ValueError(f"min_return and max_return need a reward of one number a step; there is {found}")
        if self._where is not None:
            self._where.check(tree, original)

    @property
    def columns(self) -> list[str]:
        """The fields that an expression names."""
        return [] if self._where is None else [name for name, _ in self._where.columns]

    def fault(self, episode: Episode, original: Episode | None = None) -> Fault | None:
        """The rule that leaves it out, and why in words; None if it is kept.

        Args:
            episode: as it comes out.
            original: as the source had it; an expression finds the fields there that were dropped.

        Raises:
            ExpressionError: the expression can't be evaluated.
        """
        whole = None if original is None else EpisodeBatch.of_one(original)
        return next((fault for _, fault in self.faults(EpisodeBatch.of_one(episode), whole)), None)

    def faults(
        self, batch: EpisodeBatch, original: EpisodeBatch | None = None, passed_over: np.ndarray | None = None
    ) -> Iterator[tuple[int, Fault | None]]:
        """:meth:`fault` of each episode of a batch, by its position, in order; perhaps not of those that are kept.

        Args:
            batch, original: as of :meth:`fault`.
            passed_over: ``[E] bool``, which are kept without being asked.

        Raises:
            ExpressionError: the expression can't be evaluated for the episode behind the last one told.
        """
        limits: list[tuple[str, np.ndarray | None, tuple[float | None, float | None]]] = []
        if self._lengths != (None, None):
            limits.append(("length", batch.lengths, self._lengths))
        if self._returns != (None, None):
            limits.append(("return", episode_returns(batch), self._returns))
        outside = np.zeros(len(batch), np.bool_)
        for _, values, (low, high) in limits:
            outside |= _are_outside(values, low, high)
        if passed_over is not None:
            outside &= ~passed_over
        asks = self._asks(batch, original)
        for i in range(len(batch)) if asks is not None else np.flatnonzero(outside).tolist():
            if outside[i]:
                found = (_outside(name, None if of is None else of[i].item(), *pair) for name, of, pair in limits)
                yield i, next(fault for fault in found if fault is not None)
            elif asks is not None:
                yield i, None if passed_over is not None and passed_over[i] else asks(i)

    def describe(self) -> dict[str, Any]:
        """What was asked for, as plain JSON values."""
        names = ("min_return", "max_return", "min_length", "max_length")
        limits = dict(zip(names, (*self._returns, *self._lengths), strict=True))
        found: dict[str, Any] = {
            name: limit.item() if isinstance(limit, np.generic) else limit
            for name, limit in limits.items()
            if limit is not None
        }
        if self._where is not None:
            found["where"] = self._where.expression
        if self._function is not None:
            found["where"] = _name_of(self._function)
        return found

    def _asks(self, batch: EpisodeBatch, original: EpisodeBatch | None) -> Callable[[int], Fault | None] | None:
        """What the expression or the function says of the episode at a position; None if neither is given."""
        where, function = self._where, self._function
        if where is not None:
            facts, no = Facts(batch, original), ("filter-where", f"not where {where.expression}")

            def ask(position: int) -> Fault | None:
                facts.position = position
                return None if where(facts) else no

            return ask
        if function is not None:
            episodes, refused = list(batch), ("filter-where", f"{_label(function)} says no")
            return lambda position: None if function(episodes[position]) else refused
        return None


def _are_outside(values: np.ndarray | None, low: float | None, high: float | None) -> Any:
    """Which of the values are outside; what is unknown or not a number is."""
    if values is None:
        return True
    inside = np.ones(len(values), np.bool_)
    if low is not None:
        inside &= values >= low
    if high is not None:
        inside &= values <= high
    return ~inside


def _outside(name: str, value: float | None, low: float | None, high: float | None) -> Fault | None:
    shown = "unknown" if value is None else f"{value:g}"
    if low is not None and not (value is not None and value >= low):
        return f"filter-min-{name}", f"the {name} {shown} is below {low:g}"
    if high is not None and not (value is not None and value <= high):
        return f"filter-max-{name}", f"the {name} {shown} is above {high:g}"
    return None


def _label(function: Callable[..., Any]) -> str:
    module = getattr(function, "__module__", None) or "?"
    return f"{module}.{getattr(function, '__qualname__', type(function).__qualname__)}"


def _name_of(function: Callable[..., Any]) -> str:
    """The function's name and a hash of its code, constants and simple defaults and closures.

    Of an object that is called, only its class's name.
    """
    code = getattr(function, "__code__", None)
    if not isinstance(code, types.CodeType):
        return _label(function)
    held = [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if _filled(cell)]
    defaults = getattr(function, "__defaults__", None) or ()
    simple = [value for value in (*held, *defaults) if isinstance(value, str | bytes | int | float | None)]
    digest = hashlib.blake2b(repr((_code(code), simple)).encode(), digest_size=6).hexdigest()
    return f"{_label(function)}#{digest}"


def _filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _code(code: types.CodeType) -> tuple[Any, ...]:
    inner = tuple(_code(value) if isinstance(value, types.CodeType) else repr(value) for value in code.co_consts)
    return code.co_code.hex(), inner, code.co_names
