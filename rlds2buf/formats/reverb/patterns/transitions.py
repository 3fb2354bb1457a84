"""Transitions: one item each, in the columns of Acme's transition tables."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.formats.reverb.patterns.base import Laid, Pattern, extra_field
from rlds2buf.formats.reverb.protocol.item_encoder import Column, RowSpan
from rlds2buf.views.signature import item_spec
from rlds2buf.views.transitions import sum_dtype, transitions

__all__ = ["TransitionItem", "TransitionPattern"]


class TransitionItem(NamedTuple):
    """The columns of a transition table, as Acme's ``types.Transition`` has them; each without a leading axis."""

    observation: nest.Nest
    action: nest.Nest
    reward: Any
    discount: Any
    next_observation: nest.Nest
    extras: nest.Nest = ()


class TransitionPattern(Pattern):
    """One item per transition, n steps long: the items of Acme's NStepTransitionAdder.

    Args:
        n_step, gamma: as for :func:`rlds2buf.transitions`; `discount` is that view's.
        extras: names of the extra step fields to store.

    >>> from rlds2buf import Episode
    >>> ep = Episode(observation=np.arange(4), action=np.zeros(4), reward=np.ones(4), discount=np.ones(4))
    >>> laid = TransitionPattern(n_step=2).lay(ep)
    >>> laid.spans[1].starts
    array([2, 3, 3])
    """

    type_name = "Transition"

    def __init__(self, *, n_step: int = 1, gamma: float = 1.0, extras: tuple[str, ...] = ()) -> None:
        if n_step < 1 or not 0.0 <= gamma <= 1.0:
            raise ValueError(f"n_step must be at least 1 and gamma in [0, 1], got {n_step} and {gamma}")
        self.n_step, self.gamma = n_step, gamma
        self.extras = tuple(sorted(extras))

    @property
    def text(self) -> str:
        """See :class:`Pattern`."""
        return f"transition n_step={self.n_step} gamma={self.gamma!r} extras={','.join(self.extras)}"

    def signature(self, spec: StepSpec) -> TransitionItem:
        """See :class:`Pattern`; there is no axis of steps."""
        item = item_spec(spec, "transitions")
        lacking = [name for name in self.extras if name not in spec.extras]
        if lacking:
            raise ValueError(f"the data have no extra field {lacking[0]!r}; they have {sorted(spec.extras)}")
        reward = item.reward
        if self.n_step > 1 and isinstance(reward, FieldSpec) and sum_dtype(reward.dtype) != reward.dtype:
            reward = FieldSpec(reward.shape, sum_dtype(reward.dtype))
        extras = {name: spec.extras[name] for name in self.extras}
        return TransitionItem(
            item.observation, item.action, reward, item.discount, item.next_observation, extras if extras else ()
        )

    def columns(self, spec: StepSpec) -> list[Column]:
        """See :class:`Pattern`."""
        signature = self.signature(spec)
        widths = {name: len(list(nest.flatten(part))) for name, part in signature._asdict().items()}
        observation = range(widths["observation"])
        columns = [Column(i, 0, True) for i in observation]
        rest = len(columns)
        for name in ("action", "reward", "discount"):
            columns += [Column(rest + i, 0, True) for i in range(widths[name])]
            rest += widths[name]
        columns += [Column(i, 1, True) for i in observation]
        return columns + [Column(rest + i, 0, True) for i in range(widths["extras"])]

    def lay_batch(self, batch: EpisodeBatch) -> Laid:
        """See :class:`Pattern`."""
        view = transitions(batch, n_step=self.n_step, gamma=self.gamma)
        counts = batch.lengths - 1
        goes_on = np.ones(batch.num_steps, np.bool_)
        goes_on[batch.ends] = False
        starts = np.flatnonzero(goes_on)
        ends = starts + view.steps
        own = {name: extra_field(batch.rows, name) for name in self.extras}
        extras = nest.map_structure(lambda column: column[starts], own)
        head = (view.action, view.reward, view.discount, extras)
        tensors = [column for _, column in nest.flatten(batch.rows.observation)]
        tensors += [_at(starts, column, batch.num_steps) for _, column in nest.flatten(head)]

        def items(which: slice = slice(None)) -> TransitionItem:
            one = (view.observation, view.action, view.reward, view.discount, view.next_observation, extras or ())
            return TransitionItem(*nest.map_structure(lambda column: column[which], one))

        numbers = starts - np.repeat(batch.starts, counts)
        spans = [RowSpan(starts, starts + 1), RowSpan(ends, ends + 1)]
        return Laid(tensors, np.append(batch.starts, batch.num_steps), spans, counts, numbers, numbers, items)

    def count(self, steps: int, episodes: int) -> int | None:
        """See :class:`Pattern`."""
        return steps - episodes


def _at(rows: np.ndarray, column: np.ndarray, count: int) -> np.ndarray:
    """A column of transitions as one of `count` rows, so that it can share chunks with the observations."""
    out = np.zeros((count, *column.shape[1:]), column.dtype)
    if column.dtype == object:
        out[...] = b""
    out[rows] = column
    return out
