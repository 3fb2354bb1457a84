"""Rows on their way into a buffer."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from rlds2buf.buffers.rows.step_ids import StepIds
from rlds2buf.core.row_flags import BREAK, CODE, CONTINUE

__all__ = ["Block"]


@dataclasses.dataclass
class Block:
    """n rows ready to be stored.

    Attributes:
        columns: one array ``[n, ...]`` per data field of the spec, in its order; of strings and arrays
            of varying shape object arrays of bytes.
        flags: ``[n] uint8`` (see buffers/rows/row_store.py).
        own: next observations per observation leaf, for explicit transitions; None for an episode.
        source: ``[n] int64`` ids, or one for all.
        items: how many items start in these rows: transitions, unless there is `place`.
        origin, index: of an episode, for messages.
        ends: ``[E] int64``, last rows, if the rows are several episodes, which come in one after the other.
        ids: what explicit transitions say of the episodes they are of.
        consecutive: whether explicit transitions of one source follow one another.
        begins: sources of which these rows are whole episodes, so that nothing follows what was added before;
            None for explicit transitions, which go on.
        place: ``[n] int32``, of items of several transitions, as :class:`RowStore` keeps it in
            ``items``; None where every transition is one.
    """

    columns: list[np.ndarray]
    flags: np.ndarray
    own: list[np.ndarray] | None
    source: np.ndarray | int
    items: int
    origin: str | None = None
    index: int | None = None
    consecutive: bool = True
    begins: list[int] | None = None
    place: np.ndarray | None = None
    ends: np.ndarray | None = None
    ids: StepIds | None = None

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """``[items] int64``: the rows that start an item."""
        if self.place is not None:
            return np.flatnonzero(self.place > 0)
        if self.ends is None:
            return np.arange(self.items)
        here = np.ones(len(self.flags), np.bool_)
        here[self.ends] = False
        return np.flatnonzero(here)

    @property
    def edges(self) -> np.ndarray:
        """``[E] int64``: how many rows there are up to the end of each episode; all rows where they are one thing."""
        return np.array([len(self.flags)]) if self.ends is None else self.ends + 1

    def apart(self) -> Block:
        """Explicit transitions as ones that each stand alone; an episode as it is."""
        if self.own is None:
            return self
        goes_on = (self.flags & CODE) == CONTINUE
        flags = self.flags | np.where(goes_on, np.uint8(BREAK), np.uint8(0))
        return dataclasses.replace(self, flags=flags, consecutive=False, ids=None)

    def parted(self) -> Block:
        """With a break where, by its ids, a transition does not go on with the one before it of its source."""
        if self.ids is None or len(self.flags) < 2:
            return self
        if isinstance(self.source, int):
            ends = np.flatnonzero(self.ids.begins())
        else:
            order = np.argsort(self.source, kind="stable")
            same = self.source[order[1:]] == self.source[order[:-1]]
            ends = order[:-1][self.ids.rows(order).begins() & same]
        flags = self.flags.copy()
        flags[ends[(flags[ends] & CODE) == CONTINUE]] |= np.uint8(BREAK)
        return dataclasses.replace(self, flags=flags)

    def rows(self, start: int, stop: int) -> Block:
        """Rows `start` to `stop`, which cut no item of several transitions; views."""
        if start == 0 and stop == len(self.flags):
            return self
        some = slice(start, stop)
        ends = None if self.ends is None else self.ends[(self.ends >= start) & (self.ends < stop)] - start
        first, last = np.searchsorted(self.starts, (start, stop)).tolist()
        return dataclasses.replace(self.taken(some), items=last - first, ends=ends)

    def taken(self, index: Any) -> Block:
        """The block with these of its rows; `items` and `ends` are for the caller to set."""
        return dataclasses.replace(
            self,
            columns=[column[index] for column in self.columns],
            flags=self.flags[index],
            own=None if self.own is None else [column[index] for column in self.own],
            source=self.source if isinstance(self.source, int) else self.source[index],
            place=None if self.place is None else self.place[index],
            ids=None if self.ids is None else self.ids.rows(index),
        )
