"""Which stored transitions belong to one episode."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rlds2buf.buffers.rows.row_store import RowStore
from rlds2buf.core.row_flags import BREAK, CODE, CONTINUE, FINAL_ROW
from rlds2buf.kernels.runs import chain_rows, pick_rows, scan_runs

__all__ = ["Episodes"]

_NONE = np.zeros(0, np.int64)


class Episodes:
    """The runs of consecutive transitions in a store, up to date whenever they are asked for.

    An added episode is a run; explicit transitions of one source form runs that end where
    ``is_done`` is not 0, and the newest one of a source may still grow.  Nothing is done while rows
    are added: :meth:`update` looks at what came since the last time, so adding stays as fast as
    without, and looking costs a fraction of what adding did.  What left since is cut off a run.

    As long as every transition is followed by the next row, a run is an interval of keys: 24 bytes
    per episode.  Interleaved sources need more, a list of members with each run in one piece: 16
    bytes per row.  Runs that still grow are written to its end anew each time.

    Args:
        store: of the rows.
    """

    def __init__(self, store: RowStore) -> None:
        self.store = store
        self._seen = self._layout = -1
        self._linked = False
        self._reset()

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        return int(self._runs.nbytes + self._members.nbytes + self._place.nbytes)

    def update(self, growing: Iterable[int]) -> None:
        """Take in what was added and removed since the last call.

        Args:
            growing: keys of the transitions whose successors may still come.
        """
        store = self.store
        linked = store.links is not None
        if store.layout != self._layout or linked != self._linked:
            self._reset()
            self._layout, self._linked = store.layout, linked
        if self._seen == store.newest:
            return
        if linked:
            self._chain(growing)
        else:
            self._scan()
        self._seen = store.newest
        self._forget()

    def pick(
        self, slots: np.ndarray, uniforms: np.ndarray, ratio: float, strategy: int, include_current: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Pick for transitions others of their episodes; after :meth:`update`.

        Args:
            slots: ``[B] int64`` of held transitions.
            uniforms: ``[2, B] float64`` in [0, 1).
            ratio: chance of a transition to get a pick.
            strategy: see kernels/runs.py.
            include_current: whether FUTURE may pick the transition itself.

        Returns:
            ``(picks [B] int64, chosen [B] bool, room [B] int64)``: slots; which transitions got one
            (never one whose next observation is a placeholder, and none is ever picked); how many
            transitions from each one on to the end of the episode have a real next observation.
        """
        store = self.store
        out = np.empty((3, len(slots)), np.int64)
        if len(slots):
            pick_rows(
                slots,
                store.slots,
                int(store.slot_of(store.oldest)),
                store.oldest,
                self._place,
                self._members[: self._filled],
                self._position,
                self._runs[:, self._head : self._count],
                uniforms,
                ratio,
                strategy,
                0 if include_current else 1,
                out,
            )
        return out[0], out[1] != 0, out[2]

    def run_of(self, key: int) -> tuple[np.ndarray, int]:
        """The held transitions of a transition's run, and how many of them have a real next observation.

        Args:
            key: of a held transition.

        Returns:
            ``(keys [n] int64, real)``, oldest first; `real` is n, or n - 1 where the last one's next
            observation is a placeholder.
        """
        runs = self._runs[:, self._head : self._count]
        at = int(self._place[self.store.slot_of(key)]) if self._linked else key
        first, last, real = runs[:, int(np.searchsorted(runs[0], at, side="right")) - 1].tolist()
        keys = self._keys(first, last)
        return keys, len(keys) - (last - real)

    def runs(self) -> list[list[int]]:
        """Keys of the held transitions, run by run; for tests."""
        found = []
        for first, last, _ in self._runs[:, self._head : self._count].T.tolist():
            held = self._keys(first, last).tolist()
            if held:
                found.append(held)
        return found

    def _keys(self, first: int, last: int) -> np.ndarray:
        """Keys of the held transitions at these positions."""
        if not self._linked:
            return np.arange(max(first, self.store.oldest), last + 1)
        members = self._members[first - self._position : last + 1 - self._position]
        return members[members >= self.store.oldest]

    def _reset(self) -> None:
        self._runs = np.zeros((3, 0), np.int64)  # first, last, last with a real next observation
        self._head = self._count = 0  # of the runs that hold something
        self._growing = 0  # how many runs at the end may grow
        self._members = _NONE  # keys in order of position, the first one's being _position
        self._filled = self._position = 0
        self._place = _NONE
        self._seen = -1

    def _scan(self) -> None:
        """Take in rows that are followed by the next one."""
        store = self.store
        start, first = max(self._seen, store.oldest), -1
        newest = start - 1
        if self._count > self._head and self._seen > store.oldest and self._runs[1, self._count - 1] == newest:
            if store.flags[store.slot_of(newest)] & CODE == CONTINUE:
                # It was the newest and may have gone on since: look at it again.
                self._count -= 1
                start, first = newest, int(self._runs[0, self._count])
        slot = int(store.slot_of(start))
        count = scan_runs(store.flags, slot, start, store.newest, first, np.zeros((3, 0), np.int64))
        runs = np.empty((3, count), np.int64)
        scan_runs(store.flags, slot, start, store.newest, first, runs)
        self._append(runs)

    def _chain(self, growing: Iterable[int]) -> None:
        """Take in rows of interleaved sources."""
        store = self.store
        if not len(self._place):
            self._place = np.zeros(store.slots, np.int64)
        # Runs that may have grown are taken apart and put together with what is new.
        kept = self._filled
        if self._growing:
            self._count -= self._growing
            kept = int(self._runs[0, self._count]) - self._position
        old = self._members[kept : self._filled]
        old = old[old >= store.oldest]
        first = max(self._seen, store.oldest)
        new = store.slots_from(first, store.newest - first)
        new = new[(store.flags[new] & CODE) != FINAL_ROW]
        slots = np.concatenate([store.slot_of(old), new])
        members, runs = np.empty(len(slots), np.int64), np.empty((2, len(slots)), np.int64)
        count = chain_rows(store.flags, store.links, slots, self._place, members, runs)
        lengths, lacking = runs[:, :count]
        starts = np.cumsum(lengths) - lengths
        ends = members[starts + lengths - 1]
        waiting = np.fromiter(growing, np.int64)
        waiting = store.slot_of(waiting[waiting >= store.oldest])
        grows = np.isin(ends, waiting) & ((store.flags[ends] & np.uint8(BREAK)) != 0)
        order = np.argsort(grows, kind="stable")
        lengths, lacking = lengths[order], lacking[order]
        placed = np.cumsum(lengths) - lengths
        members = members[np.repeat(starts[order] - placed, lengths) + np.arange(len(slots))]
        self._fill(kept, members)
        at = self._position + kept
        self._place[members] = at + np.arange(len(members))
        last = at + placed + lengths - 1
        self._growing = int(np.count_nonzero(grows))
        self._append(np.stack([at + placed, last, last - lacking]))

    def _fill(self, kept: int, slots: np.ndarray) -> None:
        """Write the keys of `slots` behind the first `kept` members."""
        self._filled = kept + len(slots)
        if self._filled > len(self._members):
            grown = np.empty(2 * self._filled, np.int64)
            grown[:kept] = self._members[:kept]
            self._members = grown
        self._members[kept : self._filled] = self.store.key_of(slots).astype(np.int64)

    def _append(self, runs: np.ndarray) -> None:
        count = self._count + runs.shape[1]
        if count > self._runs.shape[1]:
            grown = np.empty((3, 2 * count), np.int64)
            grown[:, : self._count] = self._runs[:, : self._count]
            self._runs = grown
        self._runs[:, self._count : count] = runs
        self._count = count

    def _forget(self) -> None:
        """Let go of runs that have left as a whole."""
        oldest = self.store.oldest
        while self._head < self._count:
            last = int(self._runs[1, self._head])
            if (int(self._members[last - self._position]) if self._linked else last) >= oldest:
                break
            self._head += 1
        self._growing = min(self._growing, self._count - self._head)
        if 2 * self._head > self._count:
            kept = self._count - self._head
            self._runs[:, :kept] = self._runs[:, self._head : self._count].copy()
            self._head, self._count = 0, kept
        if self._linked:
            gone = self._filled
            if self._count > self._head:
                gone = int(self._runs[0, self._head]) - self._position
            if 2 * gone > self._filled:
                self._members[: self._filled - gone] = self._members[gone : self._filled].copy()
                self._position += gone
                self._filled -= gone
