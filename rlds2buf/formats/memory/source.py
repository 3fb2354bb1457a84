"""Episodes that are in memory already."""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.dtypes import dtype_name
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.fields import STEP_FIELDS
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import EmptyEpisode, EpisodeError, SpecMismatch
from rlds2buf.io.blocks import blocks_of, joined, row_bytes
from rlds2buf.io.source import Source, spec_of_first

__all__ = ["MemorySource"]


_DONE_NAMES = ("done", "dones", "terminal", "terminals")
"""What other libraries call an end. Beside an is_terminal they are extras like any other."""


class MemorySource(Source):
    """A list of episodes, each an :class:`~rlds2buf.core.episode.Episode` or a list of step dicts.

    A step dict has RLDS's fields (``observation``, ``action``, ``reward``, ``discount``,
    ``is_first``, ``is_last``, ``is_terminal``), as many as there are, nested as they like; other
    keys are extras.  Its values are stacked into columns; numbers of different types become the
    type that holds both, and text becomes bytes.  A dict ``{"steps": [...], ...}`` is an episode
    with metadata.

    Args:
        episodes: a sequence, which is not copied; or an iterator, which is read to its end.

    Raises:
        TypeError: an entry is none of these.

    >>> source = MemorySource([[{"observation": i, "reward": 0.5} for i in range(3)]])
    >>> [episode.observation.tolist() for episode in source]
    [[0, 1, 2]]
    """

    format: ClassVar[str] = "memory"

    def __init__(self, episodes: Iterable[Any]) -> None:
        self.name = "memory"
        self._episodes: Sequence[Any] = episodes if isinstance(episodes, Sequence) else list(episodes)
        for index, entry in enumerate(self._episodes):
            if isinstance(entry, Episode):
                continue
            steps = _steps_of(entry)
            if not isinstance(steps, Sequence) or isinstance(steps, str | bytes):
                got = type(entry).__name__
                raise TypeError(
                    f"entry {index} should be an Episode, a list of step dicts or a dict of arrays, got {got}"
                )

    @functools.cached_property
    def _spec(self) -> StepSpec:
        return spec_of_first(self)

    @property
    def spec(self) -> StepSpec:
        """That of the first episode that can be built."""
        return self._spec

    @property
    def num_episodes(self) -> int:
        return len(self._episodes)

    @property
    def num_steps(self) -> int:
        return sum(entry.num_steps if isinstance(entry, Episode) else len(_steps_of(entry)) for entry in self._episodes)

    def read_batches(
        self, start: int = 0, stop: int | None = None, *, rows: int = 1 << 14, bytes: int = 64 << 20
    ) -> Iterator[EpisodeBatch | EpisodeError]:
        stop = len(self._episodes) if stop is None else min(stop, len(self._episodes))
        while start < stop:
            episodes = self._episodes_from(start, stop, rows, bytes)
            upto = start + len(episodes) if episodes else self._next_episode(start, stop)
            block = self._joined(episodes, start)
            if block is not None:
                yield block
            else:
                yield from blocks_of(map(self._item, range(start, upto)), rows, bytes)
            start = upto

    def _episodes_from(self, start: int, stop: int, rows: int, bytes: int) -> list[Episode]:
        """What may be the next block; none where the next entry is no Episode yet."""
        episodes: list[Episode] = []
        left = 0
        for index in range(start, stop):
            entry = self._episodes[index]
            if not isinstance(entry, Episode):
                break
            if not episodes:
                left = min(rows, bytes // row_bytes(entry))
            elif entry.num_steps > left:
                break
            left -= entry.num_steps
            episodes.append(entry)
        return episodes

    def _next_episode(self, start: int, stop: int) -> int:
        return next((i for i in range(start, stop) if isinstance(self._episodes[i], Episode)), stop)

    def _joined(self, episodes: list[Episode], start: int) -> EpisodeBatch | None:
        """A block; None where they have to be looked at one by one: their layouts differ, or one was changed."""
        if len(episodes) < 2:
            return None
        try:
            return joined(episodes, source=self.name, index=start + np.arange(len(episodes)))
        except SpecMismatch:
            return None

    def _item(self, index: int) -> Episode | EpisodeError:
        entry = self._episodes[index]
        try:
            if isinstance(entry, Episode):
                return entry.replace(source=self.name, index=index)
            return _stack_steps(entry, self.name, index)
        except EpisodeError as error:
            return error

    def fingerprint(self) -> str:
        crc = 0
        for item in self.read_batches():
            told = str(item).encode() if isinstance(item, EpisodeError) else b"".join(_contents(item))
            crc = zlib.crc32(told, crc)
        return f"memory:{len(self._episodes)}:{crc:08x}"


def _contents(batch: EpisodeBatch) -> Iterator[Any]:
    """What makes each episode what it is: names, types and shapes of its columns, and their bytes."""
    starts, stops = batch.starts.tolist(), (batch.ends + 1).tolist()
    fields = [_texts_of(path, column, starts, stops) for path, column in batch.rows.flatten()]
    for texts in zip(*fields, strict=True):
        for name, data in texts:
            yield name
            yield data


def _texts_of(
    path: nest.Path, column: np.ndarray, starts: list[int], stops: list[int]
) -> Iterator[tuple[bytes, bytes | memoryview]]:
    """Of one column, for each episode."""
    kind, rest = f"{nest.path_name(path)}:{dtype_name(column.dtype)}", column.shape[1:]
    names: dict[int, bytes] = {}
    whole = column if column.dtype == object else np.ascontiguousarray(column)
    size = math.prod(rest) * column.itemsize
    data = memoryview(b"") if column.dtype == object else whole.reshape(-1).view(np.uint8).data
    for start, stop in zip(starts, stops, strict=True):
        name = names.get(stop - start)
        if name is None:
            name = names[stop - start] = f"{kind}{(stop - start, *rest)}".encode()
        yield (
            name,
            repr(column[start:stop].tolist()).encode() if column.dtype == object else data[start * size : stop * size],
        )


def _steps_of(entry: Any) -> Any:
    return entry.get("steps") if isinstance(entry, Mapping) else entry


def _stack_steps(entry: Any, source: str, index: int) -> Episode:
    where: dict[str, Any] = {"source": source, "episode": index}
    metadata: dict[str, Any] = {}
    steps = _steps_of(entry)
    if isinstance(entry, Mapping):
        metadata = {key: value for key, value in entry.items() if key != "steps"}
    if not len(steps):
        raise EmptyEpisode("the episode has no steps", rule="empty-episode", **where)
    leaves = [_leaves(step, number, where) for number, step in enumerate(steps)]
    paths = leaves[0].keys()
    for number, found in enumerate(leaves):
        if found.keys() != paths:
            path = min(found.keys() ^ paths, key=nest.path_name)
            what = "the step lacks the field that step 0 has" if path in paths else "a field that step 0 has not"
            raise SpecMismatch(what, step=number, path=nest.path_name(path), rule="spec", **where)
    columns = nest.unflatten(steps[0], iter([_stack([step[path] for step in leaves], path, where) for path in paths]))
    fields = {name: column for name, column in columns.items() if name in STEP_FIELDS}
    extras = {name: column for name, column in columns.items() if name not in STEP_FIELDS}
    other = next((name for name in _DONE_NAMES if name in extras), None)
    if other is not None and "is_terminal" not in columns:
        what = "says nothing of time limits; name the steps that the environment ended is_terminal"
        raise SpecMismatch(what, source=source, episode=index, path=other, rule="spec")
    return Episode(**fields, extras=extras, metadata=metadata, source=source, index=index)


def _leaves(step: Any, number: int, where: Mapping[str, Any]) -> dict[nest.Path, Any]:
    if not isinstance(step, Mapping):
        raise SpecMismatch(f"a step should be a dict, got {type(step).__name__}", step=number, rule="spec", **where)
    return dict(nest.flatten(step))


def _stack(values: list[Any], path: nest.Path, where: Mapping[str, Any]) -> np.ndarray | None:
    """One field of every step as a column; None where it is None in all of them."""
    if all(value is None for value in values):
        return None
    try:
        column = np.array(values)
    except ValueError:  # the shapes differ; found below
        column = np.empty(0, object)
    if column.dtype.kind in "biufc":
        return column
    arrays = [_array(value, number, path, where) for number, value in enumerate(values)]
    first = arrays[0]
    for number, array in enumerate(arrays):
        if array.shape != first.shape or (array.dtype == object) != (first.dtype == object):
            got, wanted = (f"{dtype_name(a.dtype)}{list(a.shape)}" for a in (array, first))
            message = f"{got}, but step 0 has {wanted}"
            raise SpecMismatch(message, step=number, path=nest.path_name(path), rule="spec", **where)
    return np.stack(arrays)


def _array(value: Any, number: int, path: nest.Path, where: Mapping[str, Any]) -> np.ndarray:
    """One step's value; text as an array of bytes objects."""
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.asarray(None)
    if array.dtype.kind in "biufc":
        return array
    if array.dtype.kind in "SU" or (array.dtype == object and array.size):
        items = [item.encode() if isinstance(item, str) else item for item in array.ravel().tolist()]
        if all(isinstance(item, bytes) for item in items):
            out = np.empty(len(items), object)
            out[:] = items
            return out.reshape(array.shape)
    message = f"neither numbers nor text, but {type(value).__name__}"
    raise SpecMismatch(message, step=number, path=nest.path_name(path), rule="spec", **where)
