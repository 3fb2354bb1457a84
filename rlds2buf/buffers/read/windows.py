"""Windows: what stood around drawn steps, gathered from rows that are held once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds2buf.buffers.read.offsets import Layout, Offsets
from rlds2buf.buffers.read.reader import Reader, as_float
from rlds2buf.buffers.rows.blobs import OBJECT
from rlds2buf.buffers.rows.row_store import RowStore
from rlds2buf.buffers.select.samplers import transition_slots
from rlds2buf.core import nest
from rlds2buf.core.room import ROOM_ENOUGH, require_room
from rlds2buf.core.row_flags import CODE, OWN_NEXT, TERMINATED
from rlds2buf.core.sample import Windows
from rlds2buf.errors import NotEnoughItems
from rlds2buf.kernels.chain import finish, finish_numpy
from rlds2buf.kernels.gather import ALIGN
from rlds2buf.kernels.windows import (
    ENDS,
    STARTS,
    count_before,
    earnings,
    earnings_numpy,
    find_rows,
    gather_windows,
    longest_run,
)
from rlds2buf.views.goals import Part
from rlds2buf.views.transitions import sum_dtype

__all__ = ["WindowReader"]

_COMPILED = "?bhilqBHILQfd"
"""Characters of the dtypes that compiled code knows."""
_REMEMBERED = 64


class WindowReader:
    """Builds :class:`~rlds2buf.core.sample.Windows` of the rows that a reader reads.

    Args:
        reader: of the rows.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader, self.store = reader, reader.store
        self._layouts: dict[Offsets, Layout] = {}
        self._proven = 0

    def layout(self, offsets: Offsets) -> Layout:
        """The offsets resolved against the data.

        Raises:
            ValueError: the data have no such field.
        """
        layout = self._layouts.get(offsets)
        if layout is None:
            if len(self._layouts) > _REMEMBERED:
                self._layouts.clear()
            layout = self._layouts[offsets] = Layout(offsets, self.store.spec)
        return layout

    def require_room(self, count: int, offsets: Offsets) -> None:
        """Refuse a batch of `count` items that memory can't hold.

        Raises:
            TooLarge: it can't.
            ValueError: the data have no such field.
        """
        size = count * self.layout(offsets).item_bytes
        if size > ROOM_ENOUGH:
            require_room(size, f"offsets: windows of {count:,} items")

    def read(
        self,
        slots: np.ndarray,
        offsets: Offsets,
        waiting: Mapping[int, int],
        *,
        n_step: int = 1,
        gamma: float = 1.0,
        horizons: np.ndarray | None = None,
    ) -> Windows:
        """Windows around the steps in rows ``slots [B] int64``, which are transitions over up to `n_step` steps.

        Args:
            slots: of held transitions.
            offsets: which steps.
            waiting: the newest transition of each source that goes on.
            n_step, gamma: as for ``Buffer.sample``.
            horizons: ``[B] int64``, how many of the steps each may have at most; None for all.

        Raises:
            NotEnoughItems: some of the offsets lead out of every episode.
            ValueError: the data have no such field, or no rewards to be summed up.
        """
        layout = self.layout(offsets)
        plan = self._plan(layout, len(slots))
        path, steps, last = slots[:, None], np.empty(len(slots), np.int32), slots
        if n_step > 1:
            path, steps = self.reader.chains(slots, n_step, horizons)
            last = path[np.arange(len(path)), steps - 1]
        around = _Around(self.store, plan, slots, last, self.reader.before.index(waiting.values()))
        if layout.need > self._proven and not waiting and len(slots):
            around.require_long_episode()
            self._proven = layout.need  # once is enough: it is a wrong argument that is to be found
        arrays, flags = self._gather(around)
        parts = self.reader.parts(arrays, layout.following is not None)
        codes = flags[1]
        if layout.discount is None and n_step == 1:
            parts["discount"] = discount = as_float(parts["discount"], codes.shape)
            bootstrap = np.empty(len(slots), np.float32)
            settle = finish if discount.dtype.itemsize in (4, 8) else finish_numpy
            settle(codes, discount, gamma, steps, bootstrap)
        else:
            codes &= CODE
            if n_step == 1:
                steps[:] = 1
            reward, discount, bootstrap = self.reader.sums(path, steps, codes, gamma)
            if n_step > 1 and not layout.reward:
                parts["reward"] = reward
            if layout.discount is None:
                parts["discount"] = discount
            else:
                ends = (flags[layout.discount] & CODE) == TERMINATED
                parts["discount"] = as_float(parts["discount"], ends.shape)
                parts["discount"][ends] = 0
        return Windows(
            **parts,
            is_done=codes if layout.codes is None else flags[layout.codes] & CODE,
            steps=steps,
            bootstrap_discount=bootstrap,
            is_pad={name: around.of(around.pads, group) for name, group in layout.pads.items()},
            return_to_go=None if layout.to_go is None else around.return_to_go(layout.to_go),
            time_step=None if layout.time is None else around.time_step(layout.time),
        )

    def put(
        self, data: Windows, offsets: Offsets, leaf: int, elements: Part, values: np.ndarray, chosen: np.ndarray
    ) -> None:
        """Write elements of one leaf of the observation into all observations that are there, in place.

        Args:
            data: as :meth:`read` gave it.
            offsets: of its windows.
            leaf: which, counted in ``store.observation``.
            elements: of it.
            values: ``[B, n]``.
            chosen: ``[B] bool``, in which items.
        """
        layout = self.layout(offsets)
        pads = {group: data.is_pad[name] for name, group in layout.pads.items()}
        current = layout.current[self.store.observation[leaf]]
        following = None if layout.following is None else layout.following[leaf]
        for part, side in ((current, data.observation), (following, data.next_observation)):
            if part is None:
                continue
            rows = nest.get(side, elements.path)
            if part.width is None:
                elements.write(rows, values, chosen)
                continue
            where = np.repeat(chosen, part.width)
            if offsets.zero:
                where &= ~pads[part.group].reshape(-1)
            flat = rows.reshape(len(where), *rows.shape[2:])
            elements.write(flat, np.repeat(values, part.width, axis=0), where)

    def _plan(self, layout: Layout, count: int) -> _Plan:
        plan: _Plan | None = layout.plans.get(count)
        # Columns may lie elsewhere since, or there are those of rows' own next observations.
        if plan is None or plan.made_for != (self.store.layout, self.store.own is None):
            if len(layout.plans) > _REMEMBERED:
                layout.plans.clear()
            plan = layout.plans[count] = _Plan(self.store, layout, count)
        return plan

    def _gather(self, around: _Around) -> tuple[list[np.ndarray], dict[int, np.ndarray]]:
        """Arrays of the data columns, then of next observations; and flags ``uint8`` by the list of their rows."""
        plan = around.plan
        block = np.empty(plan.size + ALIGN, np.uint8)
        what = plan.addresses, plan.own, plan.row_bytes, plan.lists
        skip = gather_windows(*what, self.store.flags, around.rows, plan.edges, block, plan.offsets)
        arrays = [np.ndarray(shape, dtype, block, offset + skip) for shape, dtype, offset in plan.views]
        for column, own, wanted in plan.blobs:
            _take_blobs(arrays, column, own, wanted, around)
        for i, vocabulary in plan.strings:
            arrays[i] = vocabulary.decode(arrays[i])
        if plan.layout.offsets.zero:
            for i, group in plan.padded:
                arrays[i][around.of(around.pads, group)] = b"" if arrays[i].dtype == OBJECT else 0
        return arrays[: plan.first_flags], dict(zip(plan.flags, arrays[plan.first_flags :], strict=True))


