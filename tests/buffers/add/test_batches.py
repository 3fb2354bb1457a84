"""An EpisodeBatch goes into a buffer as its episodes do one after the other, in every kind of buffer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import Episode, EpisodeBatch, EpisodeError, FieldSpec, SpecMismatch
from rlds2buf.core.row_flags import PLACEHOLDER_FINAL_ROW
from tests.buffers import goals
from tests.buffers.compare import assert_same_nest
from tests.buffers.numbered import SPEC, episode, transitions

WHOLE: list[dict[str, Any]] = [
    {"storage_unit": "episodes"},
    {"storage_unit": "sequences", "item_length": 3},
    {"storage_unit": "fragments"},
]


def kinds() -> list[dict[str, Any]]:
    """Arguments of the factories, by what decides who is there and who leaves."""
    found: list[dict[str, Any]] = []
    for kind in ("circular", "prioritized"):
        for unit in ("rows", "transitions", "episodes"):
            found.append({"kind": kind, "capacity_unit": unit, "count_hits": True})
        found += [
            {"kind": kind, "capacity_unit": unit, **whole}
            for whole in WHOLE
            for unit in ("rows", "transitions", "items")
        ]
    found.append({"kind": "prioritized", "normalise": "buffer", "stratified": True, "capacity_unit": "transitions"})
    found += [{"kind": "hindsight", "capacity_unit": unit} for unit in ("rows", "episodes")]
    found.append({"kind": "hindsight", "alpha": 0.5})
    found += [{"kind": "reservoir", **whole} for whole in ({}, {"count_hits": True}, *WHOLE)]
    return found


def name_of(options: dict[str, Any]) -> str:
    return "-".join(str(value) for value in options.values())


def made(options: dict[str, Any], capacity: int, **more: Any) -> Any:
    """A buffer of these arguments."""
    options = {**options, **more}
    kind = options.pop("kind")
    if kind == "hindsight":
        return goals.make(capacity, seed=3, **options)
    return getattr(rlds2buf, f"make_{kind}")(SPEC, capacity, seed=3, **options)


def capacity_of(options: dict[str, Any], rng: np.random.Generator) -> int:
    """One that a few batches go beyond, and the longest episode does not."""
    few = options.get("capacity_unit") in ("episodes", "items") or options["kind"] == "reservoir"
    return int(rng.integers(3, 30)) if few else int(rng.integers(55, 150))


def counts_steps(options: dict[str, Any]) -> bool:
    """Whether an episode can be too long."""
    unit = options.get("capacity_unit", "rows")
    return (
        options["kind"] != "reservoir"
        and options.get("storage_unit") != "sequences"
        and unit not in ("episodes", "items")
    )


def some_episodes(options: dict[str, Any], rng: np.random.Generator, number: int, most: int = 50) -> list[Episode]:
    """Of random lengths, those of one row and of a final row that was not recorded among them."""
    make = goals.episode if options["kind"] == "hindsight" else episode
    found = []
    for _ in range(int(rng.integers(1, 12))):
        rows = int(rng.choice([1, 2, int(rng.integers(1, most + 1))]))
        one = make(number, rows, ["terminated", "truncated", "open"][int(rng.integers(3))])
        if rng.random() < 0.2:
            one.metadata[PLACEHOLDER_FINAL_ROW] = True
        found.append(one)
        number += rows
    return found


def assert_same(one: Any, other: Any, exact: bool) -> None:
    """Two buffers hold the same, and go on alike."""
    one.check_valid()
    other.check_valid()
    counts, others = one.stats(debug=True), other.stats(debug=True)
    if not exact:  # where a log of rows lies, and how long it has grown, is nobody's business
        counts.pop("bytes"), others.pop("bytes")
    np.testing.assert_equal(counts, others)
    assert one.keys().tolist() == other.keys().tolist()
    assert_same_nest(one.all()._asdict(), other.all()._asdict())
    if exact:
        states = [buffer.state_dict() for buffer in (one, other)]
        arrays = [state.pop("arrays") for state in states]
        assert states[0] == states[1]
        assert arrays[0].keys() == arrays[1].keys()
        for name, array in arrays[0].items():
            if name.startswith("next_"):  # of rows that have none of their own it says nothing
                continue
            np.testing.assert_array_equal(array, arrays[1][name], err_msg=name)
    if not len(one):
        return
    views: list[dict[str, Any]] = [{}, {"n_step": 3}]
    views += [] if one.kind.startswith("hindsight") else [{"sequence_length": 4}]
    for view in views:
        mine, theirs = one.sample(16, **view), other.sample(16, **view)
        np.testing.assert_equal(mine.info._asdict(), theirs.info._asdict())
        assert_same_nest(mine.data._asdict(), theirs.data._asdict())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("options", kinds(), ids=name_of)
def test_a_batch_is_its_episodes(options: dict[str, Any], seed: int) -> None:
    rng = np.random.default_rng(seed)
    capacity = capacity_of(options, rng)
    one, other = made(options, capacity), made(options, capacity)
    exact = options["kind"] != "reservoir"
    number = 0
    for _ in range(10):
        found = some_episodes(options, rng, number)
        number += sum(map(len, found))
        ids: Any = int(rng.integers(3)) if rng.random() < 0.5 else rng.integers(0, 3, len(found))
        key = [one.add(EpisodeBatch.of(found), source_id=ids)]
        key.append(
            np.concatenate(
                [other.add(ep, source_id=i) for ep, i in zip(found, np.broadcast_to(ids, len(found)), strict=True)]
            )
        )
        assert key[0].dtype == np.uint64 and key[0].tolist() == key[1].tolist()
        assert_same(one, other, exact)
        if options["kind"] in ("circular", "prioritized", "reservoir") and rng.random() < 0.3:
            if options.get("capacity_unit") != "episodes" and options.get("storage_unit") != "episodes":
                open_steps = transitions(number, 3)  # which go on, unless an episode of their source comes
                number += 3
                for buffer in (one, other):
                    buffer.add(open_steps, source_id=1)


@pytest.mark.parametrize("options", [o for o in kinds() if o["kind"] == "prioritized" or "alpha" in o], ids=name_of)
def test_priorities_come_with_a_batch(options: dict[str, Any]) -> None:
    """One for each item of the batch; those of what left at once count for the largest there has been."""
    rng = np.random.default_rng(4)
    capacity = capacity_of(options, rng)
    one, other = made(options, capacity), made(options, capacity)
    number = 0
    for _ in range(8):
        found = some_episodes(options, rng, number)
        number += sum(map(len, found))
        items = [len(made(options, 1000).add(ep)) for ep in found]
        priorities = rng.random(sum(items)) * 10
        edges = np.cumsum([0, *items])
        one.add(EpisodeBatch.of(found), priorities=priorities)
        for ep, start, stop in zip(found, edges[:-1], edges[1:], strict=True):
            other.add(ep, priorities=priorities[start:stop])
        one.add(found[:1])
        other.add(found[:1])
        assert_same(one, other, exact=True)


@pytest.mark.parametrize("options", kinds()[:10], ids=name_of)
def test_a_batch_in_a_folder(options: dict[str, Any], tmp_path: Path) -> None:
    """Live columns: the same rows in the same places, also after they were saved and opened again."""
    rng = np.random.default_rng(5)
    capacity = capacity_of(options, rng)
    one = made(options, capacity, directory=tmp_path / "one")
    other = made(options, capacity, directory=tmp_path / "other")
    number = 0
    for turn in range(6):
        found = some_episodes(options, rng, number)
        number += sum(map(len, found))
        one.add(EpisodeBatch.of(found))
        for ep in found:
            other.add(ep)
        assert_same(one, other, exact=True)
        if turn == 2:
            one.save()
            other.save()
            one, other = (rlds2buf.load_buffer(tmp_path / name, writable=True) for name in ("one", "other"))


@pytest.mark.parametrize("options", [o for o in kinds() if counts_steps(o)], ids=name_of)
def test_an_episode_that_does_not_fit(options: dict[str, Any]) -> None:
    """What is before it is there; it, and what is behind it, is not."""
    make = goals.episode if options["kind"] == "hindsight" else episode
    found = [make(100 * i, rows) for i, rows in enumerate((4, 1, 9, 60, 5))]
    batch = EpisodeBatch.of(found)
    batch.index = np.arange(7, 12)
    one, other = made(options, 20), made(options, 20)
    with pytest.raises(EpisodeError, match="more than the capacity of 20") as caught:
        one.add(batch)
    assert (caught.value.episode, caught.value.rule) == (10, "longer-than-capacity")
    for ep in found[:3]:
        other.add(ep)
    assert_same(one, other, exact=True)
    with pytest.raises(EpisodeError, match="more than the capacity"):
        one.check(batch)
    with pytest.raises(EpisodeError, match="more than the capacity"):
        one.add([batch, found[0]])  # of a list all is added or nothing
    assert_same(one, other, exact=True)


def test_a_value_that_is_not_allowed_is_told_by_its_episode_and_step() -> None:
    spec = rlds2buf.StepSpec(
        observation=FieldSpec((), np.float32, low=0, high=100), action=None, reward=None, discount=None
    )
    found = [Episode(observation=np.arange(n, dtype=np.float32), index=i) for i, n in enumerate((3, 4, 5))]
    found[1].observation[2] = 101
    buffer = rlds2buf.make_circular(spec, 100)
    with pytest.raises(SpecMismatch, match="101") as caught:
        buffer.add(EpisodeBatch.of(found), check_limits=True)
    assert (caught.value.episode, caught.value.step, caught.value.path) == (1, 2, "observation")
    assert len(buffer) == 2
    buffer.add(EpisodeBatch.of(found))
    assert len(buffer) == 2 + 9


def test_ids_of_a_batch_are_one_or_one_for_each_episode() -> None:
    buffer = rlds2buf.make_circular(SPEC, 100)
    batch = EpisodeBatch.of([episode(0, 3), episode(10, 4)])
    with pytest.raises(ValueError, match="one per episode"):
        buffer.add(batch, source_id=[1, 2, 3])
    buffer.add(batch, source_id=[1, 2])
    assert buffer.sample(20, source_id=2).data.observation["count"].min() >= 10
