from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rlds2buf.codecs.images.resize import read_size, resize_frames
from tests.reference.resize import triangle

RNG = np.random.default_rng(2)
SIZES = st.integers(1, 24)


def noise(*shape, dtype=np.uint8):
    return RNG.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


@settings(max_examples=150, deadline=None)
@given(SIZES, SIZES, SIZES, SIZES, st.integers(1, 5))
def test_it_is_the_triangle_filter(height, width, new_height, new_width, channels):
    frame = noise(height, width, channels)
    found = resize_frames(frame, (new_height, new_width))
    assert found.dtype == np.uint8 and found.shape == (new_height, new_width, channels)
    # Pillow rounds after each of the two directions.
    assert np.abs(found - triangle(frame, (new_height, new_width))).max() <= 1.01


def test_colour_is_pillows():
    frame = noise(33, 47, 3)
    expected = np.asarray(Image.fromarray(frame).resize((20, 64), Image.Resampling.BILINEAR))
    assert np.array_equal(resize_frames(frame, (64, 20)), expected)


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_every_channel_is_treated_by_itself(channels):
    """Alpha too: where it is 0 the colours still count."""
    frame = noise(16, 16, channels)
    frame[:8, :, -1] = 0
    whole = resize_frames(frame, 7)
    for i in range(channels):
        assert np.array_equal(whole[..., i], resize_frames(frame[..., i : i + 1], 7)[..., 0])


@settings(max_examples=60, deadline=None)
@given(SIZES, SIZES, SIZES, SIZES)
def test_depth(height, width, new_height, new_width):
    size = (new_height, new_width)
    depth = RNG.normal(size=(height, width, 1)).astype(np.float32)
    found = resize_frames(depth, size)
    assert found.dtype == np.float32
    assert np.allclose(found, triangle(depth, size), atol=1e-5)
    deep = noise(height, width, 1, dtype=np.uint16)
    found = resize_frames(deep, size)
    assert found.dtype == np.uint16
    assert np.abs(found - triangle(deep, size)).max() <= 0.51


def test_columns_of_frames_and_of_rows_of_frames():
    column = noise(3, 2, 9, 8, 3)
    found = resize_frames(column, (4, 5))
    assert found.shape == (3, 2, 4, 5, 3)
    for i in range(3):
        for j in range(2):
            assert np.array_equal(found[i, j], resize_frames(column[i, j], (4, 5)))
    assert resize_frames(column[:0], (4, 5)).shape == (0, 2, 4, 5, 3)
    out = np.zeros((3, 2, 5, 4, 3), np.uint8).swapaxes(2, 3)
    assert resize_frames(column, (4, 5), out=out) is out
    assert np.array_equal(out, found)


def test_columns_of_objects():
    frames = np.empty(3, object)
    for i, shape in enumerate([(3, 4), (8, 2), (5, 5)]):
        frames[i] = noise(*shape, 3)
    found = resize_frames(frames, 5)
    assert found.shape == (3, 5, 5, 3) and found.dtype == np.uint8
    assert np.array_equal(found[1], resize_frames(frames[1], 5))
    rows = np.empty(2, object)
    rows[:] = [noise(2, 4, 4, 3), noise(1, 4, 4, 3)]
    assert [row.shape for row in resize_frames(rows, 2)] == [(2, 2, 2, 3), (1, 2, 2, 3)]


def test_of_the_same_size_they_are_a_copy():
    frames = noise(2, 4, 5, 3)
    found = resize_frames(frames, (4, 5))
    assert np.array_equal(found, frames) and not np.shares_memory(found, frames)
    out = np.zeros_like(frames)
    assert resize_frames(frames, (4, 5), out=out) is out and np.array_equal(out, frames)


def test_what_was_given_is_not_changed():
    frames = noise(2, 8, 8, 3)
    before = frames.copy()
    resize_frames(frames, 3)
    assert np.array_equal(frames, before)
    frames.flags.writeable = False
    assert resize_frames(frames[:, ::-1, ::2], 3).flags.writeable


@pytest.mark.parametrize(
    "size", [0, -1, 1.5, (1,), (1, 2, 3), "12", None, (0, 4), (1 << 17, 1), float("nan"), [2, None]]
)
def test_no_sizes(size):
    with pytest.raises(ValueError, match="a size is one whole number"):
        read_size(size)


def test_sizes():
    assert read_size(np.int64(7)) == (7, 7)
    assert read_size([3, 4.0]) == (3, 4)
    assert read_size((1, 1 << 16)) == (1, 65536)


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        (np.zeros((4, 4, 3), np.int64), "only frames"),
        (np.zeros((4, 4), np.uint8), "only frames"),
        (np.zeros((2, 0, 4, 3), np.uint8), "no pixels"),
    ],
)
def test_what_is_no_frames(frames, message):
    with pytest.raises(ValueError, match=message):
        resize_frames(frames, 2)
    with pytest.raises(ValueError, match="out is"):
        resize_frames(noise(4, 4, 3), 2, out=np.zeros((2, 3, 3), np.uint8))
