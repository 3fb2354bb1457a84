"""What becomes of transitions that get new goals."""

from __future__ import annotations

from rlds2buf.core.row_flags import TERMINATED
from rlds2buf.kernels.compiled import compiled

__all__ = ["judge", "put"]


@compiled
def put(first, second, start, values, chosen):  # type: ignore[no-untyped-def]
    """Copy rows of `values` ``[B, n]`` into two arrays ``[B, m]`` from column `start` on, where ``chosen [B] bool``."""
    for i in range(chosen.shape[0]):
        if chosen[i]:
            for j in range(values.shape[1]):
                first[i, start + j] = values[i, j]
                second[i, start + j] = values[i, j]


@compiled
def judge(chosen, rewards, met, gamma, reward, is_done, discount, bootstrap):  # type: ignore[no-untyped-def]
    """Write rewards and ends; :func:`rlds2buf.views.hindsight.judge_numpy` says how."""
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
