"""A source whose episodes are mapped, cast, aligned, filtered or sampled on their way."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rlds2buf.core import nest
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.issue import Issue
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import EpisodeError
from rlds2buf.io.source import Source
from rlds2buf.transform.transformation import Transformation

__all__ = ["TransformedSource"]


class TransformedSource(Source):
    """Another source's episodes, changed; whatever its format.

    Episodes keep the index that they have there.  One that is left out is yielded from :meth:`read`
    as FilteredOut in its place, so counting and resuming go by the same numbers as without filters;
    iterating passes over it.  `num_episodes` and `num_steps` are None then.

    Args:
        source: what is read; this one closes it.
        options: what is done, see :class:`~rlds2buf.transform.transformation.Transformation`.

    Raises:
        ValueError, TypeError: an option is wrong, or names a field that the source lacks.

    >>> import rlds2buf
    >>> episodes = [[{"observation": {"q": float(i), "v": 0.0}, "reward": 1.0} for i in range(n)] for n in (2, 5)]
    >>> source = rlds2buf.open_source(episodes, map={"observation": "observation/*"}, float32=True, min_length=3)
    >>> source.spec.observation, list(source), [type(item).__name__ for item in source.read()]
    (FieldSpec(float32[2]), [<Episode 1: 5 steps, truncated>], ['FilteredOut', 'Episode'])
    """

    def __init__(self, source: Source, **options: Any) -> None:
        self._source = source
        self._options = options
        self.format = source.format  # type: ignore[misc]  # each one has its source's own
        self.name = source.name
        count = source.num_items if options.get("sample") is not None else None  # it may take a while to tell
        self._transformation = Transformation(source.spec, num_episodes=count, **options)
        self._reading = self._only_what_is_needed()

    @property
    def spec(self) -> StepSpec:
        return self._transformation.spec

    @property
    def does_something(self) -> bool:
        """False where every option is at its default."""
        return bool(self._transformation.description)

    @property
    def transformation(self) -> dict[str, Any]:
        return {**self._source.transformation, **self._transformation.description}

    @property
    def is_endless(self) -> bool:
        return self._source.is_endless

    @property
    def source_ids(self) -> Sequence[str]:
        return self._source.source_ids

    @property
    def num_items(self) -> int | None:
        return self._source.num_items

    @property
    def num_episodes(self) -> int | None:
        return None if self._transformation.filters else self._source.num_episodes

    @property
    def num_steps(self) -> int | None:
        return None if self._transformation.filters else self._source.num_steps

    def read_batches(
        self, start: int = 0, stop: int | None = None, *, rows: int = 1 << 14, bytes: int = 64 << 20
    ) -> Iterator[EpisodeBatch | EpisodeError]:
        change = self._transformation
        if not change.chooses:
            for item in self._reading.read_batches(start, stop, rows=rows, bytes=bytes):
                yield from (item,) if isinstance(item, EpisodeError) else change.take_batch(item)
            return
        index = start
        for item in self._reading.read_batches(start, stop, rows=rows, bytes=bytes):
            if isinstance(item, EpisodeBatch):
                yield from change.take_batch(item, index, self.name)
                index = index + len(item) if item.index is None else int(item.index[-1]) + 1
                continue
            place = index if item.episode is None else item.episode
            yield from change.left_out(index, place, self.name)
            yield from (item,) if change.wants(place) else change.left_out(place, place + 1, self.name)
            index = place + 1
        yield from change.left_out(index, self._end(index, stop), self.name)

    def _end(self, reached: int, stop: int | None) -> int:
        """Behind the last item, where the source may have passed over the last ones."""
        count = None if self._reading is self._source else self._reading.num_episodes
        if count is None:
            return reached
        return count if stop is None else min(stop, count)

    def _only_what_is_needed(self) -> Source:
        """The source without the fields and the episodes that nobody will look at, as far as it can do that."""
        source = self._source
        if self._transformation.unused:
            with contextlib.suppress(ValueError):  # nothing but flags would be left
                source = source.without(self._transformation.unused)
        return source.only(self._transformation.wants) if self._transformation.chooses else source

    def encoded(self) -> Source:
        """As the source's, if everything that is to be done can be done to encoded pictures."""
        return self._in_lane(self._source.encoded())

    def with_video_frames(self) -> Source:
        """As the source's, if everything that is to be done can be done without pixels."""
        return self._in_lane(self._source.with_video_frames())

    def as_episodes(self) -> Source:
        """As the source's, with the same done to them."""
        inner = self._source.as_episodes()
        return self if inner is self._source else TransformedSource(inner, **self._options)

    def without(self, paths: Iterable[str]) -> Source:
        """See :meth:`Source.without`: fields that come through under their own names are dropped."""
        plain = dict(self._source.spec.fields())
        own = {nest.path_name(path) for path, field in self.spec.fields() if plain.get(path) == field}
        moved = self._options.get("map") or ()
        unwanted = [name for name in paths if name in own and name not in moved]
        if not unwanted:
            return self
        drop = self._options.get("drop") or ()
        dropped = [drop] if isinstance(drop, str) else list(drop)
        return TransformedSource(self._source, **{**self._options, "drop": [*dropped, *unwanted]})

    def _in_lane(self, inner: Source) -> Source:
        if inner is self._source:
            return self
        try:
            return TransformedSource(inner, **self._options)
        except ValueError:  # a picture is to be cast or joined, so its pixels are needed
            return self

    def details(self) -> dict[str, Any]:
        return {**self._source.details(), "transformation": self.transformation}

    def warnings(self) -> list[str]:
        return self._reading.warnings()  # not of what nobody will look at

    def findings(self, *, quick: bool = False) -> Iterator[Issue]:
        """The source's, on fields and episodes that are looked at."""
        wants = self._transformation.wants
        found = self._reading.findings(quick=quick)
        return (issue for issue in found if issue.episode is None or wants(issue.episode))

    def facts(self) -> dict[str, Any]:
        return self._source.facts()

    def fingerprint(self) -> str:
        done = json.dumps(self._transformation.description, sort_keys=True, default=str)
        return f"{self._source.fingerprint()}|{done}"

    def close(self) -> None:
        self._source.close()
