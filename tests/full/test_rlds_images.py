"""Images: our pixels against tf.image.decode_image's, which TFDS uses."""

from __future__ import annotations

import io

import numpy as np
import pytest
import simplejpeg
from PIL import Image as PillowImage

from rlds2buf.codecs.images.decode import decode_frames, decode_image
from rlds2buf.codecs.images.pillow import pillow_frames
from rlds2buf.codecs.images.stored_image import StoredImage
from rlds2buf.codecs.images.turbo import turbo_decoder
from tests.full.quiet import tf

RNG = np.random.default_rng(3)
SHAPES = [(1, 1), (2, 2), (3, 4), (4, 3), (1, 9), (9, 1), (5, 6), (16, 16), (33, 47), (64, 64), (201, 300)]


def pictures(height: int, width: int, channels: int) -> list[np.ndarray]:
    """Noise, and something smooth, where rounding shows."""
    noise = RNG.integers(0, 256, (height, width, channels), np.uint8)
    small = PillowImage.fromarray(RNG.integers(0, 256, (3, 3, 3), np.uint8))
    smooth = np.asarray(small.resize((width, height), PillowImage.Resampling.BICUBIC))[..., :channels]
    return [noise, smooth]


def jpeg(pixels: np.ndarray, **options) -> bytes:
    file = io.BytesIO()
    PillowImage.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(file, "JPEG", **options)
    return file.getvalue()


def swap_axes_of_sampling(data: bytes, height: int, width: int) -> bytes:
    """A 4:2:2 file relabelled 4:4:0: the blocks come in the same order, in blocks half as wide and twice as high."""
    at = data.index(b"\xff\xc0")
    frame = bytearray(data[at : at + 19])
    frame[5:9] = width.to_bytes(2, "big") + height.to_bytes(2, "big")
    assert frame[11] == 0x21
    frame[11] = 0x12
    return data[:at] + bytes(frame) + data[at + 19 :]


def assert_equal(data: bytes, channels: int, dtype: type = np.uint8) -> None:
    """By whatever decodes it here, with the size known and unknown, and by Pillow alone."""
    theirs = tf.image.decode_image(data, channels=channels, dtype=dtype).numpy()
    image = StoredImage(theirs.shape, np.dtype(dtype))
    into = np.empty((1, *theirs.shape), dtype)
    decode_frames([data], image, into)
    for mine in (decode_image(data, channels, dtype), into[0], *pillow_frames([data], image)):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        assert np.array_equal(mine, theirs)


def test_simplejpeg_is_used():
    assert turbo_decoder() is not None


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0", "4:1:1"])
@pytest.mark.parametrize("quality", [30, 75, 95])
def test_colour_jpeg(quality, subsampling):
    for shape in SHAPES:
        for pixels in pictures(*shape, 3):
            for progressive in (False, True) if max(shape) < 100 else (False,):
                data = jpeg(pixels, quality=quality, subsampling=subsampling, progressive=progressive)
                assert_equal(data, 3)
                assert_equal(data, 1)


@pytest.mark.parametrize("shape", SHAPES)
def test_jpeg_with_chroma_halved_downwards(shape):
    for pixels in pictures(*shape, 3):
        assert_equal(swap_axes_of_sampling(jpeg(pixels, subsampling="4:2:2"), *shape), 3)


@pytest.mark.parametrize("channels", [1, 3])
def test_gray_jpeg(channels):
    for shape in SHAPES:
        for pixels in pictures(*shape, 1):
            assert_equal(jpeg(pixels), channels)
            if max(shape) < 100:
                assert_equal(jpeg(pixels, progressive=True), channels)


@pytest.mark.parametrize("sampling", ["411", "440"])
def test_rarer_sampling(sampling):
    for shape in SHAPES:
        for pixels in pictures(*shape, 3):
            file = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), colorsubsampling=sampling)
            assert_equal(file, 3)
            assert_equal(file, 1)


def test_restart_markers():
    for shape in SHAPES:
        for pixels in pictures(*shape, 3):
            assert_equal(jpeg(pixels, restart_marker_blocks=2), 3)


def test_jpeg_that_holds_rgb():
    pixels = pictures(16, 16, 3)[0]
    assert_equal(jpeg(pixels, keep_rgb=True), 3)


def test_jpegs_of_tensorflow():
    for pixels in pictures(50, 34, 3):
        for downsampled in (False, True):
            data = tf.io.encode_jpeg(pixels, format="rgb", chroma_downsampling=downsampled).numpy()
            assert_equal(data, 3)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_png(mode, dtype):
    source = PillowImage.fromarray(pictures(5, 7, 3)[0])
    if mode == "I;16":
        image = PillowImage.fromarray(RNG.integers(0, 2**16, (5, 7), np.uint16))
    else:
        image = source.convert(mode)
    file = io.BytesIO()
    image.save(file, "PNG")
    channels = {"1": (1, 3), "L": (1, 3, 4), "LA": (1, 3, 4), "I;16": (1, 3)}.get(mode, (3, 4))
    for wanted in channels:
        assert_equal(file.getvalue(), wanted, dtype)
