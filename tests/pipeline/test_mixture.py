"""Several datasets as one."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlds2buf
from rlds2buf import (
    ConvertReport,
    Episode,
    EpisodeBatch,
    EpisodeError,
    FilteredOut,
    SnapshotError,
    SourceError,
    SpecMismatch,
    convert,
    open_mixture,
    open_source,
)
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.formats.buffer.sink import BufferFolderSink
from rlds2buf.formats.memory.source import MemorySource
from rlds2buf.io.source import Source
from rlds2buf.pipeline.mixture import MixtureSource
from rlds2buf.pipeline.mixture_schedule import Schedule
from tests.contracts.source import MakeSource, SourceContract, assert_same_episode
from tests.made import MADE
from tests.reference.mixing import turns

HOPPER = [MADE / f"d4rl/hopper_{name}.hdf5" for name in ("random-v1", "medium-v2")]


def data(number: int, count: int, rows: int = 3) -> list[Episode]:
    """Episodes whose observation tells dataset and episode."""
    return [
        Episode(
            observation=np.full((rows, 2), (number, index), np.float32),
            action=np.zeros(rows, np.int64),
            reward=np.full(rows, index, np.float32),
            discount=np.ones(rows),
            is_terminal=[False] * (rows - 1) + [True],
            metadata={"of": number},
        )
        for index in range(count)
    ]


def told(source: Source) -> list[tuple[int, int]]:
    """Dataset and episode of each, by the data; the marks must say the same."""
    found = []
    for episode in source:
        number, index = (int(value) for value in episode.observation[0])
        assert episode.metadata["source_id"] == number and episode.metadata["source_index"] == index
        assert episode.metadata["of"] == number
        assert episode.extras["source_id"].tolist() == [number] * len(episode)
        assert episode.extras["source_id"].dtype == np.int32
        found.append((number, index))
    return found


class TestContractInOrder(SourceContract):
    SHARES_MEMORY = True
    HOW: ClassVar[dict[str, Any]] = {}

    @pytest.fixture
    def parts(self) -> list[list[Episode]]:
        return [data(0, 4), data(1, 2, 5), data(2, 3)]

    @pytest.fixture
    def make_source(self, parts: list[list[Episode]]) -> MakeSource:  # type: ignore[override]
        return lambda: open_mixture(parts, names=["a", "b", "c"], **self.HOW)

    @pytest.fixture
    def change(self, parts: list[list[Episode]]) -> Callable[[], None]:
        return lambda: parts[2].append(data(2, 4)[3])


class TestContractByWeight(TestContractInOrder):
    HOW: ClassVar[dict[str, Any]] = {"weights": [0.5, 2, 1], "seed": 3}


class TestContractUntilTheFirst(TestContractInOrder):
    HOW: ClassVar[dict[str, Any]] = {"weights": [1, 1, 1], "stop": "first", "source_column": False}

    def test_it_ends_with_the_first_that_runs_out(self, source: Source) -> None:
        count = Counter(episode.metadata["source_id"] for episode in source)
        assert [count[number] == total for number, total in enumerate((4, 2, 3))].count(True) == 1
        assert source.num_steps is None and source.num_episodes == count.total()


class TestContractFiltered(TestContractInOrder):
    HOW: ClassVar[dict[str, Any]] = {"weights": [1, 1, 1], "min_return": 1.0}

    def test_what_is_left_out_has_its_place(self, source: Source) -> None:
        left_out = [item for item in source.read() if isinstance(item, FilteredOut)]
        assert len(left_out) == 3 and "episode 0 of" in left_out[0].message
        assert source.num_episodes is None and source.num_items == 9  # type: ignore[attr-defined]


class TestContractFiles(SourceContract):
    @pytest.fixture
    def paths(self, tmp_path: Path) -> list[Path]:
        copies = [tmp_path / path.name for path in HOPPER]
        for path, copy in zip(HOPPER, copies, strict=True):
            copy.write_bytes(path.read_bytes())
        return copies

    @pytest.fixture
    def make_source(self, paths: list[Path]) -> MakeSource:  # type: ignore[override]
        return lambda: open_mixture(paths, weights=[3, 1], drop="infos", max_episode_steps=100)

    @pytest.fixture
    def change(self, paths: list[Path]) -> Callable[[], None]:
        def write() -> None:
            import h5py

            with h5py.File(paths[1], "a") as file:
                file["rewards"][3] = 99

        return write


def turns_of(schedule: Schedule, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, int]]:
    """Source and item number of each turn."""
    taken = schedule.taken(start)
    for owners in schedule.owners(start, stop):
        for number in owners.tolist():
            yield number, int(taken[number] % schedule.counts[number])
            taken[number] += 1


WEIGHTS = st.none() | st.lists(st.sampled_from([0.001, 0.5, 1, 2, 7.5]), min_size=4, max_size=4)


class TestSchedule:
    @given(st.lists(st.integers(0, 9), min_size=4, max_size=4), WEIGHTS, st.integers(0, 9), st.sampled_from("af"))
    def test_as_drawn_one_by_one(self, counts: list[int], weights: Any, seed: int, stop: str) -> None:
        how = "first" if stop == "f" and weights else "all"
        schedule = Schedule(counts, weights, seed, how)
        expected = list(turns(counts, weights, seed, how))
        assert list(turns_of(schedule)) == expected and len(schedule) == len(expected)
        for start in (1, len(expected) // 2, len(expected), len(expected) + 3):
            assert list(turns_of(schedule, start)) == expected[start:]
            assert list(turns_of(schedule, start, start + 3)) == expected[start : start + 3]

    @given(st.lists(st.integers(1, 9), min_size=4, max_size=4), st.integers(0, 9), st.integers(0, 9000))
    def test_without_end(self, counts: list[int], seed: int, start: int) -> None:
        schedule = Schedule(counts, [1, 2, 3, 0.1], seed, "never")
        expected = itertools.islice(turns(counts, [1, 2, 3, 0.1], seed, "never"), start, start + 50)
        assert list(itertools.islice(turns_of(schedule, start), 50)) == list(expected)
        assert len(list(turns_of(schedule, start, start + 5000))) == 5000

    def test_the_weights_hold(self) -> None:
        drawn = Counter(number for number, _ in turns_of(Schedule([5000] * 3, [1, 2, 7], 1, "all"), 0, 5000))
        assert [abs(drawn[number] / 5000 - share) < 0.03 for number, share in enumerate((0.1, 0.2, 0.7))] == [True] * 3

    def test_nothing_to_begin_again_with(self) -> None:
        with pytest.raises(ValueError, match="source 1 has no episodes"):
            Schedule([1, 0], [1, 1], 0, "never")


class TestMixture:
    @given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.booleans(), st.integers(0, 3))
    def test_every_episode_comes_once_and_in_its_source_s_order(
        self, counts: list[int], weighted: bool, seed: int
    ) -> None:
        if not any(counts):
            return
        # An empty list has no spec, so the sources that are empty are left out.
        counts = [count for count in counts if count]
        weights = [1.0 + number for number in range(len(counts))] if weighted else None
        mixture = open_mixture([data(*pair) for pair in enumerate(counts)], weights=weights, seed=seed)
        found = told(mixture)
        assert sorted(found) == [(number, index) for number, count in enumerate(counts) for index in range(count)]
        assert weighted or found == sorted(found)
        for number in range(len(counts)):
            assert [index for of, index in found if of == number] == list(range(counts[number]))
        assert mixture.num_episodes == sum(counts) and mixture.num_steps == 3 * sum(counts)

    def test_a_seed_is_an_order(self) -> None:
        orders = [told(open_mixture([data(0, 9), data(1, 9)], weights=[1, 1], seed=seed)) for seed in (0, 0, 1)]
        assert orders[0] == orders[1] != orders[2]

    def test_without_end(self) -> None:
        mixture = open_mixture([data(0, 2), data(1, 3)], weights=[2, 1], stop="never")
        found = [
            (int(episode.observation[0, 0]), int(episode.observation[0, 1]))
            for episode in itertools.islice(mixture, 200)
        ]
        for number, count in ((0, 2), (1, 3)):
            own = [index for of, index in found if of == number]
            assert own == [index % count for index in range(len(own))] and len(own) > 40
        assert mixture.num_episodes is None and mixture.num_items is None
        assert [item.index for item in mixture.read(50, 53) if isinstance(item, Episode)] == [50, 51, 52]

    def test_what_has_no_end_is_not_written(self) -> None:
        mixture = open_mixture([data(0, 2), data(1, 3)], weights=[2, 1], stop="never")
        for source in (mixture, open_source(mixture, min_length=2)):
            with pytest.raises(ValueError, match="without end"):
                convert(source, [])

    def test_an_error_keeps_its_place_and_says_whose_it_is(self) -> None:
        torn: Any = [*data(0, 2), [{"observation": 1}, {"action": 2}]]
        mixture = open_mixture([data(0, 1), torn], names=["good", "torn"])
        error = list(mixture.read())[3]
        assert isinstance(error, SpecMismatch) and error.episode == 3 and "(episode 2 of torn)" in str(error)
        taken: list[Episode] = []
        assert convert(mixture, taken, on_invalid="skip").rejected == {"spec": 1} and len(taken) == 3

    def test_a_source_that_does_not_know_how_many_is_counted(self) -> None:
        class Unknown(MemorySource):
            @property
            def num_episodes(self) -> int:
                return None  # type: ignore[return-value]

        mixture = MixtureSource([Unknown(data(0, 3)), MemorySource(data(1, 2))], weights=[1, 1])
        assert len(told(mixture)) == 5 and mixture.num_episodes is None and mixture.num_items == 5

    def test_a_source_that_shrinks_is_noticed(self) -> None:
        episodes = data(0, 3)
        mixture = open_mixture([data(1, 1), episodes])
        assert mixture.num_items == 4
        del episodes[1:]
        with pytest.raises(SourceError, match="it changed; there is no episode 1"):
            list(mixture)

    def test_sources_are_closed_and_so_are_files(self) -> None:
        closed = []

        class Closing(MemorySource):
            def close(self) -> None:
                closed.append(self)

        sources = [Closing(data(0, 1)), Closing(data(1, 1))]
        with open_mixture(sources) as mixture:
            assert len(list(mixture)) == 2
        assert len(closed) == 2
        with pytest.raises(SourceError):
            open_mixture([sources[0], "no-such-path"])
        assert len(closed) == 3

    def test_reading_stops_in_every_source(self) -> None:
        ended = []

        class Watched(MemorySource):
            def read_batches(self, *args: Any, **kwargs: Any) -> Iterator[EpisodeBatch | EpisodeError]:
                try:
                    yield from super().read_batches(*args, **kwargs)
                finally:
                    ended.append(self)

        mixture = MixtureSource([Watched(data(0, 9)), Watched(data(1, 9))], weights=[1, 1])
        reading = mixture.read_batches(rows=9)
        next(reading)
        ended.clear()  # the specs were read, too
        reading.close()  # type: ignore[attr-defined]
        assert len(ended) == 2


def of_lengths(number: int, lengths: list[int], marked: bool) -> list[Any]:
    """Episodes of given lengths; one of 0 rows can't be built.  Some derive their flags, some are marked."""
    found: list[Any] = []
    for index, rows in enumerate(lengths):
        if not rows:
            found.append([{"observation": np.zeros(2, np.float32)}, {"reward": 1}])
            continue
        given = {"is_first": np.arange(rows) == 0, "is_last": np.arange(rows) == rows - 1} if number % 2 else {}
        found.append(
            Episode(
                observation=np.arange(rows * 2, dtype=np.float32).reshape(rows, 2) + 100 * index,
                reward=np.full(rows, number, np.float32),
                discount=np.ones(rows, np.float32),
                is_terminal=np.arange(rows) == rows - 1,
                extras={"word": np.array([b"%d" % t for t in range(rows)], object)},
                metadata={"of": number} if marked or number else {},
                **given,
            )
        )
    return found


