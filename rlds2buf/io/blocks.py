"""Neighbouring episodes joined to batches of one layout: the same fields, types and shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.errors import EpisodeError, FilteredOut, SourceError, SpecMismatch

__all__ = ["alike", "blocks_of", "gathered", "in_parts", "joined", "part_of", "row_bytes", "runs", "spans", "split"]

_T = TypeVar("_T")


def blocks_of(
    items: Iterable[Episode | EpisodeBatch | EpisodeError], rows: int = 1 << 14, bytes: int = 64 << 20
) -> Iterator[EpisodeBatch | EpisodeError]:
    """Neighbours joined to batches, with the errors in their places.

    Args:
        items: as :meth:`Source.read` and :meth:`Source.read_batches` yield them; a batch that is large enough
            is passed on as it is.
        rows, bytes: as of :meth:`Source.read_batches`.

    Raises:
        SourceError: as `items` raise it, behind a last batch of what came before it.

    >>> import numpy as np
    >>> episodes = [Episode(observation=np.zeros(steps)) for steps in (2, 3, 9, 1)]
    >>> list(blocks_of(episodes, rows=6))
    [<EpisodeBatch: 2 episodes, 5 steps>, <EpisodeBatch: 1 episodes, 9 steps>, <EpisodeBatch: 1 episodes, 1 steps>]
    """
    parts: list[Episode | EpisodeBatch] = []
    count = most = 0
    try:
        for item in items:
            if isinstance(item, EpisodeError):
                yield from _joined(parts)
                parts, count = [], 0
                yield item
                continue
            steps = item.num_steps
            if parts and (count + steps > most or not alike(parts[0], item)):
                yield from _joined(parts)
                parts, count = [], 0
            if not parts:
                most = min(rows, bytes // row_bytes(item))
            parts.append(item)
            count += steps
            if count >= most:  # so that one episode can be had without another
                yield from _joined(parts)
                parts, count = [], 0
    except SourceError:
        yield from _joined(parts)
        raise
    yield from _joined(parts)


def gathered(
    items: Iterable[EpisodeBatch | EpisodeError], rows: int = 1 << 14, bytes: int = 64 << 20
) -> Iterator[tuple[EpisodeBatch | EpisodeError | None, list[FilteredOut]]]:
    """Blocks for those to whom it does not matter where between the others an episode was left out.

    A filter that leaves out every other episode makes blocks of one; those behind the first one left out are joined
    again.  Other blocks are not held back.

    Args:
        items: as :meth:`Source.read_batches` yields them.
        rows, bytes: as of :meth:`Source.read_batches`.

    Yields:
        A block or an error, or None, and what was left out before it, within it or right behind it.

    Raises:
        Exception: whatever `items` raise, behind a last block of what came before it.

    >>> import numpy as np
    >>> one, two, three = (EpisodeBatch.of_one(Episode(observation=np.zeros(2), index=i)) for i in (0, 2, 3))
    >>> for item in gathered([one, FilteredOut("short", episode=1), two, three]):
    ...     print(item)
    (<EpisodeBatch: 1 episodes, 2 steps>, [])
    (<EpisodeBatch: 2 episodes, 4 steps>, [FilteredOut('short')])
    """
    parts: list[EpisodeBatch] = []
    left_out: list[FilteredOut] = []
    count = 0
    try:
        for item in items:
            if isinstance(item, FilteredOut):
                left_out.append(item)
            elif left_out and isinstance(item, EpisodeBatch):
                parts.append(item)
                count += item.num_steps
            else:
                yield from _with_left_out(parts, left_out, rows, bytes)
                parts, left_out, count = [], [], 0
                yield item, []
            if 2 * count > rows or len(left_out) > rows:
                yield from _with_left_out(parts, left_out, rows, bytes)
                parts, left_out, count = [], [], 0
    except Exception:
        yield from _with_left_out(parts, left_out, rows, bytes)
        raise
    yield from _with_left_out(parts, left_out, rows, bytes)


def _with_left_out(
    parts: list[EpisodeBatch], left_out: list[FilteredOut], rows: int, bytes: int
) -> Iterator[tuple[EpisodeBatch | EpisodeError | None, list[FilteredOut]]]:
    """The parts joined, the last of them with all that was left out."""
    found: list[EpisodeBatch | EpisodeError | None] = [*blocks_of(parts, rows, bytes)]
    *blocks, last = found or [None]
    for block in blocks:
        yield block, []
    if last is not None or left_out:
        yield last, left_out


def joined(episodes: Sequence[Episode], *, source: str | None, index: np.ndarray | None) -> EpisodeBatch:
    """Episodes of one layout as a batch; their columns are copied, unless there is just one.

    Args:
        episodes: at least one.
        source: where they came from, for messages.
        index: ``[E] int64``, their numbers there; None where they have none.

    Raises:
        SpecMismatch: their fields, types or shapes differ, or a column has not an episode's length any more.
    """
    lengths = [episode.num_steps for episode in episodes]
    derived = {episode.derived for episode in episodes}
    if len(derived) > 1:
        raise SpecMismatch("episodes of one batch derive different flags", source=source)
    metadata = [episode.metadata for episode in episodes]
    try:
        rows = Episode(
            observation=_column([episode.observation for episode in episodes], lengths),
            action=_column([episode.action for episode in episodes], lengths),
            reward=_column([episode.reward for episode in episodes], lengths),
            discount=_column([episode.discount for episode in episodes], lengths),
            is_first=_column([episode.is_first for episode in episodes], lengths),
            is_last=_column([episode.is_last for episode in episodes], lengths),
            is_terminal=_column([episode.is_terminal for episode in episodes], lengths),
            extras=_column([episode.extras for episode in episodes], lengths),
            source=source,
        )
    except (KeyError, TypeError, ValueError) as cause:
        raise SpecMismatch(f"episodes of one batch must have one layout: {cause}", source=source) from cause
    starts = np.cumsum(np.array(lengths, np.int64)) - lengths
    return EpisodeBatch(rows, starts, index=index, metadata=metadata if any(metadata) else None, derived=derived.pop())


def spans(ends: np.ndarray, start: int, stop: int | None, rows: int) -> Iterator[tuple[int, int]]:
    """Neighbouring episodes that make a block: numbers from and up to (not with), of at most `rows` rows together.

    Args:
        ends: ``[E] int64``, how many rows there are up to the end of each.
        start, stop: as of :meth:`Source.read_batches`.
        rows: a longer episode is a block of its own.

    >>> list(spans(np.array([3, 5, 12, 13]), 0, None, 6))
    [(0, 2), (2, 3), (3, 4)]
    """
    stop = len(ends) if stop is None else min(stop, len(ends))
    while start < stop:
        before = int(ends[start - 1]) if start else 0
        upto = min(max(int(np.searchsorted(ends, before + rows, "right")), start + 1), stop)
        yield start, upto
        start = upto


def runs(known: np.ndarray, lengths: np.ndarray, rows: int) -> Iterator[tuple[int, int]]:
    """Neighbours that are known, of at most so many rows together, and neighbours that aren't.

    Args:
        known: ``[E] bool``.
        lengths: ``[E] int64``, their rows.
        rows: a longer episode is alone.

    >>> list(runs(np.array([True, True, True, False, False]), np.array([3, 2, 9, 1, 1]), 6))
    [(0, 2), (2, 3), (3, 5)]
    """
    for run in np.split(np.arange(len(known)), np.flatnonzero(np.diff(known)) + 1):
        for start, stop in spans(np.cumsum(lengths[run]), 0, None, rows):
            yield int(run[0]) + start, int(run[0]) + stop


def part_of(item: EpisodeBatch | EpisodeError, number: int, start: int, stop: int | None) -> Any:
    """What of an item, whose first episode is the `number`th of a stream, lies from ``start`` up to ``stop``.

    Returns:
        The item, a part of it, or None.
    """
    count = len(item) if isinstance(item, EpisodeBatch) else 1
    low, high = max(0, start - number), count if stop is None else min(count, stop - number)
    if low >= high:
        return None
    return item.take(slice(low, high)) if isinstance(item, EpisodeBatch) else item


def split(batch: EpisodeBatch, rows: int) -> Iterator[EpisodeBatch]:
    """Its episodes in batches of at most so many rows."""
    for first, upto in spans(batch.ends + 1, 0, None, rows):
        yield batch.take(slice(first, upto))


def in_parts(read: Callable[[int, int], _T], start: int, stop: int) -> Iterator[_T]:
    """What `read` makes of episodes ``start`` up to (not with) ``stop``: in one go, or else of fewer at a time.

    So that what can't be read costs nothing that comes before it.

    Raises:
        SourceError: `read` raises it for a single episode.
    """
    try:
        found = read(start, stop)
    except SourceError:
        if stop - start == 1:
            raise
        middle = (start + stop) // 2
        yield from in_parts(read, start, middle)
        yield from in_parts(read, middle, stop)
    else:
        yield found


def row_bytes(part: Episode | EpisodeBatch) -> int:
    """How many bytes a row takes, at least 1."""
    rows = part if isinstance(part, Episode) else part.rows
    return max(1, sum(column.nbytes for _, column in rows.flatten()) // rows.num_steps)


def _joined(parts: list[Episode | EpisodeBatch]) -> Iterator[EpisodeBatch]:
    episodes = [part for part in parts if isinstance(part, Episode)]
    if len(parts) == 1:
        yield EpisodeBatch.of_one(episodes[0]) if episodes else parts[0]  # type: ignore[misc]
    elif episodes and len(episodes) == len(parts):
        numbers = [episode.index for episode in episodes]
        index = None if None in numbers else np.array(numbers, np.int64)
        yield joined(episodes, source=episodes[0].source, index=index)
    elif parts:
        yield EpisodeBatch.of(parts)


def alike(one: Episode | EpisodeBatch, other: Episode | EpisodeBatch) -> bool:
    """Whether they can be joined and keep what they are: fields, types and shapes, and flags derived."""
    rows = one if isinstance(one, Episode) else one.rows
    beside = other if isinstance(other, Episode) else other.rows
    return (
        one.derived == other.derived
        and _same(rows.observation, beside.observation)
        and _same(rows.action, beside.action)
        and _same(rows.reward, beside.reward)
        and _same(rows.discount, beside.discount)
        and _same(rows.extras, beside.extras)
    )


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and one.shape[1:] == other.shape[1:]
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(_same(child, other[key]) for key, child in one.items())
        )
    if isinstance(one, tuple):
        return (
            type(one) is type(other)
            and len(one) == len(other)
            and all(_same(child, beside) for child, beside in zip(one, other, strict=True))
        )
    return one is None and other is None


def _column(values: list[Any], lengths: list[int]) -> Any:
    """One field of all episodes, one behind the other; every step of it runs over all of them at once.

    Raises:
        KeyError, TypeError, ValueError: they differ.
    """
    first = values[0]
    if isinstance(first, np.ndarray):
        if list(map(len, values)) != lengths:
            raise ValueError("their columns are not as long as they are")
        return np.concatenate(values, dtype=first.dtype, casting="no")
    if len(kinds := set(map(type, values))) > 1:
        raise TypeError(f"a field of theirs is of {len(kinds)} kinds")
    if first is None or not any(values):
        return first
    if isinstance(first, dict):
        keys = first.keys()
        if any(value.keys() != keys for value in values):
            raise KeyError("their fields have different names")
        return {key: _column([value[key] for value in values], lengths) for key in first}
    if len(set(map(len, values))) > 1:
        raise ValueError("tuples of different lengths")
    children = [_column([value[i] for value in values], lengths) for i in range(len(first))]
    return type(first)(*children) if hasattr(first, "_fields") else tuple(children)
