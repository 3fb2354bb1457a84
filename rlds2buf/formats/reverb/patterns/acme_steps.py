"""Acme's steps: the items of its SequenceAdder and its EpisodeAdder.

Source: acme/adders/reverb/{base,sequence,episode}.py in https://github.com/google-deepmind/acme
"""

from __future__ import annotations

import abc
from typing import Any, Final, NamedTuple

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.arguments import choice, integer
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.formats.reverb.patterns.base import Laid, Pattern, extra_field
from rlds2buf.formats.reverb.patterns.spacing import spaced
from rlds2buf.formats.reverb.protocol.item_encoder import Column, RowSpan
from rlds2buf.views.pairs import step_pairs
from rlds2buf.views.signature import item_spec

__all__ = ["END_OF_EPISODE", "AcmeEpisodePattern", "AcmeSequencePattern", "StepItem"]

END_OF_EPISODE: Final = ("zero_pad", "truncate", "write")
"""What becomes of the last steps of an episode; the names of Acme's ``EndBehavior`` but CONTINUE."""


class StepItem(NamedTuple):
    """The columns of a table of steps, as Acme's ``Step`` (``Trajectory``) has them, each ``[T, ...]``.

    Row t holds an observation, the action taken there, and reward and discount of that action; discount is 0 where
    it led to a terminal step.  Of an episode's last row only the observation says something, the others are zeros.

    Attributes:
        start_of_episode: ``[T] bool``.
        extras: extra step fields by name; ``()`` if there are none.
    """

    observation: nest.Nest
    action: nest.Nest
    reward: Any
    discount: Any
    start_of_episode: Any
    extras: nest.Nest = ()


class _Steps(Pattern):
    """Items of whole steps.

    Args:
        extras: names of the extra step fields to store.
    """

    type_name = "Step"

    def __init__(self, extras: tuple[str, ...] = ()) -> None:
        self.extras = tuple(sorted(extras))

    def signature(self, spec: StepSpec) -> StepItem:
        """See :class:`Pattern`."""
        pair = item_spec(spec, "pairs")
        lacking = [name for name in self.extras if name not in spec.extras]
        if lacking:
            raise ValueError(f"the data have no extra field {lacking[0]!r}; they have {sorted(spec.extras)}")
        extras = {name: spec.extras[name] for name in self.extras}
        start = FieldSpec((), np.dtype(np.bool_))
        step = (pair.observation, pair.action, pair.reward, FieldSpec((), np.dtype(np.float32)), start, extras or ())
        length = self.fixed_length
        return StepItem(*nest.map_structure(lambda field: FieldSpec((length, *field.shape), field.dtype), step))

    @property
    @abc.abstractmethod
    def fixed_length(self) -> int | None:
        """Rows per item; None where they differ."""

    def columns(self, spec: StepSpec) -> list[Column]:
        """See :class:`Pattern`."""
        return [Column(i) for i, _ in enumerate(nest.flatten(self.signature(spec)))]

    def rows_of(self, batch: EpisodeBatch) -> StepItem:
        """One step per row, ``[R, ...]``.

        Raises:
            EpisodeError: a field is not there.
        """
        pairs = step_pairs(batch)
        ends = batch.ends
        starts = np.zeros(batch.num_steps, np.bool_)
        starts[batch.starts] = True

        def without_last(column: np.ndarray) -> np.ndarray:
            out = column.copy()
            out[ends] = b"" if column.dtype == object else 0
            return out

        own = {name: extra_field(batch.rows, name) for name in self.extras}
        action, reward, discount, extras = nest.map_structure(
            without_last, (pairs.action, pairs.reward, pairs.discount, own)
        )
        return StepItem(pairs.observation, action, reward, discount, starts, extras or ())


