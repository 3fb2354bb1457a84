"""Tianshou: its replay buffer filled from ours."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds2buf.adapters.held import all_episodes
from rlds2buf.core import nest
from rlds2buf.core.row_flags import TERMINATED
from rlds2buf.errors import MissingDependency, SpecMismatch
from rlds2buf.views.transitions import transitions

try:
    from tianshou.data import Batch
    from tianshou.data import ReplayBuffer as TheirReplayBuffer
except ImportError as cause:
    raise MissingDependency("rlds2buf.adapters.tianshou needs Tianshou 1 or later: pip install tianshou") from cause

__all__ = ["from_data_arguments", "to_tianshou"]


def from_data_arguments(data: Any) -> dict[str, Any]:
    """The arguments of Tianshou's ``ReplayBuffer.from_data`` for what a buffer or a dataset holds.

    Source: https://github.com/thu-ml/tianshou, ``tianshou/data/buffer/buffer_base.py``.

    Transitions stand episode by episode. The last one of each is `done`: `terminated` if the environment ended
    it, else `truncated`, also where the end of the episode was not seen, since what came behind is not held; so
    n-step returns bootstrap there, and never run into another episode. A dict of observations is a ``Batch``.
    Discounts and extras have no place.

    Args:
        data: a :class:`~rlds2buf.Buffer`, or what :func:`rlds2buf.open_source` opens.

    Returns:
        `obs`, `act`, `rew`, `terminated`, `truncated`, `done`, `obs_next`, each of length N.

    Raises:
        SpecMismatch: there is text in it, arrays of varying shape, or no action or reward.
        NotEnoughItems: there is no transition.
    """
    batch = all_episodes(data)
    found = transitions(batch)
    done = np.zeros(len(found.is_done), np.bool_)
    done[np.cumsum(batch.lengths - 1) - 1] = True
    terminated = found.is_done == TERMINATED
    return {
        "obs": _column(found.observation, "observation"),
        "act": _column(found.action, "action"),
        "rew": _column(found.reward, "reward"),
        "terminated": terminated,
        "truncated": done & ~terminated,
        "done": done,
        "obs_next": _column(found.next_observation, "observation"),
    }


def to_tianshou(data: Any, **options: Any) -> Any:
    """Tianshou's own replay buffer with everything that a buffer or a dataset holds.

    Args:
        data: as for :func:`from_data_arguments`.
        options: for Tianshou's ``ReplayBuffer``: `stack_num`, `random_seed`, for example; `size`, to leave room for
            more than what is held.

    Returns:
        A ``tianshou.data.ReplayBuffer`` that is added to behind the newest transition.

    Raises:
        SpecMismatch, NotEnoughItems: as for :func:`from_data_arguments`.
        ValueError: `size` is smaller than what there is.

    >>> import numpy as np
    >>> from rlds2buf import Episode
    >>> from rlds2buf.adapters.tianshou import to_tianshou
    >>> ep = Episode(observation=np.arange(5.0), action=np.zeros(5), reward=np.ones(5))
    >>> len(to_tianshou([ep, ep]))
    8
    """
    found = TheirReplayBuffer.from_data(**from_data_arguments(data))
    # Its next() and prev() stop at the newest transition, which from_data takes for the first one.
    found.last_index = np.array([len(found) - 1])
    size = options.pop("size", None)
    if size is None and not options:
        return found
    if size is not None and size < len(found):
        raise ValueError(f"size is {size}, and there are {len(found)} transitions")
    buffer = TheirReplayBuffer(size or len(found), **options)
    buffer.update(found)
    return buffer


def _column(column: nest.Nest, name: str) -> Any:
    if column is None:
        raise SpecMismatch("Tianshou needs it, and the data have none", path=name, rule="spec")
    for path, leaf in nest.flatten(column, (name,)):
        if leaf.dtype == object:
            what = "Tianshou takes numbers, and this is text or of varying shape: convert the data without this field"
            raise SpecMismatch(what, path=nest.path_name(path), rule="spec")
    return column if isinstance(column, np.ndarray) else Batch(_named(column))


def _named(column: nest.Nest) -> Any:
    """Tuples as dicts, for a Batch has names."""
    if isinstance(column, tuple):
        column = {str(i): part for i, part in enumerate(column)}
    return {name: _named(part) for name, part in column.items()} if isinstance(column, dict) else column
