"""Items of a table as the episodes that they are of."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf import Episode, SourceFormatError, convert, open_source, validate, write_checkpoint
from rlds2buf.core import nest
from rlds2buf.core.row_flags import REAL_FINAL_ACTION
from rlds2buf.formats.reverb.item_rows import sequence_of
from rlds2buf.formats.reverb.joined_items import ItemStore, JoinedItems
from rlds2buf.formats.reverb.patterns.make import PATTERNS
from rlds2buf.formats.reverb.protocol.messages import message
from tests.buffers.numbered import episode
from tests.contracts.source import MakeSource, SourceContract
from tests.reference.joined_items import runs_of

GIVEN = [episode(0, 6), episode(100, 40, end="truncated"), episode(200, 2), episode(300, 17)]


class JoinedSource(SourceContract):
    kind = ""

    @pytest.fixture
    def make_source(self, tmp_path: Path) -> MakeSource:
        write_checkpoint(GIVEN, tmp_path / "seed", pattern=self.kind)
        return lambda: open_source(tmp_path / "seed", join=True)

    @pytest.fixture
    def change(self, tmp_path: Path) -> Callable[[], Any]:
        return lambda: write_checkpoint(GIVEN[:1], tmp_path / "seed", overwrite=True)


class TestJoinedTrajectories(JoinedSource):
    kind = "trajectory"


class TestJoinedTransitions(JoinedSource):
    kind = "transition"


class TestJoinedEpisodes(JoinedSource):
    kind = "episode"


def assert_same_transitions(one: Episode, other: Episode, *, extras: bool = False) -> None:
    """All rows, of the last one only what is no padding; discounts into a terminal row are 0."""
    assert one.num_steps == other.num_steps and one.end == other.end
    for (path, column), (_, expected) in zip(
        nest.flatten(one.observation), nest.flatten(other.observation), strict=True
    ):
        np.testing.assert_array_equal(column, expected, nest.path_name(path))
        assert column.dtype == expected.dtype
    discount = np.where(np.append(other.is_terminal[1:], False), 0, other.discount)
    for name, expected in (("action", other.action), ("reward", other.reward), ("discount", discount)):
        np.testing.assert_array_equal(getattr(one, name)[:-1], expected[:-1], name)
    if extras:
        np.testing.assert_array_equal(one.extras["note"][:-1], other.extras["note"][:-1])
    assert one.is_first[0] and one.is_last[-1] and REAL_FINAL_ACTION not in one.metadata


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"sequence_length": 5, "pad": True},
        {"sequence_length": 4, "pad": True, "tile": True},
        {"sequence_length": 3, "stride": 3, "pad": True, "tile": True},
        {"sequence_length": 7, "cross_episodes": True},
        {"pattern": "episode"},
        {"pattern": "transition", "extras": ("note",)},
        {"pattern": "transition", "chunk_length": 3},
        *({"pattern": kind, "extras": ("note",)} for kind in PATTERNS if kind.startswith("acme")),
    ],
)
def test_what_was_written_comes_back(tmp_path: Path, how: dict[str, Any]) -> None:
    write_checkpoint(GIVEN, tmp_path / "seed", **how)
    back: list[Episode] = []
    report = convert(tmp_path / "seed", back)
    assert report.episodes == len(GIVEN) and report.steps == 65
    for one, other in zip(back, GIVEN, strict=True):
        assert_same_transitions(one, other, extras="extras" in how)
    assert validate(tmp_path / "seed").ok
    with open_source(tmp_path / "seed") as looked_at:  # items stay items for whoever looks at them
        assert looked_at.num_episodes == looked_at.details()["items"]
        assert looked_at.num_episodes == len(list(looked_at))


def test_trajectories_into_a_buffer_and_a_map_on_the_way(tmp_path: Path) -> None:
    write_checkpoint(GIVEN, tmp_path / "seed")
    report = convert(tmp_path / "seed", tmp_path / "buffer", map={"observation": "observation/count"})
    assert report.items == 65 - 4
    with open_source(tmp_path / "buffer") as source:
        assert [one.observation.tolist() for one in source] == [one.observation["count"].tolist() for one in GIVEN]


def test_transitions_over_several_steps_stay_two_rows(tmp_path: Path) -> None:
    write_checkpoint(GIVEN[:1], tmp_path / "seed", pattern="transition", n_step=3)
    back: list[Episode] = []
    convert(tmp_path / "seed", back)
    assert [one.observation["count"].tolist() for one in back] == [[0, 3], [1, 4], [2, 5], [3, 5], [4, 5]]
    assert [one.end for one in back] == ["truncated", "truncated", "terminated", "terminated", "terminated"]
    assert all(one.is_first.tolist() == [True, False] for one in back)


def test_join_says_what_is_read(tmp_path: Path) -> None:
    write_checkpoint(GIVEN, tmp_path / "seed", sequence_length=3)
    with open_source(tmp_path / "seed", join=True) as source:
        assert len(list(source)) == 3 and source.num_episodes is None  # one is shorter than an item
        assert source.details()["items"] == 4 + 38 + 15
    with pytest.raises(ValueError, match="does not end in is_last"):
        convert(tmp_path / "seed", [], join=False)
    with open_source(tmp_path / "seed", join=True).as_episodes() as source:
        assert [one.num_steps for one in source] == [6, 40, 17]


def joined(store: ItemStore, fields: Any = None) -> JoinedItems:
    return JoinedItems("table", "reverb", fields, lambda: store, dict)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 3), st.floats(0.05, 1))
def test_some_of_the_items_are_the_runs_that_they_hold(
    tmp_path_factory: Any, seed: int, length: int, stride: int, share: float
) -> None:
    rng = random.Random(seed)
    data = [episode(1000 * n, rng.randint(length, 30)) for n in range(rng.randint(1, 4))]
    folder = tmp_path_factory.mktemp("some") / "seed"
    how = {"sequence_length": length, "stride": stride, "chunk_length": rng.randint(1, 9)}
    write_checkpoint(data, folder, **how)
    source: Any = open_source(folder)
    whole = source.store()
    items = [item for item in whole.items if rng.random() < share] or [whole.items[0]]
    rng.shuffle(items)
    store = ItemStore(items, whole.chunks)
    found = []
    for one in joined(store, source.fields):
        leaves = [leaf for _, leaf in nest.flatten((one.observation, one.action))]
        found.append((one.metadata["episode_id"], one.metadata["first_step"], [leaf.tobytes() for leaf in leaves]))
        assert one.is_first[0] and one.is_last[-1] and one.is_last.sum() == one.is_first.sum() == 1
        number = int(one.observation["count"][0])
        is_end = number % 1000 + one.num_steps == data[number // 1000].num_steps
        assert one.is_terminal[-1] == (is_end and one.num_steps > 1)  # the row before the last tells it
        assert bool(one.metadata.get(REAL_FINAL_ACTION)) != is_end
    # Columns of a trajectory: step_type, observation (count, place), action, ...
    expected = [
        (f"{episode:016x}", step, [b"".join(row[column] for row in rows) for column in (1, 2, 3)])
        for episode, step, rows in runs_of(store)
    ]
    assert sorted(found) == sorted(expected)


def steps(**columns: Any) -> Episode:
    return sequence_of({name: np.asarray(column) for name, column in columns.items()}, {})


class TestSequences:
    def test_names_of_rlds(self) -> None:
        one = steps(
            observation=np.zeros((2, 3)), is_first=[True, False], is_last=[False, True], reward=[1.0, 0.0], x=[1, 2]
        )
        assert one.is_last.tolist() == [False, True] and "is_terminal" in one.derived
        assert one.reward.tolist() == [1, 0] and one.extras["x"].tolist() == [1, 2] and one.action is None

    def test_a_discount_of_0_at_the_end(self) -> None:
        for discount, end in (([1.0, 0.0, 0.0], True), ([1.0, 0.0, 1.0], True), ([1.0, 1.0, 1.0], False)):
            assert steps(observation=[0, 1, 2], discount=discount).is_terminal[-1] == end

    @pytest.mark.parametrize(
        ("action", "discount", "first", "lengths", "ends"),
        [
            ([3, 4, 0], [1, 0, 0], [1, 0, 0], [3], ["terminated"]),
            ([3, 4, 0], [1, 1, 0], [1, 0, 0], [3], ["truncated"]),
            ([3, 4, 0, 0, 0], [1, 0, 0, 0, 0], [1, 0, 0, 0, 0], [3], ["terminated"]),  # two steps of zeros behind it
            ([3, 4, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0], [3], ["truncated"]),
            ([3, 4, 0, 5, 6], [1, 0, 0, 1, 1], [1, 0, 0, 1, 0], [3, 2], ["terminated", "cut"]),
            ([3, 4], [1, 1], [0, 0], [2], ["cut"]),
            ([3, 4], [1, 0], [0, 0], [2], ["cut"]),  # what the last action led to is not in it
        ],
    )
    def test_acmes_steps(
        self, action: list[int], discount: list[int], first: list[int], lengths: list[int], ends: list[str]
    ) -> None:
        from rlds2buf.formats.reverb.joined_items import settled

        zero = 2 if 1 not in first[1:] else len(action)
        observation = np.where(np.arange(len(action)) > zero, 0, np.arange(1, len(action) + 1))
        raw = steps(
            observation=observation,
            action=action,
            reward=np.zeros(len(action)),
            discount=np.array(discount, np.float32),
            start_of_episode=np.array(first, bool),
        )
        found = list(settled(raw, 0))
        assert [one.num_steps for one in found] == lengths
        said = ["cut" if one.metadata.get(REAL_FINAL_ACTION) else one.end for one in found]
        assert said == ends


class TestDamage:
    def store(self, tmp_path: Path) -> Any:
        write_checkpoint(GIVEN[:1], tmp_path / "seed")
        source: Any = open_source(tmp_path / "seed")
        return source, source.store()

    def test_a_chunk_that_is_not_there(self, tmp_path: Path) -> None:
        source, store = self.store(tmp_path)
        with pytest.raises(SourceFormatError, match=r"chunk \d+ is missing"):
            list(joined(ItemStore(store.items, {}), source.fields))

    def test_a_slice_behind_the_end(self, tmp_path: Path) -> None:
        source, store = self.store(tmp_path)
        store.items[2].flat_trajectory.columns[0].chunk_slices[0].offset = 9
        with pytest.raises(SourceFormatError, match="points at rows 9 to 11 of a chunk of 6"):
            list(joined(store, source.fields))

    def test_another_number_of_columns(self, tmp_path: Path) -> None:
        source, store = self.store(tmp_path)
        del store.items[0].flat_trajectory.columns[-1]
        with pytest.raises(SourceFormatError, match="6 columns, the table's signature"):
            list(joined(store, source.fields[:-2]))

    def test_an_item_of_an_old_kind(self) -> None:
        item = message("PrioritizedItem", key=5, deprecated_chunk_keys=[1])
        with pytest.raises(SourceFormatError, match="item 5 has no columns"):
            list(joined(ItemStore([item], {})))

    def test_nothing(self) -> None:
        with pytest.raises(SourceFormatError, match="empty"):
            _ = joined(ItemStore([], {})).spec