class _Around:
    """The rows around B steps, and what follows from them.

    Args:
        store: of the rows.
        plan: of the windows.
        slots: ``[B] int64`` of the steps.
        last: ``[B] int64`` of the last step of each transition.
        links: as :meth:`Predecessors.index` gives them.

    Attributes:
        rows, places: list after list, as :func:`find_rows` gives them.
        pads: likewise, ``bool``: where there is no such step.
    """

    def __init__(
        self, store: RowStore, plan: _Plan, slots: np.ndarray, last: np.ndarray, links: tuple[np.ndarray, np.ndarray]
    ) -> None:
        self.store, self.plan, self.slots = store, plan, slots
        self.chains = store.flags, *links, int(store.slot_of(store.oldest))
        self.rows, self.places = np.empty((2, len(plan.wanted)), np.int64)
        anchors = np.empty((2, len(slots)), np.int64)
        anchors[STARTS], anchors[ENDS] = slots, last
        layout = plan.layout
        how = layout.anchor, layout.reach, layout.steps, layout.edges
        find_rows(*self.chains, anchors, *how, self.rows, self.places)
        self.pads = self.places != plan.wanted

    def of(self, lists: np.ndarray, group: int) -> np.ndarray:
        """One of some lists, as ``[B, K]``."""
        first, stop, shape = self.plan.spans[group]
        return lists[first:stop].reshape(shape)

    def time_step(self, group: int) -> np.ndarray:
        """``[B, K] int64``: how many held steps come before each."""
        counts = np.empty(len(self.slots), np.int64)
        count_before(*self.chains, self.slots, counts)
        return self._padded(self.of(self.places, group) + counts[:, None], group)

    def return_to_go(self, group: int) -> np.ndarray:
        """``[B, K]`` float: the sum of the rewards from each on."""
        reward = self.store.columns[self.plan.layout.rewards]
        rows = self.of(self.rows, group)
        sums = np.empty(rows.shape)
        sum_up = earnings if reward.dtype.char in _COMPILED else earnings_numpy
        sum_up(*self.chains[:2], reward, rows, sums)
        return self._padded(sums.astype(sum_dtype(reward.dtype)), group)

    def require_long_episode(self) -> None:
        """Raise if some position is padding in every window there can be.

        Raises:
            NotEnoughItems: all episodes are too short.
        """
        layout = self.plan.layout
        longest = int(longest_run(*self.chains, transition_slots(self.store), layout.need))
        if longest < layout.need:
            raise NotEnoughItems(
                f"{layout.offsets.said(layout.needed_by)} reach over {layout.need} consecutive steps, and the longest "
                f"episode (or part of one) that the buffer holds has {longest}: "
                "add longer ones, or ask for nearer steps"
            )

    def _padded(self, values: np.ndarray, group: int) -> np.ndarray:
        if self.plan.layout.offsets.zero:
            values[self.of(self.pads, group)] = 0
        return values


