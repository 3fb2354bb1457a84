"""Where a flat table of logged rows falls into episodes."""

from __future__ import annotations

import dataclasses

import numpy as np

__all__ = ["Cuts", "cut"]


@dataclasses.dataclass(frozen=True)
class Cuts:
    """The episodes of a table of rows, one entry each.

    Attributes:
        first: ``[E] int64``, the table's row that starts it.
        rows: ``[E] int64``, how many of the table's rows it has; at least 1.
        terminated: ``[E] bool``, its last row is flagged terminal.
        added: ``[E] int64``, 1 where a final row has to be added behind the table's rows, else 0.
        open_tail: whether the last episode runs into the end of the table, unflagged.
    """

    first: np.ndarray
    rows: np.ndarray
    terminated: np.ndarray
    added: np.ndarray
    open_tail: bool

    def __len__(self) -> int:
        return len(self.first)

    @property
    def lengths(self) -> np.ndarray:
        """``[E] int64``: the rows of each episode, added ones included."""
        return self.rows + self.added


def cut(
    count: int,
    terminals: np.ndarray,
    timeouts: np.ndarray,
    *,
    max_episode_steps: int | None = None,
    has_next: bool = False,
) -> Cuts:
    """Cut a table behind each flagged row; terminal wins where a row has both flags.

    Args:
        count: rows in the table.
        terminals, timeouts: ascending ``int64``, the flagged rows.
        max_episode_steps: cut also after so many rows without a flag; counted from each episode's
            first row (d4rl counts the episodes behind a terminal from 1, and so cuts them one short).
        has_next: the table holds each row's successor, so that every episode gets a final row;
            without, only the terminated ones do.

    >>> cuts = cut(7, np.array([2]), np.array([4]))
    >>> cuts.first.tolist(), cuts.lengths.tolist(), cuts.terminated.tolist(), cuts.open_tail
    ([0, 3, 5], [4, 2, 2], [True, False, False], True)
    """
    ends = np.concatenate([terminals, timeouts]).astype(np.int64)
    ends.sort(kind="stable")  # which merges two that ascend
    ends = ends[np.diff(ends, prepend=-1) > 0]
    flagged_tail = count == 0 or (len(ends) > 0 and ends[-1] == count - 1)
    if not flagged_tail:
        ends = np.append(ends, count - 1)
    first = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64) if len(ends) else ends
    rows = ends - first + 1
    open_tail = not flagged_tail
    if max_episode_steps is not None and len(ends):
        open_tail = open_tail and bool(rows[-1] % max_episode_steps)
        first, rows = _limit(first, rows, max_episode_steps)
    last = first + rows - 1
    terminated = np.searchsorted(terminals, last, "right") > np.searchsorted(terminals, last)
    added = np.ones(len(first), np.int64) if has_next else terminated.astype(np.int64)
    return Cuts(first, rows, terminated, added, open_tail)


def _limit(first: np.ndarray, rows: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    parts = -(-rows // limit)
    number = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    rest = np.repeat(rows, parts) - number * limit
    return np.repeat(first, parts) + number * limit, np.minimum(rest, limit)
