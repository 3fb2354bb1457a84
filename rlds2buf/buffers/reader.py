"""Slots into batches."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds2buf.buffers.storage import IS_FIRST, IS_LAST, IS_TERMINAL, OWN_NEXT, RowStore
from rlds2buf.core import nest
from rlds2buf.core.fields import TERMINATED
from rlds2buf.core.sample import Trajectory, Transition
from rlds2buf.kernels.chain import CODE, next_slots, walk
from rlds2buf.kernels.gather import gather_rows

__all__ = ["Reader"]

_NO_LINKS = np.zeros(0, np.int64)
_ALIGN = 64


class Reader:
    """Builds batches of a :class:`~rlds2buf.buffers.storage.RowStore`.

    All columns of a batch are gathered by one call into one block of memory; the arrays handed out
    are views of it, aligned to 64 bytes, and nobody else's.
    """

    def __init__(self, store: RowStore) -> None:
        self.store = store
        self._layout = -1
        self._plans: dict[tuple[bool, int], _Plan] = {}
        self._skeletons = {
            name: getattr(store.spec, name) for name in ("observation", "action", "reward", "discount", "extras")
        }

    def transitions(self, slots: np.ndarray, gamma: float = 1.0) -> Transition:
        """One-step transitions from rows ``slots [B] int64``."""
        store = self.store
        following = np.empty_like(slots)
        next_slots(slots, store.slots, following)
        arrays, flags = self._gather(slots, following)
        codes = flags & CODE
        parts = self._parts(arrays)
        discount = _as_float(parts["discount"], len(slots))
        discount *= codes != TERMINATED
        return Transition(
            observation=parts["observation"],
            action=parts["action"],
            reward=parts["reward"],
            discount=discount,
            next_observation=parts["next_observation"],
            extras=parts["extras"],
            is_done=codes,
            steps=np.ones(len(slots), np.int32),
            bootstrap_discount=(discount * gamma).astype(np.float32, copy=False),
        )

    def n_step(self, slots: np.ndarray, n: int, gamma: float) -> Transition:
        """Transitions over up to `n` steps; rewards and discounts as :class:`Transition` says."""
        store = self.store
        path, steps = self.chains(slots, n)
        last = path[:, -1]
        batch = self.transitions(slots, gamma)
        end = np.empty_like(last)
        next_slots(last, store.slots, end)
        arrays, flags = self._gather(last, end)
        parts = self._parts(arrays)
        codes = flags & CODE
        live = np.arange(n) < steps[:, None]
        reward = store.columns[self._id("reward")][path]
        discount = np.ones(path.shape)
        if "discount" in self._ids:
            discount[...] = store.columns[self._ids["discount"]][path]
        # What stands behind a cut horizon is another item's: times zero is not enough where it is infinite.
        reward[~live] = 0
        discount[~live] = 1.0
        # product[:, i] is what stands before reward i; behind the last step it stays what it was.
        product = np.ones((len(slots), n + 1))
        np.cumprod(discount * np.where(live, gamma, 1.0), axis=1, out=product[:, 1:])
        weight = (product[:, :-1] * live).reshape(path.shape + (1,) * (reward.ndim - 2))
        total = (reward * weight).sum(1)
        whole = discount.prod(1) * gamma ** (steps - 1.0) * (codes != TERMINATED)
        floating = reward.dtype if reward.dtype.kind == "f" else np.dtype(np.float64)
        return batch._replace(
            reward=total.astype(floating),
            discount=whole.astype(batch.discount.dtype),
            next_observation=parts["next_observation"],
            is_done=codes,
            steps=steps,
            bootstrap_discount=(whole * gamma).astype(np.float32),
        )

    def sequences(self, slots: np.ndarray, length: int) -> Trajectory:
        """Up to `length` consecutive transitions from each row; the rest is zero and masked."""
        path, steps = self.chains(slots, length)
        flat = path.reshape(-1)
        following = np.empty_like(flat)
        next_slots(flat, self.store.slots, following)
        arrays, flags = self._gather(flat, following)
        mask = np.arange(length) < steps[:, None]
        padded = not bool(mask.all())
        codes = (flags & CODE).reshape(path.shape)
        parts = self._parts(arrays)
        discount = _as_float(parts["discount"], len(flat)).reshape(path.shape)
        discount *= codes != TERMINATED

        def block(column: np.ndarray | None) -> np.ndarray | None:
            if column is None:
                return None
            shaped = column.reshape(*path.shape, *column.shape[1:])
            if padded:
                shaped[~mask] = b"" if column.dtype == object else 0
            return shaped

        def flag(bit: int) -> np.ndarray:
            return ((flags & bit) != 0).reshape(path.shape) & mask

        if padded:
            codes[~mask] = 0
            discount[~mask] = 0
        return Trajectory(
            observation=nest.map_structure(block, parts["observation"]),
            action=nest.map_structure(block, parts["action"]),
            reward=nest.map_structure(block, parts["reward"]),
            discount=discount,
            is_first=flag(IS_FIRST),
            is_last=flag(IS_LAST),
            is_terminal=flag(IS_TERMINAL),
            extras=nest.map_structure(block, parts["extras"]),
            mask=mask,
            next_observation=nest.map_structure(block, parts["next_observation"]),
            is_done=codes,
        )

    def chains(self, slots: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Slots ``[B, length] int64`` of consecutive transitions, and how many ``[B] int32`` are real."""
        path = np.empty((len(slots), length), np.int64)
        steps = np.empty(len(slots), np.int32)
        links = _NO_LINKS if self.store.links is None else self.store.links
        walk(self.store.flags, links, slots, path, steps)
        return path, steps

    def _gather(self, slots: np.ndarray, following: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """Data columns at `slots`, then next observations, then flags (separately)."""
        store = self.store
        if self._layout != store.layout:
            self._refresh()
        whole_own = store.num_own > 0 and store.num_own == store.num_rows
        plan = self._plan(whole_own, len(slots))
        index = np.empty((len(plan.addresses), len(slots)), np.int64)
        index[:] = slots
        if not whole_own:
            index[plan.first_next : -1] = following
        block = np.empty(plan.size, np.uint8)
        gather_rows(plan.addresses, plan.row_bytes, index, block, plan.offsets)
        arrays = [
            np.ndarray(shape, dtype, block, offset)
            for shape, dtype, offset in zip(plan.shapes, plan.dtypes, plan.starts, strict=True)
        ]
        flags = arrays.pop()
        if store.num_own and not whole_own and store.own is not None:
            mine = (flags & OWN_NEXT) != 0
            for column, own in zip(arrays[plan.first_next :], store.own, strict=True):
                column[mine] = own[slots[mine]]
        for position, vocabulary in self._strings:
            arrays[position] = vocabulary.decode(arrays[position])
        return arrays, flags

    def _parts(self, arrays: list[np.ndarray]) -> dict[str, Any]:
        """Gathered arrays as nests by field name."""
        remaining = iter(arrays)
        parts = {}
        for name, skeleton in self._skeletons.items():
            leaf = skeleton is not None and not isinstance(skeleton, dict | tuple)
            parts[name] = next(remaining) if leaf else _fill(skeleton, remaining)
        parts["next_observation"] = _fill(self._skeletons["observation"], remaining)
        return parts

    def _id(self, name: str) -> int:
        if name not in self._ids:
            raise ValueError(f"n-step returns need a {name} of one array, and the data have none")
        return self._ids[name]

    def _refresh(self) -> None:
        store = self.store
        self._layout = store.layout
        self._plans.clear()
        self._ids = {path[0]: i for i, path in enumerate(store.paths) if len(path) == 1}
        names = len(store.columns)
        places = {i: names + k for k, i in enumerate(store.observation)}
        self._strings = [
            (place, vocabulary)
            for i, vocabulary in store.vocabularies.items()
            for place in ([i, places[i]] if i in places else [i])
        ]

    def _plan(self, whole_own: bool, size: int) -> _Plan:
        plan = self._plans.get((whole_own, size))
        if plan is None:
            store = self.store
            following = [store.columns[i] for i in store.observation]
            if whole_own and store.own is not None:
                following = store.own
            if len(self._plans) > 64:
                self._plans.clear()
            plan = _Plan([*store.columns, *following, store.flags], len(store.columns), size)
            self._plans[whole_own, size] = plan
        return plan


class _Plan:
    """Where each column lies and where its part of a batch of one size goes."""

    def __init__(self, columns: list[np.ndarray], first_next: int, size: int) -> None:
        widths = [column.dtype.itemsize * int(np.prod(column.shape[1:], dtype=np.int64)) for column in columns]
        self.first_next = first_next
        self.addresses = np.array([column.ctypes.data for column in columns], np.int64)
        self.row_bytes = np.array(widths, np.int64)
        ends = np.cumsum([-(-size * width // _ALIGN) * _ALIGN for width in widths])
        self.size = int(ends[-1])
        self.offsets = np.concatenate([[0], ends[:-1]]).astype(np.int64)
        self.starts = self.offsets.tolist()
        self.shapes = [(size, *column.shape[1:]) for column in columns]
        self.dtypes = [column.dtype for column in columns]


def _fill(skeleton: nest.Nest, arrays: Any) -> nest.Nest:
    if skeleton is None:
        return None
    if isinstance(skeleton, dict | tuple):
        present = nest.map_structure(lambda field: field is not None, skeleton)
        if all(flag for _, flag in nest.flatten(present)):
            return nest.unflatten(skeleton, arrays)
        return nest.unflatten(skeleton, (next(arrays) if flag else None for _, flag in nest.flatten(present)))
    return next(arrays)


def _as_float(discount: np.ndarray | None, size: int) -> np.ndarray:
    if discount is None:
        return np.ones(size, np.float32)
    return discount if discount.dtype.kind == "f" else discount.astype(np.float32)
