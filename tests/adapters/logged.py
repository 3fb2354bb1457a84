"""Small logged data for the adapters' tests, whose every value tells which step it belongs to."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds2buf import Episode, make_circular, spec_of

__all__ = ["EPISODES", "circular", "corridor", "episode"]


def episode(start: int, rows: int, end: str, *, discrete: bool = False, kind: str = "array") -> Episode:
    """Rows numbered from `start`; observations are an array, a tuple or a dict of two."""
    number = np.arange(start, start + rows)
    last = np.arange(rows) == rows - 1
    vector = np.stack([number, -number], 1).astype(np.float32)
    image = np.broadcast_to((number % 251)[:, None, None, None], (rows, 1, 2, 2)).astype(np.uint8)
    observation: Any = {"array": vector, "tuple": (vector, image), "dict": {"vector": vector, "image": image}}[kind]
    action = (number % 3).astype(np.int64) if discrete else (number[:, None] * 0.25).astype(np.float32)
    return Episode(
        observation=observation,
        action=action * ~last if discrete else action * ~last[:, None],
        reward=(number * 0.5 * ~last).astype(np.float32),
        discount=np.where(last & (end == "terminated"), 0, 1).astype(np.float32),
        is_last=last,
        is_terminal=last & (end == "terminated"),
    )


EPISODES = ((0, 6, "terminated"), (100, 4, "truncated"), (200, 2, "terminated"), (300, 9, "truncated"))


def circular(**options: Any) -> Any:
    """A buffer that holds :data:`EPISODES`."""
    episodes = [episode(*one, **options) for one in EPISODES]
    buffer = make_circular(spec_of(episodes[0]), 100, seed=0)
    for one in episodes:
        buffer.add(one)
    return buffer


def corridor(episodes: int, seed: int = 0, steps: int = 12) -> list[Episode]:
    """A task small enough to be learnt in seconds: walk along a line to 1, from anywhere, at most 0.25 a step.

    What was logged are random steps, so that the best policy (always 1) has to be found by values.
    """
    rng = np.random.default_rng(seed)
    logged = []
    for _ in range(episodes):
        place, places, actions, rewards = rng.uniform(-1, 0.5), [], [], []
        for _ in range(steps):
            action = rng.uniform(-1, 1)
            places.append(place)
            actions.append(action)
            place = float(np.clip(place + 0.25 * action, -1, 1))
            rewards.append(place - 1)
            if place >= 1:
                break
        last = np.arange(len(places) + 1) == len(places)
        logged.append(
            Episode(
                observation=np.array([*places, place], np.float32)[:, None],
                action=np.array([*actions, 0], np.float32)[:, None],
                reward=np.array([*rewards, 0], np.float32),
                discount=np.where(last & (place >= 1), 0, 1).astype(np.float32),
                is_last=last,
                is_terminal=last & (place >= 1),
            )
        )
    return logged
