"""Which row holds the action and the reward: other loggers' layouts into RLDS's."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.arguments import choice
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch

__all__ = ["ALIGNMENTS", "realign", "realign_batch", "shift_reward", "shift_reward_batch"]

ALIGNMENTS: Final = ("sar", "ars", "rsa")
"""The layouts, as RLDS names them (``rlds.transformations.AlignmentType``)."""


def realign(episode: Episode, alignment: str) -> Episode:
    """An episode logged in another layout, in RLDS's.

    With s_t the observations, a_t the action taken in s_t, r_t and d_t the reward and discount that
    came of a_t, row t of the log holds

    =========  ====================================  ========================================  ===============
    layout     row t of the log                      who logs so                               rows that move
    =========  ====================================  ========================================  ===============
    ``"sar"``  s_t, a_t, r_t, d_t                    RLDS, D4RL, TF-Agents' trajectories       none
    ``"ars"``  a_{t-1}, r_{t-1}, d_{t-1}, s_t        EnvLogger: the step that led here         action, reward,
                                                                                               discount: one up
    ``"rsa"``  r_{t-1}, d_{t-1}, s_t, a_t            dm_env and TF-Agents time steps, with     reward, discount:
                                                     the action chosen on seeing them          one up
    =========  ====================================  ========================================  ===============

    So in ``ars``, ``action[t] = logged[t + 1]`` for t < N-1.  What row 0 of the log held (nothing had
    happened yet) is dropped.  Row N-1, RLDS's padding, gets zeros (empty text) as action and reward,
    and as discount the last one logged, so that a terminated episode still ends in 0.  Observation,
    flags and extras belong to their row and stay.

    A discount that is in RLDS's layout already stays, too: formats that log none have it made up by
    their reader.  It is told by a 0 on row N-2 of a terminated episode, which no log of the other two
    layouts holds there, for the episode went on.

    Source: https://github.com/google-research/rlds README, "Synthetic datasets".

    Args:
        episode: is not changed; columns that don't move are shared.
        alignment: one of `ALIGNMENTS`.

    Raises:
        ValueError: another `alignment`.

    >>> log = Episode(observation=[0, 1, 2], action=[9, 10, 11], reward=[0.0, 1.0, 2.0], discount=[1.0, 1.0, 0.0])
    >>> ep = realign(log, "ars")
    >>> ep.action.tolist(), ep.reward.tolist(), ep.discount.tolist()
    ([10, 11, 0], [1.0, 2.0, 0.0], [1.0, 0.0, 0.0])
    >>> realign(log, "rsa").action.tolist()
    [9, 10, 11]
    """
    return realign_batch(EpisodeBatch.of_one(episode), alignment).rows


def realign_batch(batch: EpisodeBatch, alignment: str) -> EpisodeBatch:
    """:func:`realign` of every episode of a batch.

    Raises:
        ValueError: another `alignment`.
    """
    choice("alignment", alignment, ALIGNMENTS)
    if alignment == "sar":
        return batch
    rows, ends = batch.rows, batch.ends
    moved = {"reward": nest.map_structure(lambda column: _up(column, ends), rows.reward)}
    aligned = _are_aligned(batch)
    if not aligned.all():
        origin = np.arange(1, batch.num_steps + 1)
        origin[ends] = ends
        stays = np.repeat(aligned, batch.lengths)
        origin[stays] = np.flatnonzero(stays)
        moved["discount"] = nest.map_structure(lambda column: None if column is None else column[origin], rows.discount)
    if alignment == "ars":
        moved["action"] = nest.map_structure(lambda column: _up(column, ends), rows.action)
    return batch.with_rows(rows.replace(**moved))


def shift_reward(episode: Episode, rows: int) -> Episode:
    """Take each step's reward from so many rows further on, 0 past the end.

    ``reward[t] = logged[t + rows]`` for t + rows < N, else 0; the discount stays.  With 1 this mends
    maze2d v1 (D4RL issue 194).

    Raises:
        ValueError: `rows` is negative.

    >>> shift_reward(Episode(reward=[1.0, 2.0, 3.0]), 1).reward.tolist()
    [2.0, 3.0, 0.0]
    """
    return shift_reward_batch(EpisodeBatch.of_one(episode), rows).rows


def shift_reward_batch(batch: EpisodeBatch, rows: int) -> EpisodeBatch:
    """:func:`shift_reward` of every episode of a batch.

    Raises:
        ValueError: `rows` is negative.
    """
    if rows < 0:
        raise ValueError(f"reward_shift must not be negative, got {rows}")
    if rows == 0 or batch.rows.reward is None:
        return batch
    late = np.flatnonzero(np.arange(batch.num_steps) + rows > np.repeat(batch.ends, batch.lengths))
    shifted = nest.map_structure(lambda column: _up(column, late, rows), batch.rows.reward)
    return batch.with_rows(batch.rows.replace(reward=shifted))


def _are_aligned(batch: EpisodeBatch) -> np.ndarray:
    """``[E] bool``: whether each one's discount is in RLDS's layout whatever the rest is in."""
    discount = batch.rows.discount
    if not isinstance(discount, np.ndarray) or discount.dtype.kind not in "biuf":
        return np.zeros(len(batch), np.bool_)
    before = discount[np.maximum(batch.ends - 1, 0)].reshape(len(batch), -1)
    return (batch.lengths >= 3) & batch.rows.is_terminal[batch.ends] & ~before.any(axis=1)


def _up(column: Any, past: np.ndarray, rows: int = 1) -> Any:
    """The column moved up by so many rows; the rows `past` have nothing to come to them, and get zeros."""
    if column is None:
        return None
    rows = min(rows, len(column))
    out = np.empty_like(column)
    out[: len(column) - rows] = column[rows:]
    if column.dtype != object:
        out[past] = 0
        return out
    for row in past.tolist():
        out[row] = _nothing(column[row])
    return out


def _nothing(value: Any) -> Any:
    """What pads a column of objects: an array of zeros of the same form, or empty text."""
    if isinstance(value, np.ndarray):
        return np.full_like(value, b"" if value.dtype == object else 0)
    return b""
