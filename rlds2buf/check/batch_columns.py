"""A batch of episodes as the screens of the rules look at it.

A rule has two forms.  One takes an episode and returns faults; what it finds, and how it says it, is
the rule.  The other, its screen, takes all episodes of a batch and returns ``[E] bool``: in which of
them the rule might be broken.  It may suspect too many, which costs time, and never too few.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch, FactColumns
from rlds2buf.core.row_flags import PLACEHOLDER_FINAL_ROW

__all__ = ["BatchColumns"]


class BatchColumns:
    """What the screens need of a batch, made once.

    Attributes:
        batch, rows: the batch and its rows as if they were one episode.
        columns: all rows' paths and columns, as :meth:`~rlds2buf.core.episode.Episode.flatten` gives them.
        starts, ends: ``[E] int64``, each episode's first and last row.
        lengths: ``[E] int64``, how many rows each has.
        placeholder: ``[E] bool``, whose final row was not recorded.
    """

    def __init__(self, batch: EpisodeBatch) -> None:
        self.batch = batch
        self.rows = batch.rows
        self.columns: list[tuple[nest.Path, np.ndarray]] = list(batch.rows.flatten())
        self.starts, self.ends = batch.starts, batch.ends
        self.lengths = self.ends - self.starts + 1
        self.placeholder = _placeholder(batch)

    def index(self, position: int) -> int | None:
        """An episode's number in its source, if it is known."""
        return None if self.batch.index is None else int(self.batch.index[position])

    def episode(self, position: int) -> Episode:
        """One of the episodes; its columns are shared."""
        return next(iter(self.batch.take(slice(position, position + 1))))

    def episodes(self, which: np.ndarray) -> Iterator[tuple[int, Episode]]:
        """Those of ``[E] bool`` with their positions; a run of them costs less than as many alone."""
        at = np.flatnonzero(which)
        for run in np.split(at, np.flatnonzero(np.diff(at) > 1) + 1) if len(at) else ():
            yield from zip(run.tolist(), self.batch.take(slice(int(run[0]), int(run[-1]) + 1)), strict=True)

    def none(self) -> np.ndarray:
        """``[E] bool``, all False."""
        return np.zeros(len(self.starts), np.bool_)

    def holding(self, rows: np.ndarray) -> np.ndarray:
        """``[E] bool``: which episodes hold one of these rows ``[M] bool``."""
        return np.logical_or.reduceat(rows, self.starts)


def _placeholder(batch: EpisodeBatch) -> np.ndarray:
    shared = bool(batch.rows.metadata.get(PLACEHOLDER_FINAL_ROW))
    if batch.metadata is None:
        marked = np.full(len(batch), shared)
    elif isinstance(batch.metadata, FactColumns):
        column = batch.metadata.columns.get(PLACEHOLDER_FINAL_ROW)
        marked = np.full(len(batch), shared) if column is None else np.array([bool(value) for value in column])
    else:
        facts = (each.get(PLACEHOLDER_FINAL_ROW, shared) for each in batch.metadata)
        marked = np.fromiter(map(bool, facts), np.bool_, len(batch))
    return marked if batch.placeholder is None else marked | batch.placeholder
