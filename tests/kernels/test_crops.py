"""Parts of pictures, as the naive twin cuts them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlds2buf.kernels.crops import crop_frames, crop_frames_numpy
from tests.reference.crops import crop

SIZES = st.integers(1, 9)


@given(st.data())
def test_as_its_naive_twin(data: st.DataObject) -> None:
    count, pixel = data.draw(st.integers(0, 4)), data.draw(st.integers(1, 13))
    height, width, rows, columns = (data.draw(SIZES) for _ in range(4))
    frames = np.random.default_rng(0).integers(0, 256, (count, height, width, pixel)).astype(np.uint8)
    places = st.lists(st.integers(-12, 12), min_size=count, max_size=count)
    tops, lefts = (np.array(data.draw(places), np.int64) for _ in range(2))
    expected = [crop(frames[i], int(tops[i]), int(lefts[i]), rows, columns) for i in range(count)]
    for kernel in (crop_frames, crop_frames_numpy):
        out = np.zeros((count, rows, columns * pixel), np.uint8)
        kernel(frames.reshape(count, height, width * pixel), pixel, tops, lefts, out)
        for mine, theirs in zip(out, expected, strict=True):
            assert np.array_equal(mine.reshape(rows, columns, pixel), theirs)
