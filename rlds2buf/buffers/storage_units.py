"""What one item of a buffer is: a step, or several that come, are sampled and leave together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds2buf.buffers.add.intake import Intake
from rlds2buf.buffers.contents.contents import Contents
from rlds2buf.buffers.contents.draw_counts import Hits
from rlds2buf.buffers.rows.block import Block
from rlds2buf.core.arguments import integer
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.row_flags import BREAK, CODE, CONTINUE, FINAL_ROW, OWN_NEXT
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import EpisodeError

__all__ = ["DEFAULT_CAPACITY", "STORAGE_UNITS", "ItemIntake", "StepIntake", "Units"]

STORAGE_UNITS = ("timesteps", "sequences", "episodes", "fragments")
"""RLlib's words (``ray.rllib.utils.replay_buffers.StorageUnit``)."""


DEFAULT_CAPACITY = 10_000
"""What a buffer holds unless told otherwise, as MATLAB's and RLlib's do."""


@dataclasses.dataclass(frozen=True)
class Units:
    """What an item of a buffer is to be, and whether its draws are counted.

    Raises:
        ValueError: there is no such unit, or a length where it needs none, or none where it does.
    """

    storage_unit: str = "timesteps"
    item_length: int | None = None
    count_hits: bool = False

    def __post_init__(self) -> None:
        unit, length = self.storage_unit, self.item_length
        if unit not in STORAGE_UNITS:
            raise ValueError(f"storage_unit must be one of {', '.join(STORAGE_UNITS)}, got {unit!r}")
        if (unit == "sequences") != (length is not None):
            raise ValueError(f"item_length is for storage_unit='sequences', which needs it; got {length} for {unit!r}")
        if length is not None:
            object.__setattr__(self, "item_length", integer("item_length", length, 1))

    @property
    def whole(self) -> bool:
        """Whether an item has several transitions."""
        return self.storage_unit != "timesteps"

    def check_capacity_unit(self, unit: str) -> None:
        """Raise if a capacity can't be counted so.

        Raises:
            ValueError: it is to count episodes, and the items are parts of them.
        """
        if unit == "episodes" and self.storage_unit in ("sequences", "fragments"):
            raise ValueError(f"capacity_unit='episodes' can't bound {self.storage_unit}; use 'items'")

    def intake(self, spec: StepSpec, *, apart: bool = False) -> Intake | None:
        """What cuts incoming data into items; None if nothing has to."""
        if self.whole:
            return ItemIntake(spec, self.storage_unit, self.item_length, apart=apart)
        return StepIntake(spec) if apart else None

    def prepare(self, contents: Contents) -> None:
        """Have the columns and counters that the items need."""
        if self.whole:
            contents.store.add_column("items")
        if self.whole or self.count_hits:
            contents.hits = Hits(contents.store.slots)

    def options(self) -> dict[str, Any]:
        """What differs from a buffer of plain steps, as keyword arguments of a factory."""
        given = dataclasses.asdict(self)
        return {name: given[name] for name, default in dataclasses.asdict(Units()).items() if given[name] != default}


