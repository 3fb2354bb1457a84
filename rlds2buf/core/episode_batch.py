"""Several whole episodes as one set of columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds2buf.core import nest, shown
from rlds2buf.core.episode import Episode
from rlds2buf.core.fields import DATA_FIELDS, STEP_FIELDS
from rlds2buf.core.records import Records
from rlds2buf.core.row_flags import PLACEHOLDER_FINAL_ROW, REAL_FINAL_ACTION
from rlds2buf.errors import EmptyEpisode, SpecMismatch

__all__ = ["EpisodeBatch", "FactColumns"]


class FactColumns(Sequence[dict[str, Any]]):
    """What is known of each of E episodes, kept as columns; a dict is made when one is asked for.

    Args:
        columns: name to E values (an array or another sequence), or to a nest of such columns.
        count: E.

    Raises:
        ValueError: a column has not E values.

    >>> facts = FactColumns({"task": {"name": [b"push", b"lift"]}, "seed": np.array([3, 5])}, 2)
    >>> facts[1], len(facts.take([1]))
    ({'task': {'name': b'lift'}, 'seed': np.int64(5)}, 1)
    """

    def __init__(self, columns: Mapping[str, Any], count: int) -> None:
        self.columns = dict(columns)
        self._count = count
        for path, column in nest.flatten(self.columns):
            if len(column) != count:
                raise ValueError(f"{len(column)} values of {nest.path_name(path)} for {count} episodes")

    @classmethod
    def of(cls, facts: Sequence[Mapping[str, Any]]) -> FactColumns | None:
        """The same as columns, lists at the leaves; None where some have a name that others lack.

        >>> FactColumns.of([{"task": {"seed": 3}}, {"task": {"seed": 5}}]).columns
        {'task': {'seed': [3, 5]}}
        """
        if isinstance(facts, cls):
            return facts
        columns = _turned(list(facts))
        return cls(columns, len(facts)) if isinstance(columns, dict) else None

    def take(self, which: Any) -> FactColumns:
        """Those of some episodes: a slice, or numbers."""
        if isinstance(which, slice):
            count = len(range(*which.indices(self._count)))
            return FactColumns(nest.map_structure(lambda column: column[which], self.columns), count)
        return FactColumns(nest.map_structure(lambda column: _some(column, which), self.columns), len(which))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return self.take(i)
        if not -self._count <= i < self._count:
            raise IndexError(i)
        return nest.map_structure(lambda column: column[i], self.columns)


class EpisodeBatch:
    """E episodes, one behind the other, M rows together.

    Short episodes cost more in calls than in bytes; a batch is checked and stored at once.

    Args:
        rows: all rows, as if they were one episode; its flags are those of the episodes' own rows, and its
            metadata are shared by all of them.
        starts: ``[E] int64``, each episode's first row, ascending, the first one 0.
        placeholder: ``[E] bool``, whose final row was not recorded; None if none is, or their metadata tell.
        index: ``[E] int64``, each episode's number in its source; by default they go on from that of `rows`.
        metadata: what is known of each episode beside what they share, E of them; None if nothing is.
        derived: names of the flags that were not logged, so that every episode derived its own.
        records: what the episodes were read from, E of them, where a sink can take them as they are.
        sources: where each came from, for messages, E of them; None where all are of the source of `rows`.

    Attributes:
        rows, starts, placeholder, metadata, derived, records, sources: as given.
        index: ``[E] int64``; None where no numbers are known.

    Raises:
        SpecMismatch: the starts don't fit the rows, or another argument has not E entries.

    >>> one = Episode(observation=np.arange(3))
    >>> two = Episode(observation=np.arange(2))
    >>> batch = EpisodeBatch.of([one, two])
    >>> batch, [len(episode) for episode in batch]
    (<EpisodeBatch: 2 episodes, 5 steps>, [3, 2])
    """

    __slots__ = ("derived", "index", "metadata", "placeholder", "records", "rows", "sources", "starts")

    def __init__(
        self,
        rows: Episode,
        starts: np.ndarray,
        placeholder: np.ndarray | None = None,
        *,
        index: np.ndarray | None = None,
        metadata: Sequence[Mapping[str, Any]] | None = None,
        derived: Iterable[str] = (),
        records: Records | None = None,
        sources: Sequence[str | None] | None = None,
    ) -> None:
        self.rows = rows
        self.starts = np.asarray(starts, np.int64)
        if placeholder is None or _is_marked(rows.metadata):
            placeholder = _marks(rows, metadata, len(self.starts))
        self.placeholder = placeholder
        edges = np.append(self.starts, rows.num_steps)
        if not len(self.starts) or edges[0] != 0 or (np.diff(edges) < 1).any():
            raise SpecMismatch("the starts of a batch must ascend from 0 within its rows", rule="ragged-columns")
        if index is None and rows.index is not None:
            index = rows.index + np.arange(len(self.starts))
        self.index = None if index is None else np.asarray(index, np.int64)
        self.metadata = metadata
        self.derived = frozenset(derived)
        self.records = records
        self.sources = sources
        for name in ("placeholder", "index", "metadata", "records", "sources"):
            given = getattr(self, name)
            if given is not None and len(given) != len(self.starts):
                message = f"a batch of {len(self.starts)} episodes has {len(given)} entries of `{name}`"
                raise SpecMismatch(message, rule="ragged-columns")

    @classmethod
    def of(cls, episodes: Iterable[Episode | EpisodeBatch]) -> EpisodeBatch:
        """Join episodes, or batches of them, of one spec; their columns are copied.

        Raises:
            EmptyEpisode: there are none.
            SpecMismatch: their fields or shapes differ.
        """
        parts = list(episodes)
        if not parts:
            raise EmptyEpisode("a batch needs at least one episode", rule="empty-episode")
        rows = [part if isinstance(part, Episode) else part.rows for part in parts]
        columns = [{name: getattr(part, name) for name in (*STEP_FIELDS, "extras")} for part in rows]
        try:
            joined = _join(columns)
        except ValueError as cause:
            message = f"episodes of one batch must have one structure: {cause}"
            raise SpecMismatch(message, source=rows[0].source) from cause
        before = np.cumsum([0] + [one.num_steps for one in rows[:-1]])
        starts = [
            edge if isinstance(part, Episode) else part.starts + edge
            for part, edge in zip(parts, before.tolist(), strict=True)
        ]
        index = [part.index for part in parts if part.index is not None]
        known = len(index) == len(parts)
        shared, metadata, placeholder = _joined_facts(parts)
        return cls(
            Episode(**joined, metadata=shared, source=rows[0].source),
            np.hstack(starts),
            placeholder,
            index=np.hstack(index) if known else None,
            metadata=metadata,
            derived=frozenset().union(*(part.derived for part in parts)),
            records=_joined_records(parts),
            sources=_joined_sources(parts),
        )

    @classmethod
    def of_one(cls, episode: Episode, records: Records | None = None) -> EpisodeBatch:
        """A single episode as a batch; its columns are shared."""
        return cls(episode, np.zeros(1, np.int64), _marked(episode), derived=episode.derived, records=records)

    @property
    def num_steps(self) -> int:
        """M."""
        return self.rows.num_steps

    @property
    def num_transitions(self) -> int:
        """M - E."""
        return self.num_steps - len(self)

    @property
    def ends(self) -> np.ndarray:
        """``[E] int64``: each episode's last row."""
        return np.append(self.starts[1:], self.num_steps) - 1

    @property
    def lengths(self) -> np.ndarray:
        """``[E] int64``: each episode's rows."""
        return np.diff(self.starts, append=self.num_steps)

    @property
    def real_last_actions(self) -> np.ndarray:
        """``[E] bool``: whose last row's action and reward are no padding, and led to what was not recorded.

        >>> facts = {"real_final_action": True}
        >>> EpisodeBatch.of_one(Episode(observation=np.arange(2), metadata=facts)).real_last_actions
        array([ True])
        """
        if self.rows.metadata.get(REAL_FINAL_ACTION):
            real = np.ones(len(self), np.bool_)
        elif isinstance(self.metadata, FactColumns):
            told = self.metadata.columns.get(REAL_FINAL_ACTION)
            real = np.zeros(len(self), np.bool_) if told is None else np.array([bool(value) for value in told])
        else:
            real = np.array([bool(own.get(REAL_FINAL_ACTION)) for own in self.metadata or [{}] * len(self)])
        return real if self.placeholder is None else real & ~self.placeholder

    @property
    def fact_names(self) -> frozenset[str]:
        """The names that any episode's metadata have; marks of the last row are not among them."""
        names = set(self.rows.metadata)
        if isinstance(self.metadata, FactColumns):
            names.update(self.metadata.columns)
        else:
            names.update(*(facts.keys() for facts in self.metadata or ()))
        return frozenset(names - {PLACEHOLDER_FINAL_ROW, REAL_FINAL_ACTION})

    def take(self, which: Any) -> EpisodeBatch:
        """Some of its episodes as a batch; columns are shared where these follow one another, else copied.

        Args:
            which: a slice, ``[E] bool``, or numbers of episodes, in any order.

        Raises:
            EmptyEpisode: none of them.

        >>> batch = EpisodeBatch.of([Episode(observation=np.arange(n)) for n in (2, 3, 4)])
        >>> [episode.observation.tolist() for episode in batch.take([2, 0])]
        [[0, 1, 2, 3], [0, 1]]
        """
        if isinstance(which, slice) and which.step in (None, 1):
            first, last, _ = which.indices(len(self))
            return self._between(first, max(first, last))
        chosen = np.arange(len(self))[which]
        if not len(chosen):
            return self._between(0, 0)
        first, last = int(chosen[0]), int(chosen[-1]) + 1
        if last - first == len(chosen) and (np.diff(chosen) == 1).all():
            return self._between(first, last)
        lengths = self.lengths[chosen]
        stops = np.cumsum(lengths)
        starts = stops - lengths
        of_rows = np.repeat(self.starts[chosen] - starts, lengths) + np.arange(stops[-1])
        return self._part(_view(self.rows, of_rows), starts, chosen)

    def _between(self, first: int, last: int) -> EpisodeBatch:
        """Neighbours, whose columns are shared."""
        if first == last:
            raise EmptyEpisode("a batch needs at least one episode", rule="empty-episode")
        if last - first == len(self):
            return self
        start = int(self.starts[first])
        stop = int(self.starts[last]) if last < len(self) else self.num_steps
        return self._part(_view(self.rows, slice(start, stop)), self.starts[first:last] - start, slice(first, last))

    def _part(self, rows: Episode, starts: np.ndarray, which: slice | np.ndarray) -> EpisodeBatch:
        """Some of its episodes, whose rows these are; they are not looked at again."""
        part = EpisodeBatch.__new__(EpisodeBatch)
        part.rows = rows
        part.starts = starts
        part.derived = self.derived
        part.records = None if self.records is None else self.records.take(which)
        part.placeholder = None if self.placeholder is None else self.placeholder[which]
        part.index = None if self.index is None else self.index[which]
        rows.index = None if part.index is None else int(part.index[0])
        part.metadata = None if self.metadata is None else _some(self.metadata, which)
        part.sources = None if self.sources is None else _some(self.sources, which)
        return part

    def with_rows(self, rows: Episode, derived: Iterable[str] | None = None) -> EpisodeBatch:
        """The same episodes with other columns of as many rows; no longer what they were read from.

        Args:
            rows: as the batch's own.
            derived: names of the flags that each episode derived; by default those of this batch.
        """
        told: dict[str, Any] = {"index": self.index, "metadata": self.metadata, "sources": self.sources}
        derived = self.derived if derived is None else derived
        return EpisodeBatch(rows, self.starts, self.placeholder, derived=derived, **told)

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[Episode]:
        stops = (self.ends + 1).tolist()
        index = [None] * len(stops) if self.index is None else self.index.tolist()
        records = [None] * len(stops) if self.records is None else self.records
        each = zip(self.starts.tolist(), stops, index, self.facts(), self.each_source(), records, strict=True)
        for start, stop, number, facts, source, record in each:
            episode = _view(self.rows, slice(start, stop))
            episode.index = number
            episode.source = source
            episode.metadata = facts
            episode.derived = self.derived
            episode.record = record
            yield episode

    def each_source(self) -> Sequence[str | None]:
        """Where each of them came from, E of them."""
        return [self.rows.source] * len(self) if self.sources is None else self.sources

    def facts(self) -> Iterator[dict[str, Any]]:
        """The metadata of each episode, what they share included."""
        shared, own = self.rows.metadata, self.metadata
        marks = [False] * len(self) if self.placeholder is None else self.placeholder.tolist()
        for i, mark in enumerate(marks):
            facts = {**shared} if own is None else {**shared, **own[i]}
            if mark:
                facts[PLACEHOLDER_FINAL_ROW] = True
            yield facts

    def __repr__(self) -> str:
        return f"<EpisodeBatch: {len(self)} episodes, {self.num_steps} steps>"

    def __str__(self) -> str:
        rows = shown.field_rows((name, getattr(self.rows, name)) for name in (*DATA_FIELDS, "extras"))
        return shown.aligned(repr(self), rows)


