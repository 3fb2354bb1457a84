"""The factory of reservoirs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlds2buf.buffers.buffer import Buffer
from rlds2buf.buffers.contents.reservoir import ReservoirContents, ReservoirSampler, log_slots
from rlds2buf.buffers.disk.live_folder import LiveFolder, check_durability
from rlds2buf.buffers.other_names import well_named
from rlds2buf.buffers.rows.row_store import RowStore
from rlds2buf.buffers.select.removers import Reservoir
from rlds2buf.buffers.storage_units import DEFAULT_CAPACITY, Units
from rlds2buf.core.arguments import integer
from rlds2buf.core.room import room_for
from rlds2buf.core.spaces import step_spec
from rlds2buf.core.spec import StepSpec

__all__ = ["make_reservoir"]


@well_named
def make_reservoir(
    spec: StepSpec | tuple[Any, Any],
    capacity: int = DEFAULT_CAPACITY,
    *,
    capacity_unit: str = "items",
    storage_unit: str = "timesteps",
    item_length: int | None = None,
    count_hits: bool = False,
    seed: int | None = None,
    directory: str | Path | None = None,
    durability: str = "save",
    view: Mapping[str, Any] | None = None,
) -> Buffer:
    """A buffer that holds a uniform sample of everything ever added, and samples that uniformly.

    Algorithm R (Vitter 1985, https://doi.org/10.1145/3147.3165): after n items each of them is held
    with probability ``min(1, capacity / n)``, the first as well as the last, and so is every set of
    `capacity` of them.  ``add`` gives keys for all items, also those that are not held (any more).

    A transition is held by itself, with its own next observation.  Its n-step returns and sequences
    end where the transition that followed it is not held.

    The capacity counts items.  A bound on the rows of items of several transitions could only be
    kept by preferring short ones; they take as many rows as they have, and memory grows to that.

    Args:
        spec, storage_unit, item_length, count_hits, seed, directory, durability, view: as for
            :func:`make_circular`. (A log of the rows has a quarter more of them than is held.)
        capacity: how many items it holds, at least 1.
        capacity_unit: ``"items"``; for ``"timesteps"`` also ``"rows"`` or ``"transitions"``, and for
            ``"episodes"`` also ``"episodes"``, which mean the same.

    Returns:
        An empty Buffer.

    Raises:
        SpecMismatch, SnapshotExists, ValueError: as for :func:`make_circular`.

    >>> import numpy as np
    >>> from rlds2buf import Episode, spec_of
    >>> ep = Episode(observation=np.arange(101.0), action=np.zeros(101), reward=np.ones(101), discount=np.ones(101))
    >>> buffer = make_reservoir(spec_of(ep), 10, seed=0)
    >>> len(buffer.add(ep)), len(buffer)
    (100, 10)
    """
    units = Units(storage_unit, item_length, count_hits)
    units.check_capacity_unit(capacity_unit)
    if units.whole and capacity_unit in ("rows", "transitions"):
        raise ValueError(f"a reservoir of {storage_unit} has room for so many items, not {capacity_unit}")
    if not units.whole and capacity_unit == "episodes":
        raise ValueError("a reservoir of timesteps can't count episodes; use storage_unit='episodes'")
    spec = step_spec(spec)
    capacity = integer("capacity", capacity, 1)
    check_durability(durability)
    remover = Reservoir(capacity, capacity_unit, seed=seed)
    slots = log_slots(capacity)
    with room_for(f"capacity: {slots:,} rows", slots * spec.row_bytes):
        home = None if directory is None else LiveFolder(Path(directory), durability=durability)
        store = RowStore(spec, slots, home=home)
        contents = ReservoirContents(store, remover, ReservoirSampler(slots))
        units.prepare(contents)
    return Buffer(
        spec,
        contents,
        kind="reservoir",
        intake=units.intake(spec, apart=True),
        options=units.options(),
        seed=seed,
        home=home,
        view=view,
    )
