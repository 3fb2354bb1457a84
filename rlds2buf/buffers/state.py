"""All of a buffer as plain values and arrays, and back."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds2buf.buffers.rows.blobs import is_blob
from rlds2buf.buffers.rows.columns import MemoryColumns, saved_columns, small_strings, write_columns
from rlds2buf.buffers.rows.row_store import OWN_NEXT
from rlds2buf.core.agreement import same_columns
from rlds2buf.core.forks import seed_of
from rlds2buf.errors import SnapshotCorrupt, SnapshotError
from rlds2buf.kernels.chain import LINKED

if TYPE_CHECKING:
    from rlds2buf.buffers.buffer import Buffer

__all__ = ["describe", "get_state", "restore", "set_state"]


def describe(buffer: Buffer) -> dict[str, Any]:
    """What is not in the columns, as plain JSON values (strings of a column, if few, as latin-1 text)."""
    store, contents = buffer._store, buffer._contents
    return {
        "kind": buffer.kind,
        "spec": buffer.spec.to_json(),
        "capacity": buffer.capacity,
        "capacity_unit": buffer.capacity_unit,
        "options": buffer._options,
        "base": store.oldest,
        "oldest": store.oldest,
        "newest": store.newest,
        "episode_rows": list(buffer._remover.lengths),
        "open": {str(source): key for source, key in buffer._contents.waiting.items()},
        "counts": {"added": contents.added, "evicted": contents.evicted, "sampled": buffer._drawing.sampled},
        "rng": buffer._rng.bit_generator.state,
        "sampler": buffer._sampler.state(),
        "contents": contents.state(),
        "strings": small_strings(store),
    }


def restore(buffer: Buffer, state: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Fill a buffer of the same kind and spec; `arrays` are used as they are, not copied.

    Raises:
        SnapshotCorrupt: something is missing or does not fit together; rows and counts were not changed.
    """
    store, rng = buffer._store, np.random.default_rng()
    try:
        columns, vocabularies = saved_columns(store, state["strings"], arrays)
        limit, unit = int(state["capacity"]), str(state["capacity_unit"])
        lengths = [int(rows) for rows in state["episode_rows"]]
        waiting = {int(source): int(key) for source, key in state["open"].items()}
        added, evicted, sampled = (int(state["counts"][name]) for name in ("added", "evicted", "sampled"))
        if state["rng"] is not None:
            rng.bit_generator.state = state["rng"]
        store.adopt(
            columns,
            base=int(state["base"]),
            oldest=int(state["oldest"]),
            newest=int(state["newest"]),
        )
        store.vocabularies = vocabularies
        buffer._remover.limit, buffer._remover.unit = limit, unit
        buffer._remover.lengths.clear()
        buffer._remover.lengths.extend(lengths)
        inside = dict(state.get("contents") or {})
        if state["rng"] is None:
            inside.pop("rng", None)  # all draws start anew
        buffer._contents.restored(inside)
        buffer._contents.waiting = waiting
        buffer._contents.added, buffer._contents.evicted, buffer._drawing.sampled = added, evicted, sampled
        if state["rng"] is not None:
            buffer._rng.bit_generator.state = state["rng"]
            buffer._seed = seed_of(buffer._rng)
        saved = {name[len("sampler/") :]: array for name, array in arrays.items() if name.startswith("sampler/")}
        buffer._sampler.restore(store, state["sampler"], saved)
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as cause:
        raise SnapshotCorrupt(f"the saved state does not fit together: {cause!r}") from cause


def get_state(buffer: Buffer) -> dict[str, Any]:
    """A deep copy of everything a buffer is."""
    columns = MemoryColumns()
    write_columns(buffer._store, columns.column)
    arrays = columns.arrays()
    arrays.update((f"sampler/{name}", array) for name, array in buffer._sampler.arrays(buffer._store).items())
    return {**copy.deepcopy(describe(buffer)), "version": 1, "arrays": arrays}


def set_state(buffer: Buffer, state: Mapping[str, Any]) -> None:
    """Put the buffer into a state that :func:`get_state` gave.

    Raises:
        SnapshotError: the state is of another kind, spec, capacity or version, or not whole; nothing
            was changed.
    """
    missing = {*describe(buffer), "version", "arrays"} - set(state)
    if missing:
        raise SnapshotError(f"the state lacks {', '.join(sorted(missing))}")
    if state.get("version") != 1:
        raise SnapshotError(f"the state has version {state.get('version')!r}, expected 1")
    for name, mine in (
        ("kind", buffer.kind),
        ("capacity", buffer.capacity),
        ("capacity_unit", buffer.capacity_unit),
    ):
        if state.get(name) != mine:
            raise SnapshotError(f"the state is of a buffer with {name} {state.get(name)!r}, this one has {mine!r}")
    for name in ("storage_unit", "item_length"):
        theirs, ours = dict(state["options"]).get(name), buffer._options.get(name)
        if theirs != ours:
            raise SnapshotError(f"the state is of a buffer with {name} {theirs!r}, this one has {ours!r}")
    if not same_columns(state["spec"], buffer.spec):
        raise SnapshotError("the state is of a buffer with another spec")
    slots = max(buffer._store.slots, int(state["newest"]) - int(state["oldest"]))
    arrays = {name: np.array(array) for name, array in state["arrays"].items()}
    flags = arrays.get("flags", np.zeros(0, np.uint8))
    store = buffer._store
    own = {f"next_{store.names[i]}{'/ends' * is_blob(store.fields[i])}" for i in store.observation}
    for flag, needed in ((OWN_NEXT, own), (LINKED, {"links"})):
        if np.any(flags & np.uint8(flag)) and not needed <= set(arrays):
            raise SnapshotCorrupt(f"the state lacks {', '.join(sorted(needed - set(arrays)))}")
    restore(buffer, state, arrays)
    buffer._contents.relay(slots)
