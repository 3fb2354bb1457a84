"""What becomes of transitions that get new goals."""

from __future__ import annotations

import numpy as np

from rlds2buf.core.row_flags import CONTINUE, TERMINATED
from rlds2buf.kernels.compiled import compiled

__all__ = ["judge", "judge_numpy", "put"]


def put_numpy(first: np.ndarray, second: np.ndarray, start: int, values: np.ndarray, chosen: np.ndarray) -> None:
    """:func:`put`."""
    columns = slice(start, start + values.shape[1])
    first[chosen, columns] = second[chosen, columns] = values[chosen]


def judge_numpy(
    chosen: np.ndarray,
    rewards: np.ndarray,
    met: np.ndarray,
    gamma: float,
    reward: np.ndarray,
    is_done: np.ndarray,
    discount: np.ndarray,
    bootstrap: np.ndarray,
) -> None:
    """Write what becomes of transitions with new goals.

    Args:
        chosen: ``[B] bool``, which have one.
        rewards: ``[B]``, theirs now.
        met: ``[B] bool``, whether it is met.
        gamma: discount per step.
        reward, is_done, discount, bootstrap: ``[B]``, what is written to.
    """
    np.copyto(reward, rewards, where=chosen)
    ends = chosen & met
    goes_on = chosen & ~met & (is_done == TERMINATED)
    for column, at_end, further in ((is_done, TERMINATED, CONTINUE), (discount, 0, 1), (bootstrap, 0, gamma)):
        column[ends] = at_end
        column[goes_on] = further


@compiled(twin=put_numpy)
def put(first, second, start, values, chosen):  # type: ignore[no-untyped-def]
    """Copy rows of `values` ``[B, n]`` into two arrays ``[B, m]`` from column `start` on, where ``chosen [B] bool``."""
    for i in range(chosen.shape[0]):
        if chosen[i]:
            for j in range(values.shape[1]):
                first[i, start + j] = values[i, j]
                second[i, start + j] = values[i, j]


@compiled(twin=judge_numpy)
def judge(chosen, rewards, met, gamma, reward, is_done, discount, bootstrap):  # type: ignore[no-untyped-def]
    """Write rewards and ends; :func:`judge_numpy` says how."""
    for i in range(chosen.shape[0]):
        if not chosen[i]:
            continue
        reward[i] = rewards[i]
        if met[i]:
            is_done[i] = TERMINATED
            discount[i] = 0
            bootstrap[i] = 0
        elif is_done[i] == TERMINATED:
            is_done[i] = 0
            discount[i] = 1
            bootstrap[i] = gamma
