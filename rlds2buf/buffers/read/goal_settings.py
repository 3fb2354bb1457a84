"""What a hindsight buffer was made with, to be read and changed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from rlds2buf.buffers.engine import Drawing
from rlds2buf.buffers.read.hindsight import Hindsight
from rlds2buf.views.goals import GoalMap

__all__ = ["GoalSettings"]


class GoalSettings:
    """The part of a :class:`~rlds2buf.buffers.buffer.Buffer` that says how goals are put in.

    All can be set; a value is checked as the factory's is, and what was drawn before is not changed.
    Buffers that know no goals have none of these attributes.
    """

    _hindsight: Hindsight | None
    _drawing: Drawing
    _options: dict[str, Any]
    _lock: threading.RLock | Any
    kind: str

    @property
    def goals(self) -> tuple[GoalMap, ...]:
        """Which elements of the observation are replaced, and by which."""
        return tuple(self._goals_of("goals").maps)

    @goals.setter
    def goals(self, value: GoalMap | Sequence[GoalMap]) -> None:
        self._change("goals", value)

    @property
    def reward_fn(self) -> Callable[..., Any]:
        """Judges transitions with new goals: ``f(observation, action, next_observation)``, giving rewards ``[B]``."""
        return self._goals_of("reward_fn").given["reward_fn"]

    @reward_fn.setter
    def reward_fn(self, value: Callable[..., Any]) -> None:
        self._change("reward_fn", value)

    @property
    def done_fn(self) -> Callable[..., Any]:
        """Likewise, whether each reached its goal, ``[B] bool``."""
        return self._goals_of("done_fn").given["done_fn"]

    @done_fn.setter
    def done_fn(self, value: Callable[..., Any]) -> None:
        self._change("done_fn", value)

    @property
    def strategy(self) -> str:
        """``"final"``, ``"episode"`` or ``"future"``."""
        return self._goals_of("strategy").strategy

    @strategy.setter
    def strategy(self, value: str) -> None:
        self._change("strategy", value)

    @property
    def num_goals(self) -> int:
        """New goals for each stored one."""
        return self._goals_of("num_goals").num_goals

    @num_goals.setter
    def num_goals(self, value: int) -> None:
        self._change("num_goals", value)

    @property
    def include_current(self) -> bool:
        """Whether ``"future"`` may pick the transition itself."""
        return self._goals_of("include_current").include_current

    @include_current.setter
    def include_current(self, value: bool) -> None:
        self._change("include_current", value)

    @property
    def vectorized(self) -> bool:
        """Whether the functions take batches."""
        return self._goals_of("vectorized").vectorized

    @vectorized.setter
    def vectorized(self, value: bool) -> None:
        self._change("vectorized", value)

    @property
    def while_sampling(self) -> bool:
        """Whether sampled transitions get new goals."""
        return self._goals_of("while_sampling").while_sampling

    @while_sampling.setter
    def while_sampling(self, value: bool) -> None:
        self._change("while_sampling", value)

    def _goals_of(self, name: str) -> Hindsight:
        if self._hindsight is None:
            raise AttributeError(f"a {self.kind} buffer knows no goals and has no {name}; make_hindsight makes one")
        return self._hindsight

    def _change(self, name: str, value: Any) -> None:
        """Put another view in place of the one there is: a batch under way keeps the one it was drawn with."""
        with self._lock:
            changed = self._goals_of(name).changed(**{name: value})
            self._hindsight = self._drawing.hindsight = changed
            self._options.update(changed.options())