def _turned(values: list[Any]) -> Any:
    """A list of nests that are alike as a nest of lists, as far down as they are."""
    one = values[0]
    if isinstance(one, Mapping) and one and all(isinstance(name, str) for name in one):
        alike = all(isinstance(value, Mapping) and value.keys() == one.keys() for value in values)
        return values if not alike else {name: _turned([value[name] for value in values]) for name in one}
    if isinstance(one, tuple) and one and all(isinstance(v, tuple) and len(v) == len(one) for v in values):
        return tuple(_turned(list(parts)) for parts in zip(*values, strict=True))
    return values


def _marks(rows: Episode, metadata: Sequence[Mapping[str, Any]] | None, count: int) -> np.ndarray | None:
    """``[E] bool``: whose metadata say that the final row was not recorded; None if none do."""
    if _is_marked(rows.metadata):
        return np.ones(count, np.bool_)
    if metadata is None or (isinstance(metadata, FactColumns) and PLACEHOLDER_FINAL_ROW not in metadata.columns):
        return None
    found = np.array([_is_marked(facts) for facts in metadata])
    return found if found.any() else None


def _is_marked(facts: Mapping[str, Any]) -> bool:
    mark = facts.get(PLACEHOLDER_FINAL_ROW, False)
    return isinstance(mark, bool | np.bool_ | int | np.integer) and bool(mark)


