"""Dopamine-like replay elements, one transition at a time."""

from __future__ import annotations

import numpy as np

__all__ = ["replay_elements"]


def replay_elements(frames, rewards, *, terminated, stack, n_step, gamma):
    """Of an episode of N frames and N-1 rewards: (state, reward, next_state, is_terminal, episode_end) of each.

    A transition that a cut-off episode would make shorter than `n_step` is left out.
    """
    rows = len(frames)
    before = [np.zeros_like(frames[0])] * (stack - 1)
    shown = [*before, *frames]
    out = []
    for t in range(rows - 1):
        total, end = 0.0, t
        while end < rows - 1 and end - t < n_step:
            total += gamma ** (end - t) * rewards[end]
            end += 1
        if end - t < n_step and not terminated:
            continue
        ends = end == rows - 1
        out.append((shown[t : t + stack], total, shown[end : end + stack], terminated and ends, ends))
    return out
