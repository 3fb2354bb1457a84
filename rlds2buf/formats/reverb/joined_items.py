"""Items of a Reverb table put together again: the episodes that their rows are of.

A chunk says which steps of which of its writer's episodes it holds, and an item which rows of which chunks.
So rows that several items share are one row, and items whose steps follow one another are one run of steps.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlds2buf.core.budget import BUDGET, Budget, Tally
from rlds2buf.core.episode import Episode
from rlds2buf.core.row_flags import REAL_FINAL_ACTION
from rlds2buf.core.same import is_same
from rlds2buf.core.spec import StepSpec, spec_of
from rlds2buf.errors import EpisodeError, SourceFormatError
from rlds2buf.formats.reverb.item_rows import columns_of, episode_of, has_next, nest_of, sequence_of, transitions_of
from rlds2buf.formats.reverb.protocol.chunks import decode_tensor
from rlds2buf.formats.reverb.protocol.signature import TableField
from rlds2buf.io.source import Source

__all__ = ["ItemStore", "JoinedItems", "settled"]

_DECODED_TENSORS = 256
_MOST_REPEATED = 64

Run = tuple[int, int, int]
"""An episode's id, and its steps from one up to (not with) another."""


class ItemStore(NamedTuple):
    """Items of a table, each once, and the chunks that they point into.

    Attributes:
        items: ``PrioritizedItem`` messages.
        chunks: ``ChunkData`` messages by key, compressed as they came.
        warnings: what should be known of how they were had.
        budget: for a decoded tensor.
    """

    items: Collection[Any]
    chunks: Mapping[int, Any]
    warnings: Sequence[str] = ()
    budget: Budget = BUDGET


