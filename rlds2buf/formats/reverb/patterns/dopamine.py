"""Dopamine's replay elements: transitions with stacks of frames, and the tables that sample them as Dopamine does.

Sources: dopamine/jax/replay_memory/{elements,accumulator,samplers}.py and dopamine/tf/replay_memory/ in
https://github.com/google/dopamine
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.arguments import integer
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.row_flags import TERMINATED
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.formats.reverb.patterns.base import Laid, Pattern
from rlds2buf.formats.reverb.patterns.spacing import spaced
from rlds2buf.formats.reverb.patterns.transitions import TransitionPattern
from rlds2buf.formats.reverb.protocol.item_encoder import Column, RowSpan
from rlds2buf.formats.reverb.table_spec import TableSpec
from rlds2buf.views.transitions import transitions

__all__ = ["DopaminePattern", "ReplayElement", "dopamine_table"]

_BOOL = np.dtype(np.bool_)


class ReplayElement(NamedTuple):
    """The columns of a replay table, named as Dopamine's ``ReplayElement``.

    Attributes:
        state, next_state: the last `stack` frames, ``[stack, ...]``, oldest first; zeros before the episode's first.
            With a stack of 1 there is no such axis.  (Dopamine has it last.)
        action, reward: of the state's last frame; the reward is the discounted sum over n steps.
        is_terminal: whether the episode terminates within the n steps; learners do not bootstrap then.
        episode_end: whether the transition ends at the episode's last row, terminal or not.
    """

    state: nest.Nest
    action: nest.Nest
    reward: Any
    next_state: nest.Nest
    is_terminal: Any
    episode_end: Any


class DopaminePattern(Pattern):
    """One item per transition, n steps long, its states stacks of frames; frames are stored once.

    Learners discount what they bootstrap from by ``gamma ** n_step``, so of an episode that is cut off (not
    terminated) the transitions that would be shorter are left out; a terminating one keeps them.

    Args:
        stack: frames per state (Dopamine's ``stack_size``).
        n_step: steps per transition (``update_horizon``).
        gamma: discount of rewards inside a transition.

    Raises:
        ValueError: an argument is out of range.

    >>> from rlds2buf import Episode
    >>> ep = Episode(observation=np.arange(1, 5), action=np.zeros(4), reward=np.ones(4), discount=np.ones(4))
    >>> item = DopaminePattern(stack=2).lay(ep).items()
    >>> item.state.tolist(), item.next_state.tolist()
    ([[0, 1], [1, 2], [2, 3]], [[1, 2], [2, 3], [3, 4]])
    """

    type_name = "ReplayElement"

    def __init__(self, *, stack: int = 1, n_step: int = 1, gamma: float = 1.0) -> None:
        self.stack = integer("stack", stack, 1)
        self._transition = TransitionPattern(n_step=n_step, gamma=gamma)

    @property
    def text(self) -> str:
        """See :class:`Pattern`."""
        return f"dopamine stack={self.stack} n_step={self._transition.n_step} gamma={self._transition.gamma!r}"

    def signature(self, spec: StepSpec) -> ReplayElement:
        """See :class:`Pattern`; the axis of frames comes first, where there is one."""
        one = self._transition.signature(spec)
        if one.action is None or one.reward is None:
            raise ValueError(f"the data have no {'action' if one.action is None else 'reward'}")
        front = (self.stack,) if self.stack > 1 else ()
        state = nest.map_structure(lambda field: FieldSpec((*front, *field.shape), field.dtype), one.observation)
        return ReplayElement(state, one.action, one.reward, state, FieldSpec((), _BOOL), FieldSpec((), _BOOL))

    def columns(self, spec: StepSpec) -> list[Column]:
        """See :class:`Pattern`."""
        item = self.signature(spec)
        frames = range(len(list(nest.flatten(item.state))))
        own = len(list(nest.flatten((item.action, item.reward))))
        first = len(frames)
        columns = [Column(i, 0, self.stack == 1) for i in frames]
        columns += [Column(first + i, 1, True) for i in range(own)]
        columns += [Column(i, 2, self.stack == 1) for i in frames]
        return columns + [Column(first + own + i, 1, True) for i in range(2)]

    def lay_batch(self, batch: EpisodeBatch) -> Laid:
        """See :class:`Pattern`."""
        view = transitions(batch, n_step=self._transition.n_step, gamma=self._transition.gamma)
        of = np.repeat(np.arange(len(batch)), batch.lengths - 1)
        row = np.arange(len(of)) + of  # each episode has a row more than transitions
        end = row + view.steps
        is_terminal, at_end = view.is_done == TERMINATED, end == batch.ends[of]
        kept = np.flatnonzero((view.steps == self._transition.n_step) | is_terminal)
        frames = [column for _, column in nest.flatten(batch.rows.observation)]
        tensors, edges, place = spaced(frames, batch.lengths, before=self.stack - 1)
        head = (view.action, view.reward, is_terminal, at_end)
        tensors += [_at(place[row], column, int(edges[-1])) for _, column in nest.flatten(head)]
        of, row, end = of[kept], place[row[kept]], place[end[kept]]
        states, following = (RowSpan(last - self.stack + 1, last + 1) for last in (row, end))

        def items(which: slice = slice(None)) -> ReplayElement:
            def stacked(rows: np.ndarray) -> nest.Nest:
                index = rows[which, None] + np.arange(1 - self.stack, 1) if self.stack > 1 else rows[which]
                leaves = iter([tensor[index] for tensor in tensors[: len(frames)]])
                return nest.unflatten(batch.rows.observation, leaves)

            action, reward, ends, lasts = nest.map_structure(lambda column: column[kept][which], head)
            return ReplayElement(stacked(row), action, reward, stacked(end), ends, lasts)

        counts = np.bincount(of, minlength=len(batch))
        numbers = row - edges[:-1][of] - (self.stack - 1)
        return Laid(tensors, edges, [states, RowSpan(row, row + 1), following], counts, numbers, numbers, items)

    def count(self, steps: int, episodes: int) -> int | None:
        """See :class:`Pattern`."""
        return steps - episodes if self._transition.n_step == 1 else None


def dopamine_table(
    name: str = "replay",
    *,
    prioritized: bool = False,
    replay_capacity: int = 1_000_000,
    min_replay_history: int = 1,
    **settings: Any,
) -> TableSpec:
    """The settings of a table that samples as Dopamine's replay buffers do, oldest items leaving first.

    Args:
        name: the table's name.
        prioritized: in proportion to the items' priorities (Schaul et al. 2016; Dopamine's agents set the square root
            of the loss, and divide by the probability, which Reverb tells with every sample), or uniformly.
        replay_capacity: items it holds.
        min_replay_history: items there must be before anything is sampled; Dopamine's Atari agents wait for 20,000.
        settings: further ones of :class:`~rlds2buf.formats.reverb.table_spec.TableSpec`.

    Raises:
        ValueError: a setting that Reverb does not take.

    >>> dopamine_table(prioritized=True).sampler, dopamine_table().remover
    ('prioritized', 'fifo')
    """
    return TableSpec(
        name,
        max_size=replay_capacity,
        sampler="prioritized" if prioritized else "uniform",
        remover="fifo",
        min_size_to_sample=min_replay_history,
        **settings,
    )


def _at(rows: np.ndarray, column: np.ndarray, count: int) -> np.ndarray:
    """A column of transitions as one of `count` rows, so that it can share chunks with the frames."""
    out = np.zeros((count, *column.shape[1:]), column.dtype)
    if column.dtype == object:
        out[...] = b""
    out[rows] = column
    return out
