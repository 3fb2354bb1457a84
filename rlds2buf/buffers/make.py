"""The factories: one for each combination that has a name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlds2buf.buffers.buffer import Buffer
from rlds2buf.buffers.live import LiveFolder
from rlds2buf.buffers.priorities import PrioritizedSampler
from rlds2buf.buffers.removers import Fifo
from rlds2buf.buffers.samplers import Sampler, UniformSampler
from rlds2buf.buffers.storage import RowStore, in_memory
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import SnapshotCorrupt

__all__ = ["empty_like", "make_circular", "make_prioritized"]

_FIRST_SLOTS = 1024


def make_circular(
    spec: StepSpec,
    capacity: int,
    *,
    capacity_unit: str = "rows",
    seed: int | None = None,
    directory: str | Path | None = None,
    view: Mapping[str, Any] | None = None,
) -> Buffer:
    """A buffer that keeps the newest and samples uniformly.

    Args:
        spec: of the rows, from ``source.spec`` or ``spec_of(episode)``.
        capacity: how much it holds, at least 0.
        capacity_unit: what `capacity` counts: ``"rows"`` (an episode of N rows takes N, an explicit
            transition one), ``"transitions"`` or ``"episodes"`` (these two grow their storage as
            needed; ``"episodes"`` takes whole episodes only).
        seed: of the draws.
        directory: keep the columns in files there (created, must be empty), for buffers larger
            than memory. ``buffer.save()`` makes them a saved buffer, and
            ``load_buffer(directory, writable=True)`` goes on with it.
        view: what ``sample`` gives unless told otherwise: any of its `n_step`, `gamma` and
            `sequence_length`.

    Returns:
        An empty Buffer.

    Raises:
        SpecMismatch: a field has an axis of varying length.
        SnapshotExists: `directory` holds something already.
        ValueError: an argument is out of range.

    >>> import numpy as np
    >>> from rlds2buf import Episode, spec_of
    >>> ep = Episode(observation=np.arange(5.0), action=np.zeros(5), reward=np.ones(5), discount=np.ones(5))
    >>> buffer = make_circular(spec_of(ep), 100, seed=0)
    >>> buffer.add(ep)
    array([0, 1, 2, 3], dtype=uint64)
    >>> batch = buffer.sample(2)
    >>> (batch.data.next_observation - batch.data.observation).tolist()
    [1.0, 1.0]
    """
    return _make("circular", spec, capacity, UniformSampler, {}, capacity_unit, seed, directory, view)


def make_prioritized(
    spec: StepSpec,
    capacity: int,
    *,
    alpha: float = 0.6,
    beta: float = 0.4,
    beta_final: float = 1.0,
    beta_steps: int | None = None,
    eps: float = 1e-6,
    normalise: str = "batch",
    stratified: bool = False,
    capacity_unit: str = "rows",
    seed: int | None = None,
    directory: str | Path | None = None,
    view: Mapping[str, Any] | None = None,
) -> Buffer:
    """A buffer that keeps the newest and samples by priority (Schaul et al. 2015).

    New transitions come in at the largest priority there has been (at first 1); a learner sets
    them with ``update_priorities(batch.info.key, abs(td_error))``.

    Args:
        spec, capacity, capacity_unit, seed, directory, view: as for :func:`make_circular`.
        alpha: exponent of the priorities, in [0, 1]; 0 samples uniformly.
        beta: exponent of the importance weights at first, in [0, 1].
        beta_final: where it ends.
        beta_steps: after how many ``update_priorities`` calls; None stays at `beta`.
        eps: added to every updated priority, so that none is 0.
        normalise: divide weights by the largest of the ``"batch"`` (the paper's) or of the whole
            ``"buffer"``.
        stratified: draw one item from each of B equal parts of the priorities' total, as the
            paper's implementation does, instead of independently.

    Returns:
        An empty Buffer.

    Raises:
        SpecMismatch, SnapshotExists, ValueError: as for :func:`make_circular`.

    >>> import numpy as np
    >>> from rlds2buf import Episode, spec_of
    >>> ep = Episode(observation=np.arange(5.0), action=np.zeros(5), reward=np.ones(5), discount=np.ones(5))
    >>> buffer = make_prioritized(spec_of(ep), 100, alpha=1.0, eps=0.0, seed=0)
    >>> keys = buffer.add(ep)
    >>> buffer.update_priorities(keys, [0.0, 0.0, 0.0, 2.0])
    array([], dtype=uint64)
    >>> batch = buffer.sample(3)
    >>> batch.data.observation.tolist(), batch.info.weight.tolist()
    ([3.0, 3.0, 3.0], [1.0, 1.0, 1.0])
    """
    options = {
        "alpha": alpha,
        "beta": beta,
        "beta_final": beta_final,
        "beta_steps": beta_steps,
        "eps": eps,
        "normalise": normalise,
        "stratified": stratified,
    }

    def sampler(slots: int) -> PrioritizedSampler:
        return PrioritizedSampler(slots, **options)  # type: ignore[arg-type]  # checked where it is made

    return _make("prioritized", spec, capacity, sampler, options, capacity_unit, seed, directory, view)


def empty_like(kind: str, spec: StepSpec, options: dict[str, Any], *, seed: int | None = None) -> Buffer:
    """An empty buffer of a saved one's kind, for :func:`rlds2buf.load_buffer` to fill.

    Raises:
        SnapshotCorrupt: there is no such kind, or its options don't fit.
    """
    makers: dict[str, Callable[..., Buffer]] = {"circular": make_circular, "prioritized": make_prioritized}
    try:
        return makers[kind](spec, 0, seed=seed, **options)
    except (KeyError, TypeError) as cause:
        raise SnapshotCorrupt(f"no buffer of kind {kind!r} can be made: {cause}") from cause


def _make(
    kind: str,
    spec: StepSpec,
    capacity: int,
    sampler: Callable[[int], Sampler],
    options: Mapping[str, Any],
    capacity_unit: str,
    seed: int | None,
    directory: str | Path | None,
    view: Mapping[str, Any] | None,
) -> Buffer:
    remover = Fifo(capacity, capacity_unit)
    slots = capacity if capacity_unit == "rows" else min(capacity, _FIRST_SLOTS)
    drawn = sampler(slots)
    home = None if directory is None else LiveFolder(Path(directory))
    store = RowStore(spec, slots, allocate=in_memory if home is None else home.allocate)
    return Buffer(spec, store, remover, drawn, kind=kind, options=options, seed=seed, home=home, view=view)