class JoinedItems(Source):
    """The episodes that a table's items are of, as far as items tell them.

    Rows that several items hold come once.  An episode of which the table has lost (or never had, or did not give
    out) steps in the middle comes in pieces; where items are steps of TF-Agents, dm_env or Acme, episodes end where
    these say so, and what pads them is left out.  Every episode begins with a first row and ends with a last one; in
    its metadata are ``episode_id`` (the writer's, hexadecimal), ``first_step`` (0 where the writer's episode begins),
    and where it ends before the episode did, and that is known, ``real_final_action``.

    ==============================================  ==================================================
    items                                           episodes
    ==============================================  ==================================================
    runs of steps, all columns of one length        joined; columns of other names than RLDS's are extras
    transitions (with ``next_observation``), one    joined where one's next observation is the other's own
    step long
    transitions over several steps                  each by itself, two rows
    columns of different lengths, squeezed ones,    each by itself, as
    every other step, steps that a writer skipped   :func:`~rlds2buf.formats.reverb.item_rows.episode_of` has them
    ==============================================  ==================================================

    The order is that of insertion of each episode's oldest item.

    Args:
        name, format: as of the source of the items.
        fields: of the table's signature.
        store: gives the items, when they are needed.
        details: of the source of the items.

    Raises:
        SourceFormatError: (when reading) items or chunks contradict one another.
    """

    def __init__(
        self,
        name: str,
        format: str,
        fields: Sequence[TableField] | None,
        store: Callable[[], ItemStore],
        details: Callable[[], dict[str, Any]],
    ) -> None:
        self.name = name
        self.format = format  # type: ignore[misc]  # that of its items
        self._fields = fields
        self._give = store
        self._details = details
        self._tensor = functools.lru_cache(maxsize=_DECODED_TENSORS)(self._decode)

    @functools.cached_property
    def spec(self) -> StepSpec:
        """That of the first episode."""
        error: Exception = SourceFormatError(f"{self.name}: the table is empty, so nothing tells what a step is")
        for found in self.read():
            if isinstance(found, Episode):
                return spec_of(found)
            error = found
        raise error

    def details(self) -> dict[str, Any]:
        """Those of the items' source, and how many of them are joined and alone."""
        joined, alone = self._plan
        return {**self._details(), "items_read": len(self._store.items), "items_alone": len(alone), "runs": len(joined)}

    def warnings(self) -> list[str]:
        return [str(text) for text in self._store.warnings]

    def fingerprint(self) -> str:
        return f"{self.name}|episodes"

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Episode | EpisodeError]:
        """Episodes `start` up to `stop`; the same in every pass."""
        for index, found in enumerate(itertools.islice(self._episodes(), stop)):
            if index < start:
                continue
            if isinstance(found, EpisodeError):
                found.episode = index
            else:
                found.index = index
            yield found

    def _episodes(self) -> Iterator[Episode | EpisodeError]:
        joined, alone = self._plan
        units: list[tuple[tuple[int, ...], Any]] = [(part.order, part) for part in joined]
        units += [((*_time_of(item), item.key), item) for item in alone]
        before: collections.deque[Episode] = collections.deque(maxlen=_MOST_REPEATED)
        for _, unit in sorted(units, key=lambda one: one[0]):
            try:
                for found in self._of_part(unit, before) if isinstance(unit, _Part) else self._of_item(unit):
                    yield found
                    before.append(found)
            except EpisodeError as error:
                yield error

    def _of_part(self, part: _Part, before: Sequence[Episode]) -> list[Episode]:
        """The episodes in a run of steps, behind those of the runs before it."""
        columns = [
            self._rows(layer, part.start + shift, part.stop + shift)
            for layer, shift in zip(part.layers, part.shifts, strict=True)
        ]
        whole = nest_of(columns, self._fields, self.name)
        found = list(self._of_rows(whole, {"episode_id": f"{part.episode:016x}"}, part.start))
        return found[0 if part.start else _repeated(found, before) :]

    def _of_item(self, item: Any) -> Iterator[Episode]:
        """The episodes in an item of which nothing can be joined to others."""
        metadata = {"key": f"{item.key:016x}", "priority": item.priority, "times_sampled": item.times_sampled}
        columns = columns_of(item, self._tensor)
        squeezed = {bool(column.squeeze) for column in item.flat_trajectory.columns}
        if squeezed == {True}:
            columns = [np.asarray(column)[None] for column in columns]
        if len(squeezed) == 1 and len({len(column) for column in columns}) == 1:
            yield from self._of_rows(nest_of(columns, self._fields, self.name), metadata, None)
            return
        one = episode_of(columns, self._fields, source=self.name, index=0, metadata=metadata)
        yield from settled(one, None)

    def _of_rows(self, whole: Any, metadata: dict[str, Any], first_step: int | None) -> Iterator[Episode]:
        about = {"source": self.name, "metadata": metadata}
        if has_next(whole):
            for start, one in transitions_of(whole, about):
                yield (
                    one
                    if first_step is None
                    else one.replace(metadata={**one.metadata, "first_step": first_step + start})
                )
            return
        yield from settled(sequence_of(whole, about), first_step)

    def _rows(self, layer: _Layer, start: int, stop: int) -> np.ndarray:
        """Steps of an episode of one column."""
        parts, at = [], start
        for first, last, key, number in layer.between(start):
            if last <= at:
                continue
            if first > at or at >= stop:
                break
            parts.append(self._tensor(key, number)[at - first : min(last, stop) - first])
            at = min(last, stop)
        if at < stop:
            raise SourceFormatError(f"{self.name}: the chunks of step {at} are missing")
        try:
            return parts[0] if len(parts) == 1 else np.concatenate(parts)
        except ValueError as cause:
            message = f"steps {start} to {stop} have rows of different shapes: {cause}"
            raise EpisodeError(message, source=self.name, rule="spec") from cause

    @functools.cached_property
    def _store(self) -> ItemStore:
        return self._give()

    @functools.cached_property
    def _plan(self) -> tuple[list[_Part], list[Any]]:
        """The runs of steps, and the items that are none."""
        planning = _Planning(self.name, self._fields, self._store)
        return planning.parts(), planning.alone

    def _decode(self, key: int, number: int) -> np.ndarray:
        chunk = self._store.chunks.get(key)
        tensors = () if chunk is None else chunk.data.tensors or chunk.deprecated_data
        if chunk is None or not 0 <= number < len(tensors):
            raise SourceFormatError(f"{self.name}: tensor {number} of chunk {key} is missing")
        tally = Tally(self._store.budget)
        decoded = decode_tensor(tensors[number], delta_encoded=chunk.delta_encoded, tally=tally)
        decoded.flags.writeable = False  # items share it
        return decoded


