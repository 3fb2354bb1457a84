"""Numbers of pictures by channel, against numpy on all their pixels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf import FieldSpec
from rlds2buf.numbers.by_episode import KEYS
from rlds2buf.numbers.pictures import PictureNumbers, channel_axis, frame_sample, thinned
from tests.reference.numbers import of_values


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32), channels=st.integers(1, 4), levels=st.sampled_from([1, 2, 256]), cut=st.integers(0, 6)
)
def test_numbers_are_those_of_all_pixels(seed: int, channels: int, levels: int, cut: int) -> None:
    rng = np.random.default_rng(seed)
    frames = rng.integers(0, levels, (6, 9, 11, channels)).astype(np.uint8)
    found, other = PictureNumbers(), PictureNumbers()
    found.add(frames[:cut])
    other.add(frames[cut:])
    found.join(other)
    numbers = found.numbers()
    assert set(numbers) == set(KEYS) and numbers["count"].tolist() == [6] * channels
    expected = of_values(frames.reshape(-1, channels))
    for name in set(KEYS) - {"count"}:
        np.testing.assert_allclose(numbers[name], expected[name] / 255, rtol=1e-12, atol=1e-15, err_msg=name)


def test_without_frames_there_are_no_numbers() -> None:
    found = PictureNumbers()
    found.add(np.zeros((0, 4, 4, 3), np.uint8))
    assert np.isnan(found.numbers()["mean"]).all() and found.numbers()["count"].tolist() == [0, 0, 0]


def test_pictures_of_other_channels_are_refused() -> None:
    found = PictureNumbers()
    found.add(np.zeros((1, 4, 4), np.uint8))
    with pytest.raises(ValueError, match="pictures of 3 channels among others of 1"):
        found.add(np.zeros((1, 4, 4, 3), np.uint8))


@pytest.mark.parametrize(
    ("count", "size"),
    [(1, 1), (99, 99), (100, 100), (464, 100), (500, 105), (1000, 177), (20_000, 1681), (10**6, 10_000)],
)
def test_the_sample_of_frames_is_lerobot_s(count: int, size: int) -> None:
    found = frame_sample(count)
    assert len(found) == size and found[0] == 0 and found[-1] == count - 1 and (np.diff(found) >= 0).all()


@pytest.mark.parametrize(
    ("height", "width", "thin"),
    [
        (299, 200, (299, 200)),
        (300, 200, (150, 100)),
        (480, 640, (120, 160)),
        (720, 1280, (90, 160)),
        (64, 448, (32, 224)),
    ],
)
def test_large_pictures_are_thinned_as_lerobot_does(height: int, width: int, thin: tuple[int, int]) -> None:
    assert thinned(np.zeros((1, height, width, 3), np.uint8)).shape == (1, *thin, 3)


@pytest.mark.parametrize(
    ("field", "axis"),
    [
        (FieldSpec((64, 64), np.uint8), 0),
        (FieldSpec((), object, image=FieldSpec((None, None, 3), np.uint8)), -1),
        (FieldSpec((), object, image=FieldSpec((48, 48, 3), np.uint8), is_video=True), -1),
        (FieldSpec((64, 64, 3), np.float32), None),
        (FieldSpec((64, 64, 1), np.uint16), None),
        (FieldSpec((4, 4, 3), np.uint8), None),
        (FieldSpec((4, 84, 84), np.uint8), -3),
        (FieldSpec((), object), None),
    ],
)
def test_what_counts_as_a_picture(field: FieldSpec, axis: int | None) -> None:
    assert channel_axis(field) == axis