class ItemIntake(Intake):
    """Cuts what is added into items of several transitions.

    Explicit transitions are put in order of their sources first, so that no item mixes them.  Then

    - ``"episodes"``: an item is an Episode, or the explicit transitions up to one with an end code
      (where their ids say that an episode begins before there is one, or later than at its first
      step, they are no whole episodes, and refused);
    - ``"sequences"``: the same, cut into pieces of `item_length`, the last one being shorter;
    - ``"fragments"``: all that one Episode or one batch of transitions holds of a source.

    Args:
        spec: of the rows.
        unit: one of these three.
        item_length: of ``"sequences"``.
        apart: whether each item needs a final row of its own, for items that leave in any order.
    """

    def __init__(self, spec: StepSpec, unit: str, item_length: int | None = None, *, apart: bool = False) -> None:
        super().__init__(spec)
        self.unit = unit
        self.item_length = item_length
        self.apart = apart

    def blocks(self, data: Any, source_id: Any = 0) -> list[Block]:
        """As :meth:`Intake.blocks`, without episodes that have no transition."""
        return [block for block in super().blocks(data, source_id) if block.items]

    def episode(self, episode: Episode, source_id: Any = 0) -> Block:
        """As :meth:`Intake.episode`; ``place`` says where items start."""
        return self._cut(super().episode(episode, source_id))

    def batch(self, batch: EpisodeBatch, source_id: Any = 0) -> Block:
        """As :meth:`Intake.batch`; each of the episodes is cut by itself."""
        return self._cut(super().batch(batch, source_id))

    def transitions(self, data: Mapping[str, Any], source_id: Any = 0) -> Block:
        """As :meth:`Intake.transitions`; ``place`` says where items start.

        Raises:
            EpisodeError: the unit is episodes, and they are not whole ones.
        """
        return self._cut(super().transitions(data, source_id))

    def _cut(self, block: Block) -> Block:
        if not block.items:
            return block
        block = block.parted()
        mixed = block.own is not None and not isinstance(block.source, int)
        order = np.argsort(block.source, kind="stable") if mixed else None
        if order is not None:
            block = block.taken(order)
        if self.unit == "episodes" and block.own is not None:
            _refuse_parts(block, order)
        steps = np.flatnonzero((block.flags & CODE) != FINAL_ROW)
        starts = self._starts(block, steps)
        lengths = np.diff(starts, append=len(steps))
        flags, first = block.flags.copy(), steps[starts]
        last = first + lengths - 1
        flags[last[(flags[last] & CODE) == CONTINUE]] |= np.uint8(BREAK)  # no item goes on in another one
        ends = block.ends
        block = dataclasses.replace(block, flags=flags, ids=None)
        if block.own is None and self.apart:
            block = block.taken(_runs(first, lengths + 1))
            if ends is not None:
                episode = np.searchsorted(ends, first)
                ends = np.cumsum(lengths + 1)[np.diff(episode, append=len(ends)) > 0] - 1
            first = np.cumsum(lengths + 1) - lengths - 1
            block.flags[first + lengths] |= np.uint8(FINAL_ROW)
        elif block.own is None:
            kept = np.zeros(len(flags), np.bool_)  # not the only row of an episode without a transition
            kept[steps] = kept[steps + 1] = True
            if not kept.all():
                place = np.cumsum(kept) - 1
                block, first = block.taken(np.flatnonzero(kept)), place[first]
                ends = None if ends is None else place[ends[kept[ends]]]
        rows = np.diff(first, append=len(block.flags))
        place = np.repeat(first, rows) - np.arange(len(block.flags))
        place[first] = lengths
        return dataclasses.replace(block, items=len(first), place=place.astype(np.int32), ends=ends)

    def _starts(self, block: Block, steps: np.ndarray) -> np.ndarray:
        """Which of the rows ``steps [transitions] int64`` begin an item: ``[items] int64`` places among them."""
        begins = np.zeros(len(steps), np.bool_)
        begins[0] = True
        begins[1:] = np.diff(steps) > 1  # behind another episode's final row
        if block.own is not None:
            begins[1:] |= _others(block)
        if self.unit == "fragments":
            return np.flatnonzero(begins)
        begins[1:] |= (block.flags[steps[:-1]] & np.uint8(CODE | BREAK)) != CONTINUE
        if self.item_length is not None:
            index = np.arange(len(steps))
            begins |= (index - np.maximum.accumulate(np.where(begins, index, 0))) % self.item_length == 0
        return np.flatnonzero(begins)


class StepIntake(Intake):
    """Turns episodes into explicit transitions, for single steps that leave in any order."""

    def episode(self, episode: Episode, source_id: Any = 0) -> Block:
        """An episode's N-1 transitions, each with its own next observation."""
        return self._explicit(super().episode(episode, source_id))

    def batch(self, batch: EpisodeBatch, source_id: Any = 0) -> Block:
        """The same of several episodes."""
        return self._explicit(super().batch(batch, source_id))

    def _explicit(self, block: Block) -> Block:
        steps: Any = slice(0, -1) if block.ends is None else block.starts
        behind = slice(1, None) if block.ends is None else steps + 1
        observation = [
            column for leaf, column in zip(self._leaves, block.columns, strict=True) if leaf.path[0] == "observation"
        ]
        return dataclasses.replace(
            block,
            columns=[column[steps] for column in block.columns],
            flags=block.flags[steps] | np.uint8(OWN_NEXT),
            own=[column[behind] for column in observation],
            source=block.source if isinstance(block.source, int) else block.source[steps],
            ends=None,
        )


def _refuse_parts(block: Block, order: np.ndarray | None) -> None:
    """Raise unless explicit transitions, in order of their sources, are whole episodes.

    Args:
        block: of them.
        order: ``[n] int64``, where each was before; None for the same place.

    Raises:
        EpisodeError: one does not end, or its first steps are not here.
    """
    last = np.append(_others(block), True)
    ends = last | ((block.flags & np.uint8(CODE | BREAK)) != CONTINUE)
    left_open = ends & ((block.flags & CODE) == CONTINUE)
    headless = np.zeros(len(ends), np.bool_)
    if block.ids is not None and "t" in block.ids.columns:
        headless = np.append(True, ends[:-1]) & (block.ids.columns["t"] > 0)
    for found, what, rule in (
        (left_open, "is the last one of its episode here, which goes on", "open-episode"),
        (headless, "is the first one of its episode here, and its t is not 0", "incomplete-episode"),
    ):
        if found.any():
            row = int(np.argmax(found))
            row = row if order is None else int(order[row])
            raise EpisodeError(f"transition {row} {what}; a buffer of episodes takes whole ones", step=row, rule=rule)


def _others(block: Block) -> np.ndarray:
    """``[n - 1] bool``: whether the next row is of another source."""
    if isinstance(block.source, int):
        return np.zeros(len(block.flags) - 1, np.bool_)
    return np.asarray(block.source[1:] != block.source[:-1])


def _runs(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """``starts[0], starts[0] + 1, ...``, `lengths` numbers from each start."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - ends + lengths, lengths) + np.arange(int(lengths.sum()))