LENGTHS = st.lists(st.sampled_from([0, 1, 2, 3, 7, 20, 50]), min_size=1, max_size=12).filter(any)


class TestBatches:
    @given(
        st.lists(LENGTHS, min_size=1, max_size=4),
        st.booleans(),
        st.integers(0, 5),
        st.sampled_from(["all", "first", "never"]),
        st.sampled_from([1, 7, 40, 1 << 14]),
        st.integers(0, 30),
        st.none() | st.integers(0, 40),
        st.booleans(),
    )
    def test_they_hold_the_episodes_in_their_turns(
        self,
        lengths: list[list[int]],
        weighted: bool,
        seed: int,
        how: str,
        rows: int,
        start: int,
        count: int | None,
        marked: bool,
    ) -> None:
        if how != "all" and not weighted:
            how = "all"
        if how == "never" and count is None:
            count = 30
        given = [of_lengths(number, some, marked) for number, some in enumerate(lengths)]
        names = [f"s{number}" for number in range(len(given))]
        sources = [MemorySource(some) for some in given]
        for source, name in zip(sources, names, strict=True):
            source.name = name
        weights = [1.0 + number for number in range(len(given))] if weighted else None
        mixture = MixtureSource(sources, weights=weights, seed=seed, stop=how, names=names)
        stop = None if count is None else start + count
        found: list[Any] = []
        for item in mixture.read_batches(start, stop, rows=rows):
            if isinstance(item, EpisodeBatch):
                assert len(item) == 1 or item.num_steps <= rows
                found.extend(item)
            else:
                found.append(item)
        plain = [list(source.read()) for source in sources]
        order = turns([len(some) for some in plain], weights, seed, how)
        expected = list(itertools.islice(order, start, stop))
        assert len(found) == len(expected)
        for position, (one, (number, index)) in enumerate(zip(found, expected, strict=True), start):
            other = plain[number][index]
            if isinstance(other, EpisodeError):
                assert isinstance(one, EpisodeError) and one.episode == position
                assert one.message == f"{other.message} (episode {index} of {names[number]})"
                continue
            mark = {"source_id": number, "source_name": names[number], "source_index": index}
            ids = np.full(len(other), number, np.int32)
            twin = other.replace(
                index=position, metadata={**other.metadata, **mark}, extras={**other.extras, "source_id": ids}
            )
            assert isinstance(one, Episode) and one.index == position and one.metadata == twin.metadata
            assert one.source == other.source == names[number]
            assert_same_episode(one, twin)


