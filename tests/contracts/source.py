"""What every source promises, whatever it reads.

A test class inherits :class:`SourceContract` and gives a fixture `make_source`: a function that
opens the same data anew each time.  Where the data can be changed it gives `change` too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

from rlds2buf import Episode, EpisodeError, FilteredOut
from rlds2buf.core import nest
from rlds2buf.core.fields import FLAG_FIELDS
from rlds2buf.io.source import Source

__all__ = ["MakeSource", "SourceContract", "assert_same_episode"]

MakeSource = Callable[[], Source]


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    if one.dtype == object:
        pairs = zip(one.reshape(-1).tolist(), other.reshape(-1).tolist(), strict=True)
        return one.shape == other.shape and all(
            _same(a, b) if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) else a == b for a, b in pairs
        )
    if one.shape != other.shape:
        return False
    return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def assert_same_episode(one: Episode, other: Episode) -> None:
    """Both have the same fields with the same values, dtypes and shapes, and the same metadata keys."""
    columns, others = dict(one.flatten()), dict(other.flatten())
    assert list(columns) == list(others)
    for path, column in columns.items():
        assert _same(column, others[path]), f"{nest.path_name(path)} differs in {one} and {other}"
    assert list(one.metadata) == list(other.metadata)
    assert one.derived == other.derived


def assert_same_item(one: Episode | EpisodeError, other: Episode | EpisodeError) -> None:
    """Both are the same episode, or both are left out, of the same index and for the same reason."""
    if isinstance(one, Episode) and isinstance(other, Episode):
        assert one.index == other.index
        assert_same_episode(one, other)
        return
    assert isinstance(one, FilteredOut) and isinstance(other, FilteredOut)
    assert (one.episode, one.rule, str(one)) == (other.episode, other.rule, str(other))


class SourceContract:
    """The shared suite.

    A source may leave episodes out (FilteredOut); each keeps its index.  What can't be built has no place here.

    Attributes:
        SHARES_MEMORY: whether its columns are the caller's own arrays.
    """

    SHARES_MEMORY: ClassVar[bool] = False

    @pytest.fixture
    def make_source(self) -> MakeSource:
        """Opens the data under test."""
        raise NotImplementedError

    @pytest.fixture
    def source(self, make_source: MakeSource) -> Iterator[Source]:
        with make_source() as source:
            yield source

    def test_names_itself(self, source: Source) -> None:
        assert source.name and source.format
        assert source.name in repr(source)

    def test_iterates_again_with_equal_results(self, source: Source) -> None:
        first, second = list(source), list(source)
        assert first and len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            assert_same_episode(one, other)

    def test_two_iterations_at_a_time_do_not_meet(self, source: Source) -> None:
        ahead = iter(source)
        index = next(ahead).index
        assert index is not None
        behind = (item for item in source.read(index + 1) if not isinstance(item, FilteredOut))
        for one, other in zip(behind, ahead, strict=True):
            assert isinstance(one, Episode)
            assert_same_episode(one, other)

    def test_opened_twice_it_gives_the_same(self, make_source: MakeSource) -> None:
        for one, other in zip(make_source(), make_source(), strict=True):
            assert_same_episode(one, other)

    def test_every_episode_fits_the_spec(self, source: Source) -> None:
        for episode in source:
            source.spec.check(episode)

    def test_spec_survives_json(self, source: Source) -> None:
        assert type(source.spec).from_json(json.loads(json.dumps(source.spec.to_json()))) == source.spec

    def test_counts_agree_with_a_full_pass(self, source: Source) -> None:
        lengths = [episode.num_steps for episode in source]
        assert source.num_episodes in (None, len(lengths))
        assert source.num_steps in (None, sum(lengths))

    def test_columns_are_equally_long_and_flags_boolean(self, source: Source) -> None:
        for episode in source:
            for path, column in episode.flatten():
                assert len(column) == episode.num_steps, nest.path_name(path)
            for name in FLAG_FIELDS:
                assert getattr(episode, name).dtype == np.bool_

    def test_episodes_know_where_they_come_from(self, source: Source) -> None:
        for number, item in enumerate(source.read()):
            assert item.source
            if isinstance(item, Episode):
                assert item.index == number
            else:
                assert isinstance(item, FilteredOut) and item.rule
                assert item.episode == number

    def test_read_gives_the_slice(self, source: Source) -> None:
        everything = list(source.read())
        assert sum(isinstance(item, Episode) for item in everything) == len(list(source))
        count = len(everything)
        for start, stop in [(0, 1), (0, count), (count // 2, None), (1, count + 5), (count, None), (count + 3, None)]:
            part = list(source.read(start, stop))
            assert len(part) == len(everything[start:stop])
            for one, other in zip(part, everything[start:stop], strict=True):
                assert_same_item(one, other)

    def test_batches_hold_what_read_yields(self, source: Source) -> None:
        everything = list(source.read())
        count, steps = len(everything), sum(len(item) for item in everything if isinstance(item, Episode))
        for start, stop, rows in [(0, None, 1), (0, None, 1 << 14), (count // 2, None, steps // 3 + 1), (1, 2, steps)]:
            found: list[Episode | EpisodeError] = []
            for item in source.read_batches(start, stop, rows=rows):
                if isinstance(item, EpisodeError):
                    found.append(item)
                    continue
                assert len(item) == 1 or item.num_steps <= rows
                assert item.index is not None and item.index.dtype == np.int64
                assert item.index.tolist() == [episode.index for episode in item]
                found.extend(item)
            for one, other in zip(found, everything[start:stop], strict=True):
                assert_same_item(one, other)

    def test_read_stops_anywhere(self, source: Source) -> None:
        reading = source.read()
        first = next(item for item in reading if not isinstance(item, FilteredOut))
        reading.close()  # type: ignore[attr-defined]
        assert not isinstance(first, EpisodeError)
        assert_same_episode(first, next(iter(source)))

    def test_writing_to_an_episode_does_not_change_the_next_pass(self, source: Source) -> None:
        before = [{path: column.copy() for path, column in episode.flatten()} for episode in source]
        if not self.SHARES_MEMORY and source.format != "memory":
            for episode in source:
                for _, column in episode.flatten():
                    if column.flags.writeable and column.dtype != object:
                        column[...] = 0
        for episode, kept in zip(source, before, strict=True):
            for path, column in episode.flatten():
                assert _same(column, kept[path]), nest.path_name(path)

    def test_fingerprint_is_stable(self, make_source: MakeSource) -> None:
        assert make_source().fingerprint() == make_source().fingerprint()

    def test_fingerprint_changes_with_the_content(self, make_source: MakeSource, change: Callable[[], Any]) -> None:
        before = make_source().fingerprint()
        change()
        assert make_source().fingerprint() != before

    def test_details_are_plain_json(self, source: Source) -> None:
        details = source.details()
        assert json.loads(json.dumps(details, allow_nan=False)) == details

    def test_close_is_idempotent(self, make_source: MakeSource) -> None:
        source = make_source()
        list(source)
        source.close()
        source.close()

    def test_is_a_context_manager(self, make_source: MakeSource) -> None:
        with make_source() as source:
            assert next(iter(source)).num_steps > 0
