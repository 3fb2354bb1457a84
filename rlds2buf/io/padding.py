"""The row that an episode's last observation adds, in the columns that have nothing for it."""

from __future__ import annotations

import numpy as np

__all__ = ["FinalRows", "padded"]


class FinalRows:
    """Where the rows of E episodes go that are logged one behind the other, when some get a final row.

    Args:
        rows: ``[E] int64``, how many each has; at least 1.
        added: ``[E]``, whether it gets another one, bool or 0 and 1.

    Attributes:
        count: how many rows there are, M.
        total: with those that are added, N.
        lengths, starts, ends: ``[E] int64``, each episode's rows, and its first and last one, with what is added.
        place: ``[N] int64``, which of the M rows, and of the final ones behind them, each row is.

    >>> final = FinalRows(np.array([2, 1]), np.array([True, True]))
    >>> final.spread(np.array([10, 11, 20, 19, 29])).tolist(), final.padded(np.array([5, 6, 7])).tolist()
    ([10, 11, 19, 20, 29], [5, 6, 0, 7, 0])
    """

    def __init__(self, rows: np.ndarray, added: np.ndarray) -> None:
        added = added.astype(np.int64)
        self.lengths = rows + added
        stops = np.cumsum(self.lengths)
        self.starts, self.ends = stops - self.lengths, stops - 1
        self.count, self.total = int(rows.sum()), int(stops[-1])
        self.place = np.arange(self.total) - np.repeat(np.cumsum(added) - added, self.lengths)
        self.place[self.ends[added > 0]] = np.arange(self.count, self.total)

    def spread(self, column: np.ndarray) -> np.ndarray:
        """``[N, ...]``, the M rows and then the final ones, with each of these behind its episode."""
        return column if self.count == self.total else column.take(self.place, axis=0)

    def padded(self, column: np.ndarray) -> np.ndarray:
        """``[M, ...]`` with zeros in the final rows, in a column of objects empty byte strings."""
        return self.spread(padded(column, self.total))

    def flags(self, terminated: np.ndarray) -> dict[str, np.ndarray]:
        """Flags, and the discount ``float32``: 0 on the step into a terminal row, and on that row.

        Args:
            terminated: ``[E] bool``, whether an episode's last row, not its only one, is terminal.
        """
        flags = {name: np.zeros(self.total, np.bool_) for name in ("is_first", "is_last", "is_terminal")}
        terminal = self.ends[terminated]
        flags["is_first"][self.starts] = True
        flags["is_last"][self.ends] = True
        flags["is_terminal"][terminal] = True
        discount = np.ones(self.total, np.float32)
        discount[terminal] = 0
        discount[terminal - 1] = 0
        return {**flags, "discount": discount}


def padded(column: np.ndarray, rows: int) -> np.ndarray:
    """``[n, ...]`` with zeros behind it, in a column of objects empty byte strings, up to so many rows.

    >>> padded(np.array([1, 2]), 3)
    array([1, 2, 0])
    """
    if len(column) == rows:
        return column
    out = np.zeros((rows, *column.shape[1:]), column.dtype)
    out[: len(column)] = column
    if out.dtype == object:
        out[len(column) :] = b""
    return out
