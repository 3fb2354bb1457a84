"""imitation: demonstrations as a list of its trajectories."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds2buf.adapters.held import all_episodes, one_array
from rlds2buf.core import nest
from rlds2buf.errors import MissingDependency, SpecMismatch

try:
    from imitation.data.types import DictObs, Trajectory, TrajectoryWithRew
except ImportError as cause:
    raise MissingDependency("rlds2buf.adapters.imitation needs imitation 1: pip install imitation") from cause

__all__ = ["to_imitation"]


def to_imitation(data: Any) -> list[Any]:
    """Every episode of a buffer or a dataset as one of imitation's trajectories, for ``BC``, ``GAIL`` and the others.

    Source: https://github.com/HumanCompatibleAI/imitation, ``data/types.py``, version 1.0.

    ====================  ==================================================================
    of an episode, N rows  of the trajectory
    ====================  ==================================================================
    observation           ``obs [N]``; a dict is a ``DictObs``
    action                ``acts [N - 1]``
    reward                ``rews [N - 1]`` float; without one a plain ``Trajectory``
    how it ended          ``terminal``: whether the environment ended it; one that was cut is
                          a fragment, whose last `done` is False
    ====================  ==================================================================

    Arrays are views of one copy. Discounts and extras have no place; ``infos`` is None.

    Args:
        data: a :class:`~rlds2buf.Buffer`, or what :func:`rlds2buf.open_source` opens.

    Returns:
        E trajectories.

    Raises:
        SpecMismatch: an action is nested or text, or an observation is text or a nest of nests.
        NotEnoughItems: there is no transition.

    >>> import numpy as np
    >>> from rlds2buf import Episode
    >>> from rlds2buf.adapters.imitation import to_imitation
    >>> ep = Episode(observation=np.arange(5.0), action=np.zeros(5), reward=np.ones(5))
    >>> [len(one) for one in to_imitation([ep, ep])]
    [4, 4]
    """
    batch = all_episodes(data)
    rows = batch.rows
    observed = _observed(rows.observation)
    actions = one_array(rows.action, "action", "imitation")
    rewards = None
    if rows.reward is not None:
        rewards = one_array(rows.reward, "reward", "imitation")
        rewards = rewards if rewards.dtype.kind == "f" else rewards.astype(np.float64)
    made = []
    for start, end in zip(batch.starts.tolist(), batch.ends.tolist(), strict=True):
        whole, steps = slice(start, end + 1), slice(start, end)
        seen = observed[whole] if isinstance(observed, np.ndarray) else _cut(observed, whole)
        fields = {"obs": seen, "acts": actions[steps], "infos": None, "terminal": bool(rows.is_terminal[end])}
        made.append(Trajectory(**fields) if rewards is None else TrajectoryWithRew(**fields, rews=rewards[steps]))
    return made


def _observed(observation: nest.Nest) -> Any:
    if not isinstance(observation, dict):
        return one_array(observation, "observation", "imitation")
    return {str(name): one_array(part, f"observation/{name}", "imitation") for name, part in observation.items()}


def _cut(observed: dict[str, np.ndarray], rows: slice) -> Any:
    if not observed:
        raise SpecMismatch("the data have no observation", path="observation", rule="spec")
    return DictObs({name: column[rows] for name, column in observed.items()})