class AcmeSequencePattern(_Steps):
    """Sequences of steps: the items of Acme's SequenceAdder.

    An episode of N rows (N-1 transitions) gives a sequence at every `stride`-th row as long as it ends before the
    last row, and then:

    ==============  =========================================================================================
    `end`           behind that
    ==============  =========================================================================================
    ``zero_pad``    the next one, with rows of zeros behind the last row up to its length (Acme's default)
    ``truncate``    the next one, as many rows as there are; items are then not of one length
    ``write``       the last `length` rows, if the episode has so many
    ==============  =========================================================================================

    An episode of one row gives none.  With strides longer than sequences Acme writes some that hold nothing but
    zeros; these are left out.

    Args:
        length: rows per sequence (Acme's ``sequence_length``).
        stride: rows from one sequence to the next (Acme's ``period``).
        end: see above (Acme's ``end_of_episode_behavior``).
        extras: names of the extra step fields to store.

    Raises:
        ValueError: an argument is out of range.

    >>> from rlds2buf import Episode
    >>> ep = Episode(observation=np.arange(1, 7), action=np.ones(6), reward=np.ones(6), discount=np.ones(6))
    >>> for end in END_OF_EPISODE:
    ...     laid = AcmeSequencePattern(3, 2, end=end).lay(ep)
    ...     print([laid.tensors[0][start:stop].tolist() for start, stop in zip(*laid.spans[0])])
    [[1, 2, 3], [3, 4, 5], [5, 6, 0]]
    [[1, 2, 3], [3, 4, 5], [5, 6]]
    [[1, 2, 3], [3, 4, 5], [4, 5, 6]]
    """

    def __init__(self, length: int, stride: int = 1, *, end: str = "zero_pad", extras: tuple[str, ...] = ()) -> None:
        super().__init__(extras)
        self.length, self.stride = integer("sequence_length", length, 1), integer("stride", stride, 1)
        choice("end_of_episode", end, END_OF_EPISODE)
        self.end = end

    @property
    def text(self) -> str:
        """See :class:`Pattern`."""
        return f"acme-sequence length={self.length} stride={self.stride} end={self.end} extras={','.join(self.extras)}"

    @property
    def fixed_length(self) -> int | None:
        """See :class:`_Steps`."""
        return None if self.end == "truncate" else self.length

    def lay_batch(self, batch: EpisodeBatch) -> Laid:
        """See :class:`Pattern`."""
        step = self.rows_of(batch)
        counts, last = self._counts(batch.lengths)
        before = np.cumsum(counts) - counts
        of = np.repeat(np.arange(len(batch)), counts)
        turn = np.arange(len(of)) - before[of]
        begins = turn * self.stride
        begins[turn == counts[of] - 1] = last[counts > 0]
        missing = np.where(counts > 0, np.maximum(last + self.length - batch.lengths, 0), 0)
        columns = [column for _, column in nest.flatten(step)]
        tensors, edges, _ = spaced(columns, batch.lengths, behind=missing if self.end == "zero_pad" else 0)
        starts = edges[:-1][of] + begins
        stops = np.minimum(starts + self.length, edges[1:][of])

        def items(which: slice = slice(None)) -> StepItem:
            index = [np.arange(start, stop) for start, stop in zip(starts[which], stops[which], strict=True)]
            if self.fixed_length is None:  # of several lengths: objects, one array each
                return nest.unflatten(step, iter([_apart(tensor, index) for tensor in tensors]))
            rows = np.array(index, np.int64).reshape(-1, self.length)
            return nest.unflatten(step, iter([tensor[rows] for tensor in tensors]))

        return Laid(tensors, edges, [RowSpan(starts, stops)], counts, begins, begins, items)

    def _counts(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How many items each episode has, and the row where the last one begins; both ``[E]``."""
        over = rows - self.length
        if self.end == "write":
            aligned = np.maximum(over - 1 + self.stride, 0) // self.stride  # those that end before the last row
            return np.where((over >= 0) & (rows > 1), aligned + 1, 0), over
        turns = -(-np.maximum(over, 0) // self.stride)
        holds = turns * self.stride < rows
        counts = np.where(rows > 1, turns + holds, 0)
        return counts, (counts - 1) * self.stride

    def count(self, steps: int, episodes: int) -> int | None:
        """See :class:`Pattern`."""
        return None


class AcmeEpisodePattern(_Steps):
    """One item per episode: all its steps, as Acme's EpisodeAdder writes them.

    An episode of one row gives none.

    Args:
        extras: names of the extra step fields to store.

    >>> from rlds2buf import Episode
    >>> ep = Episode(observation=np.arange(4), action=np.ones(4), reward=np.ones(4), discount=np.ones(4))
    >>> item = AcmeEpisodePattern().lay(ep).items()
    >>> item.action.tolist(), item.start_of_episode.tolist()
    ([[1.0, 1.0, 1.0, 0.0]], [[True, False, False, False]])
    """

    chunk_steps = 1024  # items are whole episodes, so chunks have no rows to spare

    @property
    def text(self) -> str:
        """See :class:`Pattern`."""
        return f"acme-episode extras={','.join(self.extras)}"

    @property
    def fixed_length(self) -> int | None:
        """See :class:`_Steps`."""
        return None

    def lay_batch(self, batch: EpisodeBatch) -> Laid:
        """See :class:`Pattern`."""
        step = self.rows_of(batch)
        counts = (batch.lengths > 1).astype(np.int64)
        starts, stops = batch.starts[counts > 0], batch.ends[counts > 0] + 1
        tensors = [column for _, column in nest.flatten(step)]

        def items(which: slice = slice(None)) -> StepItem:
            first, last = starts[which], stops[which]
            rows = slice(int(first[0]), int(last[-1])) if len(first) else slice(0)
            return nest.unflatten(step, iter([tensor[None, rows][: len(first)] for tensor in tensors]))

        none = np.zeros(len(starts), np.int64)
        edges = np.append(batch.starts, batch.num_steps)
        return Laid(tensors, edges, [RowSpan(starts, stops)], counts, none, none, items)

    def count(self, steps: int, episodes: int) -> int | None:
        """See :class:`Pattern`."""
        return None


def _apart(tensor: np.ndarray, index: list[np.ndarray]) -> np.ndarray:
    out = np.empty(len(index), object)
    for i, rows in enumerate(index):
        out[i] = tensor[rows]
    return out
