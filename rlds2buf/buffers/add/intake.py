"""What ``add`` takes, brought into one form: rows as columns with their flag bytes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from rlds2buf.buffers.rows.block import Block
from rlds2buf.buffers.rows.step_ids import IDS, StepIds
from rlds2buf.core import nest
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.fields import FLAG_FIELDS
from rlds2buf.core.ragged import as_bytes, pack_rows
from rlds2buf.core.row_flags import (
    BREAK,
    CONTINUE,
    FINAL_ROW,
    IS_FIRST,
    IS_LAST,
    IS_TERMINAL,
    OWN_NEXT,
    PLACEHOLDER_FINAL_ROW,
    TERMINATED,
    TRUNCATED,
)
from rlds2buf.core.sample import Transition
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import SpecMismatch
from rlds2buf.views.transitions import done_codes

__all__ = ["Intake", "step_codes"]

_FIELDS = {*Transition._fields, "terminated", "truncated"}
_KNOWN = {*_FIELDS, *IDS}
"""What a transition may be given as. Another name, ``done`` say, would be lost in silence."""


class Intake:
    """Turns what a buffer is given into blocks, the structure of the spec being found out once.

    Args:
        spec: of the rows.

    """

    def __init__(self, spec: StepSpec) -> None:
        self.spec = spec
        self._leaves = [_Leaf(path, field) for path, field in spec.fields() if path[0] not in FLAG_FIELDS]
        self._following = [
            _Leaf(("next_observation", *leaf.path[1:]), leaf.field)
            for leaf in self._leaves
            if leaf.path[0] == "observation"
        ]
        self._nodes = _Node.all_of(spec)
        # Where the spec's fields are single arrays, only extras can have more leaves than it has.
        self._look_for_surplus = len(self._nodes) > 1 or spec.discount is None
        observation = [leaf for leaf in self._leaves if leaf.path[0] == "observation"]
        # How many transitions there are is told best by what has the same shape in all of them.
        self._observation = next((leaf for leaf in observation if not leaf.is_ragged), next(iter(observation), None))

    def blocks(self, data: Any, source_id: Any = 0) -> list[Block]:
        """The blocks of whatever ``Buffer.add`` was given, but for lists; none for empty input.

        Raises:
            SpecMismatch: the data don't fit the spec.
            ValueError: a source id is negative, or there are not as many as transitions.
            TypeError: the data are of no kind that a buffer takes.
        """
        if isinstance(data, Transition):
            data = data._asdict()
        if isinstance(data, Mapping):
            block = self.transitions(data, source_id) if data else None
            return [] if block is None or not len(block.flags) else [block]
        if isinstance(data, Episode):
            return [self.episode(data, source_id)]
        if isinstance(data, EpisodeBatch):
            return [self.batch(data, source_id)]
        if data is None or (isinstance(data, str) and not data):
            return []
        got = f"{type(data).__name__}{_way(data)}"
        raise TypeError(f"a buffer takes episodes, transitions, or lists of them, got {got}")

    def episode(self, episode: Episode, source_id: Any = 0) -> Block:
        """All N rows of an episode, the last one marked as final."""
        self.spec.check(episode)
        found = dict(episode.flatten())
        columns = [leaf.packed(found[leaf.path]) for leaf in self._leaves]
        flags = episode.is_first.astype(np.uint8) * np.uint8(IS_FIRST)
        flags |= episode.is_last.astype(np.uint8) * np.uint8(IS_LAST)
        flags |= episode.is_terminal.astype(np.uint8) * np.uint8(IS_TERMINAL)
        flags[-1] |= FINAL_ROW
        if episode.metadata.get(PLACEHOLDER_FINAL_ROW):
            flags[-1] |= BREAK  # on a final row: its observation was not recorded (see buffers/rows/episode_index.py)
        if episode.num_transitions:
            end = int(done_codes(episode)[-1])
            # An episode left open has no end, but nothing more of it will come either.
            flags[-2] |= end if end != CONTINUE else BREAK
        source = _source(source_id, None)
        return Block(
            columns, flags, None, source, episode.num_transitions, episode.source, episode.index, begins=[source]
        )

    def batch(self, batch: EpisodeBatch, source_id: Any = 0) -> Block:
        """All M rows of several episodes, each one's last row marked as final; one source id, or one for each."""
        rows = batch.rows
        source = _source(source_id, len(batch), "episode")
        begins = [source] if isinstance(source, int) else np.unique(source).tolist()
        if len(begins) == 1:
            source = begins[0]
        elif not isinstance(source, int):
            source = np.repeat(source, np.diff(batch.starts, append=batch.num_steps))
        self.spec.check(rows)
        found = dict(rows.flatten())
        flags = rows.is_first.view(np.uint8) * np.uint8(IS_FIRST)
        flags |= rows.is_last.view(np.uint8) * np.uint8(IS_LAST)
        flags |= rows.is_terminal.view(np.uint8) * np.uint8(IS_TERMINAL)
        ends = batch.ends
        codes = np.where(rows.is_terminal[ends], TERMINATED, np.where(rows.is_last[ends], TRUNCATED, BREAK))
        longer = ends > batch.starts
        flags[ends[longer] - 1] |= codes[longer].astype(np.uint8)
        flags[ends] |= np.uint8(FINAL_ROW)
        if batch.placeholder is not None:
            flags[ends[batch.placeholder]] |= np.uint8(BREAK)
        columns = [leaf.packed(found[leaf.path]) for leaf in self._leaves]
        return Block(
            columns, flags, None, source, batch.num_transitions, rows.source, rows.index, begins=begins, ends=ends
        )

    def transitions(self, data: Mapping[str, Any], source_id: Any = 0) -> Block:
        """B explicit transitions (or a single one without the leading axis), each with its own next observation."""
        first = self._observation
        if first is None:
            raise SpecMismatch("the spec has no such field, and transitions need it", path="observation", rule="spec")
        plain = data.keys() <= _FIELDS
        if not plain and not data.keys() <= _KNOWN:
            unknown = min(data.keys() - _KNOWN, key=str)
            what = f"a transition has no such field; they are {', '.join(sorted(_KNOWN))}"
            raise SpecMismatch(what, path=str(unknown), rule="spec")
        count = first.count(first.find(data))
        flags = step_codes(data, 1 if count is None else count)
        columns = [leaf.column(data, count) for leaf in self._leaves]
        own = [leaf.column(data, count) for leaf in self._following]
        if self._look_for_surplus or data.get("extras"):
            self._refuse_surplus(data, flags)
        flags |= np.uint8(OWN_NEXT)
        ids = None if plain else StepIds.of(data, len(flags))
        return Block(columns, flags, own, _source(source_id, len(flags)), len(flags), ids=ids)

    def _refuse_surplus(self, data: Mapping[str, Any], codes: np.ndarray) -> None:
        """Raise if transitions have a leaf that the spec lacks: it would be lost in silence.

        Raises:
            SpecMismatch: the message names the leaf.
        """
        for node in self._nodes:
            node.refuse_surplus(data)
        if self.spec.discount is None and data.get("discount") is not None:
            # What was sampled from such a buffer has discounts that say no more than is_done does.
            said = np.asarray(data["discount"])
            if np.any((said != 1) & (codes != TERMINATED)):
                what = "the field is not in the spec, where every discount is 1 (0 into a terminal state)"
                raise SpecMismatch(what, path="discount", rule="spec")