class _Plan:
    """Where each column lies, and where its part of a batch of `count` windows goes.

    Attributes:
        layout: of the windows.
        made_for: what must not have changed since.
        edges: ``int64``, where each list of rows starts, and where the last one ends.
        spans: of each list its start, its end, and its shape ``(count, K)``.
        wanted: ``int64``, the offsets of all places of all lists.
        first_flags: how many arrays come before the flags.
        flags: the lists of rows that flags are wanted of.
        views: shape, dtype and place of each array.
        blobs: columns of values of any length: the column, that of rows' own next observations (or None), and each
            array's ``(number, list, shape)``.
        strings: numbers of arrays of codes, and what they stand for.
    """

    def __init__(self, store: RowStore, layout: Layout, count: int) -> None:
        self.layout, self.made_for = layout, (store.layout, store.own is None)
        self.edges = layout.edges * count
        bounds, groups = self.edges.tolist(), range(len(layout.groups))
        self.spans = [(bounds[g], bounds[g + 1], (count, layout.width(g))) for g in groups]
        self.wanted = np.concatenate([np.tile(steps, count) for _, _, steps in layout.groups]).astype(np.int64)
        parts = [*layout.current, *(layout.following or ())]
        self.first_flags = len(parts)
        self.flags = sorted({1} | {group for group in (layout.discount, layout.codes) if group is not None})
        lists = [part.group for part in parts] + self.flags
        # The last one's flags say how the transition ended: they have no axis of positions.
        widths = [part.width for part in parts] + [None if group == 1 else layout.width(group) for group in self.flags]
        columns = [store.columns[part.column] for part in parts] + [store.flags] * len(self.flags)
        following = dict(zip(store.observation, store.own or (), strict=False))
        own: list[Any] = [following.get(part.column) for part in parts] + [None] * len(self.flags)
        plain = [column.dtype != OBJECT for column in columns]
        sizes = [_row_bytes(column) if here else 0 for column, here in zip(columns, plain, strict=True)]
        self.addresses = np.array([_address(column) for column in columns], np.int64)
        self.own = np.array([_address(column) for column in own], np.int64)
        self.row_bytes, self.lists = np.array(sizes, np.int64), np.array(lists, np.int64)
        each = [count * (width or 1) for width in widths]
        ends = np.cumsum([-(-rows * size // ALIGN) * ALIGN for rows, size in zip(each, sizes, strict=True)])
        self.size = int(ends[-1])
        self.offsets = np.concatenate([[0], ends[:-1]]).astype(np.int64)
        shapes = [(count,) if width is None else (count, width) for width in widths]
        self.views = [
            ((*shape, *column.shape[1:]), column.dtype, offset) if here else ((0,), np.dtype(np.uint8), 0)
            for shape, column, offset, here in zip(shapes, columns, self.offsets.tolist(), plain, strict=True)
        ]
        taken: dict[int, tuple[Any, Any, list[tuple[int, int, tuple[int, ...]]]]] = {}
        for i, (column, here) in enumerate(zip(columns, plain, strict=True)):
            if not here:
                taken.setdefault(id(column), (column, own[i], []))[2].append((i, lists[i], shapes[i]))
        self.blobs = list(taken.values())
        words = store.vocabularies
        self.strings = [(i, words[part.column]) for i, part in enumerate(parts) if part.column in words]
        self.padded = [(i, lists[i]) for i, width in enumerate(widths) if width is not None]


def _row_bytes(column: np.ndarray) -> int:
    return column.dtype.itemsize * int(np.prod(column.shape[1:], dtype=np.int64))


def _address(column: Any) -> int:
    return 0 if column is None or column.dtype == OBJECT else int(column.ctypes.data)


def _take_blobs(
    arrays: list[np.ndarray],
    column: Any,
    own: Any,
    wanted: list[tuple[int, int, tuple[int, ...]]],
    around: _Around,
) -> None:
    """Take a column's values for several arrays at once, so that what lies on the disk is read once."""
    rows = np.concatenate([around.rows[slice(*around.plan.spans[group][:2])] for _, group, _ in wanted])
    ahead = rows < 0
    slots = np.where(ahead, ~rows, rows)
    flags = around.store.flags
    mine = np.flatnonzero(ahead & ((flags[slots] & OWN_NEXT) != 0))
    behind = (slots + ahead) % len(flags)
    behind[mine] = slots[mine]
    found = column[behind]
    if len(mine):
        found[mine] = own[slots[mine]]
    start = 0
    for i, _, shape in wanted:
        stop = start + int(np.prod(shape))
        arrays[i] = found[start:stop].reshape(*shape, *column.shape[1:])
        start = stop
