"""A batch of at least so many steps, one item at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["min_n_steps"]


def min_n_steps(draw: Callable[[], Any], num_steps: int) -> tuple[list[int], list[Any]]:
    """Keys of the items drawn, and for each its steps in order, as their rewards.

    Args:
        draw: gives a Sample of one item.
        num_steps: how many there are to be at least.
    """
    keys: list[int] = []
    items: list[Any] = []
    while sum(map(len, items)) < num_steps:
        sample = draw()
        keys.append(int(sample.info.key[0]))
        mask = getattr(sample.data, "mask", None)
        items.append(sample.data.reward.tolist() if mask is None else sample.data.reward[0][mask[0]].tolist())
    return keys, items