class TestAgreement:
    def test_what_differs_is_named_with_a_way_out(self) -> None:
        ones = [data(0, 1), [data(1, 1)[0].replace(reward=np.ones(3))]]
        with pytest.raises(SpecMismatch, match=r"reward: a has float32\[\], but b has float64\[\]; .*float32=True"):
            open_mixture(ones, names=["a", "b"])
        assert len(told(open_mixture(ones, float32=True))) == 2

    def test_a_field_that_only_one_has(self) -> None:
        ones = [data(0, 1), [data(1, 1)[0].replace(extras={"note": np.zeros(3)})]]
        with pytest.raises(SpecMismatch, match=r"extras/note: a has none, but b has float64\[\]"):
            open_mixture(ones, names=["a", "b"])

    def test_limits_that_differ_are_left_out(self) -> None:
        def spec(**limits: Any) -> StepSpec:
            fields = {"x": FieldSpec((), np.dtype(np.float32), **limits), "y": FieldSpec((), np.dtype(np.int8), low=0)}
            return StepSpec(observation=fields, reward=None, discount=None)

        class Given(MemorySource):
            def __init__(self, spec: StepSpec) -> None:
                super().__init__([Episode(observation={"x": np.zeros(2, np.float32), "y": np.zeros(2, np.int8)})])
                self.given = spec

            @property
            def spec(self) -> StepSpec:
                return self.given

        found = MixtureSource([Given(spec(low=0)), Given(spec(low=1))]).spec.observation
        assert found == {"x": FieldSpec((), np.dtype(np.float32)), "y": FieldSpec((), np.dtype(np.int8), low=0)}

    @pytest.mark.parametrize(
        ("how", "says"),
        [
            ({"weights": [1]}, "2 sources, but 1 weights"),
            ({"names": ["a"]}, "2 sources, but 1 names"),
            ({"weights": [1, 0]}, "must be a positive number, got 0"),
            ({"weights": [1, float("inf")]}, "must be a positive number"),
            ({"weights": [1, float("nan")]}, "must be a positive number"),
            ({"weights": [1, 1], "stop": "last"}, "one of all, first, never"),
            ({"stop": "first"}, "needs weights"),
        ],
    )
    def test_wrong_arguments(self, how: dict[str, Any], says: str) -> None:
        with pytest.raises(ValueError, match=says):
            open_mixture([data(0, 1), data(1, 1)], **how)

    def test_nothing_to_mix(self) -> None:
        with pytest.raises(ValueError, match="at least one source"):
            open_mixture([])

    def test_a_mixture_of_mixtures_needs_one_column(self) -> None:
        inner = [open_mixture([data(0, 1), data(1, 1)]) for _ in range(2)]
        with pytest.raises(ValueError, match="source_column=False"):
            open_mixture(inner)
        plain = open_mixture([data(0, 1), data(1, 1)], source_column=False)
        outer = open_mixture([plain, data(2, 1)])
        assert [episode.extras["source_id"][0] for episode in outer] == [0, 0, 1]


