"""Hindsight relabelling one transition at a time (Andrychowicz et al. 2017)."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["pick", "relabel"]

Step = Mapping[str, Any]
Goal = tuple[tuple[Any, Sequence[int]], tuple[Any, Sequence[int]]]
"""``((channel, elements), (channel, elements))``: where the measurement is, where the goal is."""


def pick(
    strategy: str, length: int, num_goals: int, rng: random.Random, include_current: bool = True
) -> list[list[int]]:
    """For each step of a trajectory the steps whose outcome becomes its goal."""
    picks = []
    for t in range(length):
        if strategy == "final":
            picks.append([length - 1])
        elif strategy == "episode":
            picks.append([rng.randrange(length) for _ in range(num_goals)])
        else:
            first = t if include_current or t == length - 1 else t + 1
            picks.append([rng.randrange(first, length) for _ in range(num_goals)])
    return picks


def relabel(
    trajectory: Sequence[Step],
    goals: Sequence[Goal],
    picks: Sequence[Sequence[int]],
    reward_fn: Callable[[Any, Any, Any], float],
    done_fn: Callable[[Any, Any, Any], bool],
) -> list[dict[str, Any]]:
    """New transitions, in the order of the steps and of their picks; the originals stay as they are.

    Each is the step with the goal elements of both observations replaced by what the picked step
    reached; reward and is_done are worked out anew, and a cut episode stays cut where the goal is
    not met.
    """
    out = []
    for step, chosen in zip(trajectory, picks, strict=True):
        for k in chosen:
            new = copy.deepcopy(dict(step))
            reached = trajectory[k]["next_obs"]
            for (from_channel, from_elements), (to_channel, to_elements) in goals:
                for source, target in zip(from_elements, to_elements, strict=True):
                    for side in ("obs", "next_obs"):
                        new[side][to_channel][target] = reached[from_channel][source]
            arguments = new["obs"], new["action"], new["next_obs"]
            new["reward"] = reward_fn(*arguments)
            met = done_fn(*arguments)
            new["is_done"] = 1 if met else (2 if step["is_done"] == 2 else 0)
            out.append(new)
    return out