@dataclasses.dataclass
class _Layer:
    """The chunks of one column of an episode: first step, step behind the last, key and tensor of each; ascending."""

    chunks: list[tuple[int, int, int, int]]

    @functools.cached_property
    def _longest(self) -> int:
        return max(last - first for first, last, _, _ in self.chunks)

    @functools.cached_property
    def _firsts(self) -> list[int]:
        return [chunk[0] for chunk in self.chunks]

    def between(self, start: int) -> Iterator[tuple[int, int, int, int]]:
        """From the first one on that may hold a step."""
        at = bisect.bisect_left(self._firsts, start - self._longest)
        return itertools.islice(self.chunks, at, None)


class _Part(NamedTuple):
    """A run of steps of an episode.

    Attributes:
        order: by which parts are sorted.
        episode, start, stop: the run.
        layers: of each column.
        shifts: of each column, by how many steps its rows lie behind those of the run.
    """

    order: tuple[int, ...]
    episode: int
    start: int
    stop: int
    layers: list[_Layer]
    shifts: tuple[int, ...]


@dataclasses.dataclass
class _Group:
    """What items of one form say of a writer's episode: the steps that they hold, and each column's chunks."""

    time: tuple[int, int]
    runs: set[tuple[int, int]]
    chunks: list[dict[tuple[int, int], tuple[int, int, int, int]]]


class _Planning:
    """Sorts items into runs of steps, without decoding anything."""

    def __init__(self, name: str, fields: Sequence[TableField] | None, store: ItemStore) -> None:
        self.alone: list[Any] = []
        self._name = name
        self._store = store
        self._groups: dict[tuple[int, tuple[int, ...]], _Group] = {}  # by episode and shifts
        self._places: dict[int, Run | None] = {}
        self._next = [bool(field.path) and field.path[0] == "next_observation" for field in fields or ()]
        for item in store.items:
            self._take(item)

    def parts(self) -> list[_Part]:
        """The runs of steps of each episode."""
        found = []
        for (episode, shifts), group in self._groups.items():
            layers = [_Layer(sorted(chunks.values())) for chunks in group.chunks]
            for start, stop in _merged(sorted(group.runs)):
                found.append(_Part((*group.time, episode, start), episode, start, stop, layers, shifts))
        return found

    def _take(self, item: Any) -> None:
        columns = item.flat_trajectory.columns
        known: dict[tuple[tuple[int, int, int], ...], list[Run]] = {}
        slices, runs = [], []
        for column in columns:
            own = [(part.chunk_key, part.offset, part.length) for part in column.chunk_slices]
            slices.append([(part[0], whole.index) for part, whole in zip(own, column.chunk_slices, strict=True)])
            where = tuple(own)
            if where not in known:
                known[where] = self._runs(item, own)
            runs.append(known[where])
        shifts = self._shifts(runs)
        if shifts is None or len({bool(column.squeeze) for column in columns}) > 1:
            self.alone.append(item)
            return
        for run in runs[0]:
            self._add(_time_of(item), run, slices, shifts)

    def _shifts(self, runs: Sequence[list[Run]]) -> tuple[int, ...] | None:
        """By how many steps each column lies behind the first; None for items that can't be joined to others.

        All hold the same steps, or the next observations hold those that are one further.
        """
        if not runs or not all(runs):
            return None
        if all(run == runs[0] for run in runs):
            return (0,) * len(runs)
        behind = [(episode, start + 1, stop + 1) for episode, start, stop in runs[0]]
        if len(self._next) != len(runs) or self._next[0]:
            return None
        fits = all(run == (behind if is_next else runs[0]) for run, is_next in zip(runs, self._next, strict=True))
        return tuple(map(int, self._next)) if fits else None

    def _add(
        self, time: tuple[int, int], run: Run, slices: Sequence[list[tuple[int, int]]], shifts: tuple[int, ...]
    ) -> None:
        """Note the steps of a run, and the chunks and tensors that each column has of that episode."""
        episode, start, stop = run
        group = self._groups.get((episode, shifts))
        if group is None:
            group = self._groups[episode, shifts] = _Group(time, set(), [{} for _ in shifts])
        group.time = min(group.time, time)
        group.runs.add((start, stop))
        for parts, chunks in zip(slices, group.chunks, strict=True):
            for part in parts:
                if part not in chunks:
                    place = self._place(part[0])
                    if place is not None and place[0] == episode:
                        chunks[part] = (*place[1:], *part)

    def _runs(self, item: Any, slices: Sequence[tuple[int, int, int]]) -> list[Run]:
        """The steps that slices of chunks hold, in order; none where that is not known, or steps are left out."""
        runs: list[Run] = []
        for key, offset, length in slices:
            place = self._place(key)
            if place is None:
                return []
            episode, first, last = place
            if offset < 0 or length < 1 or first + offset + length > last:
                raise SourceFormatError(
                    f"{self._name}: item {item.key} points at rows {offset} to {offset + length} of a chunk of "
                    f"{last - first}"
                )
            start = first + offset
            if runs and runs[-1][0] == episode and runs[-1][2] == start:
                runs[-1] = (episode, runs[-1][1], start + length)
            else:
                runs.append((episode, start, start + length))
        return runs if len({episode for episode, _, _ in runs}) == len(runs) else []

    def _place(self, key: int) -> Run | None:
        """A chunk's episode, first step, and step behind the last one; None where steps are missing in it."""
        if key not in self._places:
            chunk = self._store.chunks.get(key)
            if chunk is None:
                raise SourceFormatError(f"{self._name}: chunk {key} is missing")
            steps = chunk.sequence_range
            rows = {
                tensor.tensor_shape.dim[0].size if tensor.tensor_shape.dim else -1
                for tensor in chunk.data.tensors or chunk.deprecated_data
            }
            told = not steps.sparse and rows == {steps.end - steps.start + 1}
            self._places[key] = (steps.episode_id, steps.start, steps.end + 1) if told else None
        return self._places[key]