def _marked(episode: Episode) -> np.ndarray | None:
    """``[1] bool`` as `placeholder`."""
    return np.ones(1, np.bool_) if _is_marked(episode.metadata) else None


def _joined_facts(
    parts: Sequence[Episode | EpisodeBatch],
) -> tuple[Mapping[str, Any], Sequence[Mapping[str, Any]] | None, np.ndarray | None]:
    """What all of several episodes and batches share, what is known of each beside it, and which are marked."""
    batches = [part for part in parts if isinstance(part, EpisodeBatch)]
    shared = batches[0].rows.metadata if batches else {}
    in_columns = len(batches) == len(parts) and all(
        (part.metadata is None or isinstance(part.metadata, FactColumns))
        and (part.rows.metadata is shared or not (part.rows.metadata or shared))
        for part in batches
    )
    columns = [part.metadata.columns if isinstance(part.metadata, FactColumns) else {} for part in batches]
    if in_columns and all(nest.same_structure(columns[0], other) for other in columns):
        joined = nest.map_structure(_join_values, *columns)
        marks = [np.zeros(len(part), np.bool_) if part.placeholder is None else part.placeholder for part in batches]
        marked = np.concatenate(marks)
        return shared, FactColumns(joined, len(marked)) if joined else None, marked if marked.any() else None
    facts: list[dict[str, Any]] = []
    for part in parts:
        facts.extend([part.metadata] if isinstance(part, Episode) else part.facts())
    marked = np.array([bool(found.get(PLACEHOLDER_FINAL_ROW)) for found in facts])
    return {}, facts if any(facts) else None, marked if marked.any() else None


