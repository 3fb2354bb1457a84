"""Episodes in memory."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf import EmptyEpisode, Episode, EpisodeBatch, EpisodeError, SourceFormatError, SpecMismatch
from rlds2buf.core.dtypes import dtype_name
from rlds2buf.formats.memory.source import MemorySource
from tests.contracts.source import MakeSource, SourceContract, assert_same_episode
from tests.io.made_episodes import episodes
from tests.reference.sources import in_memory


def step(t: int, last: int = 3) -> dict[str, Any]:
    return {
        "observation": {"state": np.full(2, t, np.float32), "word": f"at {t}"},
        "action": (np.int64(t), np.float32(-t)),
        "reward": float(t),
        "discount": np.float32(t < last),
        "is_first": t == 0,
        "is_last": t == last,
        "is_terminal": t == last,
        "note": b"x" * t,
    }


def steps(count: int) -> list[dict[str, Any]]:
    return [step(t, count - 1) for t in range(count)]


class TestContractSteps(SourceContract):
    @pytest.fixture
    def data(self) -> list[Any]:
        return [steps(4), {"steps": steps(2), "seed": 7}, steps(1)]

    @pytest.fixture
    def make_source(self, data: list[Any]) -> MakeSource:  # type: ignore[override]
        return lambda: MemorySource(data)

    @pytest.fixture
    def change(self, data: list[Any]) -> Callable[[], None]:
        return lambda: data[1]["steps"][1].update(reward=9.0)


class TestContractEpisodes(SourceContract):
    @pytest.fixture
    def data(self) -> list[Episode]:
        return [
            Episode(
                observation=np.arange(12.0).reshape(6, 2)[:, ::-1], action=np.ones(6), source="elsewhere", index=40
            ),
            Episode(observation=np.arange(4.0).reshape(2, 2), action=np.array([0.0, np.nan])),
        ]

    @pytest.fixture
    def make_source(self, data: list[Episode]) -> MakeSource:  # type: ignore[override]
        return lambda: MemorySource(data)

    @pytest.fixture
    def change(self, data: list[Episode]) -> Callable[[], None]:
        def change() -> None:
            data[0].action[3] = 5

        return change


def test_steps_become_columns() -> None:
    (episode,) = MemorySource([steps(4)])
    assert episode.observation["state"].tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert episode.observation["state"].dtype == np.float32
    assert episode.observation["word"].tolist() == [b"at 0", b"at 1", b"at 2", b"at 3"]
    assert episode.action[0].dtype == np.int64 and episode.action[1].tolist() == [0, -1, -2, -3]
    assert episode.reward.tolist() == [0, 1, 2, 3] and episode.reward.dtype == np.float64
    assert episode.end == "terminated" and episode.derived == frozenset()
    assert episode.extras["note"].tolist() == [b"", b"x", b"xx", b"xxx"]


def test_fields_that_are_not_there_are_none() -> None:
    (episode,) = MemorySource([[{"observation": 1, "reward": None}, {"observation": 2, "reward": None}]])
    assert episode.action is None and episode.reward is None
    assert episode.derived == {"is_first", "is_last", "is_terminal"}
    assert episode.is_first.tolist() == [True, False]


def test_numbers_of_different_types_become_the_type_that_holds_both() -> None:
    (episode,) = MemorySource([[{"observation": np.float32(1), "reward": 0}, {"observation": 2, "reward": 0.5}]])
    assert episode.reward.tolist() == [0, 0.5]
    assert episode.observation.dtype == np.float64


def test_a_dict_of_steps_has_metadata() -> None:
    (episode,) = MemorySource([{"steps": steps(2), "seed": 7, "tags": [1]}])
    assert episode.metadata == {"seed": 7, "tags": [1]}


def test_an_iterator_is_read_once_and_iterated_often() -> None:
    def produce() -> Iterator[list[dict[str, Any]]]:
        yield steps(3)
        yield steps(2)

    source = MemorySource(produce())
    assert [e.num_steps for e in source] == [e.num_steps for e in source] == [3, 2]
    assert source.num_episodes == 2 and source.num_steps == 5


def test_columns_of_a_block_of_its_own_are_shared_with_the_episode_given() -> None:
    given = Episode(observation=np.arange(3.0), source="elsewhere", index=9)
    (episode,) = MemorySource([given])
    assert np.shares_memory(episode.observation, given.observation)
    assert (episode.source, episode.index) == ("memory", 0)
    assert (given.source, given.index) == ("elsewhere", 9)


class Pair(NamedTuple):
    left: float
    right: float


def test_named_tuples_stay_named() -> None:
    (episode,) = MemorySource([[{"action": Pair(1.0, 2.0)}, {"action": Pair(3.0, 4.0)}]])
    assert episode.action.right.tolist() == [2, 4]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (lambda s: s.pop("reward"), "step 2, reward: the step lacks the field"),
        (lambda s: s.update(extra=1), "step 2, extra: a field that step 0 has not"),
        (lambda s: s["observation"].update(state=np.zeros(3)), r"step 2, observation/state: float64\[3\], but step 0"),
        (lambda s: s.update(reward="much"), r"step 2, reward: string\[\], but step 0 has float64\[\]"),
        (lambda s: s.update(reward=object()), "step 2, reward: neither numbers nor text, but object"),
        (lambda s: s.update(reward=None), "step 2, reward: neither numbers nor text, but NoneType"),
        (lambda s: s.update(reward=[1, [2]]), "step 2, reward: neither numbers nor text, but list"),
        (lambda s: s.update(is_first=0.5), r"is_first: expected bool\[\], got float64\[\]"),
    ],
)
def test_an_episode_that_does_not_stack_is_an_error_and_the_next_one_is_read(
    bad: Callable[[dict[str, Any]], Any], message: str
) -> None:
    broken = steps(4)
    bad(broken[2])
    source = MemorySource([steps(2), broken, steps(3)])
    one, error, other = source.read()
    assert isinstance(one, Episode) and isinstance(other, Episode)
    assert isinstance(error, SpecMismatch)
    with pytest.raises(SpecMismatch, match=f"memory, episode 1, {message}"):
        list(source)


def test_empty_episodes_are_errors() -> None:
    good, empty = MemorySource([steps(1), []]).read()
    assert isinstance(good, Episode)
    assert isinstance(empty, EmptyEpisode) and empty.episode == 1 and empty.rule == "empty-episode"


def test_a_step_that_is_no_dict() -> None:
    (error,) = MemorySource([[1, 2]]).read()
    assert isinstance(error, EpisodeError)
    assert "a step should be a dict, got int" in str(error)


@pytest.mark.parametrize("entry", [3, "steps", b"steps", None, {"episode": []}, np.zeros(3)])
def test_an_entry_that_is_no_episode(entry: Any) -> None:
    with pytest.raises(TypeError, match="entry 1 should be an Episode, a list of step dicts or a dict of arrays"):
        MemorySource([steps(1), entry])


def test_the_spec_is_that_of_the_first_good_episode() -> None:
    assert MemorySource([[], steps(2)]).spec.reward.dtype == np.float64
    with pytest.raises(EmptyEpisode):
        _ = MemorySource([[]]).spec
    with pytest.raises(SourceFormatError, match="no episodes"):
        _ = MemorySource([]).spec


@settings(max_examples=60, deadline=None)
@given(given=episodes(), rows=st.sampled_from([1, 20, 100, 1 << 14]), data=st.data())
def test_blocks_are_what_each_episode_is(given: list[Episode], rows: int, data: st.DataObject) -> None:
    """Steps and arrays in turn, and episodes that were changed so that they are none any more."""
    entries: list[Any] = list(given)
    for at in data.draw(st.lists(st.integers(0, len(entries) - 1), max_size=2), "changed"):
        column = entries[at].discount
        entries[at].discount = column[:-1] if len(column) > 1 else column[:0]
    for at in sorted(data.draw(st.lists(st.integers(0, len(entries)), max_size=3), "steps")):
        entries.insert(at, steps(at % 3))
    wanted: list[Any] = []
    for index, entry in enumerate(entries):
        wanted += in_memory([entry], index=index) if isinstance(entry, Episode) else _alone(entry, index)
    start = data.draw(st.integers(0, len(entries)), "start")
    stop = data.draw(st.none() | st.integers(0, len(entries)), "stop")
    found: list[Any] = []
    for item in MemorySource(entries).read_batches(start, stop, rows=rows):
        assert not isinstance(item, EpisodeBatch) or len(item) == 1 or item.num_steps <= rows
        found.extend(item if isinstance(item, EpisodeBatch) else [item])
    for one, other in zip(found, wanted[start:stop], strict=True):
        if isinstance(other, Episode):
            assert_same_episode(one, other)
            assert (one.source, one.index, one.metadata) == ("memory", other.index, other.metadata)
        else:
            assert (type(one), str(one)) == (type(other), str(other))


def _alone(entry: Any, index: int) -> list[Episode | EpisodeError]:
    return list(MemorySource([[]] * index + [entry]).read(index))


@settings(max_examples=60, deadline=None)
@given(given=episodes())
def test_the_fingerprint_is_of_one_episode_behind_the_other(given: list[Episode]) -> None:
    """As version 0.1.0 has it, so that what it began can be resumed."""
    crc = 0
    for episode in given:
        for path, column in episode.flatten():
            name = f"{'/'.join(map(str, path))}:{dtype_name(column.dtype)}{column.shape}"
            data = repr(column.tolist()).encode() if column.dtype == object else np.ascontiguousarray(column).tobytes()
            crc = zlib.crc32(data, zlib.crc32(name.encode(), crc))
    assert MemorySource(given).fingerprint() == f"memory:{len(given)}:{crc:08x}"
