"""Both JPEG decoders make the same pixels, or one leaves the file to the other."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as PillowImage

from rlds2buf.codecs.images import turbo as turbo_images
from rlds2buf.codecs.images.decode import DamagedImage, decode_frames, decode_image
from rlds2buf.codecs.images.pillow import pillow_frames
from rlds2buf.codecs.images.stored_image import StoredImage
from rlds2buf.codecs.images.turbo import TurboDecoder, turbo_decoder
from rlds2buf.errors import SourceFormatError

RNG = np.random.default_rng(5)
SHAPES = [(1, 1), (2, 3), (3, 2), (1, 9), (9, 1), (5, 6), (16, 16), (17, 31), (33, 47), (64, 64)]
UINT8 = np.dtype(np.uint8)


@pytest.fixture(scope="module")
def turbo() -> TurboDecoder:
    decoder = turbo_decoder()
    assert decoder is not None, "simplejpeg is in the test environment, and its pixels are Pillow's"
    return decoder


def noise(height: int, width: int, channels: int = 3) -> np.ndarray:
    return RNG.integers(0, 256, (height, width, channels), np.uint8)


def smooth(height: int, width: int) -> np.ndarray:
    return np.asarray(PillowImage.fromarray(noise(3, 3)).resize((width, height), PillowImage.Resampling.BICUBIC))


def jpeg(pixels: np.ndarray, **options) -> bytes:
    file = io.BytesIO()
    PillowImage.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(file, "JPEG", **options)
    return file.getvalue()


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    PillowImage.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def of_shape(height: int | None, width: int | None, channels: int = 3) -> StoredImage:
    return StoredImage((height, width, channels), UINT8)


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("sampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_same_pixels_in_colour(turbo, sampling, progressive):
    for shape in SHAPES:
        for pixels in (noise(*shape), smooth(*shape)):
            file = jpeg(pixels, subsampling=sampling, progressive=progressive, quality=70)
            for channels in (1, 3):
                image = of_shape(*shape, channels)
                (found,) = turbo.frames([file], image)
                assert np.array_equal(found, pillow_frames([file], image)[0])


def test_same_pixels_in_gray_and_of_rgb(turbo):
    for shape in SHAPES:
        gray, rgb = jpeg(noise(*shape, 1)), jpeg(noise(*shape), keep_rgb=True)
        for file, channels in ((gray, 1), (gray, 3), (rgb, 3)):
            image = of_shape(*shape, channels)
            (found,) = turbo.frames([file], image)
            assert np.array_equal(found, pillow_frames([file], image)[0])


def cmyk() -> bytes:
    file = io.BytesIO()
    PillowImage.new("CMYK", (4, 4)).save(file, "JPEG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("file", "channels"),
    [
        (png(noise(4, 4)), 3),
        (b"", 3),
        (b"\xff\xd8", 3),
        (jpeg(noise(4, 4))[:-30], 3),
        (jpeg(noise(4, 5)), 3),
        (jpeg(noise(4, 4)), 4),
        (jpeg(noise(4, 4), keep_rgb=True), 1),
        (cmyk(), 3),
    ],
)
def test_what_it_leaves_to_pillow(turbo, file, channels):
    assert turbo.frames([file], of_shape(4, 4, channels)) == [None]


def test_equal_files_in_a_row_are_decoded_once(turbo):
    one, two = jpeg(noise(8, 8)), jpeg(noise(8, 8))
    files = [one, one, two, b"no picture", b"no picture", two, one]
    out = np.zeros((len(files), 8, 8, 3), np.uint8)
    for target in (None, out):
        frames = turbo.frames(files, of_shape(8, 8), target)
        assert [frame is None for frame in frames] == [False, False, False, True, True, False, False]
        for file, frame in zip(files, frames, strict=True):
            assert frame is None or np.array_equal(frame, decode_image(file, 3))
        assert not np.shares_memory(frames[0], frames[1])
    assert np.array_equal(out[1], decode_image(one, 3)) and not out[3].any()


def test_another_build_with_other_pixels_is_left_alone(monkeypatch):
    """A stand-in for a build that rounds differently; the real one is asked for plain upsampling."""
    import simplejpeg

    def coarse(data, colorspace, fastdct, buffer):
        return decode(data, colorspace, fastdct=fastdct, fastupsample=True, buffer=buffer)

    decode = simplejpeg.decode_jpeg
    monkeypatch.setattr(simplejpeg, "decode_jpeg", coarse)
    assert turbo_decoder.__wrapped__() is None
    monkeypatch.setattr(simplejpeg, "decode_jpeg", decode)
    assert turbo_decoder.__wrapped__() is not None


def test_frames_of_mixed_kinds_in_their_order():
    pixels = [noise(6, 7) for _ in range(6)]
    files = [
        png(pixels[0]),
        jpeg(pixels[1]),
        png(pixels[2]),
        jpeg(pixels[3], subsampling=0),
        jpeg(pixels[3]),
        png(pixels[5]),
    ]
    out = np.zeros((6, 6, 7, 3), np.uint8)
    decode_frames(files, of_shape(6, 7), out)
    for file, frame in zip(files, out, strict=True):
        assert np.array_equal(frame, decode_image(file, 3))


@pytest.mark.parametrize("bad", [0, 2, 5])
def test_the_damaged_one_is_named(bad):
    files = [
        png(noise(6, 7)),
        jpeg(noise(6, 7)),
        png(noise(6, 7)),
        jpeg(noise(6, 7)),
        jpeg(noise(6, 7)),
        png(noise(6, 7)),
    ]
    files[bad] = files[bad][:40]
    with pytest.raises(DamagedImage) as caught:
        decode_frames(files, of_shape(6, 7))
    assert caught.value.frame == bad


def test_a_wrong_size_is_told_before_decoding():
    for file in (png(noise(6, 7)), jpeg(noise(6, 7))):
        with pytest.raises(DamagedImage, match=r"an image of \[6, 7, 3\] where features.json says \[6, 8, 3\]"):
            decode_frames([file], of_shape(6, 8))
        assert decode_frames([file], of_shape(6, None))[0].shape == (6, 7, 3)


def with_size(file: bytes, height: int, width: int) -> bytes:
    """The JPEG with another size in its header."""
    at = file.index(b"\xff\xc0") + 5
    return file[:at] + height.to_bytes(2, "big") + width.to_bytes(2, "big") + file[at + 4 :]


def test_absurd_sizes_are_refused_before_decoding():
    file = with_size(jpeg(noise(8, 8)), 65000, 65000)
    with pytest.raises(DamagedImage, match="sane size"):
        decode_frames([file], of_shape(None, None))
    with pytest.raises(DamagedImage, match="not an image of sane size: 9000 x 9000 pixels"):
        decode_frames([with_size(jpeg(noise(8, 8)), 9000, 9000)], of_shape(9000, 9000))


def test_a_jpeg_made_of_scans_only_is_refused(monkeypatch):
    file = jpeg(smooth(64, 64), progressive=True)
    at = file.rindex(b"\xff\xda")
    last = file[at:-2]
    many = file[:-2] + last * 200 + b"\xff\xd9"
    monkeypatch.setattr(turbo_images, "_QUICK", 0)
    with pytest.raises(DamagedImage, match="a JPEG image of more than 100 scans"):
        decode_frames([many], of_shape(64, 64))


FUZZED = [jpeg(smooth(20, 24)), jpeg(smooth(20, 24), progressive=True), jpeg(noise(20, 24, 1)), png(noise(20, 24))]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damage_is_an_error_or_a_picture_of_that_size(data):
    file = bytearray(data.draw(st.sampled_from(FUZZED)))
    for _ in range(data.draw(st.integers(1, 4))):
        file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    file = file[: data.draw(st.integers(len(file) // 2, len(file)))]
    out = np.zeros((1, 20, 24, 3), np.uint8)
    try:
        decode_frames([bytes(file)], of_shape(20, 24), out)
    except SourceFormatError as error:
        assert isinstance(error, DamagedImage) and error.frame == 0


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_files_come_out_the_same_with_and_without_simplejpeg(data):
    """Whatever simplejpeg accepts, Pillow accepts, and makes the same of it."""
    turbo = turbo_decoder()
    file = bytearray(data.draw(st.sampled_from(FUZZED[:3])))
    file[data.draw(st.integers(2, len(file) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    image = of_shape(20, 24)
    (fast,) = turbo.frames([bytes(file)], image)
    if fast is not None:
        assert np.array_equal(fast, pillow_frames([bytes(file)], image)[0])
