"""Windows: consecutive rows of one episode."""

from __future__ import annotations

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.arguments import integer
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.sample import Trajectory

__all__ = ["window_starts", "windows"]


def windows(episode: Episode | EpisodeBatch, length: int, *, stride: int = 1, pad: bool = True) -> Trajectory:
    """Windows of `length` rows, one every `stride` rows, never past the episode's end.

    Windows start at rows 0, stride, 2*stride, ...  With `pad`, every row is in some window: starts
    go on until a window has reached the last row, and what lies past it is zero with `mask` False
    (an episode shorter than `length` gives one padded window).  Without, only whole windows count.

    Args:
        episode: N rows; or a batch of episodes, whose windows follow each other.
        length: T, at least 1.
        stride: rows between starts, at least 1.
        pad: whether to give the last, shorter window too.

    Returns:
        Trajectory ``[B, T, ...]`` of rows; `next_observation` is None.

    Raises:
        ValueError: `length` or `stride` is below 1.

    >>> ep = Episode(observation=np.arange(5), action=np.zeros(5), reward=np.zeros(5), discount=np.ones(5))
    >>> view = windows(ep, 3, stride=2)
    >>> view.observation.tolist()
    [[0, 1, 2], [2, 3, 4]]
    >>> windows(ep, 4, stride=3).mask.tolist()
    [[True, True, True, True], [True, True, False, False]]
    """
    length, stride = integer("length", length, 1), integer("stride", stride, 1)
    batch = EpisodeBatch.of_one(episode) if isinstance(episode, Episode) else episode
    counts = _counts(batch.lengths, length, stride, pad)
    first = np.repeat(np.cumsum(counts) - counts, counts)  # the number of each one's first window
    starts = np.repeat(batch.starts, counts) + (np.arange(len(first)) - first) * stride
    last = np.repeat(batch.ends, counts)[:, None]
    index = starts[:, None] + np.arange(length)
    mask = index <= last
    padded = not bool(mask.all())
    index = np.minimum(index, last)

    def cut(column: np.ndarray | None) -> np.ndarray | None:
        if column is None:
            return None
        block = column[index]
        if padded:
            block[~mask] = b"" if column.dtype == object else 0
        return block

    parts = {name: nest.map_structure(cut, getattr(batch.rows, name)) for name in Trajectory._fields[:8]}
    return Trajectory(**parts, mask=mask)


def window_starts(num_rows: int, length: int, *, stride: int = 1, pad: bool = True) -> np.ndarray:
    """First rows ``[B] int64`` of the windows of an episode of `num_rows` rows.

    >>> window_starts(5, 3, stride=2).tolist(), window_starts(6, 3, stride=2, pad=False).tolist()
    ([0, 2], [0, 2])
    """
    length, stride = integer("length", length, 1), integer("stride", stride, 1)
    return np.arange(int(_counts(np.array(num_rows), length, stride, pad)), dtype=np.int64) * stride


def _counts(rows: np.ndarray, length: int, stride: int, pad: bool) -> np.ndarray:
    """How many windows episodes of so many rows have."""
    if pad:
        # The last start is the first one whose window reaches the last row; a stride longer than
        # the window leaves gaps by design, and then no start may lie past the end.
        return np.minimum(1 + np.maximum(0, -(-(rows - length) // stride)), -(-rows // stride))
    return np.maximum(0, (rows - length) // stride + 1)
