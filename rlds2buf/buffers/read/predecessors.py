"""What comes before a sequence: burn-in steps, and the recurrent state it starts from."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rlds2buf.buffers.read.view import View
from rlds2buf.buffers.rows.row_store import RowStore
from rlds2buf.core import nest
from rlds2buf.core.sample import Trajectory
from rlds2buf.kernels.chain_back import note_links, walk_back

__all__ = ["Predecessors", "initial_state"]

_NONE = np.zeros(0, np.int64)


class Predecessors:
    """Which transition comes before which.

    Where each is followed by the next row, that is the row before, and nothing is kept.  Rows of
    interleaved sources lead to later ones by links; the way back is an index of 8 bytes per row,
    made when it is first asked for and carried on with what came since.

    Args:
        store: of the rows.
    """

    def __init__(self, store: RowStore) -> None:
        self.store = store
        self._back = _NONE
        self._layout = self._seen = -1
        self._open: list[int] = []

    def walk(self, slots: np.ndarray, limit: int, growing: Iterable[int]) -> tuple[np.ndarray, np.ndarray]:
        """Go up to `limit` transitions back from each of some.

        Args:
            slots: ``[B] int64`` of held transitions.
            limit: at least 1.
            growing: keys of the transitions whose successors may still come.

        Returns:
            ``(path [B, limit] int64, count [B] int32)``: slots in the order of time, of which the last
            `count` are real; never beyond the start of an episode, in another source, or a row that left.
        """
        store = self.store
        links, back = self.index(growing)
        path, count = np.empty((len(slots), limit), np.int64), np.empty(len(slots), np.int32)
        walk_back(store.flags, links, back, int(store.slot_of(store.oldest)), slots, path, count)
        return path, count

    def index(self, growing: Iterable[int]) -> tuple[np.ndarray, np.ndarray]:
        """Links and the way back, ``[capacity] int64`` each, as :func:`walk_back` takes them; empty if not needed.

        Args:
            growing: as for :meth:`walk`.
        """
        if self.store.links is None:
            return _NONE, _NONE
        self._update(self.store.links, growing)
        return self.store.links, self._back

    def _update(self, links: np.ndarray, growing: Iterable[int]) -> None:
        """Take in the links set since the last time: those of new rows, and of rows that have gone on."""
        store = self.store
        first = max(self._seen, store.oldest)
        # Rows with keys of their own move up to fill gaps: what is known of them is of no use then.
        if store.layout != self._layout or len(self._back) != store.slots or store.keys is not None:
            self._back = np.zeros(store.slots, np.int64)
            self._layout, first, self._open = store.layout, store.oldest, []
        went_on = np.array([key for key in self._open if key >= store.oldest], np.int64)
        new = store.slots_from(first, store.newest - first)
        note_links(store.flags, links, np.concatenate([store.slot_of(went_on), new]), self._back)
        self._seen, self._open = store.newest, list(growing)


def initial_state(data: Trajectory, view: View) -> dict[str, nest.Nest]:
    """The recurrent state before the first real step of each sequence.

    Args:
        data: ``[B, T]``.
        view: with the names of the extras that hold the state each step was taken in.

    Returns:
        Name to nest ``[B, ...]``: what was recorded, or zeros.

    Raises:
        ValueError: the data have no such extra.
    """
    first = np.argmax(data.mask if data.burn_in is None else data.mask | data.burn_in, axis=1)
    rows = np.arange(len(first))
    stored = view.initial_state == "stored"

    def at_first(column: np.ndarray) -> np.ndarray:
        if column.dtype == np.dtype(object):
            raise ValueError("a recurrent state is made of numbers of fixed shape, not of byte strings or pictures")
        return column[rows, first] if stored else np.zeros((len(rows), *column.shape[2:]), column.dtype)

    return {name: nest.map_structure(at_first, _extra(data.extras, name)) for name in view.state}


def _extra(extras: dict[str, nest.Nest], name: str) -> nest.Nest:
    """``"lstm/h"`` or ``"lstm/0"`` of the extras; a key that has a slash in it is found first."""
    if name in extras:
        return extras[name]
    here: nest.Nest = extras
    try:
        for part in name.split("/"):
            here = here[int(part) if isinstance(here, tuple) else part]
    except (KeyError, IndexError, ValueError, TypeError) as cause:
        known = ", ".join(nest.path_name(path) for path, _ in nest.flatten(extras)) or "none"
        raise ValueError(
            f"the data have no extra {name!r} to take the initial state from; there are: {known}"
        ) from cause
    return here
