"""Step pairs: rows (t, t+1) of the flattened data, as TF-Agents' trajectories have them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.episode import Episode
from rlds2buf.core.fields import STEP_FIRST, STEP_LAST, STEP_MID
from rlds2buf.core.sample import StepPairs
from rlds2buf.views.transitions import need

__all__ = ["step_pairs", "step_types"]


def step_pairs(episodes: Episode | Iterable[Episode], *, terminal_discount: str = "transition") -> StepPairs:
    """One frame per row of all episodes, each with its own step type and that of the next row.

    Episode borders are included: the frame of an episode's last row pairs with the first row of the
    next episode (after the last episode, with an artificial first row), as TF-Agents'
    ``convert_rlds_to_trajectories`` does.  An episode of one row is a last step followed by a last
    one, which is TF-Agents' mark for it too.

    Args:
        episodes: one episode or several, in order.
        terminal_discount: where an episode that terminates has its discount 0.  ``"transition"``: on
            the frame whose *next* row is terminal, which is the one a learner bootstraps from.
            ``"boundary"``: on the terminal row's own frame, as TF-Agents does; a learner masks
            that frame, and bootstraps through the terminal state unless the data already hold a 0.

    Returns:
        StepPairs with a leading axis of all rows together; discount is float32.

    Raises:
        EpisodeError: an episode lacks observation, action or reward.
        ValueError: no episodes, or another `terminal_discount`.

    >>> ep = Episode(observation=np.arange(3), action=np.zeros(3), reward=np.zeros(3),
    ...              discount=np.ones(3), is_terminal=[False, False, True])
    >>> pairs = step_pairs(ep)
    >>> pairs.step_type, pairs.next_step_type, pairs.discount
    (array([0, 1, 2], dtype=int32), array([1, 2, 0], dtype=int32), array([1., 0., 1.], dtype=float32))
    """
    if terminal_discount not in ("transition", "boundary"):
        raise ValueError(f"terminal_discount must be 'transition' or 'boundary', got {terminal_discount!r}")
    parts = [_frames(episode, terminal_discount) for episode in _as_list(episodes)]
    if not parts:
        raise ValueError("step_pairs needs at least one episode")
    if len(parts) == 1:
        return parts[0]
    return StepPairs(
        *nest.map_structure(lambda *columns: np.concatenate(columns), tuple(parts[0]), *map(tuple, parts[1:]))
    )


def step_types(episode: Episode) -> np.ndarray:
    """``[N] int32``: 0 on first rows, 2 on last ones (also where one row is both), 1 between."""
    kinds = np.full(episode.num_steps, STEP_MID, np.int32)
    kinds[episode.is_first] = STEP_FIRST
    kinds[episode.is_last] = STEP_LAST
    return kinds


def _frames(episode: Episode, terminal_discount: str) -> StepPairs:
    kinds = step_types(episode)
    following = np.empty_like(kinds)
    following[:-1] = kinds[1:]
    following[-1] = STEP_FIRST if len(kinds) > 1 else STEP_LAST
    rows = episode.num_steps
    logged = np.ones(rows, np.float32) if episode.discount is None else episode.discount
    discount = np.array(logged, np.float32)
    if terminal_discount == "boundary":
        discount[episode.is_last & episode.is_terminal] = 0
    else:
        discount[:-1][episode.is_terminal[1:]] = 0
    return StepPairs(
        step_type=kinds,
        observation=need(episode, "observation"),
        action=need(episode, "action"),
        policy_info=(),
        next_step_type=following,
        reward=need(episode, "reward"),
        discount=discount,
    )


def _as_list(episodes: Episode | Iterable[Episode]) -> list[Episode]:
    return [episodes] if isinstance(episodes, Episode) else list(episodes)
