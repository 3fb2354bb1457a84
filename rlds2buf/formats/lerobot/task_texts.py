"""The texts of tasks, numbered in the order in which they come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

__all__ = ["TaskTexts", "numbers_by_episode"]


class TaskTexts:
    """Each different text once, and its number.

    >>> tasks = TaskTexts()
    >>> tasks.numbers(np.array([b"push", b"lift", b"push"], object)).tolist(), tasks.texts
    ([0, 1, 0], [b'push', b'lift'])
    """

    def __init__(self, texts: Iterable[bytes] = ()) -> None:
        self.texts = list(texts)
        self._numbers = {text: i for i, text in enumerate(self.texts)}

    def numbers(self, texts: np.ndarray) -> np.ndarray:
        """``[M] int64``, of ``[M] object`` texts; new ones are numbered."""
        known = self._numbers
        listed = texts.tolist()
        for text in dict.fromkeys(listed):
            if text not in known:
                known[text] = len(self.texts)
                self.texts.append(text)
        return np.fromiter(map(known.__getitem__, listed), np.int64, len(listed))


def numbers_by_episode(numbers: np.ndarray, edges: np.ndarray) -> Sequence[list[int]]:
    """The different numbers of each episode's rows, in the order in which they come.

    >>> numbers_by_episode(np.array([3, 3, 1, 0, 1]), np.array([0, 2, 5]))
    [[3], [1, 0]]
    """
    starts = edges[:-1]
    firsts = numbers[starts]
    mixed = np.maximum.reduceat(numbers, starts) != np.minimum.reduceat(numbers, starts)
    found = [[number] for number in firsts.tolist()]
    for episode in np.flatnonzero(mixed).tolist():
        found[episode] = list(dict.fromkeys(numbers[edges[episode] : edges[episode + 1]].tolist()))
    return found
