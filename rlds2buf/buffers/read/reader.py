"""Slots into batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from rlds2buf.buffers.read.predecessors import Predecessors, initial_state
from rlds2buf.buffers.read.unpacker import Unpacker
from rlds2buf.buffers.read.view import View
from rlds2buf.buffers.rows.blobs import OBJECT
from rlds2buf.buffers.rows.row_store import RowStore
from rlds2buf.core import nest
from rlds2buf.core.room import ROOM_ENOUGH, require_room
from rlds2buf.core.row_flags import CODE, IS_FIRST, IS_LAST, IS_TERMINAL, OWN_NEXT, TERMINATED
from rlds2buf.core.sample import Trajectory, Transition
from rlds2buf.core.spec import FieldSpec
from rlds2buf.kernels.chain import finish, walk
from rlds2buf.kernels.gather import ALIGN, AT_LAST, AT_SLOT, BEHIND_LAST, BEHIND_SLOT, gather_rows
from rlds2buf.views.transitions import sum_dtype

__all__ = ["Reader", "as_float", "discounted"]

_PATH_BYTES = 16
"""Of one step of a sequence, beside its fields: its slot, flags and mask."""
_N_STEP_BYTES = 48
"""Of one step of an n-step return: its slot, reward and discount, and the products of them."""
_NO_LINKS = np.zeros(0, np.int64)


class Reader:
    """Builds batches of a :class:`~rlds2buf.buffers.rows.row_store.RowStore`.

    All columns of a batch are gathered by one call into one block of memory; the arrays handed out
    are views of it, aligned to 64 bytes, and nobody else's.  Values of any length are read as they
    are stored; :attr:`unpack` is for the caller to use when it has let go of the buffer's lock.
    """

    def __init__(self, store: RowStore) -> None:
        self.store = store
        self.unpack = Unpacker(store.spec)
        self.before = Predecessors(store)
        following = sum(field.row_bytes for path, field in store.spec.fields() if path[0] == "observation")
        self._step_bytes = store.spec.row_bytes + following + _PATH_BYTES
        self._layout = -1
        self._plans: dict[tuple[bool, int, tuple[int, ...] | None], _Plan] = {}
        nests = {name: getattr(store.spec, name) for name in ("observation", "action", "reward", "discount", "extras")}
        nests["next_observation"] = store.spec.observation
        self._builders = [(name, _builder(skeleton)) for name, skeleton in nests.items()]

    def require_room(self, count: int, view: View) -> None:
        """Refuse a batch of `count` items that memory can't hold.

        Raises:
            TooLarge: it can't; the message names the arguments and the bytes.
        """
        name, steps, each = "n_step", view.longest, _N_STEP_BYTES
        if view.sequence_length is not None:
            name, steps, each = "sequence_length", view.sequence_length + view.burn_in, self._step_bytes
        size = count * (steps * each + self._step_bytes)
        if size > ROOM_ENOUGH:
            require_room(size, f"{name if steps >= count else 'batch_size'}: {count:,} items of {steps:,} steps each")

    def transitions(self, slots: np.ndarray, gamma: float = 1.0) -> Transition:
        """One-step transitions from rows ``slots [B] int64``."""
        arrays, codes = self._gather(slots, slots)
        return self._transitions(arrays, codes, gamma)

    def with_outcomes(
        self, slots: np.ndarray, others: np.ndarray, leaves: tuple[int, ...], gamma: float
    ) -> tuple[Transition, list[np.ndarray]]:
        """One-step transitions from rows ``slots [B] int64``, and what other rows led to.

        The latter are leaves (places in ``store.observation``) of the next observations of rows
        ``others [B] int64``; one call reads it all.
        """
        arrays, codes = self._gather(slots, others, leaves)
        count = len(arrays) - len(leaves)
        return self._transitions(arrays[:count], codes, gamma), arrays[count:]

    def _transitions(self, arrays: list[np.ndarray], codes: np.ndarray, gamma: float) -> Transition:
        parts = self.parts(arrays)
        size = len(codes)
        discount = as_float(parts["discount"], (size,))
        steps, bootstrap = np.empty(size, np.int32), np.empty(size, np.float32)
        if discount.dtype.itemsize in (4, 8):
            finish(codes, discount, gamma, steps, bootstrap)
        else:  # float16 and long double are not what compiled code knows
            codes &= CODE
            discount[codes == TERMINATED] = 0
            steps[:], bootstrap[:] = 1, gamma * discount
        return Transition(
            parts["observation"],
            parts["action"],
            parts["reward"],
            discount,
            parts["next_observation"],
            parts["extras"],
            codes,
            steps,
            bootstrap,
        )

    def n_step(self, slots: np.ndarray, n: int, gamma: float, horizons: np.ndarray | None = None) -> Transition:
        """Transitions over up to `n` steps; rewards and discounts as :class:`Transition` says.

        With `horizons`, ``[B] int64`` from 1 to `n`, over up to as many each.
        """
        path, steps = self.chains(slots, n, horizons)
        last = path[:, -1] if horizons is None else path[np.arange(len(path)), steps - 1]
        arrays, flags = self._gather(slots, last.copy())
        parts = self.parts(arrays)
        codes = flags & CODE
        reward, discount, bootstrap = self.sums(path, steps, codes, gamma)
        return Transition(
            observation=parts["observation"],
            action=parts["action"],
            reward=reward,
            discount=discount,
            next_observation=parts["next_observation"],
            extras=parts["extras"],
            is_done=codes,
            steps=steps,
            bootstrap_discount=bootstrap,
        )

    def sums(
        self, path: np.ndarray, steps: np.ndarray, codes: np.ndarray, gamma: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What n-step transitions earn: their `reward`, `discount` and `bootstrap_discount`, ``[B, ...]`` and ``[B]``.

        Args:
            path: ``[B, n] int64``, slots of their steps.
            steps: ``[B]``, how many of them count.
            codes: ``[B] uint8``, how they end.
            gamma: discount per step.

        Raises:
            ValueError: there is no reward of one array.
        """
        store = self.store
        if self._layout != store.layout:
            self._refresh()
        reward = store.columns[self._id("reward")][path]
        discount, dtype = np.ones(path.shape), np.dtype(np.float32)
        if "discount" in self._ids:
            logged = store.columns[self._ids["discount"]]
            discount[...] = logged[path]
            dtype = logged.dtype if logged.dtype.kind == "f" else dtype
        total, whole = discounted(reward, discount, steps, gamma)
        whole *= codes != TERMINATED
        return total, whole.astype(dtype), (whole * gamma).astype(np.float32)

    def read(
        self, slots: np.ndarray, view: View, growing: Iterable[int] = (), horizons: np.ndarray | None = None
    ) -> Transition | Trajectory:
        """What a view without windows makes of rows ``slots [B] int64``.

        Args:
            slots: of held transitions.
            view: which kind, and how long.
            growing: keys of the transitions whose successors may still come.
            horizons: as for :meth:`n_step`.
        """
        if view.whole:
            return self.whole(slots)
        if view.sequence_length is None:
            if view.longest > 1:
                return self.n_step(slots, view.longest, view.gamma, horizons)
            return self.transitions(slots, view.gamma)
        before = self.before.walk(slots, view.burn_in, growing) if view.burn_in else None
        data = self.sequences(slots, view.sequence_length, before)
        return data._replace(initial_state=initial_state(data, view)) if view.state else data

    def sequences(
        self, slots: np.ndarray, length: int, before: tuple[np.ndarray, np.ndarray] | None = None
    ) -> Trajectory:
        """Up to `length` consecutive transitions from each row; the rest is zero and masked.

        With `before`, slots ``[B, burn_in] int64`` of which the last ``[B] int32`` are real, those come first.
        """
        path, steps = self.chains(slots, length)
        mask = np.arange(length) < steps[:, None]
        burn_in = None
        if before is not None:
            path = np.concatenate([before[0], path], axis=1)
            place = np.arange(path.shape[1]) - before[0].shape[1]
            mask = (place >= 0) & (place < steps[:, None])
            burn_in = (place < 0) & (place >= -before[1][:, None])
        return self.along(path, mask, burn_in)

    def whole(self, slots: np.ndarray) -> Trajectory:
        """Items of several transitions from these of their rows on, padded to the longest of them."""
        path, steps = self.members(slots)
        return self.along(path, np.arange(path.shape[1]) < steps[:, None])

    def members(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Slots ``[B, T] int64`` of an item's transitions from a row on, and how many ``[B] int64`` are real."""
        items, capacity = self.store.items, self.store.slots
        assert items is not None
        behind = np.maximum(-items[slots], 0).astype(np.int64)
        steps = items[(slots - behind) % capacity] - behind
        place = np.minimum(np.arange(steps.max(initial=1)), steps[:, None] - 1)
        return (slots[:, None] + place) % capacity, steps

    def along(self, path: np.ndarray, mask: np.ndarray | None = None, burn_in: np.ndarray | None = None) -> Trajectory:
        """Transitions in slots ``[B, T] int64``; where neither `mask` nor `burn_in` is True, zeros."""
        mask = np.ones(path.shape, np.bool_) if mask is None else mask
        held = mask if burn_in is None else mask | burn_in
        flat = path.reshape(-1)
        arrays, flags = self._gather(flat, flat)
        padded = not bool(held.all())
        codes = (flags & CODE).reshape(path.shape)
        parts = self.parts(arrays)
        discount = as_float(parts["discount"], flat.shape).reshape(path.shape)
        discount *= codes != TERMINATED

        def block(column: np.ndarray | None) -> np.ndarray | None:
            if column is None:
                return None
            shaped = column.reshape(*path.shape, *column.shape[1:])
            if padded:
                shaped[~held] = b"" if column.dtype == object else 0
            return shaped

        def flag(bit: int) -> np.ndarray:
            return ((flags & bit) != 0).reshape(path.shape) & held

        if padded:
            codes[~held] = 0
            discount[~held] = 0
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
            burn_in=burn_in,
        )

    def chains(self, slots: np.ndarray, length: int, most: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Slots ``[B, length] int64`` of consecutive transitions, and how many ``[B] int32`` are real, or wanted.

        With ``most [B]``, no more of them than that are.
        """
        path = np.empty((len(slots), length), np.int64)
        steps = np.empty(len(slots), np.int32)
        links = _NO_LINKS if self.store.links is None else self.store.links
        walk(self.store.flags, links, slots, path, steps)
        return path, steps if most is None else np.minimum(steps, most).astype(np.int32)

    def _gather(
        self, slots: np.ndarray, last: np.ndarray, leaves: tuple[int, ...] | None = None
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """Data columns at `slots`, then next observations behind `last`; and flags at `last`.

        With `leaves`, next observations and flags are those of `slots`, and next observations behind
        `last` of these leaves only come after them.
        """
        store = self.store
        if self._layout != store.layout:
            self._refresh()
        whole_own = store.num_own > 0 and store.num_own == store.num_rows
        plan = self._plan(whole_own, len(slots), leaves)
        block = np.empty(plan.size + ALIGN, np.uint8)
        skip = gather_rows(plan.addresses, plan.row_bytes, plan.choice, slots, last, store.slots, block, plan.offsets)
        arrays = [np.ndarray(shape, dtype, block, offset + skip) for shape, dtype, offset in plan.views]
        flags = arrays.pop()
        for column, places in plan.blobs:
            _take_blobs(arrays, column, places, slots, last, store.slots)
        if store.num_own and not whole_own and store.own is not None:
            following = arrays[plan.first_next : plan.first_next + len(store.own)]
            _take_own(following, store.own, flags, last if leaves is None else slots)
            if leaves is not None:
                others = arrays[plan.first_next + len(store.own) :]
                _take_own(others, [store.own[i] for i in leaves], store.flags[last], last)
        for position, vocabulary in self._strings:
            arrays[position] = vocabulary.decode(arrays[position])
        return arrays, flags

    def parts(self, arrays: list[np.ndarray], following: bool = True) -> dict[str, Any]:
        """Gathered arrays as nests by field name; with `following` those of next observations come last."""
        remaining = iter(arrays)
        return {name: build(remaining) for name, build in (self._builders if following else self._builders[:-1])}

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

    def _plan(self, whole_own: bool, size: int, leaves: tuple[int, ...] | None) -> _Plan:
        plan = self._plans.get((whole_own, size, leaves))
        if plan is None:
            store = self.store
            following = [store.columns[i] for i in store.observation]
            if whole_own and store.own is not None:
                following = store.own
            others = [following[i] for i in leaves or ()]
            behind = AT_LAST if whole_own else BEHIND_LAST
            own, at = (behind, AT_LAST) if leaves is None else (AT_SLOT if whole_own else BEHIND_SLOT, AT_SLOT)
            choice = [AT_SLOT] * len(store.columns) + [own] * len(following) + [behind] * len(others) + [at]
            if len(self._plans) > 64:
                self._plans.clear()
            plan = _Plan([*store.columns, *following, *others, store.flags], choice, size)
            plan.first_next = len(store.columns)
            self._plans[whole_own, size, leaves] = plan
        return plan


class _Plan:
    """Where each column lies and where its part of a batch of one size goes."""

    def __init__(self, columns: list[np.ndarray], choice: list[int], size: int) -> None:
        # Values of any length are no bytes to be copied: of them there is nothing to gather, and then they are taken.
        plain = [column.dtype != OBJECT for column in columns]
        widths = [
            column.dtype.itemsize * int(np.prod(column.shape[1:], dtype=np.int64)) if here else 0
            for column, here in zip(columns, plain, strict=True)
        ]
        self.first_next = 0
        addresses = [column.ctypes.data if here else 0 for column, here in zip(columns, plain, strict=True)]
        self.addresses = np.array(addresses, np.int64)
        self.row_bytes = np.array(widths, np.int64)
        self.choice = np.array(choice, np.uint8)
        ends = np.cumsum([-(-size * width // ALIGN) * ALIGN for width in widths])
        self.size = int(ends[-1])
        self.offsets = np.concatenate([[0], ends[:-1]]).astype(np.int64)
        self.views = [
            ((size, *column.shape[1:]), column.dtype, offset) if here else ((0,), np.dtype(np.uint8), 0)
            for column, offset, here in zip(columns, self.offsets.tolist(), plain, strict=True)
        ]
        taken: dict[int, tuple[Any, list[tuple[int, int]]]] = {}
        for position, (column, here) in enumerate(zip(columns, plain, strict=True)):
            if not here:
                taken.setdefault(id(column), (column, []))[1].append((position, choice[position]))
        self.blobs = list(taken.values())
        """Columns of values of any length, and each one's ``(position, choice)`` among the arrays of a batch."""


def _take_own(arrays: list[np.ndarray], own: list[np.ndarray], flags: np.ndarray, slots: np.ndarray) -> None:
    """Put rows' own next observations where they have some."""
    mine = (flags & OWN_NEXT) != 0
    for array, column in zip(arrays, own, strict=True):
        array[mine] = column[slots[mine]]


def _take_blobs(
    arrays: list[np.ndarray],
    column: Any,
    places: list[tuple[int, int]],
    slots: np.ndarray,
    last: np.ndarray,
    capacity: int,
) -> None:
    """Take a column's values for several positions at once, so that what lies on the disk is read once."""
    wanted = []
    for _, choice in places:
        rows = slots if choice in (AT_SLOT, BEHIND_SLOT) else last
        wanted.append((rows + 1) % capacity if choice in (BEHIND_LAST, BEHIND_SLOT) else rows)
    found = column[np.concatenate(wanted)].reshape(len(wanted), len(slots), *column.shape[1:])
    for (position, _), values in zip(places, found, strict=True):
        arrays[position] = values


def discounted(
    reward: np.ndarray, discount: np.ndarray, steps: np.ndarray, gamma: float
) -> tuple[np.ndarray, np.ndarray]:
    """Sums of n-step rewards and products of discounts, as :class:`~rlds2buf.core.sample.Transition` has them.

    Args:
        reward: ``[B, n, ...]``; what stands behind a cut horizon is overwritten.
        discount: ``[B, n]`` float, likewise.
        steps: ``[B]``, how many of the n count.
        gamma: discount per step.

    Returns:
        ``(reward [B, ...], discount [B] float64)``; rewards are of the type that
        :func:`~rlds2buf.views.transitions.sum_dtype` says.
    """
    live = np.arange(discount.shape[1]) < steps[:, None]
    # What stands behind a cut horizon is another item's: times zero is not enough where it is infinite.
    reward[~live] = 0
    discount[~live] = 1.0
    # product[:, i] is what stands before reward i; behind the last step it stays what it was.
    product = np.ones((len(steps), discount.shape[1] + 1))
    np.cumprod(discount * np.where(live, gamma, 1.0), axis=1, out=product[:, 1:])
    weight = (product[:, :-1] * live).reshape(discount.shape + (1,) * (reward.ndim - 2))
    total = (reward * weight).sum(1)
    return total.astype(sum_dtype(reward.dtype)), discount.prod(1) * gamma ** (steps - 1.0)


def _builder(skeleton: nest.Nest) -> Callable[[Iterator[np.ndarray]], nest.Nest]:
    """What makes a nest of that structure from the next arrays, found out once and not at every batch."""
    if isinstance(skeleton, FieldSpec):
        return next
    if skeleton is None:
        return lambda arrays: None
    if isinstance(skeleton, Mapping):
        children = [(key, _builder(skeleton[key])) for key in sorted(skeleton)]
        if list(skeleton) == sorted(skeleton):
            return lambda arrays: {key: build(arrays) for key, build in children}
        order = dict.fromkeys(skeleton)
        return lambda arrays: {**order, **{key: build(arrays) for key, build in children}}
    parts = [_builder(child) for child in skeleton]
    if hasattr(skeleton, "_fields"):
        return lambda arrays: type(skeleton)(*[build(arrays) for build in parts])
    return lambda arrays: tuple([build(arrays) for build in parts])


def as_float(discount: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray:
    """Logged discounts as numbers that can be multiplied; ones where none were logged."""
    if discount is None:
        return np.ones(shape, np.float32)
    return discount if discount.dtype.kind == "f" else discount.astype(np.float32)
