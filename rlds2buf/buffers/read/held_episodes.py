"""Whatever transitions a buffer holds, as episodes again."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds2buf.buffers.read.reader import Reader
from rlds2buf.buffers.rows.row_store import RowStore
from rlds2buf.buffers.select.samplers import transition_slots
from rlds2buf.core import nest
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch, FactColumns
from rlds2buf.core.row_flags import (
    BREAK,
    CODE,
    CONTINUE,
    FINAL_ROW,
    IS_FIRST,
    IS_LAST,
    IS_TERMINAL,
    LINKED,
    NOT_RECORDED,
    OWN_NEXT,
    TERMINATED,
)

__all__ = ["following_rows", "held_episodes", "runs"]


def runs(store: RowStore) -> tuple[np.ndarray, np.ndarray]:
    """Every transition held, each run of consecutive ones side by side.

    Args:
        store: of the rows; the caller holds the lock over it.

    Returns:
        Slots ``[N] int64``, and ``[N] bool``, where a run begins; runs are in the order of their first transitions.
    """
    slots = transition_slots(store)
    count = len(slots)
    place = np.full(max(store.slots, 1), -1, np.int64)
    place[slots] = np.arange(count)
    flags = store.flags[slots]
    following = (slots + 1) % max(store.slots, 1)
    if store.links is not None:
        following = np.where((flags & LINKED) != 0, store.links[slots], following)
    successor = np.where((flags & (CODE | BREAK)) == CONTINUE, place[following], -1)
    goes_on = np.flatnonzero(successor >= 0)
    begins = np.ones(count, np.bool_)
    begins[successor[goes_on]] = False
    if np.array_equal(successor[goes_on], goes_on + 1):
        return slots, begins
    # Interleaved sources. Each transition learns how far it is from the first one of its run, by ever longer jumps.
    root, distance = np.arange(count), np.zeros(count, np.int64)
    root[successor[goes_on]] = goes_on
    distance[successor[goes_on]] = 1
    while not begins[root].all():
        distance, root = distance + distance[root], root[root]
    order = np.lexsort((distance, root))
    return slots[order], begins[order]


def following_rows(store: RowStore, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows behind transitions ``slots [B] int64``, final rows included.

    Returns:
        Slots ``[B] int64``, and ``[B] bool``, whether such a row is held; where it is not, the slot is the
        transition's own.
    """
    flags = store.flags[slots]
    following = (slots + 1) % store.slots
    if store.links is not None:
        following = np.where((flags & LINKED) != 0, store.links[slots], following)
    final = (store.flags[following] & CODE) == FINAL_ROW
    held = np.where(final, (flags & OWN_NEXT) == 0, (flags & (CODE | BREAK)) == CONTINUE)
    return np.where(held, following, slots), held


def held_episodes(reader: Reader) -> EpisodeBatch | None:
    """The transitions of a buffer as episodes ``[E]``; None if it holds none.

    An episode is a run of transitions that follow one another, with a final row behind them. Where explicit
    transitions have next observations that are not the observation of the one behind, each begins another
    episode, so that every transition of the batch is one that was stored, and none is lost. Final rows that were
    not stored have zeros as action and reward. Episodes whose end was not seen, or whose beginning has left, are
    as the rows are: their last row is not `is_last`, or their first one not `is_first`. ``source_id`` is in the
    metadata if rows were added with one.

    Args:
        reader: of the buffer's rows; the caller holds the lock over them.

    Raises:
        ReplayError: a picture is damaged.
    """
    store = reader.store
    slots, begins = runs(store)
    if not len(slots):
        return None
    data = reader.unpack(reader.transitions(slots), True)
    flags = store.flags[slots]
    begins |= _strays(data, flags)
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(slots)) - 1
    last_flags = flags[ends]
    behind, stored = following_rows(store, slots[ends])
    stored &= (store.flags[behind] & CODE) == FINAL_ROW
    final = reader.unpack(reader.transitions(behind), True)
    row_starts = starts + np.arange(len(starts))
    last = ends + np.arange(len(starts)) + 1
    real = np.ones(len(slots) + len(starts), np.bool_)
    real[last] = False

    def laid(column: Any, behind: Any) -> Any:
        if column is None:
            return None
        rows = np.empty((len(real), *column.shape[1:]), column.dtype)
        rows[real], rows[last] = column, behind
        return rows

    def padded(column: Any, behind: Any) -> Any:
        if column is None:
            return None
        behind = behind.copy()
        behind[~stored] = b"" if behind.dtype == object else 0
        return laid(column, behind)

    parts = {
        name: nest.map_structure(padded, getattr(data, name), getattr(final, name))
        for name in ("action", "reward", "extras")
    }
    if store.spec.discount is not None:
        parts["discount"] = padded(data.discount, final.discount)
    next_observation = nest.map_structure(lambda column: column[ends], data.next_observation)
    codes = last_flags & CODE

    def flagged(bit: int, at_end: np.ndarray) -> np.ndarray:
        return laid((flags & bit) != 0, np.where(stored, (store.flags[behind] & bit) != 0, at_end))

    is_first = flagged(IS_FIRST, np.zeros(len(starts), np.bool_))
    is_first[row_starts] |= (flags[starts] & OWN_NEXT) != 0
    rows = Episode(
        observation=nest.map_structure(laid, data.observation, next_observation),
        **parts,
        is_first=is_first,
        is_last=flagged(IS_LAST, codes != CONTINUE),
        is_terminal=flagged(IS_TERMINAL, codes == TERMINATED),
        source=f"a {store.num_rows:,}-row buffer",
    )
    placeholder = stored & ((store.flags[behind] & NOT_RECORDED) != 0)
    facts = None if store.source is None else FactColumns({"source_id": store.source[slots[starts]]}, len(starts))
    return EpisodeBatch(rows, row_starts, placeholder if placeholder.any() else None, metadata=facts)


def _strays(data: Any, flags: np.ndarray) -> np.ndarray:
    """``[N] bool``: before which transitions the one in front says that it led elsewhere."""
    apart = np.zeros(len(flags), np.bool_)
    own = np.flatnonzero(flags[:-1] & OWN_NEXT)
    for (_, following), (_, column) in zip(
        nest.flatten(data.next_observation), nest.flatten(data.observation), strict=True
    ):
        if column is None or not len(own):
            continue
        mine, theirs = following[own], column[own + 1]
        if column.dtype == object:
            differ = np.array([not np.array_equal(one, other) for one, other in zip(mine, theirs, strict=True)])
        else:
            # Bit by bit, so that what is not a number is equal to itself.
            width = column.dtype.itemsize * int(np.prod(column.shape[1:], dtype=np.int64))
            shape = len(own), width
            raw = [np.ascontiguousarray(side).view(np.uint8).reshape(shape) for side in (mine, theirs)]
            differ = (raw[0] != raw[1]).any(1)
        apart[own[differ] + 1] = True
    return apart
