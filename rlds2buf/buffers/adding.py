"""Adding in two parts: what can be refused, and what can't go wrong any more.

In between, a caller can look at what else it wants to add, so that all goes in or nothing does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rlds2buf.buffers.add.intake import Block
from rlds2buf.buffers.select.prioritized import checked_priorities
from rlds2buf.core.episode_batch import EpisodeBatch

if TYPE_CHECKING:
    from rlds2buf.buffers.buffer import Buffer

__all__ = ["Prepared", "prepare", "store"]


class Prepared(NamedTuple):
    """Blocks that a buffer takes, and the priorities ``[items] float64`` of what is in them, or None."""

    blocks: list[Block]
    priorities: np.ndarray | None

    @property
    def items(self) -> int:
        """How many there are."""
        return sum(block.items for block in self.blocks)


def prepare(
    buffer: Buffer,
    data: Any,
    source_id: int | Sequence[int] | np.ndarray = 0,
    priorities: npt.ArrayLike | None = None,
    consecutive: bool = True,
    check_limits: bool = False,
) -> Prepared:
    """Bring what ``Buffer.add`` was given into the form it is stored in; nothing changes yet.

    Raises:
        SpecMismatch, EpisodeError, InvalidPriority, ValueError, TypeError: as ``Buffer.add`` says.
    """
    if isinstance(data, EpisodeBatch) and not (
        buffer._intake.takes_batches or (buffer.capacity_unit == "rows" and data.num_steps <= buffer.capacity)
    ):
        data = list(data)  # what counts or leaves is single episodes
    blocks = buffer._intake.blocks(data, source_id)
    for block in blocks:
        buffer._remover.refuse(block)
        if check_limits:
            buffer._allowed.refuse(block)
    if not consecutive:
        blocks = [block.apart() for block in blocks]
    if priorities is None:
        return Prepared(blocks, None)
    return Prepared(blocks, checked_priorities(priorities, sum(block.items for block in blocks)))


def store(buffer: Buffer, prepared: Prepared) -> np.ndarray:
    """Store it; returns the keys ``[items] uint64``."""
    buffer._touch()
    given = prepared.priorities
    keys = []
    for block in prepared.blocks:
        block = block if block.ids is None else block.parted()
        keys.append(buffer._contents.add(block, None if given is None else given[: block.items]))
        given = None if given is None else given[block.items :]
    return keys[0] if len(keys) == 1 else np.concatenate([np.zeros(0, np.uint64), *keys])