def _joined_records(parts: Sequence[Episode | EpisodeBatch]) -> Records | None:
    """Those of all parts; None where one has none."""
    found = [part.records for part in parts if isinstance(part, EpisodeBatch) and part.records is not None]
    return Records.join(found) if len(found) == len(parts) else None


def _joined_sources(parts: Sequence[Episode | EpisodeBatch]) -> list[str | None] | None:
    """Where each episode came from; None where all are of one source."""
    rows = [part if isinstance(part, Episode) else part.rows for part in parts]
    if len({one.source for one in rows}) == 1 and all(isinstance(p, Episode) or p.sources is None for p in parts):
        return None
    found: list[str | None] = []
    for part in parts:
        found.extend([part.source] if isinstance(part, Episode) else part.each_source())
    return found


def _join_values(*columns: Any) -> Any:
    """Values of episodes, one behind the other; an array where all of them are one, of one type."""
    if all(isinstance(column, np.ndarray) for column in columns) and len({column.dtype for column in columns}) == 1:
        return _join(columns)
    return [value for column in columns for value in column]


def _view(rows: Episode, which: slice | np.ndarray) -> Episode:
    """Some rows as an episode, which are not looked at again: they are of one that was."""
    part = Episode.__new__(Episode)
    part.observation = _rows(rows.observation, which)
    part.action = _rows(rows.action, which)
    part.reward = _rows(rows.reward, which)
    part.discount = _rows(rows.discount, which)
    part.extras = {name: _rows(column, which) for name, column in rows.extras.items()}
    part.is_first = rows.is_first[which]
    part.is_last = rows.is_last[which]
    part.is_terminal = rows.is_terminal[which]
    part.num_steps = len(part.is_first)
    part.source = rows.source
    part.metadata = rows.metadata
    part.derived = rows.derived
    part.index = rows.index
    part.record = None
    return part