def _merged(runs: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Ascending runs, those joined that overlap or follow one another.

    >>> list(_merged([(0, 2), (1, 3), (3, 4), (6, 7)]))
    [(0, 4), (6, 7)]
    """
    begin, end = runs[0]
    for start, stop in runs[1:]:
        if start > end:
            yield begin, end
            begin = start
        end = max(end, stop)
    yield begin, end


def settled(raw: Episode, first_step: int | None) -> Iterator[Episode]:
    """The episodes in rows that may hold borders of them, each with a first row and a last one.

    Args:
        raw: the rows; flags that are told stand at borders.
        first_step: of the rows in their writer's episode.
    """
    told = not {"is_first", "is_last"} <= raw.derived
    count = len(raw)
    edges = [0, count]
    if told:
        inside = np.flatnonzero(raw.is_last[:-1] | raw.is_first[1:]) + 1
        edges = [0, *inside.tolist(), count]
    for start, stop in itertools.pairwise(edges):
        if told and start and raw.is_last[start - 1] and not raw.is_first[start]:
            continue  # what pads an episode
        one = raw if stop - start == count else raw.rows(start, stop)
        facts = dict(raw.metadata)
        if first_step is not None:
            facts["first_step"] = first_step + start
        rows = np.arange(stop - start)
        flags: dict[str, Any] = {}
        if told:
            if not one.is_last[-1] and one.action is not None:
                facts[REAL_FINAL_ACTION] = True
            flags = {"is_first": rows == 0, "is_last": rows == len(rows) - 1}
        yield one.replace(metadata=facts, **flags)


def _repeated(found: Sequence[Episode], before: Sequence[Episode]) -> int:
    """How many of the first episodes in a run are the end of what came before it.

    A push of items that cross borders repeats an episode's last rows before the next one's.
    """
    for count in range(min(len(found) - 1, len(before)), 0, -1):
        last = list(before)[-count:]
        whole = all(
            is_same(one, other.replace(metadata=one.metadata))
            for one, other in zip(found[1:count], last[1:], strict=True)
        )
        if whole and _is_end_of(found[0], last[0]):
            return count
    return 0


def _is_end_of(one: Episode, other: Episode) -> bool:
    """Whether the rows of an episode are the last ones of another, which has more."""
    if len(one) >= len(other):
        return False
    last = other.rows(len(other) - len(one), len(other))
    return is_same(one, last.replace(is_first=one.is_first, metadata=one.metadata))


def _time_of(item: Any) -> tuple[int, int]:
    return item.inserted_at.seconds, item.inserted_at.nanos
