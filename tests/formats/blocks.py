"""What sources yield, episodes read together and one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pytest

from rlds2buf.codecs.tfrecord.record_table import Walker
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.same import is_same
from rlds2buf.errors import EpisodeError, Rlds2bufError
from rlds2buf.io.alike_episodes import AlikeEpisodes
from rlds2buf.io.source import Source
from tests.contracts.source import assert_same_episode

__all__ = ["Found", "assert_same", "each_alone", "found", "together", "without_blocks"]

Found = list[Episode | EpisodeError | str]


def found(read: Callable[[], Iterable[Episode | EpisodeBatch | EpisodeError]], rows: int | None = None) -> Found:
    """What reading yields, split into episodes, and behind them the error that ends it.

    Args:
        rows: as of :meth:`Source.read_batches`.
    """
    items: Found = []
    try:
        for item in read():
            if isinstance(item, EpisodeBatch):
                assert rows is None or len(item) == 1 or item.num_steps <= rows
                items.extend(item)
            else:
                items.append(item)
    except Rlds2bufError as error:
        items.append(f"{type(error).__name__}: {error}")
    return items


def together(
    source: Source, start: int = 0, stop: int | None = None, rows: int = 1 << 14, bytes: int = 64 << 20
) -> Found:
    """The blocks of a source."""
    return found(lambda: source.read_batches(start, stop, rows=rows, bytes=bytes), rows)


def each_alone(source: Source, count: int) -> Found:
    """Each episode asked for alone; where there are at least so many, the first ones."""
    return found(lambda: (item for number in range(count) for item in source.read(number, number + 1)))


@contextmanager
def without_blocks() -> Iterator[None]:
    """Records are parsed, and groups of HDF5 files read by the library, one by one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Walker, "is_worth_it", lambda records: False)
        patch.setattr(AlikeEpisodes, "_proven", lambda self, start, count: None)
        yield


def assert_same(found: Found, wanted: Found) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert type(one) is type(other)
        if isinstance(one, Episode) and isinstance(other, Episode):
            assert (one.index, one.source) == (other.index, other.source)
            assert_same_episode(one, other)
            assert is_same(one, other)
        elif isinstance(one, EpisodeError):
            assert vars(one) == vars(other)
        else:
            assert one == other