class _Node:
    """A dict or tuple among the fields of a transition, or a field that the data have not: no leaf may be lost there.

    Args:
        path: of the node.
        children: what the spec has there; None for nothing.
    """

    def __init__(self, path: nest.Path, children: nest.Nest) -> None:
        self._path = path
        self._is_tuple = isinstance(children, tuple)
        self._known = frozenset(key for key, child in _children(children or {}) if child is not None)

    @classmethod
    def all_of(cls, spec: StepSpec) -> list[_Node]:
        """Those of a spec, but for flags and discount; next observations have the observations'."""
        parts = {name: getattr(spec, name) for name in ("observation", "action", "reward", "extras")}
        parts["next_observation"] = spec.observation
        return list(cls._below(parts, ()))

    @classmethod
    def _below(cls, children: nest.Nest, path: nest.Path) -> Iterator[_Node]:
        for key, child in _children(children):
            if not isinstance(child, FieldSpec):
                yield cls((*path, key), child)
                yield from cls._below(child or {}, (*path, key))

    def refuse_surplus(self, data: Mapping[str, Any]) -> None:
        """Raise if transitions whose leaves have been found have others here too.

        Raises:
            SpecMismatch: the message names the first of them.
        """
        here: Any = data.get(str(self._path[0]))
        for part in self._path[1:]:
            if here is None:
                return
            here = here[part]
        if here is None or (isinstance(here, Mapping) and here.keys() <= self._known):
            return
        if isinstance(here, Mapping) or self._is_tuple:
            surplus = [(key, child) for key, child in _children(here) if key not in self._known]
        else:  # one array: where the spec has nothing
            surplus = [] if self._known else [((), here)]
        for key, child in surplus:
            path = self._path if key == () else (*self._path, key)
            lost = next((leaf for leaf, value in nest.flatten(child, path) if value is not None), None)
            if lost is not None:
                raise SpecMismatch("the field is not in the spec", path=nest.path_name(lost), rule="spec")


def _children(node: Any) -> Iterable[tuple[Any, Any]]:
    return node.items() if isinstance(node, Mapping) else enumerate(node)