class TestInto:
    def test_a_buffer_knows_where_its_items_come_from(self) -> None:
        mixture = open_mixture([data(0, 3), data(1, 2)], weights=[1, 1], source_column=False)
        buffer = rlds2buf.make_circular(mixture.spec, 100, seed=1)
        report = convert(mixture, buffer)
        assert report.items == 10
        for number, count in ((0, 3), (1, 2)):
            found = buffer.sample(64, source_id=number).data.observation
            assert set(found[:, 0].tolist()) == {number} and len(set(found[:, 1].tolist())) == count

    def test_a_folder_keeps_the_column_and_says_what_was_mixed(self, tmp_path: Path) -> None:
        convert(open_mixture(HOPPER, names=["v0", "v2"], drop="infos", weights=[1, 2]), tmp_path / "b")
        buffer = rlds2buf.load_buffer(tmp_path / "b")
        counts = Counter(buffer.all().extras["source_id"].tolist())
        plain = [sum(ep.num_transitions for ep in open_source(path)) for path in HOPPER]
        assert [counts[0], counts[1]] == plain
        text = (tmp_path / "b" / "manifest.json").read_text()
        assert '"mixture"' in text and '"weights"' in text and '"v2"' in text

    @pytest.mark.parametrize("killed_at", [1, 5, 16])
    def test_a_killed_conversion_goes_on_where_it_was(self, killed_at: int, tmp_path: Path) -> None:
        def mixture(**how: Any) -> MixtureSource:
            options: dict[str, Any] = {"weights": [1, 2], "infos": False, "max_episode_steps": 50, "min_length": 30}
            return open_mixture(HOPPER, **{**options, **how})

        class Killed(BufferFolderSink):
            def write_batch(self, batch: EpisodeBatch) -> int:
                items = 0
                for episode in batch:
                    if (episode.index or 0) >= killed_at:
                        raise KeyboardInterrupt
                    one = EpisodeBatch.of_one(episode)
                    new = super().write_batch(one)
                    items += new
                    report.accept(one, new)
                    report.read = (episode.index or 0) + 1
                    report.rejected["filter-min-length"] = report.read - report.episodes
                    self.checkpoint(report.counts())
                return items

        report = ConvertReport("", "")
        whole = convert(mixture(), tmp_path / "whole")
        with pytest.raises(KeyboardInterrupt):
            convert(mixture(), Killed(tmp_path / "b", resume=True))
        for other in ({"seed": 1}, {"weights": [1, 3]}, {"names": ["a", "b"]}):
            with pytest.raises(SnapshotError):
                convert(mixture(**other), tmp_path / "b", resume=True)
        resumed = convert(mixture(), tmp_path / "b", resume=True)
        assert resumed.counts() == whole.counts() and resumed.resumed == report.read
        one, two = (rlds2buf.load_buffer(tmp_path / name).all() for name in ("b", "whole"))
        assert np.array_equal(one.observation, two.observation)
        assert np.array_equal(one.extras["source_id"], two.extras["source_id"])

    def test_what_differs_makes_another_fingerprint(self) -> None:
        ways: list[dict[str, Any]] = [
            {},
            {"weights": [1, 2]},
            {"weights": [1, 3]},
            {"weights": [1, 2], "seed": 1},
            {"weights": [1, 2], "stop": "first"},
            {"names": ["a", "b"]},
            {"source_column": False},
            {"drop": "infos"},
            {"sample": 0.5},
            {"sample": 0.5, "seed": 1},
        ]
        with_infos = [HOPPER[1], HOPPER[1]]
        assert len({open_mixture(with_infos, **how).fingerprint() for how in ways}) == len(ways)
