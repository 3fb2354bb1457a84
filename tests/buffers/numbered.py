"""Episodes and transitions whose every value tells which row it belongs to."""

from __future__ import annotations

from typing import Any

import numpy as np

import rlds2buf
from rlds2buf import Episode, Transition

__all__ = ["SPEC", "episode", "rows_to_transition", "transition", "transitions"]


def episode(start: int, rows: int, end: str = "terminated", discount: float = 0.9) -> Episode:
    """`rows` rows numbered from `start`; `end` is terminated, truncated or open."""
    number = np.arange(start, start + rows)
    is_last = np.zeros(rows, bool)
    is_terminal = np.zeros(rows, bool)
    is_last[-1] = end != "open"
    is_terminal[-1] = end == "terminated"
    return Episode(
        observation={"place": np.stack([number, -number], axis=1).astype(np.float32), "count": number.astype(np.int64)},
        action=(number * 10).astype(np.int32),
        reward=(number * 0.5).astype(np.float64),
        discount=np.full(rows, discount, np.float32),
        is_first=np.arange(rows) == 0,
        is_last=is_last,
        is_terminal=is_terminal,
        extras={"note": (number % 251).astype(np.uint8)},
    )


def transition(number: int, is_done: int = 0, discount: float = 0.9) -> dict[str, Any]:
    """One explicit transition; its next observation is nobody else's: `number` + half a million."""
    after = number + 500_000
    return {
        "observation": {"place": np.array([number, -number], np.float32), "count": np.int64(number)},
        "action": np.int32(number * 10),
        "reward": np.float64(number * 0.5),
        "discount": np.float32(discount),
        "next_observation": {"place": np.array([after, -after], np.float32), "count": np.int64(after)},
        "extras": {"note": np.uint8(number % 251)},
        "is_done": np.uint8(is_done),
    }


def rows_to_transition(items: list[dict[str, Any]]) -> Transition:
    """Explicit transitions, stacked."""
    from rlds2buf.core import nest

    def stack(name: str) -> Any:
        return nest.map_structure(lambda *leaves: np.stack(leaves), *(item[name] for item in items))

    names = ("observation", "action", "reward", "discount", "next_observation", "extras", "is_done")
    return Transition(**{name: stack(name) for name in names})


def transitions(start: int, count: int, is_done: Any = 0) -> Transition:
    """`count` explicit transitions numbered from `start`."""
    codes = np.broadcast_to(is_done, count)
    return rows_to_transition([transition(start + i, int(codes[i])) for i in range(count)])


SPEC = rlds2buf.spec_of(episode(0, 3))
