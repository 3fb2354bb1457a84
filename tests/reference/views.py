"""The views, one row at a time, from lists of step dicts."""

from __future__ import annotations

import math
from typing import Any

from rlds2buf.core import nest
from rlds2buf.core.episode import Episode

Step = dict[str, Any]

FIRST, MID, LAST = 0, 1, 2


def steps_of(episode: Episode) -> list[Step]:
    """The rows of an episode; a discount that was not logged is 1."""

    def row(t: int) -> Step:
        names = ("observation", "action", "reward", "discount", "is_first", "is_last", "is_terminal", "extras")
        return {
            name: nest.map_structure(lambda c: None if c is None else c[t], getattr(episode, name)) for name in names
        }

    return [row(t) for t in range(episode.num_steps)]


def transitions(steps: list[Step], n: int, gamma: float) -> list[Step]:
    """What a learner may sum from each row but the last: at most n rewards, none past the episode's end."""
    end = len(steps) - 1
    out = []
    for start in range(end):
        total, weight, discount, used, last = 0.0, 1.0, 1.0, 0, start
        while used < n and start + used < end:
            last = start + used
            total = total + weight * steps[last]["reward"]
            logged = 1.0 if steps[last]["discount"] is None else float(steps[last]["discount"])
            discount = weight * (0.0 if steps[last + 1]["is_terminal"] else logged)
            weight = discount * gamma
            used += 1
        into = steps[last + 1]
        is_done = 0
        if last + 1 == end:
            is_done = 1 if into["is_terminal"] else 2 if into["is_last"] else 0
        out.append(
            {
                "observation": steps[start]["observation"],
                "action": steps[start]["action"],
                "extras": steps[start]["extras"],
                "reward": total,
                "discount": discount,
                "bootstrap_discount": discount * gamma,
                "next_observation": into["observation"],
                "is_done": is_done,
                "steps": used,
            }
        )
    return out


def window_starts(rows: int, length: int, stride: int, pad: bool) -> list[int]:
    """Rows at which windows start: 0, stride, ..., until one has reached the end (pad) or would pass it."""
    starts, at = [], 0
    while at < rows:
        if not pad and at + length > rows:
            break
        starts.append(at)
        if at + length >= rows:
            break
        at += stride
    return starts


def windows(steps: list[Step], length: int, stride: int, pad: bool) -> list[list[Step | None]]:
    """Windows as lists of rows; None stands past the end."""
    return [
        [steps[t] if t < len(steps) else None for t in range(start, start + length)]
        for start in window_starts(len(steps), length, stride, pad)
    ]


def step_pairs(episodes: list[list[Step]], terminal_discount: str) -> list[Step]:
    """Frames of the flattened data, with the type of the row behind each; an artificial first row ends it."""
    rows = [(steps, t) for steps in episodes for t in range(len(steps))]
    out = []
    for place, (steps, t) in enumerate(rows):
        alone = len(steps) == 1
        kind = LAST if steps[t]["is_last"] else FIRST if steps[t]["is_first"] else MID
        following = FIRST
        if place + 1 < len(rows):
            after, u = rows[place + 1]
            if after is steps:
                following = LAST if after[u]["is_last"] else FIRST if after[u]["is_first"] else MID
        if alone:
            following = LAST
        discount = 1.0 if steps[t]["discount"] is None else float(steps[t]["discount"])
        if terminal_discount == "boundary":
            zero = steps[t]["is_terminal"] and steps[t]["is_last"]
        else:
            zero = t + 1 < len(steps) and steps[t + 1]["is_terminal"]
        out.append(
            {
                "step_type": kind,
                "next_step_type": following,
                "observation": steps[t]["observation"],
                "action": steps[t]["action"],
                "reward": steps[t]["reward"],
                "discount": 0.0 if zero else discount,
            }
        )
    return out


def value(steps: list[Step], gamma: float, bootstrap: float) -> float:
    """The return of a whole episode by the definition of the discount, `bootstrap` behind a cut."""
    total, weight = 0.0, 1.0
    for t in range(len(steps) - 1):
        total += weight * float(steps[t]["reward"])
        logged = 1.0 if steps[t]["discount"] is None else float(steps[t]["discount"])
        weight *= gamma * (0.0 if steps[t + 1]["is_terminal"] else logged)
    return math.fsum([total, weight * bootstrap])
