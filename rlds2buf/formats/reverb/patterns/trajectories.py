"""Trajectories: runs of frames, as TF-Agents' observers write them."""

from __future__ import annotations

import dataclasses

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.fields import STEP_LAST
from rlds2buf.core.sample import StepPairs
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.formats.reverb.patterns.base import Laid, Pattern, extra_field
from rlds2buf.formats.reverb.patterns.spacing import spaced
from rlds2buf.formats.reverb.protocol.item_encoder import Column, RowSpan
from rlds2buf.views.pairs import into_terminal, step_pairs
from rlds2buf.views.signature import item_spec

__all__ = ["EpisodePattern", "TrajectoryPattern"]


class TrajectoryPattern(Pattern):
    """Runs of `length` frames, one every `stride`: TF-Agents' trajectories.

    By default the items of TF-Agents' ReverbAddTrajectoryObserver: windows inside one episode, its
    border frame (the last row) included, so N-1 items for N rows and a length of 2.

    Args:
        length: frames per item.
        stride: frames between the starts of items.
        pad: fill an episode shorter than `length` with zero border frames (last to first).
        tile: with `pad`: also begin an item at every later frame, padded as far as needed.
        cross: let items run over episode borders, as TF-Agents' ReverbTrajectorySequenceObserver does.
        terminal_discount: see :func:`rlds2buf.step_pairs`.
        policy_info: the extra step field that becomes ``policy_info``; none leaves it empty.

    Raises:
        ValueError: an argument is out of range.

    >>> from rlds2buf import Episode
    >>> ep = Episode(observation=np.arange(4), action=np.zeros(4), reward=np.zeros(4), discount=np.ones(4))
    >>> laid = TrajectoryPattern(2).lay(ep)
    >>> list(zip(laid.spans[0].starts.tolist(), laid.spans[0].stops.tolist()))
    [(0, 2), (1, 3), (2, 4)]
    """

    def __init__(
        self,
        length: int = 2,
        stride: int = 1,
        *,
        pad: bool = False,
        tile: bool = False,
        cross: bool = False,
        terminal_discount: str = "transition",
        policy_info: str | None = None,
    ) -> None:
        if length < 1 or stride < 1:
            raise ValueError(f"sequence_length and stride must be at least 1, got {length} and {stride}")
        if tile and not pad:
            raise ValueError("tile needs pad")
        if cross and pad:
            raise ValueError("items that cross episode borders are never padded")
        if terminal_discount not in ("transition", "boundary"):
            raise ValueError(f"terminal_discount must be 'transition' or 'boundary', got {terminal_discount!r}")
        self.length, self.stride, self.pad, self.tile = length, stride, pad, tile
        self.crosses = cross
        self.terminal_discount = terminal_discount
        self.policy_info = policy_info
        self._tail: list[np.ndarray] = []
        self._frames_before = 0
        self._zeroed = 0

    @property
    def note(self) -> str:
        """How many discounts are not the logged ones."""
        if not self._zeroed:
            return ""
        return (
            f"{self._zeroed} discounts into a terminal step were logged as something else than 0, and are 0 in the "
            "items (terminal_discount='boundary' leaves them, as TF-Agents does)"
        )

    @property
    def text(self) -> str:
        """See :class:`Pattern`."""
        return (
            f"trajectory length={self.length} stride={self.stride} pad={self.pad} tile={self.tile} "
            f"cross={self.crosses} terminal_discount={self.terminal_discount} policy_info={self.policy_info}"
        )

    def signature(self, spec: StepSpec) -> StepPairs:
        """See :class:`Pattern`."""
        pair = item_spec(spec, "pairs")
        if self.policy_info is not None:
            if self.policy_info not in spec.extras:
                raise ValueError(f"the data have no extra field {self.policy_info!r}; they have {sorted(spec.extras)}")
            pair = pair._replace(policy_info=spec.extras[self.policy_info])
        return StepPairs(*nest.map_structure(lambda field: _lengthen(field, self.length), tuple(pair)))

    def table_signature(self, spec: StepSpec) -> StepPairs:
        """The signature that TF-Agents gives its tables: any number of steps, a bounded discount."""
        signature = self.signature(spec)
        free = StepPairs(*nest.map_structure(lambda field: _lengthen(field, None, drop=1), tuple(signature)))
        return free._replace(discount=dataclasses.replace(free.discount, low=0.0, high=1.0))

    def columns(self, spec: StepSpec) -> list[Column]:
        """See :class:`Pattern`."""
        return [Column(i) for i, _ in enumerate(nest.flatten(self.signature(spec)))]

    def lay_batch(self, batch: EpisodeBatch) -> Laid:
        """See :class:`Pattern`."""
        pairs = self.frames(batch)
        frames = [column for _, column in nest.flatten(pairs)]
        if self.crosses:
            tensors, edges, counts, starts, numbers = self._joined(frames, batch)
        else:
            counts, missing = self._counts(batch.lengths)
            before = np.cumsum(counts) - counts
            numbers = (np.arange(int(counts.sum())) - np.repeat(before, counts)) * self.stride
            tensors = _padded(frames, batch, missing) if missing.any() else frames
            edges = np.append(0, np.cumsum(batch.lengths + missing))
            starts = np.repeat(edges[:-1], counts) + numbers

        def items(which: slice = slice(None)) -> StepPairs:
            index = starts[which, None] + np.arange(self.length)
            return nest.unflatten(pairs, iter([tensor[index] for tensor in tensors]))

        return Laid(tensors, edges, [RowSpan(starts, starts + self.length)], counts, numbers, numbers, items)

    def count(self, steps: int, episodes: int) -> int | None:
        """See :class:`Pattern`."""
        if self.stride != 1:
            return None
        if self.crosses:
            return max(0, steps - self.length + 1)
        if self.tile or self.length == 1:
            return steps
        return steps - episodes if self.length == 2 and not self.pad else None

    def reset(self) -> None:
        """See :class:`Pattern`."""
        self._tail = []
        self._frames_before = self._zeroed = 0

    def frames(self, batch: EpisodeBatch) -> StepPairs:
        """One frame per row.

        Raises:
            EpisodeError: a field is not there.
        """
        pairs = step_pairs(batch, terminal_discount=self.terminal_discount)
        if self.policy_info is not None:
            pairs = pairs._replace(policy_info=extra_field(batch.rows, self.policy_info))
        self._zeroed += self._count_zeroed(batch)
        return pairs

    def take_back(self, batch: EpisodeBatch) -> None:
        """See :class:`Pattern`."""
        self._zeroed -= self._count_zeroed(batch)

    def _count_zeroed(self, batch: EpisodeBatch) -> int:
        if self.terminal_discount != "transition":
            return 0
        into, logged = into_terminal(batch), batch.rows.discount
        return len(into) if logged is None else int(np.count_nonzero(np.asarray(logged)[into]))

    def _counts(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How many items each episode has, and how many rows are missing to the last one; both ``[E]``."""
        if self.tile:
            counts = (rows - 1) // self.stride + 1
        else:
            counts = np.maximum(rows - self.length + self.stride, 0) // self.stride
            if self.pad:
                counts = np.maximum(counts, 1)
        missing = np.maximum((counts - 1) * self.stride + self.length - rows, 0)
        return counts, np.where(counts > 0, missing, 0)

    def _joined(
        self, frames: list[np.ndarray], batch: EpisodeBatch
    ) -> tuple[list[np.ndarray], np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Tensors, edges, counts, starts and numbers of items that run over borders, an episode at a time."""
        parts: list[list[np.ndarray]] = []
        edges, counts, starts, numbers = [0], [], [], []
        for first, rows in zip(batch.starts.tolist(), batch.lengths.tolist(), strict=True):
            tensors, own = self._join([frame[first : first + rows] for frame in frames], rows)
            parts.append(tensors)
            counts.append(len(own))
            starts.append(own + edges[-1])
            numbers.append(own + self.length - 1 - (len(tensors[0]) - rows))  # the last frame's row: it is in this one
            edges.append(edges[-1] + len(tensors[0]))
        joined = parts[0] if len(parts) == 1 else [np.concatenate(columns) for columns in zip(*parts, strict=True)]
        return joined, np.array(edges), np.array(counts), np.concatenate(starts), np.concatenate(numbers)

    def _join(self, frames: list[np.ndarray], rows: int) -> tuple[list[np.ndarray], np.ndarray]:
        """The frames with the last ones of the episodes before; every window that ends in this episode."""
        before = len(self._tail[0]) if self._tail else 0
        tensors = [np.concatenate(parts) for parts in zip(self._tail, frames, strict=True)] if before else frames
        first = self._frames_before - before  # the number of the first of these frames in the whole dataset
        starts = np.arange(max(before - self.length + 1, 0), before + rows - self.length + 1, dtype=np.int64)
        starts = starts[(starts + first) % self.stride == 0]
        keep = min(self.length - 1, before + rows)
        self._tail = [tensor[len(tensor) - keep :].copy() for tensor in tensors]
        self._frames_before += rows
        return tensors, starts


class EpisodePattern(Pattern):
    """One item per episode: all its frames, the border frame included, as TF-Agents' ReverbAddEpisodeObserver.

    Args:
        terminal_discount, policy_info: as for :class:`TrajectoryPattern`.

    >>> from rlds2buf import Episode
    >>> ep = Episode(observation=np.arange(4), action=np.zeros(4), reward=np.zeros(4), discount=np.ones(4))
    >>> EpisodePattern().lay(ep).spans[0]
    RowSpan(starts=array([0]), stops=array([4]))
    """

    chunk_steps = 1024  # items are whole episodes, so chunks have no rows to spare

    def __init__(self, *, terminal_discount: str = "transition", policy_info: str | None = None) -> None:
        self._frame = TrajectoryPattern(1, terminal_discount=terminal_discount, policy_info=policy_info)

    @property
    def text(self) -> str:
        """See :class:`Pattern`."""
        return f"episode terminal_discount={self._frame.terminal_discount} policy_info={self._frame.policy_info}"

    @property
    def note(self) -> str:
        """As :attr:`TrajectoryPattern.note`."""
        return self._frame.note

    def reset(self) -> None:
        """See :class:`Pattern`."""
        self._frame.reset()

    def signature(self, spec: StepSpec) -> StepPairs:
        """See :class:`Pattern`; the axis of steps is None."""
        frame = self._frame.signature(spec)
        return StepPairs(*nest.map_structure(lambda field: _lengthen(field, None, drop=1), tuple(frame)))

    def table_signature(self, spec: StepSpec) -> StepPairs:
        """As :meth:`TrajectoryPattern.table_signature`."""
        return self._frame.table_signature(spec)

    def columns(self, spec: StepSpec) -> list[Column]:
        """See :class:`Pattern`."""
        return self._frame.columns(spec)

    def lay_batch(self, batch: EpisodeBatch) -> Laid:
        """See :class:`Pattern`."""
        pairs = self._frame.frames(batch)
        one = np.ones(len(batch), np.int64)
        stops = batch.ends + 1
        tensors = [column for _, column in nest.flatten(pairs)]

        def items(which: slice = slice(None)) -> StepPairs:
            first, last = batch.starts[which][0], stops[which][-1]
            return nest.unflatten(pairs, iter([tensor[None, first:last] for tensor in tensors]))

        span = RowSpan(batch.starts, stops)
        return Laid(tensors, np.append(batch.starts, stops[-1]), [span], one, one * 0, one * 0, items)

    def take_back(self, batch: EpisodeBatch) -> None:
        """See :class:`Pattern`."""
        self._frame.take_back(batch)

    def count(self, steps: int, episodes: int) -> int | None:
        """See :class:`Pattern`."""
        return episodes


def _lengthen(field: FieldSpec, length: int | None, *, drop: int = 0) -> FieldSpec:
    return FieldSpec((length, *field.shape[drop:]), field.dtype)


def _padded(frames: list[np.ndarray], batch: EpisodeBatch, missing: np.ndarray) -> list[np.ndarray]:
    """The frames with so many zero border frames (last to first) behind each episode's."""
    padded, _, place = spaced(frames, batch.lengths, behind=missing)
    kinds = np.full(len(padded[0]), STEP_LAST, frames[0].dtype)
    kinds[place] = frames[0]
    return [kinds, *padded[1:]]
