"""Several datasets as one: behind each other, or drawn by weight."""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from rlds2buf.core.agreement import common_spec
from rlds2buf.core.episode import Episode
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import EpisodeError, SourceError, SpecMismatch
from rlds2buf.io.source import Source
from rlds2buf.pipeline.mixture_schedule import Schedule

__all__ = ["MixtureSource"]


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

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Episode | EpisodeError]:
        reading: dict[int, Iterator[Episode | EpisodeError]] = {}
        try:
            turns = itertools.islice(self._schedule.turns(start), _length(start, stop))
            for position, (number, index) in enumerate(turns, start):
                if number not in reading or index == 0:
                    _close(reading.pop(number, None))
                    reading[number] = self._sources[number].read(index)
                item = next(reading[number], None)
                if item is None:
                    raise SourceError(f"{self._names[number]}: it changed; there is no episode {index} any more")
                yield self._marked(item, position, number, index)
        finally:
            for iterator in reading.values():
                _close(iterator)

    def encoded(self) -> Source:
        """Of the sources' own, if they still agree then."""
        inner = [source.encoded() for source in self._sources]
        if all(one is other for one, other in zip(inner, self._sources, strict=True)):
            return self
        try:
            return MixtureSource(inner, names=self._names, source_column=self._column, **self._how)
        except SpecMismatch:
            return self

    def details(self) -> dict[str, Any]:
        return self.transformation

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
            sum(1 for _ in source.read()) if count is None else count
            for count, source in zip(counts, self._sources, strict=True)
        ]
        return Schedule(known, **self._how)

    def _marked(self, item: Episode | EpisodeError, position: int, number: int, index: int) -> Episode | EpisodeError:
        name = self._names[number]
        if isinstance(item, EpisodeError):
            error = copy.copy(item)
            error.episode = position
            error.message = f"{item.message} (episode {index} of {name})"
            return error
        mark = {"source_id": number, "source_name": name, "source_index": index}
        changes: dict[str, Any] = {"index": position, "metadata": {**item.metadata, **mark}}
        if self._column:
            changes["extras"] = {**item.extras, "source_id": np.full(item.num_steps, number, np.int32)}
        return item.replace(**changes)


def _close(iterator: Any) -> None:
    if hasattr(iterator, "close"):  # a generator, which may hold files open
        iterator.close()


def _length(start: int, stop: int | None) -> int | None:
    return None if stop is None else max(stop - start, 0)


def _with_extra(spec: StepSpec, name: str, field: FieldSpec) -> StepSpec:
    parts = {part: getattr(spec, part) for part in spec.__dataclass_fields__}
    return StepSpec(**{**parts, "extras": {**spec.extras, name: field}})
