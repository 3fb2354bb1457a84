"""The factories: one for each combination that has a name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlds2buf.buffers.buffer import Buffer
from rlds2buf.buffers.live import LiveFolder
from rlds2buf.buffers.removers import Fifo
from rlds2buf.buffers.samplers import UniformSampler
from rlds2buf.buffers.storage import RowStore, in_memory
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import SnapshotCorrupt

__all__ = ["make_circular"]

_FIRST_SLOTS = 1024


def make_circular(
    spec: StepSpec,
    capacity: int,
    *,
    capacity_unit: str = "rows",
    seed: int | None = None,
    directory: str | Path | None = None,
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

    Returns:
        An empty Buffer.

    Raises:
        SpecMismatch: a field has an axis of varying length.
        SnapshotExists: `directory` holds something already.

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
    remover = Fifo(capacity, capacity_unit)
    slots = capacity if capacity_unit == "rows" else min(capacity, _FIRST_SLOTS)
    home = None if directory is None else LiveFolder(Path(directory))
    store = RowStore(spec, slots, allocate=in_memory if home is None else home.allocate)
    buffer = Buffer(spec, store, remover, UniformSampler(slots), seed=seed)
    buffer._home = home
    return buffer


def empty_like(kind: str, spec: StepSpec, options: dict[str, Any], *, seed: int | None = None) -> Buffer:
    """An empty buffer of a saved one's kind, for :func:`rlds2buf.load_buffer` to fill.

    Raises:
        SnapshotCorrupt: there is no such kind, or its options don't fit.
    """
    makers = {"circular": make_circular}
    try:
        return makers[kind](spec, 0, seed=seed, **options)
    except (KeyError, TypeError) as cause:
        raise SnapshotCorrupt(f"no buffer of kind {kind!r} can be made: {cause}") from cause
