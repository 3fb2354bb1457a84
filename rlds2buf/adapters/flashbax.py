"""flashbax: the state of a trajectory or item buffer, filled from ours."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds2buf.adapters.held import all_episodes
from rlds2buf.core import nest
from rlds2buf.core.arguments import integer
from rlds2buf.errors import MissingDependency, SpecMismatch
from rlds2buf.views.transitions import transitions

try:
    import jax
    import jax.numpy as jnp
    from flashbax.buffers.trajectory_buffer import TrajectoryBufferState
except ImportError as cause:
    raise MissingDependency("rlds2buf.adapters.flashbax needs flashbax 0.1.2 or later: pip install flashbax") from cause

__all__ = ["to_flashbax"]


def to_flashbax(
    data: Any,
    *,
    max_length_time_axis: int | None = None,
    add_batch_size: int = 1,
    next_observation: bool = True,
    drop_remainder: bool = False,
) -> Any:
    """The state of a flashbax buffer with every transition that a buffer or a dataset holds.

    Source: https://github.com/instadeepai/flashbax, ``flashbax/buffers/trajectory_buffer.py``.

    A time step of its `experience` is a whole transition, a dict of ``observation``, ``action``, ``reward``,
    ``discount`` (0 into terminal states), ``next_observation``, ``is_done`` (0 goes on, 1 terminated, 2 truncated)
    and ``extras``; what is missing is left out. Episodes follow one another, so a sequence that flashbax
    samples may run across an end, as sequences of its own do: `is_done` tells where. For single transitions
    make the buffer with ``fbx.make_item_buffer`` or with ``sample_sequence_length=1, period=1``, and nothing
    is ever mixed.

    Args:
        data: a :class:`~rlds2buf.Buffer`, or what :func:`rlds2buf.open_source` opens.
        max_length_time_axis: capacity of each row of the buffer; as much as there is unless given.
        add_batch_size: rows of the buffer, as it was made with; the N transitions are parted among them.
        next_observation: whether time steps have it, which takes as much memory again as observations do.
        drop_remainder: where N is no multiple of `add_batch_size`, leave out the newest ones that are left over.

    Returns:
        TrajectoryBufferState: `experience` ``[add_batch_size, max_length_time_axis, ...]``, arrays of JAX, so 64-bit
        numbers become 32-bit unless ``jax_enable_x64`` is set.

    Raises:
        SpecMismatch: there is text in it, or arrays of varying shape.
        NotEnoughItems: there is no transition.
        ValueError: they don't fit, or can't be parted.

    >>> import numpy as np
    >>> from rlds2buf import Episode
    >>> from rlds2buf.adapters.flashbax import to_flashbax
    >>> ep = Episode(observation=np.arange(5.0), action=np.zeros(5), reward=np.ones(5))
    >>> state = to_flashbax([ep, ep], max_length_time_axis=10)
    >>> state.experience["reward"].shape, int(state.current_index), bool(state.is_full)
    ((1, 10), 8, False)
    """
    rows = integer("add_batch_size", add_batch_size, 1)
    found = transitions(all_episodes(data))
    total = len(found.is_done)
    length = total // rows
    if total % rows and not drop_remainder:
        raise ValueError(
            f"{total} transitions can't be parted into {rows} rows of one length: take another add_batch_size, or "
            f"drop_remainder=True, which leaves out the newest {total % rows}"
        )
    capacity = length if max_length_time_axis is None else integer("max_length_time_axis", max_length_time_axis, 1)
    if length > capacity:
        raise ValueError(f"max_length_time_axis is {capacity}, and there are {length} transitions for each row")
    names = ("observation", "action", "reward", "discount", "next_observation", "is_done", "extras")
    kept = [name for name in names if next_observation or name != "next_observation"]
    held = {name: getattr(found, name) for name in kept}
    parts = {name: part for name, part in held.items() if any(leaf is not None for _, leaf in nest.flatten(part))}

    def laid(path: nest.Path, column: np.ndarray) -> Any:
        if column.dtype == object:
            what = "text and arrays of varying shape have no place in JAX arrays: convert the data without this field"
            raise SpecMismatch(what, path=nest.path_name(path), rule="spec")
        host = np.zeros((rows, capacity, *column.shape[1:]), jax.dtypes.canonicalize_dtype(column.dtype))
        host[:, :length] = column[: rows * length].reshape(rows, length, *column.shape[1:])
        return jnp.asarray(host)

    leaves = [(path, leaf) for path, leaf in nest.flatten(parts)]
    experience = nest.unflatten(parts, (None if leaf is None else laid(path, leaf) for path, leaf in leaves))
    return TrajectoryBufferState(
        experience=experience,
        current_index=jnp.array(length % capacity),
        is_full=jnp.array(length == capacity, dtype=bool),
    )
