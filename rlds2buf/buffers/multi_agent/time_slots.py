"""The table of time slots: which rows of several buffers are the same step of the same episode."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlds2buf.kernels.time_slots import (
    ALIVE,
    SERIAL,
    collect,
    enter,
    find,
    forget_rows,
    forget_times,
    holds_agent,
    tally,
)

__all__ = ["TimeSlots"]


class TimeSlots:
    """Rows of P buffers by episode and time.

    A row is known by its buffer and key.  A slot is there as long as all rows it ever had are held:
    once one leaves, the slot leaves as a whole, and its other rows are in no slot any more.  All
    takes about 70 bytes per row of capacity.

    Args:
        capacities: how many rows each buffer holds at most.

    Attributes:
        oldest: ``[P]``, the oldest key of each buffer when it was last looked at.
    """

    def __init__(self, capacities: Sequence[int]) -> None:
        self.capacities = [int(capacity) for capacity in capacities]
        self.oldest = [0] * len(capacities)
        self._first = [0, *np.cumsum(self.capacities).tolist()]
        self._empty(0)

    def clear(self) -> None:
        """Forget all slots; their numbers go on."""
        self._empty(self.made)

    def _empty(self, made: int) -> None:
        rows = self._first[-1]
        size = 16
        while size < 2 * rows:
            size *= 2
        self._table = np.full(size, -1, np.int32)
        self._slots = np.zeros((rows, 3), np.int64)  # episode, time, number
        self._heads = np.full(rows, -1, np.int32)
        self._alive, self._place = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
        self._free = np.arange(rows - 1, -1, -1, dtype=np.int32)
        self._counts = np.array([0, rows, made])
        self._rows = np.full((rows, 3), -1, np.int64)  # slot, next older row there, agent
        self._owner = np.repeat(np.arange(len(self.capacities), dtype=np.int32), self.capacities)

    def __len__(self) -> int:
        return int(self._counts[ALIVE])

    @property
    def made(self) -> int:
        """How many slots there have been; numbers go from 0 to that."""
        return int(self._counts[SERIAL])

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        return sum(array.nbytes for array in (*self._arrays(), self._owner))

    def repeated(self, buffer: int, episodes: np.ndarray, times: np.ndarray, agents: np.ndarray) -> int:
        """The first of these rows ``[n] int64`` that a buffer has already, or that is there twice; -1 if none."""
        order = np.lexsort((agents, times, episodes))
        same = np.ones(max(len(order) - 1, 0), np.bool_)
        for column in (episodes, times, agents):
            same &= column[order][1:] == column[order][:-1]
        if same.any():
            return int(order[1:][same].min())
        found = np.empty(len(order), np.int64)
        find(self._table, self._slots, episodes, times, found)
        return int(holds_agent(self._heads, self._rows, self._first[buffer], self._first[buffer + 1], found, agents))

    def follow(self, buffer: int, oldest: int) -> None:
        """A buffer's oldest key is this one now: slots of rows that left leave too."""
        start, self.oldest[buffer] = self.oldest[buffer], oldest
        # Of a call that brings more than fits, keys are skipped that never were in the table.
        stop = min(oldest, start + self.capacities[buffer])
        forget_rows(*self._arrays(), self._first[buffer], max(self.capacities[buffer], 1), start, stop)

    def enter(self, buffer: int, keys: np.ndarray, episodes: np.ndarray, times: np.ndarray, agents: np.ndarray) -> None:
        """Put held rows of a buffer (keys, episodes, times and agents ``[n] int64``) into their slots."""
        which = self._first[buffer] + keys % max(self.capacities[buffer], 1)
        enter(*self._arrays(), episodes, times, agents, which)

    def drop(self, episodes: np.ndarray, times: np.ndarray) -> None:
        """Forget the slots of these episodes and times ``[n] int64``, where there are such."""
        forget_times(*self._arrays(), episodes, times)

    def draw(self, rng: np.random.Generator, size: int, *, replace: bool = True) -> np.ndarray:
        """`size` slots ``int64``, each as likely; there is at least one (without replacement: at least `size`)."""
        picks = rng.integers(0, len(self), size) if replace else rng.choice(len(self), size, replace=False)
        return self._alive[picks].astype(np.int64)

    def since(self, number: int, count: int) -> tuple[np.ndarray, int]:
        """The first `count` slots ``int64`` with this number or a higher one, and the number behind them."""
        alive = self._alive[: len(self)].astype(np.int64)
        numbers = self._slots[alive, 2]
        new = alive[numbers >= number]
        new = new[np.argsort(self._slots[new, 2])][:count]
        return new, number if not len(new) else int(self._slots[new[-1], 2]) + 1

    def rows_of(self, drawn: np.ndarray) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """For each buffer the rows of slots ``drawn [n] int64``: keys, places in `drawn`, and agents ``[rows] int64``.

        They come slot by slot, those of one slot in the order in which they were added.
        """
        totals = np.empty(len(self.capacities), np.int64)
        tally(self._heads, self._rows, self._owner, drawn, totals)
        ends = np.cumsum(totals)
        rows, position = np.empty(int(totals.sum()), np.int64), np.empty(int(totals.sum()), np.int64)
        collect(self._heads, self._rows, self._owner, drawn, ends.copy(), rows, position)
        parts = []
        for buffer, (start, stop) in enumerate(zip(ends - totals, ends, strict=True)):
            mine, oldest = rows[start:stop], self.oldest[buffer]
            age = (mine - self._first[buffer] - oldest) % max(self.capacities[buffer], 1)
            parts.append((oldest + age, position[start:stop], self._rows[mine, 2]))
        return parts

    def most_rows(self) -> int:
        """The most rows that a slot has, 0 if there are no slots."""
        slots = self._rows[:, 0]
        return int(np.bincount(slots[slots >= 0], minlength=1).max())

    def state(self) -> dict[str, np.ndarray]:
        """All slots, in the order in which they are drawn from, and their rows."""
        alive = self._alive[: len(self)].astype(np.int64)
        parts = self.rows_of(alive)
        owner = np.repeat(np.arange(len(parts)), [len(keys) for keys, _, _ in parts])
        keys, slot, agents = (np.concatenate([part[i] for part in parts]) for i in range(3))
        return {
            "slots": self._slots[alive],
            "rows": np.stack([owner, keys, slot, agents], axis=1).astype(np.int64),
            "oldest": np.array(self.oldest, np.int64),
            "made": np.array([self.made], np.int64),
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Take back :meth:`state`.

        Raises:
            KeyError, ValueError: something is missing or does not fit; forget what is here then.
        """
        slots, rows = np.asarray(state["slots"], np.int64), np.asarray(state["rows"], np.int64)
        oldest, made = state["oldest"].tolist(), int(state["made"][0])
        owner, keys, slot, agents = (rows[:, i].copy() for i in range(4))
        if len(oldest) != len(self.capacities) or len(slots) > self._first[-1] or slots.shape[1:] != (3,):
            raise ValueError("the time slots are of other buffers")
        if len(slots) and (len(np.unique(slots[:, 2])) < len(slots) or slots[:, 2].max() >= made):
            raise ValueError("time slots have the same number")
        if (
            not np.array_equal(np.unique(slot), np.arange(len(slots)))
            or not np.isin(owner, np.arange(len(oldest))).all()
        ):
            raise ValueError("rows and time slots don't fit together")
        self.clear()
        self.oldest = [int(key) for key in oldest]
        first = np.array(self._first[:-1])[owner]
        which = first + keys % np.maximum(np.array(self.capacities), 1)[owner]
        # Slot by slot: that makes them in their order, and the order of the rows in each stays.
        order = np.argsort(slot, kind="stable")
        slot, which, agents = slot[order], which[order], agents[order]
        enter(*self._arrays(), slots[slot, 0].copy(), slots[slot, 1].copy(), agents, which)
        self._slots[self._alive[: len(self)], 2] = slots[:, 2]
        self._counts[SERIAL] = made

    def check_valid(self) -> None:
        """Assert that all arrays agree; for tests."""
        alive = self._alive[: len(self)].astype(np.int64)
        assert len(np.unique(alive)) == len(alive)
        assert (self._place[alive] == np.arange(len(alive))).all()
        free = self._free[: self._counts[1]]
        assert sorted([*alive.tolist(), *free.tolist()]) == list(range(self._first[-1]))
        assert np.count_nonzero(self._table >= 0) == len(alive)
        found = np.empty(len(alive), np.int64)
        find(self._table, self._slots, self._slots[alive, 0].copy(), self._slots[alive, 1].copy(), found)
        assert np.array_equal(found, alive)
        held = sum(len(keys) for keys, _, _ in self.rows_of(alive))
        assert held == np.count_nonzero(self._rows[:, 0] >= 0)
        assert (self._heads[alive] >= 0).all()

    def _arrays(self) -> tuple[np.ndarray, ...]:
        return (
            self._table, self._slots, self._heads, self._alive, self._place, self._free, self._counts, self._rows
        )  # fmt: skip
