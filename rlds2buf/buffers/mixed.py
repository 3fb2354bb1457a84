"""Batches from several buffers at once, by weight."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rlds2buf.buffers.finishing import OPTIONS as FINISHING
from rlds2buf.buffers.finishing import finisher
from rlds2buf.buffers.read.prefetch import Batches
from rlds2buf.core import forks, nest, shown
from rlds2buf.core.agreement import common_spec
from rlds2buf.core.arguments import integer
from rlds2buf.core.closed import Closed
from rlds2buf.core.sample import Sample
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import NotEnoughItems

__all__ = ["MixedBuffers", "MixedInfo"]


class MixedInfo(NamedTuple):
    """Where each of the B sampled items came from, as :class:`~rlds2buf.core.sample.SampleInfo`.

    Attributes:
        key: ``[B] uint64``, the item's key in its own buffer: keys of different buffers may be equal.
        probability: ``[B] float64``, the chance of each draw to pick this item of this buffer.
        priority: ``[B] float64``, raw.
        weight: ``[B] float64``, importance weights as the item's own buffer has them.
        table_size: how many items could have been sampled, of all buffers together.
        source_id: ``[B] int32``, the number of the buffer.
    """

    key: Any
    probability: Any
    priority: Any
    weight: Any
    table_size: int
    source_id: Any

    def __repr__(self) -> str:
        return shown.batch(self)


class MixedBuffers(Closed):
    """Samples from several buffers as from one; they stay as they are, and may be written to meanwhile.

    Each item of a batch is drawn on its own: first the buffer, by weight, then an item as that buffer
    draws. So half a batch may be online and half offline data (Ball et al. 2023,
    https://arxiv.org/abs/2302.02948), whatever their sizes.  And the share of the offline half may shrink while
    online data come in: with `final_weights`, each buffer's share goes in a straight line from what it is by
    `weights` to what it is by these, over `anneal_steps` batches, and stays there.

    Args:
        buffers: at least one, as :func:`rlds2buf.make_circular` and its like make them.
        weights: one positive number each; None: the number of items each holds at the time, which is
            sampling uniformly from all of them together, where each samples uniformly.
        final_weights: one number each; here, and in `weights` then, some may be 0.
        anneal_steps: how many batches that takes, at least 1.
        seed: of the choice between buffers; each item comes of its buffer's own generator.

    Attributes:
        spec: what they have in common.

    Raises:
        SpecMismatch: their fields, shapes or types differ.
        ValueError: no buffer, not as many weights as buffers, or one that is not positive.
        TypeError: `weights`, `final_weights` and `anneal_steps` are not given together.

    >>> from rlds2buf import Episode, make_circular, spec_of
    >>> episode = Episode(observation=np.zeros(9), action=np.zeros(9), reward=np.zeros(9), discount=np.ones(9))
    >>> offline, online = (make_circular(spec_of(episode), 100, seed=seed) for seed in (1, 2))
    >>> _ = offline.add(episode), online.add(episode)
    >>> mixed = MixedBuffers([offline, online], weights=[0.5, 0.5], seed=0)
    >>> batch = mixed.sample(4)
    >>> batch.data.observation.shape, sorted(set(batch.info.source_id.tolist()))
    ((4,), [0, 1])
    >>> mixed = MixedBuffers([offline, online], weights=[1, 0], final_weights=[0.5, 0.5], anneal_steps=4, seed=0)
    >>> for _ in range(3):
    ...     _ = mixed.sample(4)
    >>> mixed.shares.tolist()
    [0.625, 0.375]
    """

    buffers: tuple[Any, ...]
    spec: StepSpec

    def __init__(
        self,
        buffers: Sequence[Any],
        *,
        weights: Sequence[float] | None = None,
        final_weights: Sequence[float] | None = None,
        anneal_steps: int | None = None,
        seed: int | None = None,
    ) -> None:
        if not buffers:
            raise ValueError("at least one buffer is needed")
        if (final_weights is None) != (anneal_steps is None) or (final_weights is not None and weights is None):
            raise TypeError("weights that change need all of weights, final_weights and anneal_steps")
        is_annealed = final_weights is not None
        self._weights = _shares(weights, len(buffers), is_annealed)
        self._final = _shares(final_weights, len(buffers), is_annealed)
        self._anneal_steps = None if anneal_steps is None else integer("anneal_steps", anneal_steps, 1)
        self._batches = 0
        self.buffers = tuple(buffers)
        names = [f"buffer {number}" for number in range(len(buffers))]
        self.spec = common_spec([buffer.spec for buffer in buffers], names)
        self._rng = np.random.default_rng(seed)
        self._seed = forks.seed_of(self._rng)
        forks.register(self, MixedBuffers._forked)

    @property
    def shares(self) -> np.ndarray:
        """``[buffers] float64``: the chance of each item of the next batch to be of each buffer; they sum to 1."""
        if self._weights is None:
            sizes = np.array([len(buffer) for buffer in self.buffers], np.float64)
            return sizes / max(1.0, sizes.sum())
        if self._final is None or self._anneal_steps is None:
            return self._weights.copy()
        part = min(1.0, self._batches / self._anneal_steps)
        return (1.0 - part) * self._weights + part * self._final

    def __len__(self) -> int:
        """Items of all buffers."""
        return sum(len(buffer) for buffer in self.buffers)

    def __repr__(self) -> str:
        return shown.aligned(
            f"<MixedBuffers: {len(self.buffers)} buffers, {len(self)} items>", shown.spec_rows(self.spec)
        )

    def sample(self, batch_size: int, **options: Any) -> Sample:
        """Draw a batch.

        Args:
            batch_size: B, at least 1.
            options: as for ``Buffer.sample``: of the view for each of them, `to`, `device`, `transform` and
                `normalize` for the whole batch.  Sequences need a `sequence_length`, so that all are equally long.

        Returns:
            Sample: `data` a Transition or Trajectory, `info` a :class:`MixedInfo`.

        Raises:
            NotEnoughItems: all are empty, or one is that has a weight.
            ValueError: an argument is out of range, or sequences differ in length.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        finish = finisher(self.spec, **{name: options.pop(name) for name in FINISHING if name in options})
        sizes = np.array([len(buffer) for buffer in self.buffers])
        shares = self.shares
        if not shares.any() or (sizes[shares > 0] == 0).any():
            raise NotEnoughItems(f"a buffer is empty: {', '.join(f'{size} items' for size in sizes.tolist())}")
        chosen = self._rng.choice(len(shares), batch_size, p=shares).astype(np.int32)
        counts = np.bincount(chosen, minlength=len(shares))
        drawn = {number: self.buffers[number].sample(int(n), **options) for number, n in enumerate(counts) if n}
        # Row i of the batch is the next one of buffer chosen[i].
        order = np.empty(batch_size, np.int64)
        order[np.argsort(chosen, kind="stable")] = np.arange(batch_size)

        def join(*columns: Any) -> Any:
            return None if columns[0] is None else np.concatenate(columns)[order]

        parts = list(drawn.values())
        try:
            data = nest.map_structure(join, *[part.data for part in parts])
        except ValueError as cause:
            raise ValueError(f"the buffers' items differ in length: {cause}; give sequence_length") from cause
        infos = {number: part.info for number, part in drawn.items()}
        info = MixedInfo(
            join(*[found.key for found in infos.values()]),
            join(*[found.probability * shares[number] for number, found in infos.items()]),
            join(*[found.priority for found in infos.values()]),
            join(*[found.weight for found in infos.values()]),
            int(sizes.sum()),
            chosen,
        )
        self._batches += 1
        finished: Sample = finish(Sample(data, info))  # type: ignore[arg-type]  # a SampleInfo with one field more
        return finished

    def batches(
        self,
        batch_size: int,
        *,
        prefetch: int = 2,
        steps: int | None = None,
        timeout: float = 60.0,
        **options: Any,
    ) -> Batches[Any]:
        """Iterate over batches that are drawn in the background, as :meth:`sample` draws them.

        Args:
            batch_size, options: as for :meth:`sample`.
            prefetch, steps, timeout: as for ``Buffer.batches``.

        Returns:
            An iterator of Samples; a context manager too, and ``close()`` ends it early.

        Raises:
            NotEnoughItems, ReplayError: as for ``Buffer.batches``; raised by the iterator.
            ValueError: an argument is out of range.
        """

        def draw(count: int) -> list[Sample]:
            return [self.sample(batch_size, **options) for _ in range(count)]

        return Batches(draw, lambda batch: batch, steps=steps, prefetch=prefetch, timeout=timeout)

    def update_priorities(self, keys: npt.ArrayLike, priorities: npt.ArrayLike, source_id: npt.ArrayLike) -> np.ndarray:
        """Set the priorities of sampled items in their own buffers.

        Args:
            keys, source_id: ``[B]`` from ``info``.
            priorities: ``[B]``, 0 or more.

        Returns:
            ``[B] bool``: which of them are no longer held; they were passed over.

        Raises:
            InvalidPriority: one is negative, NaN or infinite.
            ReplayError: an item's buffer samples uniformly.
            ValueError: the three differ in length, or there is no such buffer.
        """
        wanted, values, numbers = np.asarray(keys), np.asarray(priorities), np.asarray(source_id)
        if not wanted.shape == values.shape == numbers.shape or wanted.ndim != 1:
            raise ValueError(f"keys {wanted.shape}, priorities {values.shape}, source_id {numbers.shape} differ")
        if numbers.size and not (0 <= numbers.min() and numbers.max() < len(self.buffers)):
            raise ValueError(f"source_id must be from 0 to {len(self.buffers) - 1}")
        gone = np.zeros(len(wanted), np.bool_)
        for number in np.unique(numbers).tolist():
            rows = np.flatnonzero(numbers == number)
            left = self.buffers[number].update_priorities(wanted[rows], values[rows])
            gone[rows] = np.isin(wanted[rows], left)
        return gone

    def state_dict(self) -> dict[str, Any]:
        """The state of the choice between buffers and of their shares, as plain values; each buffer has its own."""
        return {"rng": self._rng.bit_generator.state, "batches": self._batches}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on drawing as the one did whose :meth:`state_dict` it is."""
        self._rng.bit_generator.state = state["rng"]
        self._batches = int(state.get("batches", 0))
        self._seed = forks.seed_of(self._rng)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        forks.register(self, MixedBuffers._forked)

    def _forked(self, number: int) -> None:
        """This is a child now: see core/forks.py."""
        self._seed = forks.fork_seed(self._seed, number)
        self._rng = np.random.default_rng(self._seed)


def _shares(weights: Sequence[float] | None, count: int, may_be_zero: bool) -> np.ndarray | None:
    """Weights that sum to 1."""
    if weights is None:
        return None
    if len(weights) != count:
        raise ValueError(f"{count} buffers, but {len(weights)} weights")
    for weight in weights:
        if not ((weight > 0 or (may_be_zero and weight == 0)) and math.isfinite(weight)):
            raise ValueError(f"a weight must be a positive number, got {weight}")
    if not any(weights):
        raise ValueError("not all weights can be 0")
    shares = np.asarray(weights, np.float64)
    return shares / shares.sum()
