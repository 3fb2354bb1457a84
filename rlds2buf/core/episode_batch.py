"""Several whole episodes as one set of columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from rlds2buf.core import nest, shown
from rlds2buf.core.episode import Episode
from rlds2buf.core.fields import DATA_FIELDS, STEP_FIELDS
from rlds2buf.errors import EmptyEpisode, SpecMismatch

__all__ = ["EpisodeBatch"]


class EpisodeBatch:
    """E episodes, one behind the other, M rows together.

    Short episodes cost more in calls than in bytes; a batch is checked and stored at once.

    Args:
        rows: all rows, as if they were one episode; its flags are those of the episodes' own rows,
            its metadata are shared by all of them, and its index is the first one's.
        starts: ``[E] int64``, each episode's first row, ascending, the first one 0.
        placeholder: ``[E] bool``, whose final row was not recorded; None if none is.

    Raises:
        SpecMismatch: the starts don't fit the rows.

    >>> one = Episode(observation=np.arange(3))
    >>> two = Episode(observation=np.arange(2))
    >>> batch = EpisodeBatch.of([one, two])
    >>> batch, [len(episode) for episode in batch]
    (<EpisodeBatch: 2 episodes, 5 steps>, [3, 2])
    """

    __slots__ = ("placeholder", "rows", "starts")

    def __init__(self, rows: Episode, starts: np.ndarray, placeholder: np.ndarray | None = None) -> None:
        self.rows = rows
        self.starts = np.asarray(starts, np.int64)
        self.placeholder = placeholder
        edges = np.append(self.starts, rows.num_steps)
        if not len(self.starts) or edges[0] != 0 or (np.diff(edges) < 1).any():
            raise SpecMismatch("the starts of a batch must ascend from 0 within its rows", rule="ragged-columns")

    @classmethod
    def of(cls, episodes: Iterable[Episode]) -> EpisodeBatch:
        """Join episodes of one spec; their columns are copied.

        Raises:
            EmptyEpisode: there are none.
            SpecMismatch: their fields or shapes differ.
        """
        parts = list(episodes)
        if not parts:
            raise EmptyEpisode("a batch needs at least one episode", rule="empty-episode")
        columns = [{name: getattr(part, name) for name in (*STEP_FIELDS, "extras")} for part in parts]
        try:
            joined = nest.map_structure(_join, *columns)
        except (KeyError, IndexError, TypeError, ValueError) as cause:
            raise SpecMismatch(
                f"episodes of one batch must have one structure: {cause}", source=parts[0].source
            ) from cause
        rows = Episode(**joined, source=parts[0].source, index=parts[0].index)
        placeholder = np.array([bool(part.metadata.get("placeholder_final_row")) for part in parts])
        lengths = np.array([part.num_steps for part in parts])
        return cls(rows, np.cumsum(lengths) - lengths, placeholder if placeholder.any() else None)

    @property
    def num_steps(self) -> int:
        """M."""
        return self.rows.num_steps

    @property
    def num_transitions(self) -> int:
        """M - E."""
        return self.num_steps - len(self)

    @property
    def ends(self) -> np.ndarray:
        """``[E] int64``: each episode's last row."""
        return np.append(self.starts[1:], self.num_steps) - 1

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[Episode]:
        first = self.rows.index
        for i, (start, end) in enumerate(zip(self.starts.tolist(), self.ends.tolist(), strict=True)):
            episode = self.rows.rows(start, end + 1)
            episode.index = None if first is None else first + i
            if self.placeholder is not None and self.placeholder[i]:
                episode.metadata["placeholder_final_row"] = True
            yield episode

    def __repr__(self) -> str:
        return f"<EpisodeBatch: {len(self)} episodes, {self.num_steps} steps>"

    def __str__(self) -> str:
        rows = shown.field_rows((name, getattr(self.rows, name)) for name in (*DATA_FIELDS, "extras"))
        return shown.aligned(repr(self), rows)


def _join(*columns: np.ndarray | None) -> np.ndarray | None:
    if columns[0] is None:
        return None
    return np.concatenate([column for column in columns if column is not None])
