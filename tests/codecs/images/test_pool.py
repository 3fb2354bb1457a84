from __future__ import annotations

import io
import threading
import time

import numpy as np
import pytest
from PIL import Image as PillowImage

from rlds2buf.codecs.images import pool as decode_pool
from rlds2buf.codecs.images.decode import DamagedImage
from rlds2buf.codecs.images.pool import DecodePool, PendingFrames
from rlds2buf.codecs.images.stored_image import StoredImage
from rlds2buf.errors import SourceError
from tests.codecs.images.decoded import decode_images

RNG = np.random.default_rng(9)
UINT8 = np.dtype(np.uint8)
SMALL = StoredImage((6, 8, 3), UINT8)


def file_of(height: int = 6, width: int = 8, format: str = "JPEG") -> bytes:
    file = io.BytesIO()
    PillowImage.fromarray(RNG.integers(0, 256, (height, width, 3), np.uint8)).save(file, format)
    return file.getvalue()


FILES = [file_of(format="JPEG" if i % 5 else "PNG") for i in range(40)]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(decode_pool, "_JOB_BYTES", 2000)


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("shape", [(6, 8, 3), (None, None, 3), (6, None, 3)])
def test_columns_come_whole_and_in_order(threads, shape):
    with DecodePool(threads) as pool:
        columns = [pool.submit(FILES[i:], StoredImage(shape, UINT8)) for i in range(5)]
        for i, pending in enumerate(columns):
            assert np.array_equal(pending.result(), decode_images(FILES[i:], 3))


@pytest.mark.parametrize("threads", [1, 3])
def test_columns_of_several_sizes(threads):
    files = [file_of(4, 5), file_of(6, 8), file_of(4, 5)]
    with DecodePool(threads) as pool:
        found = pool.submit(files, StoredImage((None, None, 3), UINT8)).result()
        assert [frame.shape for frame in found] == [(4, 5, 3), (6, 8, 3), (4, 5, 3)]
        resized = pool.submit(files, StoredImage((None, None, 3), UINT8, size=(3, 2))).result()
        assert resized.shape == (3, 3, 2, 3)
        assert pool.submit([], StoredImage((None, 7, 3), UINT8)).result().shape == (0, 0, 7, 3)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_the_first_damaged_one_is_told(threads):
    files = list(FILES)
    for bad in (31, 17, 30):
        files[bad] = files[bad][:50]
    with DecodePool(threads) as pool:
        for image in (SMALL, StoredImage((None, None, 3), UINT8)):
            with pytest.raises(DamagedImage) as caught:
                pool.submit(files, image).result()
            assert caught.value.frame == 17


@pytest.mark.parametrize("threads", [1, 2])
def test_an_absurd_shape_is_no_memory_error(threads):
    with DecodePool(threads) as pool:
        pending = pool.submit(FILES, StoredImage((1 << 40, 1 << 40, 3), UINT8))
        with pytest.raises(DamagedImage, match="no memory for pictures"):
            pending.result()


def test_threads_are_made_when_needed_and_end_with_the_pool():
    def alive():
        return sum(thread.name.startswith("rlds2buf-images") for thread in threading.enumerate())

    pool = DecodePool(3)
    assert not alive()
    columns = [pool.submit(FILES, SMALL) for _ in range(10)]
    assert 1 <= alive() <= 2
    pool.close()
    pool.close()
    assert not alive()
    # What was dropped when it closed is decoded by whoever asks.
    for pending in columns:
        assert np.array_equal(pending.result(), decode_images(FILES, 3))


def test_a_thread_that_takes_too_long(monkeypatch):
    """A stand-in for a decoder that hangs."""
    started, go_on = threading.Event(), threading.Event()

    def slow(files, image, out):
        started.set()
        assert go_on.wait(60)
        return []

    monkeypatch.setattr(decode_pool, "decode_frames", slow)
    monkeypatch.setattr(decode_pool, "_TIMEOUT_S", 0.05)
    with DecodePool(2) as pool:
        pending = pool.submit(FILES[:1], SMALL)
        assert started.wait(60)
        start = time.monotonic()
        with pytest.raises(SourceError, match="decoding a few pictures took more than"):
            pending.result()
        assert time.monotonic() - start < 30
        go_on.set()


def test_what_pixels_take_is_known_before():
    assert PendingFrames(FILES, SMALL).nbytes == len(FILES) * 6 * 8 * 3
    assert PendingFrames(FILES, StoredImage((60, 80, 1), np.dtype(np.float32), size=(3, 2))).nbytes == len(FILES) * 24
    assert PendingFrames(FILES, StoredImage((None, 80, 1), UINT8)).nbytes > sum(map(len, FILES))


@pytest.mark.parametrize("threads", [0, -3])
def test_no_threads(threads):
    with pytest.raises(ValueError, match="at least 1"):
        DecodePool(threads)
