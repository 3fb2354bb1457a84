"""What ``add`` takes, brought into one form: rows as columns with their flag bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlds2buf.buffers.storage import IS_FIRST, IS_LAST, IS_TERMINAL, OWN_NEXT
from rlds2buf.core import nest
from rlds2buf.core.episode import Episode
from rlds2buf.core.fields import CONTINUE, FINAL_ROW, FLAG_FIELDS, TERMINATED, TRUNCATED
from rlds2buf.core.sample import Transition
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import SpecMismatch
from rlds2buf.kernels.chain import BREAK
from rlds2buf.views.transitions import done_codes

__all__ = ["Block", "blocks_of", "episode_block", "transition_block"]


@dataclasses.dataclass
class Block:
    """n rows ready to be stored.

    Attributes:
        columns: one array ``[n, ...]`` per data field of the spec, in its order.
        flags: ``[n] uint8`` (see buffers/storage.py).
        own: next observations per observation leaf, for explicit transitions; None for an episode.
        source: ``[n] int64`` ids, or one for all.
        items: how many transitions start in these rows.
        origin, index: of an episode, for messages.
    """

    columns: list[np.ndarray]
    flags: np.ndarray
    own: list[np.ndarray] | None
    source: np.ndarray | int
    items: int
    origin: str | None = None
    index: int | None = None

    def tail(self, count: int) -> Block:
        """The last `count` rows."""
        start = len(self.flags) - count
        return Block(
            [column[start:] for column in self.columns],
            self.flags[start:],
            None if self.own is None else [column[start:] for column in self.own],
            self.source if isinstance(self.source, int) else self.source[start:],
            count,
        )


def blocks_of(data: Any, spec: StepSpec, source_id: int | Sequence[int] | np.ndarray = 0) -> list[Block]:
    """The blocks of whatever ``Buffer.add`` was given; none for empty input.

    Raises:
        SpecMismatch: the data don't fit the spec.
        ValueError: a source id is negative, or there are not as many as transitions.
        TypeError: the data are of no kind that a buffer takes.
    """
    if data is None or (isinstance(data, str) and not data):
        return []
    if isinstance(data, Episode):
        return [episode_block(data, spec, _source(source_id, None))]
    if isinstance(data, Transition):
        return _batch(data._asdict(), spec, source_id)
    if isinstance(data, Mapping):
        return _batch(data, spec, source_id) if data else []
    if isinstance(data, list | tuple):
        ids = np.broadcast_to(np.asarray(source_id), (len(data),)).tolist()
        return [block for part, number in zip(data, ids, strict=True) for block in blocks_of(part, spec, number)]
    raise TypeError(f"a buffer takes episodes, transitions, or lists of them, got {type(data).__name__}")


def episode_block(episode: Episode, spec: StepSpec, source: int = 0) -> Block:
    """All N rows of an episode, the last one marked as final."""
    spec.check(episode)
    found = dict(episode.flatten())
    columns = [found[path] for path, _ in spec.fields() if path[0] not in FLAG_FIELDS]
    flags = episode.is_first.astype(np.uint8) * np.uint8(IS_FIRST)
    flags |= episode.is_last.astype(np.uint8) * np.uint8(IS_LAST)
    flags |= episode.is_terminal.astype(np.uint8) * np.uint8(IS_TERMINAL)
    flags[-1] |= FINAL_ROW
    if episode.num_transitions:
        end = int(done_codes(episode)[-1])
        # An episode left open has no end, but nothing more of it will come either.
        flags[-2] |= end if end != CONTINUE else BREAK
    return Block(columns, flags, None, source, episode.num_transitions, episode.source, episode.index)


def transition_block(data: Mapping[str, Any], spec: StepSpec, source_id: Any = 0) -> Block:
    """B explicit transitions (or a single one without the leading axis), each with its own next observation."""
    is_done, batched = _is_done(data, spec)
    count = len(is_done)
    columns, own = [], []
    for path, field in spec.fields():
        if path[0] in FLAG_FIELDS:
            continue
        columns.append(_leaf(data, path, field, count, batched))
        if path[0] == "observation":
            own.append(_leaf(data, ("next_observation", *path[1:]), field, count, batched))
    flags = is_done | np.uint8(OWN_NEXT)
    source = _source(source_id, count)
    return Block(columns, flags, own, source, count)


def _batch(data: Mapping[str, Any], spec: StepSpec, source_id: Any) -> list[Block]:
    block = transition_block(data, spec, source_id)
    return [block] if len(block.flags) else []


def _is_done(data: Mapping[str, Any], spec: StepSpec) -> tuple[np.ndarray, bool]:
    """The codes ``[B] uint8``, and whether the data have a batch axis."""
    try:
        path, field = next((p, f) for p, f in spec.fields() if p[0] == "observation")
        batched = np.ndim(nest.get(data, path)) > len(field.shape)
        count = len(nest.get(data, path)) if batched else 1
    except (StopIteration, KeyError) as cause:
        raise SpecMismatch("the transition has no such field", path="observation", rule="spec") from cause
    codes = data.get("is_done")
    if codes is None:
        terminated, truncated = (np.asarray(data.get(name, False), np.bool_) for name in ("terminated", "truncated"))
        codes = np.where(terminated, TERMINATED, np.where(truncated, TRUNCATED, CONTINUE))
    codes = np.asarray(codes)
    if not np.isin(codes, (CONTINUE, TERMINATED, TRUNCATED)).all():
        raise SpecMismatch("expected 0 (goes on), 1 (terminated) or 2 (truncated)", path="is_done", rule="spec")
    if codes.shape not in ((), (count,)):
        raise SpecMismatch(f"expected {count} codes, got shape {list(codes.shape)}", path="is_done", rule="spec")
    return np.array(np.broadcast_to(codes.astype(np.uint8), (count,))), batched


def _leaf(data: Mapping[str, Any], path: nest.Path, field: FieldSpec, count: int, batched: bool) -> np.ndarray:
    name = nest.path_name(path)
    try:
        value = nest.get(data, path)
    except KeyError as cause:
        if path == ("discount",):
            return np.ones((count, *(n or 0 for n in field.shape)), field.dtype)
        raise SpecMismatch(f"the field is missing, expected {field}", path=name, rule="spec") from cause
    if value is None and path == ("discount",):
        return np.ones(count, field.dtype)
    column = np.asarray(value, object if field.is_string else None)
    if not batched:
        column = column[None]
    if column.shape != (count, *field.shape) or not (
        field.is_string or np.can_cast(column.dtype, field.dtype, "same_kind")
    ):
        got = FieldSpec(column.shape[1:], column.dtype)
        raise SpecMismatch(f"expected {count} x {field}, got {len(column)} x {got}", path=name, rule="spec")
    return column


def _source(source_id: Any, count: int | None) -> Any:
    ids = np.asarray(source_id)
    if ids.dtype.kind not in "iu" or (ids.size and int(ids.min()) < 0) or (ids.size and int(ids.max()) >= 1 << 32):
        raise ValueError(f"source_id must be a non-negative integer below 2**32, got {source_id!r}")
    if ids.ndim == 0:
        return int(ids)
    if count is None or ids.shape != (count,):
        raise ValueError(f"source_id needs one id, or one per transition, got {len(ids)}")
    return ids.astype(np.int64)