class _Leaf:
    """One array of a transition."""

    def __init__(self, path: nest.Path, field: FieldSpec) -> None:
        self.path = path
        self.field = field
        self.shape = tuple(int(n or 0) for n in field.shape)
        self._single = (1, *self.shape)
        self._dtype = field.dtype
        self._read_as = object if field.is_string else None
        self._optional = path == ("discount",)
        self.is_ragged = None in field.shape
        self._one = np.ones(self._single, self._dtype) if self._optional else None

    def find(self, data: Mapping[str, Any]) -> Any:
        """Its value in the data; None for a discount that is not given."""
        if self._optional:
            return data.get("discount")
        here: Any = data
        try:
            for part in self.path:
                here = here[part]
        except (KeyError, IndexError, TypeError) as cause:
            what = f"the field is missing, expected {self.field}"
            raise SpecMismatch(what, path=nest.path_name(self.path), rule="spec") from cause
        return here

    def count(self, value: Any) -> int | None:
        """How many transitions a value is of; None for a single one without the leading axis."""
        axes = np.ndim(value) if not self.is_ragged or isinstance(value, np.ndarray) else len(self.shape)
        parts = isinstance(value, np.ndarray) and value.dtype == object and self.is_ragged
        if parts and len(value) and isinstance(value[0], np.ndarray):
            axes = len(self.shape) + 1
        return len(value) if axes > len(self.shape) else None

    def packed(self, column: np.ndarray) -> np.ndarray:
        """A column as it is stored: of strings and of arrays of varying shape, as byte strings.

        Raises:
            SpecMismatch: there is something else among them.
        """
        if self.is_ragged:
            return pack_rows(column, self.field, self.path)
        return column if self._read_as is None else as_bytes(column, self.path)

    def column(self, data: Mapping[str, Any], count: int | None) -> np.ndarray:
        """As a column ``[count, ...]``, or ``[1, ...]`` of a single transition (count None)."""
        value = self.find(data)
        if self.is_ragged:
            return self._ragged(value, count)
        if value is None and self._one is not None:
            return self._one if count is None else np.ones((count, *self.shape), self._dtype)
        dtype = self._dtype
        column = value if isinstance(value, np.ndarray) else np.asarray(value, self._read_as)
        if count is None:
            column = column[None]
        fits = column.dtype == dtype or self._read_as is not None or np.can_cast(column.dtype, dtype, "same_kind")
        if not fits or column.shape != (self._single if count is None else (count, *self.shape)):
            got = FieldSpec(column.shape[1:], column.dtype)
            raise SpecMismatch(
                f"expected {1 if count is None else count} x {self.field}, got {len(column)} x {got}",
                path=nest.path_name(self.path),
                rule="spec",
            )
        return column if self._read_as is None else as_bytes(column, self.path)

    def _ragged(self, value: Any, count: int | None) -> np.ndarray:
        rows = [value] if count is None else value
        if count is not None and len(rows) != count:
            what = f"expected {count} x {self.field}, got {len(rows)}"
            raise SpecMismatch(what, path=nest.path_name(self.path), rule="spec")
        return pack_rows(rows, self.field, self.path)


def step_codes(data: Mapping[str, Any], count: int) -> np.ndarray:
    """The codes ``[count] uint8``, as given or from terminated and truncated flags."""
    codes = data.get("is_done")
    if count == 1 and isinstance(codes, int | np.integer) and 0 <= codes <= TRUNCATED:
        return np.array([codes], np.uint8)
    if codes is None:
        terminated, truncated = (np.asarray(data.get(name, False), np.bool_) for name in ("terminated", "truncated"))
        codes = np.where(terminated, TERMINATED, np.where(truncated, TRUNCATED, CONTINUE))
    codes = np.asarray(codes)
    if codes.shape not in ((), (count,)):
        raise SpecMismatch(f"expected {count} codes, got shape {list(codes.shape)}", path="is_done", rule="spec")
    flags = np.empty(count, np.uint8)
    flags[:] = codes
    if codes.size and ((flags > TRUNCATED).any() or (flags != codes).any()):
        raise SpecMismatch("expected 0 (goes on), 1 (terminated) or 2 (truncated)", path="is_done", rule="spec")
    return flags


def _source(source_id: Any, count: int | None, what: str = "transition") -> Any:
    if type(source_id) is int and 0 <= source_id < 1 << 32:
        return source_id
    ids = np.asarray(source_id)
    if ids.dtype.kind not in "iu" or (ids.size and int(ids.min()) < 0) or (ids.size and int(ids.max()) >= 1 << 32):
        raise ValueError(f"source_id must be a non-negative integer below 2**32, got {source_id!r}")
    if ids.ndim == 0:
        return int(ids)
    if count is None or ids.shape != (count,):
        raise ValueError(f"source_id needs one id, or one per {what}, got {len(ids)}")
    return ids.astype(np.int64)


def _way(data: Any) -> str:
    """How what a buffer does not take gets into it all the same, for the message."""
    if hasattr(data, "sample") and hasattr(data, "all"):
        return "; what another buffer holds goes in by buffer.add(other.all())"
    if isinstance(data, str | os.PathLike) or hasattr(data, "batches"):
        what = "source" if hasattr(data, "batches") else repr(os.fspath(data))
        each = "source" if hasattr(data, "batches") else f"open_source({what})"
        return (
            f"; a dataset goes in by rlds2buf.convert({what}, buffer), which checks it, or by "
            f"`for batch in {each}.batches(): buffer.add(batch)`"
        )
    return "; a list of them by buffer.add(list(data))" if isinstance(data, Iterator) else ""
