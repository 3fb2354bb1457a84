"""Windows around drawn steps: worked tables, the naive twin, and every kind of buffer."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rlds2buf
from rlds2buf import Episode, NotEnoughItems, Trajectory, Transition, Windows
from rlds2buf.core import nest
from tests.buffers import pictures
from tests.buffers.compare import assert_same_nest
from tests.buffers.numbered import SPEC, episode, transition, transitions
from tests.buffers.rows.both import Both, operations, perform
from tests.reference.replay import ListReplay
from tests.reference.windows import Place, last_of, return_to_go, run_of, window_of

ROBOT = {"observation": [-1, 0], "action": range(4)}


def steps(count: int, **extras: Any) -> Episode:
    """An episode of `count` transitions: observations 0, 1, ..., actions ten times and rewards a hundred times that."""
    number = np.arange(count + 1)
    return Episode(
        observation=number,
        action=number * 10,
        reward=number * 100.0,
        discount=np.ones(count + 1, np.float32),
        is_terminal=number == count,
        extras=extras,
    )


def filled(*lengths: int, **options: Any) -> tuple[Any, list[np.ndarray]]:
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(steps(3)), 1000, seed=0, **options)
    return buffer, [buffer.add(steps(length)) for length in lengths]


# -- worked tables ------------------------------------------------------------------------------------


def test_history_and_chunks_of_actions() -> None:
    """As ACT, Diffusion Policy and LeRobot see an episode: clamped to it, and told where."""
    buffer, (first, second) = filled(3, 5)
    data = buffer.get([first[0], first[2], second[1], second[4]], offsets=ROBOT)
    assert isinstance(data, Windows)
    assert data.observation.tolist() == [[0, 0], [1, 2], [0, 1], [3, 4]]
    assert data.is_pad["observation"].tolist() == [[True, False], [False, False], [False, False], [False, False]]
    assert data.action.tolist() == [[0, 10, 20, 20], [20, 20, 20, 20], [10, 20, 30, 40], [40, 40, 40, 40]]
    assert data.is_pad["action"].tolist() == [
        [False, False, False, True],
        [False, True, True, True],
        [False, False, False, False],
        [False, True, True, True],
    ]
    # What is not named is as a transition has it, but for next observations, which nobody asked for.
    plain = buffer.get([first[0], first[2], second[1], second[4]])
    for name in ("reward", "discount", "is_done", "steps", "bootstrap_discount"):
        np.testing.assert_array_equal(getattr(data, name), getattr(plain, name))
    assert data.next_observation is data.return_to_go is data.time_step is None
    assert data.terminated.tolist() == [False, True, False, True] and not data.truncated.any()


def test_observations_reach_the_last_one() -> None:
    buffer, (keys,) = filled(3)
    data = buffer.get(keys, offsets={"observation": [1, 3], "next_observation": [-2, 0, 1]})
    assert data.observation.tolist() == [[1, 3], [2, 3], [3, 3]]
    assert data.is_pad["observation"].tolist() == [[False, False], [False, True], [False, True]]
    assert data.next_observation.tolist() == [[0, 1, 2], [0, 2, 3], [1, 3, 3]]
    assert data.is_pad["next_observation"].tolist() == [[True, False, False], [False] * 3, [False, False, True]]


def test_a_final_row_that_was_not_recorded_is_no_observation() -> None:
    ep = steps(3).replace(metadata={"placeholder_final_row": True})
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(ep), 100)
    keys = buffer.add(ep)
    data = buffer.get(keys[2:], offsets={"observation": [0, 1], "next_observation": [0]})
    assert data.observation.tolist() == [[2, 2]] and data.is_pad["observation"].tolist() == [[False, True]]
    assert data.next_observation.tolist() == [[2]] and data.is_pad["next_observation"].tolist() == [[True]]


def test_stacked_frames() -> None:
    buffer, (keys,) = filled(4)
    data = buffer.get(keys, stack=3)
    assert data.observation.tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3]]
    assert data.next_observation.tolist() == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]
    assert data.is_pad["observation"].sum(1).tolist() == [2, 1, 0, 0]
    zero = buffer.get(keys, stack=3, pad="zero", offsets={"action": [-1]})
    assert zero.observation.tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3]]
    assert zero.action.tolist() == [[0], [0], [10], [20]] and zero.is_pad["action"].tolist() == [[True]] + [[False]] * 3
    # Of n steps, the stack that they lead to.
    data = buffer.get(keys, stack=3, n_step=2, gamma=0.5)
    plain = buffer.get(keys, n_step=2, gamma=0.5)
    assert data.next_observation[:, -1].tolist() == plain.next_observation.tolist() == [2, 3, 4, 4]
    assert data.next_observation.tolist()[0] == [0, 1, 2]
    for name in ("reward", "discount", "is_done", "steps", "bootstrap_discount"):
        np.testing.assert_array_equal(getattr(data, name), getattr(plain, name))


def test_what_a_decision_transformer_takes() -> None:
    buffer, (keys, _) = filled(3, 7)
    data = buffer.get(keys, context=2)
    assert data.observation.tolist() == [[0, 0], [0, 1], [1, 2]]
    assert data.action.tolist() == [[0, 0], [0, 10], [10, 20]]
    assert data.reward.tolist() == [[0, 0], [0, 100], [100, 200]]
    assert data.return_to_go.tolist() == [[300, 300], [300, 300], [300, 200]]
    assert data.time_step.tolist() == [[0, 0], [0, 1], [1, 2]]
    assert all(pad.tolist() == [[True, False], [False, False], [False, False]] for pad in data.is_pad.values())
    padded = buffer.get(keys[:1], context=3, pad="zero")
    assert padded.return_to_go.tolist() == [[0, 0, 300]] and padded.time_step.tolist() == [[0, 0, 0]]
    assert data.time_step.dtype == np.int64 and data.return_to_go.dtype == np.float64
    # The order in which offsets are given is the order of the positions.
    data = buffer.get(keys[1:2], offsets={"time_step": [1, -1, 0, 5], "return_to_go": [0, 1, -1], "is_done": [1, 0]})
    assert data.time_step.tolist() == [[2, 0, 1, 2]] and data.return_to_go.tolist() == [[300, 200, 300]]
    assert data.is_done.tolist() == [[1, 0]]


def test_seconds() -> None:
    buffer, (keys,) = filled(5)
    seconds = {"observation": [-0.2, -0.1, 0], "action": [np.float32(0.1)]}
    data = buffer.get(keys[3:4], offsets=seconds, fps=10)
    assert data.observation.tolist() == [[1, 2, 3]] and data.action.tolist() == [[40]]
    with pytest.raises(
        ValueError, match=r"'observation': -0.25 seconds are -2.5 steps at fps=10; give multiples of 1/10"
    ):
        buffer.get(keys, offsets={"observation": [-0.25]}, fps=10)
    with pytest.raises(ValueError, match=r"'action': 1.0 is no number of steps; for seconds give fps too"):
        buffer.get(keys, offsets={"action": [1.0]})
    assert buffer.get(keys, offsets={"action": [1]}).action.shape == (5, 1)  # what one call said, another one may not


def test_each_field_has_its_own() -> None:
    buffer = rlds2buf.make_circular(SPEC, 50)
    keys = buffer.add(episode(0, 5))
    data = buffer.get(
        keys[2:3],
        offsets={
            "observation": [-2, 0],
            "observation/place": [0],
            "extras/note": [-1],
            "reward": [1],
            "discount": [0, 1, 2],
            "next_observation/count": [0, 1],
        },
    )
    assert data.observation["count"].tolist() == [[0, 2]] and data.observation["place"].tolist() == [[[2, -2]]]
    assert data.extras["note"].tolist() == [[1]] and data.reward.tolist() == [[1.5]]
    assert data.discount.tolist() == [[np.float32(0.9), 0.0, 0.0]] and data.bootstrap_discount.tolist() == [
        np.float32(0.9)
    ]
    assert data.next_observation["count"].tolist() == [[3, 4]] and data.next_observation["place"].tolist() == [[3, -3]]
    assert list(data.is_pad) == [
        "observation", "observation/place", "extras/note", "reward", "discount", "next_observation/count",
    ]  # fmt: skip
    assert data.action.tolist() == [20]


# -- against the twin ---------------------------------------------------------------------------------

OFFSETS = st.lists(st.integers(-6, 6), min_size=1, max_size=4)


def check(
    buffer: Any, twin: ListReplay, named: dict[int, int], unrecorded: set[int], offsets: list[list[int]], n_step: int
) -> None:
    """Each window is what the twin finds; both paddings."""
    keys = buffer.keys()
    if not len(keys):
        return
    names = ("observation", "next_observation", "action", "reward", "discount", "is_done", "return_to_go", "time_step")
    given = dict(zip(names, offsets, strict=True))
    try:
        data = buffer.get(keys, offsets=given, n_step=n_step)
    except NotEnoughItems:
        assert max(len(run_of(twin, serial)) for serial in twin.keys()) < needed(given)
        return
    zero = buffer.get(keys, offsets=given, n_step=n_step, pad="zero")
    for i, key in enumerate(keys.tolist()):
        serial = named[key]
        run = run_of(twin, serial)
        for name, steps in given.items():
            anchor, shift = serial, 0
            if name == "next_observation":
                anchor, shift = last_of(twin, serial, n_step), 1
            ahead = "observation" in name
            places = window_of(run, anchor, [step + shift for step in steps], ahead, unrecorded, shift == 1)
            pad = [place.is_pad for place in places]
            assert data.is_pad[name][i].tolist() == zero.is_pad[name][i].tolist() == pad
            for k, expected in enumerate(values_of(twin, run, places, name)):
                mine, blank = (nest.map_structure(lambda c, i=i, k=k: c[i, k], getattr(d, name)) for d in (data, zero))
                for (_, got), (_, value) in zip(nest.flatten(mine), nest.flatten(expected), strict=True):
                    np.testing.assert_allclose(got, value, rtol=1e-6)
                assert_same_nest(blank, nest.map_structure(np.zeros_like, mine) if pad[k] else mine)


def needed(given: dict[str, list[int]]) -> int:
    """How many steps an episode has to have so that each offset is somewhere in it."""
    needs = []
    for name, steps in given.items():
        shift = 1 if name == "next_observation" else 0
        needs += [1 - min(steps) - shift, max(steps) + shift + (0 if "observation" in name else 1)]
    return max(needs)


def values_of(twin: ListReplay, run: list[int], places: list[Place], name: str) -> list[Any]:
    """What should stand in some places."""
    if name == "return_to_go":
        return [return_to_go(twin, run, place.serial) for place in places]
    if name == "time_step":
        return [run.index(place.serial) for place in places]
    stored = [twin.transition(place.serial) for place in places]
    name = name.removeprefix("next_")
    return [step[f"next_{name}" if place.ahead else name] for step, place in zip(stored, places, strict=True)]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(10, 60), operations(), st.lists(OFFSETS, min_size=8, max_size=8), st.integers(1, 3))
def test_random_operations(capacity: int, performed: list[Any], offsets: list[list[int]], n_step: int) -> None:
    both = Both(capacity)
    for operation in performed:
        if operation[0] == "check":
            check(both.buffer, both.twin, both.serial, both.unrecorded, offsets, n_step)
        else:
            perform(both, operation)
    check(both.buffer, both.twin, both.serial, both.unrecorded, offsets, n_step)


@pytest.mark.parametrize("seed", range(4))
def test_blocks_of_interleaved_sources(seed: int) -> None:
    rng = np.random.default_rng(seed)
    capacity = int(rng.integers(5, 40))
    buffer, twin = rlds2buf.make_circular(SPEC, capacity), ListReplay(capacity)
    named: dict[int, int] = {}
    for turn in range(25):
        count = int(rng.integers(1, 9))
        sources = rng.integers(0, 3, count)
        items = [transition(100 * turn + i, is_done=int(rng.choice([0, 0, 0, 1, 2]))) for i in range(count)]
        stacked = nest.map_structure(lambda *leaves: np.stack(leaves), *items)
        keys = buffer.add(stacked, source_id=sources)
        named.update(zip(keys.tolist(), twin.add_transitions(items, sources.tolist()), strict=True))
        if turn % 4 == 0:
            offsets = [rng.integers(-4, 5, int(rng.integers(1, 4))).tolist() for _ in range(8)]
            check(buffer, twin, named, set(), offsets, int(rng.integers(1, 4)))


# -- every kind of buffer -----------------------------------------------------------------------------

MAKERS: dict[str, Any] = {
    "circular": lambda **more: rlds2buf.make_circular(SPEC, 90, **more),
    "prioritized": lambda **more: rlds2buf.make_prioritized(SPEC, 90, **more),
    "reservoir": lambda **more: rlds2buf.make_reservoir(SPEC, 80, **more),
    "reservoir of episodes": lambda **more: rlds2buf.make_reservoir(SPEC, 6, storage_unit="episodes", **more),
    "sequences": lambda **more: rlds2buf.make_prioritized(SPEC, 90, storage_unit="sequences", item_length=6, **more),
    "episodes": lambda **more: rlds2buf.make_circular(SPEC, 90, storage_unit="episodes", **more),
    "transitions": lambda **more: rlds2buf.make_circular(SPEC, 70, capacity_unit="transitions", **more),
}
WANTED = {"observation": [-2, 0, 1], "action": [-1, 0, 2], "next_observation": [-1, 0], "extras/note": [1]}


VIEW = {"offsets": WANTED}


def add(buffer: Any, count: int = 12) -> None:
    """Episodes that are numbered through; those after the first ones push them out."""
    for i in range(count):
        buffer.add(episode(100 * i, 4 + i, ("terminated", "truncated", "open")[i % 3]))


def assert_windows(data: Windows) -> None:
    """Each value is that of the row that its offset says, or of the nearest one of the same episode."""
    here = data.observation["count"][:, 1]
    for name, anchor in (
        ("observation", here),
        ("action", here),
        ("next_observation", here + 1),
        ("extras/note", here),
    ):
        if name == "action":
            found = data.action // 10
        elif name == "extras/note":
            found = data.extras["note"].astype(np.int64)
            found += (anchor[:, None] - found + 125) // 251 * 251  # it counts modulo 251
        else:
            found = getattr(data, name)["count"]
            np.testing.assert_array_equal(getattr(data, name)["place"][..., 0], found)
        wanted = anchor[:, None] + np.array(WANTED[name])
        pad = data.is_pad[name]
        assert np.array_equal(found == wanted, ~pad)
        assert (found // 100 == anchor[:, None] // 100).all()
        nearer = np.where(wanted > found, found - anchor[:, None] + 1, anchor[:, None] - found + 1)
        assert (nearer[pad] >= 0).all()


def fresh(kind: str, **options: Any) -> Any:
    buffer = MAKERS[kind](seed=3, **options)
    add(buffer)
    return buffer


@pytest.mark.parametrize("kind", MAKERS)
def test_every_kind(kind: str, tmp_path: Path) -> None:
    buffer = fresh(kind)
    assert_windows(buffer.get(buffer.keys(), offsets=WANTED))
    expected = [buffer.sample(16, offsets=WANTED) for _ in range(3)]
    for sample in expected:
        assert_windows(sample.data)
    # Several at once, by the view that it was made with, and once it was saved: always the same.
    for mine, theirs in zip(fresh(kind).sample_many(3, 16, offsets=WANTED), expected, strict=True):
        assert_same_nest(mine.data, theirs.data)
    viewed = fresh(kind, view={"offsets": {name: tuple(steps) for name, steps in WANTED.items()}})
    viewed.save(tmp_path / "buffer")
    for one in (viewed, rlds2buf.load_buffer(tmp_path / "buffer"), copy.deepcopy(fresh(kind, view=VIEW))):
        assert_same_nest(one.sample(16).data, expected[0].data)
    assert isinstance(viewed.sample(4, offsets={}, n_step=2).data, Transition)
    assert isinstance(viewed.sample(4, sequence_length=2).data, Trajectory)
    with fresh(kind).batches(16, steps=2, offsets=WANTED) as batches:
        for batch in batches:
            assert_windows(batch.data)


@pytest.mark.parametrize("durability", ["save", "none"])
def test_in_a_folder(durability: str, tmp_path: Path) -> None:
    buffer = rlds2buf.make_circular(SPEC, 90, seed=3, directory=tmp_path / "buffer", durability=durability)
    for _ in range(2):
        add(buffer)
        assert_windows(buffer.sample(60, offsets=WANTED).data)
    buffer.save()
    assert_windows(rlds2buf.load_buffer(tmp_path / "buffer").sample(60, offsets=WANTED).data)


def test_after_the_rows_have_moved() -> None:
    """Plans of where columns lie are made anew: of other slots, and of columns that came later."""
    buffer = rlds2buf.make_circular(SPEC, 90, seed=0)
    for capacity in (90, 40, 200):
        buffer.resize(capacity)
        add(buffer)
        assert_windows(buffer.sample(32, offsets=WANTED).data)
    keys = buffer.add(transitions(5000, 3, is_done=[0, 0, 1]))
    data = buffer.get(keys, offsets={"observation": [1], "next_observation": [0], "action": [-1, 1]})
    assert data.observation["count"].tolist() == [[5001], [5002], [505002]]
    assert data.next_observation["count"].tolist() == [[505000], [505001], [505002]]
    assert data.action.tolist() == [[50000, 50010], [50000, 50020], [50010, 50020]]
    assert_windows(buffer.get(buffer.keys()[:-3], offsets=WANTED))


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("where", ["memory", "folder", "saved"])
def test_pictures_kept_as_files(kind: str, where: str, tmp_path: Path) -> None:
    folder = tmp_path / "buffer"
    buffer = rlds2buf.make_circular(pictures.SPEC, 40, seed=0, directory=folder if where == "folder" else None)
    for start in (0, 100, 200):
        ep = pictures.episode(start, 7)
        files = pictures.column([pictures.file(start + i, kind=kind) for i in range(7)])
        buffer.add(ep.replace(observation={**ep.observation, "image": files}))
    if where == "saved":
        buffer.save(folder)
        buffer = rlds2buf.load_buffer(folder)
    given = {"observation": [-1, 0, 1], "action": range(2), "next_observation/image": [0, -1]}
    data = buffer.sample(30, offsets=given).data
    number = data.observation["state"][..., 0].astype(int)
    assert data.observation["image"].shape == (30, 3, 8, 6, 3) and data.observation["image"].dtype == np.uint8
    for i, k in np.ndindex(30, 3):
        file = pictures.file(int(number[i, k]), kind=kind)
        np.testing.assert_array_equal(data.observation["image"][i, k], pictures.pixels(file))
    np.testing.assert_array_equal(data.next_observation["image"][:, 1], data.observation["image"][:, 1])
    np.testing.assert_array_equal(data.next_observation["image"][:, 0], data.observation["image"][:, 2])
    assert data.next_observation["state"].shape == (30, 2)
    zero = buffer.get(buffer.keys(), offsets=given, pad="zero")
    pad = zero.is_pad["observation"]
    assert pad.any() and not zero.observation["image"][pad].any() and zero.observation["image"][~pad].any()
    files = buffer.get(buffer.keys(), offsets=given, decode=False, pad="zero").observation["image"]
    assert files.shape == pad.shape and all(
        (file == b"") == gone for file, gone in zip(files.flat, pad.flat, strict=True)
    )


def test_strings_and_arrays_of_varying_shape() -> None:
    def words(start: int) -> Episode:
        points = np.empty(5, object)
        for i in range(5):
            points[i] = np.full((i + 1, 2), start + i, np.float32)
        text = np.array([f"go {start + i}".encode() for i in range(5)], object)
        return Episode(observation=points, action=np.arange(5), reward=np.zeros(5), extras={"text": text})

    field = rlds2buf.FieldSpec((None, 2), np.float32)
    text = rlds2buf.FieldSpec((), object)
    spec = rlds2buf.StepSpec(
        observation=field,
        action=rlds2buf.FieldSpec((), np.int64),
        reward=rlds2buf.FieldSpec((), np.float64),
        discount=None,
        extras={"text": text},
    )
    buffer = rlds2buf.make_circular(spec, 50)
    keys = np.concatenate([buffer.add(words(0)), buffer.add(words(10))])
    data = (
        buffer.get(keys, offsets={"observation": [-1, 0], "extras/text": [0, 1], "discount": [0]} | {})
        if spec.discount is not None
        else buffer.get(keys, offsets={"observation": [-1, 0], "extras/text": [0, 1]})
    )
    assert data.extras["text"][5].tolist() == [b"go 11", b"go 12"]
    assert [each.shape for each in data.observation[5]] == [(1, 2), (2, 2)]
    assert data.observation[4][0].tolist() == data.observation[4][1].tolist() == [[10.0, 10.0]]
    assert data.discount.tolist() == [1.0] * 8
