"""TF-Agents' Reverb observers, one frame at a time: which frames become an item.

A frame is a pair (episode, row); row -1 is a padding frame.
"""

from __future__ import annotations

__all__ = ["episode_items", "trajectory_items"]


def trajectory_items(lengths, length, stride, *, pad=False, tile=False, cross=False):
    """Per episode of so many rows, its items as lists of frames, in the order of writing."""
    out = []
    cache = []
    for episode, rows in enumerate(lengths):
        items = []

        def write(items=items):
            if len(cache) >= length and (len(cache) - length) % stride == 0:
                items.append(cache[-length:])

        for row in range(rows):
            cache.append((episode, row))
            write()
        if not cross:
            if pad:
                for _ in range(length - 1 if tile else length - len(cache)):
                    cache.append((episode, -1))
                    write()
            cache.clear()
        out.append(items)
    return out


def episode_items(lengths):
    """One item per episode."""
    return [[[(episode, row) for row in range(rows)]] for episode, rows in enumerate(lengths)]
