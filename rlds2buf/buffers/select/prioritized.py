"""Draws in proportion to priorities (Schaul et al. 2015, https://arxiv.org/abs/1511.05952)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds2buf.buffers.rows.row_store import RowStore
from rlds2buf.buffers.select.samplers import Draw, item_slots
from rlds2buf.errors import InvalidPriority, NotEnoughItems
from rlds2buf.kernels.priorities import draw_prioritized, update_priorities
from rlds2buf.kernels.sum_tree import SumTree, refresh_least

__all__ = ["PrioritizedSampler", "checked_priorities"]

_LARGEST = 1e290


class PrioritizedSampler:
    """Transition j with probability ``p_j**alpha / sum_i p_i**alpha``.

    Importance weights are ``(N * P_j)**-beta`` over N transitions, divided by the largest of the
    batch or of the whole buffer.  With `beta_steps`, beta goes in a straight line from `beta` to
    `beta_final` over that many calls of :meth:`update`, then stays.  New transitions come in at the
    largest priority there has been.

    Args:
        slots: rows of the store.
        alpha: in [0, 1]; 0 is uniform.
        beta, beta_final: in [0, 1]; 0 gives weights of 1.
        beta_steps: updates from `beta` to `beta_final`, or None to stay at `beta`.
        eps: added to every priority that an update gives, 0 or more.
        normalise: ``"batch"`` or ``"buffer"``.
        stratified: draw one from each of B equal parts of the total, instead of B from all of it.

    Raises:
        ValueError: an argument is out of range.
    """

    has_priorities = True

    def __init__(
        self,
        slots: int,
        *,
        alpha: float = 0.6,
        beta: float = 0.4,
        beta_final: float = 1.0,
        beta_steps: int | None = None,
        eps: float = 1e-6,
        normalise: str = "batch",
        stratified: bool = False,
    ) -> None:
        for name, value in (("alpha", alpha), ("beta", beta), ("beta_final", beta_final)):
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"{name} must be in [0, 1], got {value}")
        if not (eps >= 0.0 and np.isfinite(eps)):
            raise ValueError(f"eps must be finite and not negative, got {eps}")
        if normalise not in ("batch", "buffer"):
            raise ValueError(f"normalise must be 'batch' or 'buffer', got {normalise!r}")
        if beta_steps is not None and beta_steps < 1:
            raise ValueError(f"beta_steps must be at least 1, got {beta_steps}")
        self.alpha, self.beta_first, self.beta_final, self.beta_steps = alpha, beta, beta_final, beta_steps
        self.eps, self.normalise, self.stratified = eps, normalise, stratified
        self.maximum = 1.0
        self.updates = 0
        self.count = 0
        self._allocate(slots)

    @property
    def beta(self) -> float:
        """The exponent of importance weights now."""
        if self.beta_steps is None:
            return self.beta_first
        return self.beta_first + (self.beta_final - self.beta_first) * min(1.0, self.updates / self.beta_steps)

    @property
    def nbytes(self) -> int:
        """Bytes it takes: 16 a row, and the tree's upper levels."""
        return self.tree.nbytes + int(self.priority.nbytes) + (0 if self._least is None else int(self._least.nbytes))

    def added(self, slots: np.ndarray, priorities: np.ndarray | None = None) -> None:
        """Rows that start transitions came in, with these priorities or the largest so far."""
        if priorities is None:
            self.priority[slots] = self.maximum
            self._set(slots, np.full(len(slots), self.maximum**self.alpha))
        else:
            self.passed(priorities)
            self.priority[slots] = priorities
            self._set(slots, _powers(priorities, self.alpha))
        self.count += len(slots)

    def passed(self, priorities: np.ndarray) -> None:
        """Items came in with these, and may have left at once: what comes later is no less urgent than they were."""
        self.maximum = max(self.maximum, float(priorities.max(initial=0.0)))

    def evicted(self, slots: np.ndarray, oldest: int) -> None:
        """The oldest rows that start items left; the oldest row now is in slot `oldest`."""
        self._set(slots, np.zeros(len(slots)))
        self._first = oldest
        self.count -= len(slots)

    def moved(self, store: RowStore, before: np.ndarray) -> None:
        """The store's rows moved: its transitions, oldest first, were in slots `before`."""
        self._take(store, self.priority[before])

    def reset(self, store: RowStore) -> None:
        """The store was emptied: the largest priority and the schedule of beta start over too."""
        self.moved(store, np.zeros(0, np.int64))
        self.maximum, self.updates = 1.0, 0

    def draw(self, rng: np.random.Generator, size: int, *, replace: bool = True, beta: float | None = None) -> Draw:
        """Draw `size` transitions.

        Raises:
            NotEnoughItems: all priorities are 0, or fewer than `size` are not and `replace` is False.
            ValueError: `beta` is out of range.
        """
        beta = self.beta if beta is None else beta
        if not beta >= 0.0:
            raise ValueError(f"beta must not be negative, got {beta}")
        total = self.tree.total
        if not total > 0.0:
            raise NotEnoughItems(f"all {self.count} priorities are 0, so there is nothing to draw")
        slots = np.empty(size, np.int64)
        facts = np.empty((3, size))
        least = 0.0 if self._least is None else float(self._least[-1])
        if replace:
            uniforms = rng.random(size)
            if self.stratified:
                uniforms = (uniforms + np.arange(size)) / size
        else:
            uniforms = np.zeros(0)
            slots[:] = self._without_replacement(rng, size)
        tree = self.tree
        draw_prioritized(
            tree.nodes, tree.offsets, self._first, self.priority, uniforms, self.count, beta, least, slots, facts
        )
        return Draw(slots, facts[0], facts[1], facts[2])

    def among(
        self, rng: np.random.Generator, size: int, slots: np.ndarray, *, replace: bool, beta: float | None
    ) -> Draw:
        """Draw from these transitions only, in proportion to their priorities."""
        inner = PrioritizedSampler(len(slots), alpha=self.alpha, normalise=self.normalise, stratified=self.stratified)
        inner.added(np.arange(len(slots)), self.priority[slots])
        draw = inner.draw(rng, size, replace=replace, beta=self.beta if beta is None else beta)
        return draw._replace(slots=slots[draw.slots])

    def slots_at(self, places: np.ndarray) -> None:
        """None: slots are found by priority, and in no other order."""

    def update(self, slots: np.ndarray, values: np.ndarray) -> None:
        """Set priorities of transitions to ``values + eps``; the last of repeated slots wins."""
        tree = self.tree
        top = update_priorities(tree.nodes, tree.offsets, self.priority, slots, values, self.alpha, self.eps)
        self.maximum = max(self.maximum, top)
        self.updates += 1
        self._follow(slots)

    def priority_of(self, slots: np.ndarray) -> np.ndarray:
        """Raw priorities ``[B] float64``."""
        return np.asarray(self.priority[slots])

    def weights(self, probability: np.ndarray, beta: float | None) -> np.ndarray | None:
        """Importance weights ``[B]`` of several draws taken together; None where each draw's are right as they are.

        Args:
            probability: ``[B] float64``, of each item drawn.
            beta: the exponent, in place of the schedule's.
        """
        if self.normalise == "buffer":
            return None
        return np.asarray((probability.min() / probability) ** (self.beta if beta is None else beta))

    def state(self) -> dict[str, Any]:
        """What :meth:`arrays` leaves out, as plain JSON values."""
        return {"maximum": self.maximum, "updates": self.updates}

    def arrays(self, store: RowStore) -> dict[str, np.ndarray]:
        """Raw priorities ``[count] float64`` of the transitions, oldest first."""
        return {"priority": self.priority[item_slots(store)]}

    def live_arrays(self) -> dict[str, np.ndarray]:
        """Raw priorities by slot, for rows that stay in their slots."""
        return {"slot_priority": self.priority}

    def restore(self, store: RowStore, state: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Take back :meth:`state` and :meth:`arrays` or :meth:`live_arrays`."""
        self.maximum, self.updates = float(state["maximum"]), int(state["updates"])
        by_slot = arrays.get("slot_priority")
        self._take(store, arrays["priority"] if by_slot is None else by_slot[item_slots(store)])

    def check_valid(self, store: RowStore) -> None:
        """Assert that exactly the stored transitions have leaves; for tests."""
        self.tree.check_valid()
        slots = item_slots(store)
        expected = np.zeros(store.slots)
        expected[slots] = _powers(self.priority[slots], self.alpha)
        assert self.count == len(slots)
        np.testing.assert_allclose(self.tree.leaves, expected, rtol=1e-12)
        if self._least is not None:
            assert self._least[-1] == np.where(expected > 0, self.tree.leaves, np.inf).min(initial=np.inf)

    def _allocate(self, slots: int) -> None:
        self.tree = SumTree(slots)
        self.priority = np.zeros(slots)
        self._first = 0  # no transition is older than the one in this slot, or the next ones behind it
        # The smallest leaves above 0, in a tree of the same layout, where weights need it.
        self._least = np.full_like(self.tree.nodes, np.inf) if self.normalise == "buffer" else None

    def _set(self, slots: np.ndarray, leaves: np.ndarray) -> None:
        self.tree.set(slots, leaves)
        self._follow(slots)

    def _follow(self, slots: np.ndarray) -> None:
        if self._least is not None:
            leaves = self.tree.nodes[slots]
            self._least[slots] = np.where(leaves > 0, leaves, np.inf)
            refresh_least(self._least, self.tree.offsets, slots)

    def _take(self, store: RowStore, priorities: np.ndarray) -> None:
        maximum = self.maximum
        slots = item_slots(store)
        if priorities.shape != slots.shape:
            raise ValueError(f"{list(priorities.shape)} priorities of {len(slots)} items")
        self._allocate(store.slots)
        self._first = int(store.slot_of(store.oldest))
        self.count = 0
        self.added(slots, priorities.astype(np.float64))
        self.maximum = maximum

    def _without_replacement(self, rng: np.random.Generator, size: int) -> np.ndarray:
        # Efraimidis and Spirakis 2006: the largest of u**(1/w) are a weighted sample in order of draws.
        candidates = np.flatnonzero(self.tree.leaves > 0)
        candidates = np.roll(candidates, -int(np.searchsorted(candidates, self._first)))  # oldest first
        if len(candidates) < size:
            raise NotEnoughItems(f"{len(candidates)} transitions have a priority above 0, {size} were asked for")
        keys = np.log(1.0 - rng.random(len(candidates))) / self.tree.leaves[candidates]
        best = np.argpartition(keys, len(keys) - size)[-size:]
        return candidates[best[np.argsort(-keys[best])]]


def checked_priorities(values: Any, count: int) -> np.ndarray:
    """Priorities ``[count] float64``.

    Raises:
        InvalidPriority: one is negative, NaN, or above 1e290, so that sums of them stay finite.
        ValueError: there are not as many as items.
    """
    array = np.asarray(values, np.float64)
    if array.shape != (count,):
        raise ValueError(f"{count} items need as many priorities, got shape {list(array.shape)}")
    wrong = ~((array >= 0) & (array <= _LARGEST))
    if wrong.any():
        first = int(np.argmax(wrong))
        raise InvalidPriority(
            f"priorities must be finite, not negative and at most 1e290, number {first} is {array[first]}"
        )
    return array


def _powers(priorities: np.ndarray, alpha: float) -> np.ndarray:
    return np.asarray(priorities, np.float64) ** alpha
