"""Episodes joined to batches, against the episodes themselves."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf import Episode, EpisodeBatch, EpisodeError, FilteredOut, SourceError, SpecMismatch
from rlds2buf.io.blocks import blocks_of, gathered, in_parts, joined, part_of, split
from tests.contracts.source import assert_same_episode
from tests.io.made_episodes import LAYOUTS, episodes, made


@settings(max_examples=60, deadline=None)
@given(given=episodes(), rows=st.sampled_from([1, 20, 100, 1 << 14]), data=st.data())
def test_blocks_hold_what_was_joined(given: list[Episode], rows: int, data: st.DataObject) -> None:
    items: list[Any] = [episode.replace(source="made", index=i) for i, episode in enumerate(given)]
    for at in data.draw(st.lists(st.integers(0, len(items)), max_size=2), "errors"):
        items.insert(at, EpisodeError("gone", source="made", episode=at))
    flat: list[Any] = []
    for block in blocks_of(items, rows=rows):
        assert not isinstance(block, EpisodeBatch) or len(block) == 1 or block.num_steps <= rows
        flat.extend(block if isinstance(block, EpisodeBatch) else [block])
    for one, other in zip(flat, items, strict=True):
        if isinstance(other, Episode):
            assert_same_episode(one, other)
            assert (one.source, one.index, one.metadata) == (other.source, other.index, other.metadata)
        else:
            assert one is other


@pytest.mark.parametrize("layout", range(LAYOUTS))
def test_joined_is_what_a_batch_of_them_is(layout: int) -> None:
    parts = [made(layout, steps, seed) for seed, steps in enumerate((3, 1, 7), 6)]
    got = joined(parts, source="made", index=np.array([4, 6, 7]))
    want = EpisodeBatch.of(parts)
    assert got.starts.tolist() == want.starts.tolist() == [0, 3, 4]
    assert got.index is not None and got.index.tolist() == [4, 6, 7]
    assert got.derived == want.derived
    for one, other in zip(got, parts, strict=True):
        assert_same_episode(one, other)


@pytest.mark.parametrize("layout", range(LAYOUTS))
@pytest.mark.parametrize("other", range(LAYOUTS))
def test_other_layouts_are_not_joined(layout: int, other: int) -> None:
    pair = [made(layout, 3, 1), made(other, 2, 1)]
    if layout == other:
        assert len(joined(pair, source=None, index=None)) == 2
        return
    with pytest.raises(SpecMismatch):
        joined(pair, source=None, index=None)
    assert len(list(blocks_of(pair))) == 2


@pytest.mark.parametrize("field", ["reward", "is_first", "is_terminal", "discount"])
def test_a_column_that_was_cut_short_is_not_joined(field: str) -> None:
    """Not even where another one is longer by as much."""
    parts = [Episode(observation=np.zeros(n), reward=np.zeros(n), discount=np.ones(n)) for n in (4, 4)]
    setattr(parts[0], field, getattr(parts[0], field)[:3])
    setattr(parts[1], field, np.zeros(5, getattr(parts[1], field).dtype))
    with pytest.raises(SpecMismatch):
        joined(parts, source=None, index=None)


def test_a_single_episode_is_not_copied() -> None:
    episode = Episode(observation=np.zeros(20), index=3)
    (block,) = blocks_of([episode])
    assert isinstance(block, EpisodeBatch) and block.rows is episode and next(iter(block)).index == 3


def test_a_full_block_does_not_wait_for_the_next_episode() -> None:
    asked = []

    def reading() -> Iterator[Episode]:
        for index in range(5):
            asked.append(index)
            yield Episode(observation=np.zeros(4), index=index)

    blocks = blocks_of(reading(), rows=8)
    next(blocks)
    assert asked == [0, 1]


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=20), rows=st.integers(1, 20), data=st.data())
def test_parts_of_batches(lengths: list[int], rows: int, data: st.DataObject) -> None:
    batch = EpisodeBatch.of([Episode(observation=np.arange(n), index=i) for i, n in enumerate(lengths)])
    pieces = list(split(batch, rows))
    assert [len(episode) for piece in pieces for episode in piece] == lengths
    assert all(len(piece) == 1 or piece.num_steps <= rows for piece in pieces)
    for one, other in pairwise(pieces):
        assert one.num_steps + len(next(iter(other))) > rows
    number = data.draw(st.integers(0, 5), "number")
    start, stop = data.draw(st.integers(0, 30), "start"), data.draw(st.none() | st.integers(0, 30), "stop")
    part = part_of(batch, number, start, stop)
    wanted = [i for i in range(len(lengths)) if start <= i + number < (99 if stop is None else stop)]
    assert ([] if part is None else part.index.tolist()) == wanted


def test_in_parts_up_to_what_cannot_be_read() -> None:
    def read(start: int, stop: int) -> list[int]:
        if start <= 11 < stop:
            raise SourceError("damaged")
        return list(range(start, stop))

    found: list[int] = []
    with pytest.raises(SourceError, match="damaged"):
        for part in in_parts(read, 3, 40):
            found += part
    assert found == list(range(3, 11))


@given(
    st.lists(st.sampled_from([None, 0, 1, 2, 5]), max_size=40),
    st.sampled_from([1, 6, 1 << 14]),
    st.sampled_from([None, SourceError("gone"), ZeroDivisionError()]),
)
def test_runs_between_what_is_left_out_are_joined(kinds: list[int | None], rows: int, error: Exception | None) -> None:
    """None is left out, 0 can't be built, else so many rows."""

    def given() -> Iterator[EpisodeBatch | EpisodeError]:
        for index, kind in enumerate(kinds):
            if kind is None:
                yield FilteredOut("short", episode=index)
            elif not kind:
                yield EpisodeError("torn", episode=index)
            else:
                yield EpisodeBatch.of_one(Episode(observation=np.full(kind, index), index=index))
        if error is not None:
            raise error

    found: list[Any] = []
    raised = None
    try:
        for item, left_out in gathered(given(), rows):
            found.append((item, left_out))
            assert item is not None or left_out
    except Exception as caught:
        raised = caught
    assert raised is error
    batches = [item for item, _ in found if isinstance(item, EpisodeBatch)]
    assert [episode.index for batch in batches for episode in batch] == [i for i, kind in enumerate(kinds) if kind]
    assert all(len(batch) == 1 or batch.num_steps <= rows for batch in batches)
    others = [one.episode for item, left_out in found for one in left_out]
    assert others == [i for i, kind in enumerate(kinds) if kind is None]
    torn = [i for i, kind in enumerate(kinds) if kind == 0]
    assert [item.episode for item, _ in found if isinstance(item, EpisodeError)] == torn
    told = [item for item, _ in found if item is not None]
    places = [item.episode if isinstance(item, EpisodeError) else int(item.index[0]) for item in told]
    assert places == sorted(places)


def test_what_a_filter_tears_apart_is_joined_and_nothing_else() -> None:
    batches = [EpisodeBatch.of_one(Episode(observation=np.zeros(2), index=2 * i)) for i in range(50)]
    left_out = [FilteredOut("short", episode=2 * i + 1) for i in range(50)]
    torn = [item for pair in zip(batches, left_out, strict=True) for item in pair]
    found = list(gathered(torn, 40))
    assert [len(item) for item, _ in found if item is not None] == [1, 11, 11, 11, 11, 5]
    assert [one for _, some in found for one in some] == left_out
    assert list(gathered(batches, 40)) == [(batch, []) for batch in batches]
