"""Transitions of an episode: one-step and n-step."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.arguments import fraction, integer
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.row_flags import CONTINUE, TERMINATED, TRUNCATED
from rlds2buf.core.sample import Transition
from rlds2buf.errors import EpisodeError

__all__ = ["done_codes", "need", "sum_dtype", "transitions"]


def transitions(episode: Episode | EpisodeBatch, *, n_step: int = 1, gamma: float = 1.0) -> Transition:
    """Every transition of the episode: N-1 of them for N rows, none for an episode of one row.

    Transition t goes from row t to row ``t + steps[t]`` with ``steps[t] = min(n_step, N-1-t)``: the
    horizon stops at the end of the episode, and `bootstrap_discount` knows by how much.  The
    discount is 0 on a transition into a terminal row whatever was logged there; a time-out keeps
    the logged one.  The formulas are in :class:`~rlds2buf.core.sample.Transition`.

    Args:
        episode: N rows; or a batch of episodes, whose transitions follow each other.
        n_step: the longest horizon, at least 1.
        gamma: discount per step, in [0, 1].

    Returns:
        Transition with leading axis ``[N-1]``; one-step columns share memory with an episode.
        Action and reward are None where the data have none.  Sums of rewards are of :func:`sum_dtype`.

    Raises:
        EpisodeError: the episode has no observation; its discounts are nested; or `n_step` is above
            1, and there is no reward, a nest of them, or more than one discount per step.
        ValueError: `n_step` or `gamma` is out of range.

    >>> ep = Episode(observation=np.arange(4.0), action=np.zeros(4), reward=np.array([1.0, 2, 4, 0]),
    ...              discount=np.ones(4), is_terminal=[False, False, False, True])
    >>> batch = transitions(ep, n_step=2, gamma=0.5)
    >>> batch.reward, batch.steps, batch.bootstrap_discount
    (array([2., 4., 4.]), array([2, 2, 1], dtype=int32), array([0.25, 0.  , 0.  ], dtype=float32))
    """
    n_step, gamma = integer("n_step", n_step, 1), fraction("gamma", gamma)
    batch = EpisodeBatch.of_one(episode) if isinstance(episode, Episode) else episode
    rows = batch.rows
    observation = need(rows, "observation")
    reward = rows.reward if n_step == 1 else need(rows, "reward")
    left = np.repeat(batch.ends, batch.lengths) - np.arange(rows.num_steps)  # how many transitions are left at each row
    head: Any = slice(0, rows.num_steps - 1) if len(batch) == 1 else np.flatnonzero(left)
    left = left[head]

    def first(column: np.ndarray | None) -> np.ndarray | None:
        return None if column is None else column[head]

    is_done = _done_codes(batch)
    discount = one_step_discount(rows, head, is_done)
    if n_step == 1:
        total, product, steps = nest.map_structure(first, reward), discount, np.ones(len(left), np.int32)
        successor: Any = slice(1, rows.num_steps) if len(batch) == 1 else head + 1
    else:
        steps = np.minimum(n_step, left).astype(np.int32)
        for name, column in (("reward", reward), ("discount", discount)):
            if not isinstance(column, np.ndarray) or (name == "discount" and column.ndim > 1):
                raise _unfit(rows, name, "n-step sums need one array of rewards and one discount per step")
        total, product = _n_step_sums(reward[head], discount, left, n_step, gamma)
        successor = np.arange(rows.num_steps)[head] + steps
        is_done = is_done[np.arange(len(steps)) + steps - 1] if len(steps) else is_done
    return Transition(
        observation=nest.map_structure(first, observation),
        action=nest.map_structure(first, rows.action),
        reward=total,
        discount=product,
        next_observation=nest.map_structure(lambda column: column[successor], observation),
        extras=nest.map_structure(first, rows.extras),
        is_done=is_done,
        steps=steps,
        bootstrap_discount=(product * gamma).astype(np.float32),
    )


def done_codes(episode: Episode) -> np.ndarray:
    """``[N-1] uint8``: 0 for every transition but the last one, which is 1 or 2 (or 0 if left open)."""
    codes = np.full(episode.num_transitions, CONTINUE, np.uint8)
    if len(codes):
        codes[-1] = {"terminated": TERMINATED, "truncated": TRUNCATED, "open": CONTINUE}[episode.end]
    return codes


def _done_codes(batch: EpisodeBatch) -> np.ndarray:
    """:func:`done_codes` of all episodes, one behind the other."""
    codes = np.full(batch.num_transitions, CONTINUE, np.uint8)
    last, some, ends = np.cumsum(batch.lengths - 1) - 1, batch.lengths > 1, batch.ends
    ended = np.where(batch.rows.is_last[ends], TRUNCATED, CONTINUE)
    ended[batch.rows.is_terminal[ends]] = TERMINATED
    codes[last[some]] = ended[some]
    return codes


def one_step_discount(rows: Episode, head: Any, is_done: np.ndarray) -> np.ndarray:
    """The logged discounts of the transitions' rows as floats, 0 where one terminates; ones where none were logged."""
    if rows.discount is None:
        discount = np.ones(len(is_done), np.float32)
    elif not isinstance(rows.discount, np.ndarray):
        raise _unfit(rows, "discount", "a transition has one discount, not a nest of them")
    else:
        logged = rows.discount[head]
        discount = logged.astype(logged.dtype if logged.dtype.kind == "f" else np.float32)
    discount[is_done == TERMINATED] = 0
    return discount


def sum_dtype(dtype: np.dtype) -> np.dtype:
    """The type in which n-step sums of rewards come out, whether or not a horizon has several steps.

    That of the rewards; but float32 for float16, in which a sum soon is infinite, and float64 for
    rewards that are no floats.

    >>> sum_dtype(np.dtype(np.float16)), sum_dtype(np.dtype(np.int8))
    (dtype('float32'), dtype('float64'))
    """
    return np.result_type(dtype, np.float32) if dtype.kind == "f" else np.dtype(np.float64)


def need(episode: Episode, name: str) -> nest.Nest:
    """The episode's field of that name.

    Raises:
        EpisodeError: the episode lacks it.
    """
    value = getattr(episode, name)
    if value is None:
        raise _unfit(episode, name, "the data have no such field, and this view needs it")
    return value


def _unfit(episode: Episode, name: str, message: str) -> EpisodeError:
    return EpisodeError(message, source=episode.source, episode=episode.index, path=name, rule="missing-field")


def _n_step_sums(
    reward: np.ndarray, discount: np.ndarray, left: np.ndarray, n: int, gamma: float
) -> tuple[np.ndarray, np.ndarray]:
    # One pass over whole columns per step of the horizon, in float64 so that the order of the
    # additions does not show; ``product`` is gamma**(i) * d_0 * ... * d_{i-1} while term i is added.
    tail = (slice(None),) + (None,) * (reward.ndim - 1)
    total = np.zeros(reward.shape, np.float64)
    product = np.ones(len(left), np.float64)
    out = np.ones(len(left), np.float64)
    for i in range(min(n, int(left.max(initial=0)))):
        live = np.flatnonzero(left > i)
        total[live] += product[live][tail] * reward[live + i]
        out[live] = product[live] * discount[live + i]
        product[live] = out[live] * gamma
    return total.astype(sum_dtype(reward.dtype)), out.astype(discount.dtype)
