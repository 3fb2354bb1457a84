"""Step pairs: rows (t, t+1) of the flattened data, as TF-Agents' trajectories have them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.fields import STEP_FIRST, STEP_LAST, STEP_MID
from rlds2buf.core.sample import StepPairs
from rlds2buf.views.transitions import need

__all__ = ["into_terminal", "step_pairs", "step_types"]


def step_pairs(
    episodes: Episode | EpisodeBatch | Iterable[Episode], *, terminal_discount: str = "transition"
) -> StepPairs:
    """One frame per row of all episodes, each with its own step type and that of the next row.

    Episode borders are included: the frame of an episode's last row pairs with the first row of the
    next episode (after the last episode, with an artificial first row), as TF-Agents'
    ``convert_rlds_to_trajectories`` does.  An episode of one row is a last step followed by a last
    one, which is TF-Agents' mark for it too.

    Args:
        episodes: one episode or several, in order; a batch of them takes one pass.
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
    parts = [_frames(batch, terminal_discount) for batch in _as_batches(episodes)]
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


def _frames(batch: EpisodeBatch, terminal_discount: str) -> StepPairs:
    rows, starts, ends = batch.rows, batch.starts, batch.ends
    kinds = step_types(rows)
    following = np.empty_like(kinds)
    following[:-1] = kinds[1:]
    following[ends] = np.where(starts == ends, STEP_LAST, STEP_FIRST)
    logged = np.ones(rows.num_steps, np.float32) if rows.discount is None else rows.discount
    discount = np.array(logged, np.float32)
    if terminal_discount == "boundary":
        discount[rows.is_last & rows.is_terminal] = 0
    else:
        discount[into_terminal(batch)] = 0
    return StepPairs(
        step_type=kinds,
        observation=need(rows, "observation"),
        action=need(rows, "action"),
        policy_info=(),
        next_step_type=following,
        reward=need(rows, "reward"),
        discount=discount,
    )


def into_terminal(batch: EpisodeBatch) -> np.ndarray:
    """The rows whose next row, of the same episode, is terminal."""
    entered = batch.rows.is_terminal.copy()
    entered[batch.starts] = False
    return np.flatnonzero(entered) - 1


def _as_batches(episodes: Episode | EpisodeBatch | Iterable[Episode]) -> list[EpisodeBatch]:
    if isinstance(episodes, EpisodeBatch):
        return [episodes]
    return [EpisodeBatch.of_one(one) for one in ([episodes] if isinstance(episodes, Episode) else episodes)]