def _rows(column: Any, which: slice | np.ndarray) -> Any:
    if isinstance(column, np.ndarray):
        return column[which]
    return None if column is None else nest.map_structure(lambda leaf: None if leaf is None else leaf[which], column)


def _some(values: Any, which: Any) -> Any:
    """The values of some episodes."""
    if isinstance(values, np.ndarray) or isinstance(which, slice):
        return values[which]
    return values.take(which) if isinstance(values, FactColumns) else [values[i] for i in which]


def _join(values: Sequence[Any]) -> Any:
    """Columns, or nests of them, one behind the other; columns of one type keep it, its order of bytes too.

    Raises:
        ValueError: some have a field that others lack, or their shapes differ.
    """
    first = values[0]
    if isinstance(first, Mapping):
        if any(not isinstance(value, Mapping) or value.keys() != first.keys() for value in values):
            raise ValueError("their fields have different names")
        return {name: _join([value[name] for value in values]) for name in first}
    if isinstance(first, tuple):
        if any(not isinstance(value, tuple) or len(value) != len(first) for value in values):
            raise ValueError("tuples of different lengths")
        children = [_join(list(column)) for column in zip(*values, strict=True)]
        return type(first)(*children) if hasattr(first, "_fields") else tuple(children)
    if len(set(map(type, values))) > 1:
        raise ValueError("some have a field that others lack")
    if first is None:
        return None
    is_one_type = all(column.dtype == first.dtype for column in values)
    return np.concatenate(values, dtype=first.dtype if is_one_type else None)
