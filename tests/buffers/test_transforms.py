"""What is done to sampled batches: numbers on one scale, pictures resized, cropped and shifted, what users give."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import Episode, Normalizer, RandomCrop, RandomShift, Resize, Trajectory, Transition
from rlds2buf.codecs.images.resize import resize_frames
from tests.buffers.compare import assert_same_nest
from tests.reference.crops import crop

ROWS, SIZE = 40, 12


def logged() -> Episode:
    rng = np.random.default_rng(5)
    return Episode(
        observation={
            "camera": rng.integers(0, 256, (ROWS, SIZE, SIZE + 2, 3)).astype(np.uint8),
            "first": rng.integers(0, 256, (ROWS, 3, SIZE, SIZE)).astype(np.uint8),
            "depth": rng.random((ROWS, SIZE, SIZE, 1), np.float32),
            "state": rng.standard_normal((ROWS, 4)).astype(np.float32),
            "count": np.arange(ROWS),
        },
        action=rng.standard_normal((ROWS, 3)) * 10,
        reward=rng.standard_normal(ROWS).astype(np.float32),
        discount=np.ones(ROWS, np.float32),
    )


EPISODE = logged()
STATS = rlds2buf.statistics([EPISODE])


def filled(**options: Any) -> Any:
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(EPISODE), 500, seed=3, **options)
    buffer.add(EPISODE)
    return buffer


VIEWS: list[dict[str, Any]] = [{}, {"n_step": 3}, {"sequence_length": 3, "burn_in": 2}, {"source_id": 0}]


@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_numbers_on_one_scale(view: dict[str, Any]) -> None:
    plain = filled().sample(64, **view).data
    way = {"observation/state": "mean_std", "action[:-1]": "q01_q99"}
    scaled = filled().sample(64, normalize=Normalizer(STATS, way), **view).data
    held = np.ones(plain.reward.shape, bool)
    if isinstance(plain, Trajectory):
        held = plain.mask | plain.burn_in
    for part in ("observation", "next_observation"):
        mine, theirs = getattr(scaled, part), getattr(plain, part)
        expected = rlds2buf.normalize(theirs["state"], STATS, "observation/state", "mean_std")
        assert np.array_equal(mine["state"][held], expected[held]) and not mine["state"][~held].any()
        for name in ("camera", "first", "depth", "count"):
            assert np.array_equal(mine[name], theirs[name])
    expected = rlds2buf.normalize(plain.action, STATS, "action[:-1]", "q01_q99")
    assert np.array_equal(scaled.action[held], expected[held]) and scaled.action.dtype == np.float64
    assert np.array_equal(scaled.reward, plain.reward)


def test_statistics_alone_are_for_the_numbers_of_observation_and_action() -> None:
    plain, scaled = filled().sample(16).data, filled().sample(16, normalize=STATS).data
    for name, column in scaled.observation.items():
        expected = plain.observation[name]
        if name == "state":
            expected = rlds2buf.normalize(expected, STATS, "observation/state")
        assert np.array_equal(column, expected), name
    assert np.array_equal(scaled.action, rlds2buf.normalize(plain.action, STATS))
    again = filled().sample(16, normalize=STATS.to_json()).data
    assert_same_nest(again._asdict(), scaled._asdict())


def test_the_same_by_every_way_of_drawing() -> None:
    options: dict[str, Any] = {"normalize": STATS, "transform": lambda data: data._replace(reward=data.reward + 1)}
    whole = filled().all()
    scaled = rlds2buf.normalize(whole.action, STATS)
    batches = [filled().sample(8, **options), *filled().sample_many(2, 8, **options)]
    batches += [*filled().batches(8, steps=2, **options), *filled().epoch(8, **options)]
    batches += [*filled().batches(8, steps=2, order="epochs", prefetch=0, **options)]
    batches.append(rlds2buf.sample_min_n_steps(filled(), 30, **options))
    for batch in batches:
        rows = batch.data.observation["count"]
        assert np.array_equal(batch.data.action, scaled[rows])
        assert np.array_equal(batch.data.reward, whole.reward[rows] + 1)


def test_transforms_in_turn_and_of_any_kind() -> None:
    seen = []

    def first(data: Transition) -> Any:
        seen.append(type(data))
        return {"x": data.action, "y": data.reward}

    def second(data: dict[str, Any]) -> Any:
        return data["x"].sum(1) + data["y"]

    sample = filled().sample(8, transform=[first, second])
    plain = filled().sample(8)
    assert seen == [Transition] and np.array_equal(sample.data, plain.data.action.sum(1) + plain.data.reward)
    assert np.array_equal(sample.info.key, plain.info.key)
    for wrong in (3, [first, "second"]):
        with pytest.raises(TypeError, match="transform should be a function"):
            filled().sample(8, transform=wrong)


# -- pictures -------------------------------------------------------------------------------------


def test_resized() -> None:
    for size in (6, (5, 20)):
        plain, sample = filled().sample(6).data, filled().sample(6, transform=Resize(size)).data
        for part in ("observation", "next_observation"):
            mine, theirs = getattr(sample, part), getattr(plain, part)
            assert np.array_equal(mine["camera"], resize_frames(theirs["camera"], size))
            assert np.array_equal(mine["depth"], theirs["depth"])  # no unsigned integers: it was not named
    named = filled().sample(6, transform=Resize(4, fields="observation/depth")).data
    assert named.next_observation["depth"].shape == (6, 4, 4, 1)
    first = filled().sample(6, transform=Resize(4, fields="observation/first", channels_first=True)).data.observation
    expected = resize_frames(np.moveaxis(filled().sample(6).data.observation["first"], 1, -1), 4)
    assert np.array_equal(first["first"], np.moveaxis(expected, -1, 1))


def shifts(before: np.ndarray, after: np.ndarray, pad: int) -> list[tuple[int, int]]:
    """How far each picture was moved, found by trying."""
    found = []
    for frame, moved in zip(before, after, strict=True):
        every = [(y, x) for y in range(-pad, pad + 1) for x in range(-pad, pad + 1)]
        found.append(next(place for place in every if np.array_equal(crop(frame, *place, *frame.shape[:2]), moved)))
    return found


def test_shifted() -> None:
    plain, sample = filled().sample(300).data, filled().sample(300, transform=RandomShift(2, seed=1)).data
    drawn = [
        shifts(getattr(plain, part)["camera"], getattr(sample, part)["camera"], 2)
        for part in ("observation", "next_observation")
    ]
    assert len(set(drawn[0])) == len(set(drawn[1])) == 25  # each distance there is
    assert 1 <= sum(a == b for a, b in zip(*drawn, strict=True)) < 40  # by itself: the same by chance, 1 in 25
    assert np.array_equal(plain.observation["state"], sample.observation["state"])


def test_frames_of_a_sequence_are_moved_alike() -> None:
    view: dict[str, Any] = {"sequence_length": 4}
    plain = filled().sample(20, **view).data
    sample = filled().sample(20, transform=RandomShift(2, seed=1), **view).data
    moved = [shifts(plain.observation["camera"][i], sample.observation["camera"][i], 2) for i in range(20)]
    full = plain.mask.all(1)
    assert full.sum() > 10
    assert all(len(set(one)) == 1 for one, whole in zip(moved, full, strict=True) if whole)
    assert len({one[0] for one in moved}) > 5
    later = sample.next_observation["camera"][:, :-1][full]
    assert np.array_equal(later, sample.observation["camera"][:, 1:][full])


def test_cropped() -> None:
    plain, sample = filled().sample(200).data, filled().sample(200, transform=RandomCrop((9, 10), seed=1)).data
    places = set()
    for frame, part in zip(plain.observation["camera"], sample.observation["camera"], strict=True):
        every = [(y, x) for y in range(SIZE - 9 + 1) for x in range(SIZE + 2 - 10 + 1)]
        places.add(next(place for place in every if np.array_equal(crop(frame, *place, 9, 10), part)))
    assert len(places) == 4 * 5
    first = RandomCrop(5, fields="observation/first", channels_first=True, seed=1)
    assert filled().sample(7, transform=first).data.observation["first"].shape == (7, 3, 5, 5)
    whole = filled().sample(7, transform=RandomCrop((SIZE, SIZE + 2))).data
    assert np.array_equal(whole.observation["camera"], filled().sample(7).data.observation["camera"])


@pytest.mark.parametrize("make", [RandomCrop, RandomShift])
def test_draws_are_repeated_and_gone_on_with(make: Any) -> None:
    data = filled().sample(30).data

    def pictures(change: Any, count: int) -> list[np.ndarray]:
        return [change(data).observation["camera"] for _ in range(count)]

    expected = pictures(make(5, seed=2), 4)
    assert all(map(np.array_equal, pictures(make(5, seed=2), 4), expected))
    assert not np.array_equal(pictures(make(5, seed=3), 1)[0], expected[0])
    change = make(5, seed=2)
    pictures(change, 2)
    state, copy = change.state_dict(), pickle.loads(pickle.dumps(change))
    for other in (change, copy):
        assert all(map(np.array_equal, pictures(other, 2), expected[2:]))
    other = make(5)
    other.load_state_dict(state)
    assert all(map(np.array_equal, pictures(other, 2), expected[2:]))


def test_nothing_that_was_sampled_is_changed() -> None:
    sample = filled().sample(8)
    before = sample.data.observation["camera"].copy()
    for change in (Resize(SIZE), RandomShift(0), RandomCrop((SIZE, SIZE + 2))):
        changed = change(sample.data)
        changed.observation["camera"][...] = 0
        assert np.array_equal(sample.data.observation["camera"], before)


def test_windows_too() -> None:
    view: dict[str, Any] = {"offsets": {"observation": [-2, -1, 0], "action": range(4)}}
    plain = filled().sample(30, **view).data
    normalizer = Normalizer(STATS, {"observation/state": "mean_std", "action": "min_max"})
    data = filled().sample(30, normalize=normalizer, transform=RandomShift(2, seed=1), **view).data
    expected = rlds2buf.normalize(plain.observation["state"], STATS, "observation/state", "mean_std")
    assert np.array_equal(data.observation["state"], expected)
    assert np.array_equal(data.action, rlds2buf.normalize(plain.action, STATS, "action", "min_max"))
    assert_same_nest(data.is_pad, plain.is_pad)
    for before, after in zip(plain.observation["camera"], data.observation["camera"], strict=True):
        assert len(set(shifts(before, after, 2))) == 1  # all frames of a window alike
    stacked = filled().sample(6, stack=3, transform=[Resize(8), RandomCrop(6)]).data
    assert stacked.observation["camera"].shape == stacked.next_observation["camera"].shape == (6, 3, 6, 6, 3)


# -- what does not fit ----------------------------------------------------------------------------


def test_wrong_ones() -> None:
    buffer = filled()
    for change, words in (
        (Resize(4, fields="observation/nothing"), "no field 'observation/nothing'.*observation/camera"),
        (RandomShift(fields="observation/state"), "observation/state.*a height"),
        (RandomCrop(13), r"observation/camera: pictures of \(12, 14\)"),
        (Resize(4, fields="observation/count"), "observation/count"),
    ):
        with pytest.raises(ValueError, match=words):
            buffer.sample(4, transform=change)
    plain = Transition(np.zeros((4, 3)), None, None, None, np.zeros((4, 3)))
    with pytest.raises(ValueError, match="no pictures"):
        RandomShift()(plain)
    for wrong in (0, "x", (3, 4, 5)):
        with pytest.raises(ValueError, match="size"):
            RandomCrop(wrong)
    for wrong in (-1, 1.5):
        with pytest.raises((TypeError, ValueError), match="pad"):
            RandomShift(wrong)
    for fields, words in (
        ({"action": "mean"}, "q01_q99"),
        ({"actoin": "mean_std"}, "did you mean action"),
        ({"observation/camera": "mean_std"}, "camera"),
        ({"action": "mean_std", "action[0]": "min_max"}, "named twice"),
        ({"observation[0]": "min_max"}, "several fields"),
        ({"action[9]": "min_max"}, "no dimension 9"),
    ):
        with pytest.raises(ValueError, match=words):
            buffer.batches(4, normalize=Normalizer(STATS, fields))
    other = rlds2buf.statistics([Episode(action=np.zeros((4, 2)))])
    with pytest.raises(ValueError, match="shape"):
        buffer.epoch(4, normalize=Normalizer(other, {"action": "min_max"}))
    with pytest.raises(ValueError, match="no floating-point field"):
        buffer.sample(4, normalize=rlds2buf.statistics([Episode(reward=np.zeros(4))]))
    with pytest.raises(ValueError, match="statistics"):
        buffer.sample(4, normalize=7)
