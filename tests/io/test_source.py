"""A Source implements `read` or `read_batches`, and the other follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import rlds2buf
from rlds2buf import Episode, EpisodeBatch, EpisodeError, FilteredOut, SourceError, StepSpec, spec_of
from rlds2buf.io.source import Source
from tests.contracts.source import MakeSource, SourceContract, assert_same_item

LENGTHS = (3, 1, 5, 2, 2, 40, 1)


def episode(index: int, steps: int, dtype: Any = np.float32) -> Episode:
    value = (100 * index + np.arange(steps)).astype(dtype)
    metadata = {"number": index} if index % 2 else {}
    return Episode(
        observation={"a": value}, reward=value, is_terminal=value < 0, metadata=metadata, source="made", index=index
    )


class _Made(Source):
    format: ClassVar[str] = "made"
    name = "made"

    @property
    def spec(self) -> StepSpec:
        return spec_of(episode(0, 2))


class ByEpisode(_Made):
    """Episodes of LENGTHS; every third is left out."""

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Episode | EpisodeError]:
        for index in range(len(LENGTHS))[start:stop]:
            yield left_out(index) if index % 3 == 2 else episode(index, LENGTHS[index])


class ByBatch(_Made):
    """The same, two by two, so that there are gaps."""

    def read_batches(
        self, start: int = 0, stop: int | None = None, *, rows: int = 1 << 14, bytes: int = 64 << 20
    ) -> Iterator[EpisodeBatch | EpisodeError]:
        for index in range(len(LENGTHS))[start:stop]:
            if index % 3 == 2:
                yield left_out(index)
            else:
                yield EpisodeBatch.of([episode(index, LENGTHS[index])])


class Neither(_Made):
    """Reads nothing."""


def left_out(index: int) -> FilteredOut:
    return FilteredOut("every third", source="made", episode=index, rule="third")


class _Contract(SourceContract):
    @pytest.fixture
    def change(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
        return lambda: monkeypatch.setattr(_Made, "name", "made anew")


class TestByEpisode(_Contract):
    @pytest.fixture
    def make_source(self) -> MakeSource:
        return ByEpisode


class TestByBatch(_Contract):
    @pytest.fixture
    def make_source(self) -> MakeSource:
        return ByBatch


@pytest.mark.parametrize("start, stop", [(0, None), (2, 6), (3, 3), (6, 99)])
def test_both_give_the_same(start: int, stop: int | None) -> None:
    for one, other in zip(ByEpisode().read(start, stop), ByBatch().read(start, stop), strict=True):
        assert_same_item(one, other)


def test_one_of_the_two_is_needed() -> None:
    with pytest.raises(TypeError, match="Neither has neither `read` nor `read_batches`"):
        Neither()


@pytest.mark.parametrize("source", [ByEpisode(), ByBatch()])
def test_batches_pass_over_what_is_left_out_and_tell_the_gaps(source: Source) -> None:
    one, other = source.batches(rows=8)
    assert one.index is not None and one.index.tolist() == [0, 1, 3, 4]
    assert other.index is not None and other.index.tolist() == [6]


def test_a_batch_has_about_so_many_rows_or_bytes() -> None:
    def lengths(**limits: int) -> list[list[int]]:
        found = [item for item in ByEpisode().read_batches(3, **limits) if isinstance(item, EpisodeBatch)]
        return [[len(part) for part in batch] for batch in found]

    assert lengths() == [[2, 2], [1]]
    assert lengths(rows=3) == [[2], [2], [1]]
    per_row = 4 + 4 + 3  # two columns of float32, three flags
    assert lengths(bytes=4 * per_row) == [[2, 2], [1]]
    assert lengths(bytes=4 * per_row - 1) == [[2], [2], [1]]


class _Listed(_Made):
    """Yields what it is given, and raises what it must."""

    def __init__(self, *items: Episode | Exception) -> None:
        self._items = items

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Episode | EpisodeError]:
        for item in self._items[start:stop]:
            if isinstance(item, SourceError):
                raise item
            assert isinstance(item, Episode | EpisodeError)
            yield item


def test_the_first_error_is_raised_behind_what_came_before_it() -> None:
    broken = EpisodeError("no steps", source="made", episode=2)
    batches = _Listed(episode(0, 2), episode(1, 3), broken, episode(3, 2)).batches()
    assert next(batches).num_steps == 5
    with pytest.raises(EpisodeError, match="no steps"):
        next(batches)


def test_what_came_before_damage_is_given_first() -> None:
    batches = _Listed(episode(0, 2), episode(1, 3), SourceError("made: cut off")).read_batches()
    first = next(batches)
    assert isinstance(first, EpisodeBatch) and first.num_steps == 5
    with pytest.raises(SourceError, match="cut off"):
        next(batches)


def test_episodes_of_other_types_or_fields_are_batches_of_their_own() -> None:
    other = Episode(observation=np.zeros(2), source="made", index=3)
    wide = episode(2, 2, np.float64)
    found = list(_Listed(episode(0, 2), episode(1, 2), wide, other).read_batches())
    assert all(isinstance(batch, EpisodeBatch) for batch in found) and len(found) == 3
    for one, kept in zip((part for batch in found for part in batch), (0, 1, wide, other), strict=True):  # type: ignore[union-attr]
        assert_same_item(one, episode(kept, 2) if isinstance(kept, int) else kept)


def test_what_a_source_does_not_say_has_a_default() -> None:
    source = ByEpisode()
    assert (source.is_endless, source.num_items, source.transformation, source.source_ids) == (False, None, {}, ())
    assert rlds2buf.open_source([episode(0, 2)]).num_items == 1


def test_what_a_mixture_says_passes_through_what_is_done_to_it() -> None:
    parts = [rlds2buf.open_source([episode(0, 2)]), rlds2buf.open_source([episode(0, 2), episode(1, 3)])]
    mixture = rlds2buf.open_mixture(parts, names=["a", "b"], weights=[1, 1], stop="never")
    source = rlds2buf.open_source(mixture, drop="reward")
    assert (source.is_endless, source.num_items, list(source.source_ids)) == (True, None, ["a", "b"])
    assert source.transformation == {**mixture.transformation, "drop": ["reward"]}


def test_an_episode_that_is_kept_keeps_little_else(tmp_path: Path) -> None:
    pictures = np.zeros((20, 64, 64, 3), np.uint8)
    rlds2buf.convert([Episode(observation=pictures, reward=np.zeros(20)) for _ in range(40)], tmp_path / "saved")
    with rlds2buf.open_source(tmp_path / "saved") as source:
        kept = [episode for episode in source if episode.index == 7]
        column: Any = kept[0].observation
        while column.base is not None:
            column = column.base
        assert column.nbytes < 2 * (pictures.nbytes + (1 << 20))
        assert source.num_episodes == 40 and next(source.read_batches()).rows.observation.nbytes > 5 * column.nbytes
