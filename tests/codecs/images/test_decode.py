from __future__ import annotations

import io
import zlib

import numpy as np
import pytest
from PIL import Image

from rlds2buf.codecs.images.decode import decode_image
from rlds2buf.codecs.tfrecord.example import parse_example
from rlds2buf.codecs.tfrecord.frames import read_records
from rlds2buf.errors import SourceFormatError
from tests.codecs.images.decoded import decode_images
from tests.data import DATA

RNG = np.random.default_rng(7)


def encode(pixels, format="PNG", **options) -> bytes:
    file = io.BytesIO()
    image = Image.fromarray(pixels[..., 0] if pixels.ndim == 3 and pixels.shape[-1] == 1 else pixels)
    image.save(file, format, **options)
    return file.getvalue()


def noise(*shape, dtype=np.uint8):
    return RNG.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_png_is_lossless(channels):
    pixels = noise(5, 7, channels)
    decoded = decode_image(encode(pixels), channels)
    assert decoded.dtype == np.uint8
    assert np.array_equal(decoded, pixels)


def test_deep_png():
    pixels = noise(5, 7, 1, dtype=np.uint16)
    assert np.array_equal(decode_image(encode(pixels), 1, np.uint16), pixels)
    assert np.array_equal(decode_image(encode(pixels), 1, np.uint8), pixels >> 8)


def test_shallow_png_as_uint16():
    pixels = noise(5, 7, 3)
    assert np.array_equal(decode_image(encode(pixels), 3, np.uint16), pixels.astype(np.uint16) * 257)


def test_float_image_is_the_bytes_of_an_rgba_png():
    depth = RNG.normal(size=(5, 7, 1)).astype(np.float32)
    decoded = decode_image(encode(depth.view(np.uint8)), 1, np.float32)
    assert decoded.dtype == np.float32
    assert np.array_equal(decoded, depth)


def test_gray_becomes_rgb_and_alpha_is_dropped():
    gray, rgba = noise(4, 4, 1), noise(4, 4, 4)
    assert np.array_equal(decode_image(encode(gray), 3), np.repeat(gray, 3, -1))
    assert np.array_equal(decode_image(encode(rgba), 3), rgba[..., :3])


def test_frames_of_one_size_are_stacked_others_are_objects():
    frames = [noise(4, 5, 3), noise(4, 5, 3)]
    assert decode_images([encode(frame) for frame in frames], 3).shape == (2, 4, 5, 3)
    mixed = decode_images([encode(frames[0]), encode(noise(2, 2, 3))], 3)
    assert mixed.dtype == object and [frame.shape for frame in mixed] == [(4, 5, 3), (2, 2, 3)]
    # Same height, other width: numpy would rather make one array of these.
    mixed = decode_images([encode(frames[0]), encode(noise(4, 6, 3))], 3)
    assert mixed.dtype == object and mixed.shape == (2,)


@pytest.mark.parametrize("subsampling", [0, 1, 2, "4:1:1"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (16, 16), (33, 18)])
def test_jpeg_is_near_what_pillow_makes_of_it(shape, subsampling):
    smooth = np.asarray(Image.fromarray(noise(4, 4, 3)).resize(shape[::-1], Image.Resampling.BILINEAR))
    data = encode(smooth, "JPEG", quality=90, subsampling=subsampling)
    pillow = np.asarray(Image.open(io.BytesIO(data)))
    assert np.abs(decode_image(data, 3).astype(int) - pillow).max() <= 12


def test_jpeg_of_several_layouts_in_one_column():
    files = [encode(noise(8, 8, 3), "JPEG", subsampling=s) for s in (2, 2, 0, 1, 2)]
    together = decode_images(files, 3)
    assert all(np.array_equal(one, decode_image(file, 3)) for one, file in zip(together, files, strict=True))


def test_bridge_frames_are_tensorflows():
    # The checksum is of tf.image.decode_image's pixels (TensorFlow 2.15), in this order.
    pixels = []
    for record in read_records(DATA / "rlds/bridge_dataset/1.0.0/bridge_dataset-train.tfrecord-00000-of-00001"):
        features = parse_example(record)
        for i in range(4):
            pixels.append(decode_images(features[f"steps/observation/image_{i}"].strings(), 3))
    assert np.concatenate(pixels).shape == (1000, 64, 64, 3)
    assert zlib.crc32(np.concatenate(pixels).tobytes()) == 1826609324


@pytest.mark.parametrize(
    ("data", "channels", "dtype", "message"),
    [
        (b"", 3, np.uint8, "not a JPEG or PNG"),
        (b"GIF89a" + bytes(20), 3, np.uint8, "not a JPEG or PNG"),
        (encode(noise(64, 64, 3))[:2000], 3, np.uint8, "damaged"),
        (encode(noise(64, 64, 3), "JPEG")[:2000], 3, np.uint8, "damaged"),
        (encode(noise(64, 64, 1), "JPEG")[:2000], 1, np.uint8, "damaged"),
        (encode(noise(4, 4, 3)), 1, np.uint8, "PNG image in RGB can't be had as 1"),
        (encode(noise(4, 4, 1, dtype=np.uint16)), 4, np.uint8, "16-bit gray PNG"),
        (encode(noise(4, 4, 3), "JPEG"), 4, np.uint8, "JPEG image in RGB can't be had as 4"),
        (encode(noise(4, 4, 3), "JPEG"), 3, np.uint16, "JPEG image can't hold uint16"),
        (encode(noise(4, 4, 3)), 5, np.uint8, "5 channels"),
    ],
)
def test_bad_images(data, channels, dtype, message):
    with pytest.raises(SourceFormatError, match=message):
        decode_image(data, channels, dtype)


def test_cmyk_jpeg_is_refused():
    file = io.BytesIO()
    Image.new("CMYK", (4, 4)).save(file, "JPEG")
    with pytest.raises(SourceFormatError, match="JPEG image in CMYK"):
        decode_image(file.getvalue(), 3)


def test_an_image_of_absurd_size_is_refused():
    data = bytearray(encode(noise(4, 4, 3)))
    header = b"IHDR" + (2**20).to_bytes(4, "big") * 2 + bytes(data[24:29])
    data[12:29] = header
    data[29:33] = zlib.crc32(header).to_bytes(4, "big")
    with pytest.raises(SourceFormatError, match="sane size"):
        decode_image(bytes(data), 3)
