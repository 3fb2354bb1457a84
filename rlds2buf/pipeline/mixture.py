"""Several datasets as one: behind each other, or drawn by weight."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from rlds2buf.core.agreement import common_spec
from rlds2buf.core.episode_batch import EpisodeBatch, FactColumns
from rlds2buf.core.issue import Issue
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import EpisodeError, SourceError, SpecMismatch
from rlds2buf.io.blocks import row_bytes
from rlds2buf.io.source import Source
from rlds2buf.pipeline.mixture_feeds import Feed, Piece, close, interleaved, ready, size
from rlds2buf.pipeline.mixture_schedule import Schedule

__all__ = ["MixtureSource"]

_OF_ROWS: Final = ("fps", "robot_type", "names", "task")
"""Facts that are told of every row of a dataset."""


class MixtureSource(Source):
    """The episodes of several sources, each marked with where it comes from.

    Without `weights` the sources follow each other.  With them, each next episode comes from a source
    drawn with a probability proportional to its weight, among those that have episodes left; each
    source's own order is kept, and no episode comes twice.  The order follows from seed, weights and
    counts, so every pass is the same and a killed conversion can go on.  The weights order and share what is
    written, no more: whoever samples a buffer made of it draws every row alike.  To sample by weight,
    make a buffer of each and use :class:`~rlds2buf.buffers.mixed.MixedBuffers`.

    An episode's `index` is its place in the mixture.  Its metadata get ``source_id`` (0 for the first
    source), ``source_name`` and ``source_index`` (its number there), and its extras, so that every
    format keeps it, ``source_id`` ``[N] int32``.  A buffer in memory stores the id as its own
    (``sample(source_id=...)``).

    Episodes that a source leaves out or can't build have their place, too.  Where a source does not
    know how many it has, it is read once to count.

    Args:
        sources: at least one; the mixture closes them.
        weights: one positive number per source; they need not sum to 1.
        seed: another seed, another order.
        names: one per source; by default the sources' own.
        stop: ``"all"``: with the last episode of the last source; ``"first"``: with the last episode
            of the first that runs out, so that the weights hold to the end; ``"never"``: a source that
            runs out starts again, for iterating without end (it can't be written).
        source_column: whether to add ``extras/source_id``.

    Raises:
        SpecMismatch: their fields, shapes or types differ.  Limits that differ are left out.
        ValueError: no source, a weight that is not positive, not as many weights or names as sources, an
            unknown `stop`, or a field ``extras/source_id`` that is there already.
    """

    format: ClassVar[str] = "mixture"

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        weights: Sequence[float] | None = None,
        seed: int = 0,
        names: Sequence[str] | None = None,
        stop: str = "all",
        source_column: bool = True,
    ) -> None:
        if not sources:
            raise ValueError("a mixture needs at least one source")
        for what, given in (("weights", weights), ("names", names)):
            if given is not None and len(given) != len(sources):
                raise ValueError(f"{len(sources)} sources, but {len(given)} {what}")
        self._sources = list(sources)
        self._names = [source.name for source in sources] if names is None else [str(name) for name in names]
        self._how: dict[str, Any] = {
            "weights": None if weights is None else [float(weight) for weight in weights],
            "seed": seed,
            "stop": stop,
        }
        Schedule.check(**self._how)
        self._column = source_column
        self.name = " + ".join(self._names)
        advice = "; map=, drop=, cast= and float32=True make them alike"
        self._spec = common_spec([source.spec for source in sources], self._names, advice)
        if source_column:
            if "source_id" in self._spec.extras:
                raise ValueError("the data have an extras/source_id; map or drop it, or give source_column=False")
            field = FieldSpec((), np.dtype(np.int32), low=0, high=len(sources) - 1)
            self._spec = _with_extra(self._spec, "source_id", field)

    @property
    def spec(self) -> StepSpec:
        return self._spec

    @property
    def transformation(self) -> dict[str, Any]:
        parts = [
            {"source": source.name, "name": name, "format": source.format, **source.transformation}
            for source, name in zip(self._sources, self._names, strict=True)
        ]
        return {"mixture": parts, **self._how, "source_column": self._column}

    @property
    def is_endless(self) -> bool:
        return bool(self._how["stop"] == "never")

    @property
    def source_ids(self) -> Sequence[str]:
        return self._names

    @property
    def num_items(self) -> int | None:
        return None if self._how["stop"] == "never" else len(self._schedule)

    @property
    def num_episodes(self) -> int | None:
        if any(source.num_episodes is None for source in self._sources):
            return None
        return self.num_items

    @property
    def num_steps(self) -> int | None:
        counts = [source.num_steps for source in self._sources]
        if any(count is None for count in counts) or (self._how["stop"] != "all" and len(counts) > 1):
            return None
        return None if self._how["stop"] == "never" else sum(count for count in counts if count is not None)

    def read_batches(
        self, start: int = 0, stop: int | None = None, *, rows: int = 1 << 14, bytes: int = 64 << 20
    ) -> Iterator[EpisodeBatch | EpisodeError]:
        schedule = self._schedule
        taken = schedule.taken(start)
        last = stop if self.is_endless else len(schedule) if stop is None else min(stop, len(schedule))
        wanted = [None] * len(taken) if last is None else (schedule.taken(last) - taken).tolist()
        with contextlib.ExitStack() as stack:
            feeds = []
            for number, (index, count) in enumerate(zip(taken.tolist(), wanted, strict=True)):
                feeds.append(Feed(self._pieces(number, index, count, rows, bytes)))
                stack.callback(feeds[-1].close)
            for owners in schedule.owners(start, stop):
                while len(owners):
                    window = owners[:rows]
                    pieces = self._next(feeds, window, rows, bytes)
                    count = sum(len(turns) for turns, _ in pieces)
                    index = _counted_up(window[:count], taken) % schedule.counts[window[:count]]
                    for turns, piece in pieces:
                        yield self._marked(piece, start + turns, window[turns], index[turns])
                    taken += np.bincount(window[:count], minlength=len(taken))
                    start += count
                    owners = owners[count:]

    def _next(self, feeds: Sequence[Feed], owners: np.ndarray, rows: int, bytes: int) -> list[tuple[np.ndarray, Piece]]:
        """What the next turns bring, of some of them: which turns, counted from 0, and the item or the batch.

        Raises:
            Exception: what ended the reading of the source whose turn it is.
        """
        first = feeds[owners[0]].first
        alone = int(np.argmin(np.append(owners, -1) == owners[0]))  # so many turns are of one source
        if self._how["weights"] is None or alone == len(owners):
            count = min(size(first), alone)
            return [(np.arange(count), feeds[owners[0]].take(count)[0])]
        most = rows if isinstance(first, EpisodeError) else min(rows, bytes // row_bytes(first))
        owners = owners[: len(ready(feeds, owners, most))]
        counts = np.bincount(owners, minlength=len(feeds)).tolist()
        return list(interleaved([feed.take(count) for feed, count in zip(feeds, counts, strict=True)], owners))

    def _pieces(self, number: int, index: int, count: int | None, rows: int, bytes: int) -> Iterator[Piece]:
        """`count` items of a source, from one on, behind its last one again from the first on; None: without end."""
        items = int(self._schedule.counts[number])
        while count is None or count > 0:
            index %= items
            stop = items if count is None else min(items, index + count)
            count = None if count is None else count - (stop - index)
            reading = self._sources[number].read_batches(index, stop, rows=rows, bytes=bytes)
            try:
                for piece in reading:
                    yield piece
                    index += size(piece)
            finally:
                close(reading)
            if index < stop:
                raise SourceError(f"{self._names[number]}: it changed; there is no episode {index} any more")

    def encoded(self) -> Source:
        """Of the sources' own, if they still agree then."""
        return self._in_lane([source.encoded() for source in self._sources])

    def with_video_frames(self) -> Source:
        """Of the sources' own, if they still agree then."""
        return self._in_lane([source.with_video_frames() for source in self._sources])

    def as_episodes(self) -> Source:
        """Of the sources' own."""
        inner = [source.as_episodes() for source in self._sources]
        if all(one is other for one, other in zip(inner, self._sources, strict=True)):
            return self
        return MixtureSource(inner, names=self._names, source_column=self._column, **self._how)

    def without(self, paths: Iterable[str]) -> Source:
        """See :meth:`Source.without`; if the sources still agree then."""
        unwanted = [name for name in paths if name != "extras/source_id" or not self._column]
        return self._in_lane([source.without(unwanted) for source in self._sources])

    def _in_lane(self, inner: list[Source]) -> Source:
        if all(one is other for one, other in zip(inner, self._sources, strict=True)):
            return self
        try:
            return MixtureSource(inner, names=self._names, source_column=self._column, **self._how)
        except SpecMismatch:
            return self

    def details(self) -> dict[str, Any]:
        return self.transformation

    def facts(self) -> dict[str, Any]:
        """See :meth:`Source.facts`: what is told of every row, where all sources agree."""
        first, *others = [source.facts() for source in self._sources]
        agreed = {name: value for name, value in first.items() if all(one.get(name) == value for one in others)}
        return {name: agreed[name] for name in _OF_ROWS if name in agreed}

    def warnings(self) -> list[str]:
        """Those of its sources, each with the source's name, and that weights only order what is written."""
        found = [
            f"{name}: {text}"
            for name, source in zip(self._names, self._sources, strict=True)
            for text in source.warnings()
        ]
        if self._how["weights"] is not None:
            found.append(
                "weights order and share what is written; they are not kept with it: to sample by weight, write each "
                "source to a buffer of its own and use rlds2buf.MixedBuffers"
            )
        return found

    def findings(self, *, quick: bool = False) -> Iterator[Issue]:
        """Those of its sources, with an episode's place in the mixture, as far as it has a turn there."""
        for number, source in enumerate(self._sources):
            turns: np.ndarray | None = None
            for issue in source.findings(quick=quick):
                if issue.episode is None:
                    yield dataclasses.replace(issue, message=f"{issue.message} ({self._names[number]})")
                    continue
                turns = self._turns(number) if turns is None else turns
                message = f"{issue.message} (episode {issue.episode} of {self._names[number]})"
                if issue.episode < len(turns):
                    yield dataclasses.replace(issue, message=message, episode=int(turns[issue.episode]))
                elif self.is_endless:
                    yield dataclasses.replace(issue, message=message, episode=None)

    def _turns(self, number: int) -> np.ndarray:
        """``[n]``: places in the mixture of a source's items, in order; of none where each has many."""
        if self.is_endless:
            return np.empty(0, np.int64)
        return np.flatnonzero(np.concatenate([*self._schedule.owners()]) == number)

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for source, name in zip(self._sources, self._names, strict=True):
            digest.update(f"{name}\n{source.fingerprint()}\n".encode())
        digest.update(json.dumps([self._how, self._column]).encode())
        return f"mixture:{digest.hexdigest()}"

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            for source in self._sources:
                stack.callback(source.close)

    @functools.cached_property
    def _schedule(self) -> Schedule:
        counts = [source.num_items for source in self._sources]
        known = [
            sum(map(size, source.read_batches())) if count is None else count
            for count, source in zip(counts, self._sources, strict=True)
        ]
        return Schedule(known, **self._how)

    def _marked(self, piece: Piece, positions: np.ndarray, owners: np.ndarray, index: np.ndarray) -> Piece:
        if isinstance(piece, EpisodeError):
            error = copy.copy(piece)
            error.episode = int(positions[0])
            error.message = f"{piece.message} (episode {index[0]} of {self._names[owners[0]]})"
            return error
        names = [self._names[number] for number in owners.tolist()]
        marks = {"source_id": owners.tolist(), "source_name": names, "source_index": index.tolist()}
        rows = piece.rows
        if self._column:
            rows = rows.replace(extras={**rows.extras, "source_id": np.repeat(owners, piece.lengths)})
        metadata = _with_facts(piece.metadata, marks, len(piece))
        told: dict[str, Any] = {"index": positions, "metadata": metadata, "derived": piece.derived}
        return EpisodeBatch(rows, piece.starts, piece.placeholder, sources=piece.sources, **told)


def _counted_up(owners: np.ndarray, taken: np.ndarray) -> np.ndarray:
    """``[n]``: which of its source's items each turn brings, after so many of each."""
    index = np.empty(len(owners), np.int64)
    for number, count in enumerate(taken.tolist()):
        places = np.flatnonzero(owners == number)
        index[places] = np.arange(count, count + len(places))
    return index


def _with_facts(known: Any, marks: dict[str, list[Any]], count: int) -> Sequence[Mapping[str, Any]]:
    """What is known of each episode, and the marks."""
    if known is None or isinstance(known, FactColumns):
        return FactColumns({**({} if known is None else known.columns), **marks}, count)
    rows = (dict(zip(marks, values, strict=True)) for values in zip(*marks.values(), strict=True))
    return [{**facts, **mark} for facts, mark in zip(known, rows, strict=True)]


def _with_extra(spec: StepSpec, name: str, field: FieldSpec) -> StepSpec:
    parts = {part: getattr(spec, part) for part in spec.__dataclass_fields__}
    return StepSpec(**{**parts, "extras": {**spec.extras, name: field}})
