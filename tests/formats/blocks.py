"""What sources of records yield, read together and one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rlds2buf.codecs.tfrecord.record_table import Walker
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.errors import EpisodeError, SourceError
from rlds2buf.io.source import Source
from tests.contracts.source import assert_same_episode

__all__ = ["Found", "assert_same", "found", "one_by_one", "until_error"]

Found = tuple[list[Episode | EpisodeError], str]


def found(source: Source, *args: Any, **kwargs: Any) -> Found:
    """What reading yields, split into episodes, and the error that ends it."""
    items: list[Episode | EpisodeError] = []
    try:
        for item in source.read_batches(*args, **kwargs):
            if isinstance(item, EpisodeBatch):
                assert len(item) == 1 or item.num_steps <= kwargs.get("rows", item.num_steps)
                items.extend(item)
            else:
                items.append(item)
    except SourceError as error:
        return items, f"{type(error).__name__}: {error}"
    return items, ""


def assert_same(one: Found, other: Found) -> None:
    assert one[1] == other[1]
    assert len(one[0]) == len(other[0])
    for mine, theirs in zip(one[0], other[0], strict=True):
        if isinstance(theirs, EpisodeError):
            assert isinstance(mine, EpisodeError) and type(mine) is type(theirs)
            assert vars(mine) == vars(theirs)
            continue
        assert isinstance(mine, Episode)
        assert (mine.index, mine.source) == (theirs.index, theirs.source)
        assert_same_episode(mine, theirs)
        assert repr(mine.metadata) == repr(theirs.metadata)
        assert [type(value) for value in mine.metadata.values()] == [type(value) for value in theirs.metadata.values()]


def one_by_one(monkeypatch: pytest.MonkeyPatch, source: Source, *args: Any, **kwargs: Any) -> Found:
    with monkeypatch.context() as patch:
        patch.setattr(Walker, "is_worth_it", lambda records: False)
        return found(source, *args, **kwargs)


def until_error(source: Source, start: int, stop: int | None) -> Iterator[Episode | EpisodeError]:
    """The episodes before the error that ends reading."""
    try:
        yield from source.read(start, stop)
    except SourceError:
        return
