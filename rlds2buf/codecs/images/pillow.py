"""JPEG and PNG into pixels with Pillow, the same ones that TensorFlow makes of them.

PNG is lossless, so any decoder will do.  JPEG is not: ``tf.image.decode_image``, which TFDS uses,
runs libjpeg-turbo with its fast integer inverse DCT and with smooth ("fancy") chroma upsampling.
Pillow has the same library but offers the fast DCT only together with plain upsampling, that is,
each chroma sample repeated.  So Pillow decodes to Y, Cb, Cr that way, the repeats are dropped, and
the two steps after it, smooth upsampling and the conversion to RGB, are done here in libjpeg's
integer arithmetic.

Sources: ITU-T T.81 and T.871 (JFIF: the conversion), the triangle filter of libjpeg's jdsample.c
as its comments describe it.
"""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlds2buf.codecs.images.stored_image import StoredImage
from rlds2buf.errors import MissingDependency, SourceFormatError

__all__ = ["DamagedImage", "has_too_many_scans", "import_pillow", "pillow_frames", "plain_jpegs", "size_fault"]

_FORMATS = ("JPEG", "PNG")
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
# Frames are put through the chroma steps together, about this many pixels at a time.
_BATCH_PIXELS = 1 << 18


_MAX_PIXELS = 1 << 26
_MAX_SCANS = 100  # a progressive file has about ten; each one costs a pass over all pixels


_Layout = tuple[int, int, tuple[tuple[int, int], ...]]


class DamagedImage(SourceFormatError):
    """One picture of several is no picture, is damaged, or is not what it should be.

    Attributes:
        frame: which one, 0-based.
    """

    def __init__(self, message: str, frame: int) -> None:
        super().__init__(message)
        self.frame = frame


def pillow_frames(files: Sequence[bytes], image: StoredImage) -> list[np.ndarray]:
    """Decode frames to ``[height, width, channels]`` each.

    Args:
        files: JPEG and PNG files.
        image: shape (None: any, up to 67 million pixels) and dtype that they should have.

    Raises:
        DamagedImage: says which and why.
    """
    dtype, channels = image.dtype, image.shape[2]
    if channels not in _MODES:
        raise SourceFormatError(f"an image can't be had as {channels} channels")
    frames: list[np.ndarray] = []
    if dtype == np.float32:
        for i, data in enumerate(files):
            with _naming(i):
                frames.append(_decode_other(_open(data, image), 4, np.dtype(np.uint8)).view(np.float32))
        return frames
    # Runs of JPEGs of one size and subsampling share the array work; anything else comes one by one.
    opened = _opened(files, image)
    for layout, run in itertools.groupby(opened, key=lambda numbered: _chroma_layout(numbered[1], channels)):
        if layout is None:
            for i, picture in run:
                with _naming(i):
                    frames.append(_decode_other(picture, channels, dtype))
        else:
            height, width, factors = layout
            step = max(1, _BATCH_PIXELS // (height * width))
            while batch := list(itertools.islice(run, step)):
                with _naming(batch[0][0]):
                    _check_jpeg_dtype(dtype)
                frames.extend(_decode_chroma_subsampled(batch, factors))
    return frames


def plain_jpegs(files: Sequence[bytes]) -> np.ndarray:
    """JPEG files of one size to ``[N, height, width, channels]`` (gray: ``[N, height, width]``), as Pillow has them.

    That is with the exact inverse DCT, which Minari's own reader uses, so the pixels are not TensorFlow's.

    Raises:
        DamagedImage: one can't be decoded, or differs in size from the first; says which.
    """
    pillow = import_pillow()
    frames: list[np.ndarray] = []
    for i, data in enumerate(files):
        try:
            if has_too_many_scans(data):
                raise ValueError(f"more than {_MAX_SCANS} scans")
            frame = np.asarray(pillow.open(io.BytesIO(data), formats=["JPEG"]))
        except Exception as cause:  # damaged files make Pillow raise nearly anything
            raise DamagedImage(f"a picture can't be decoded ({cause})", i) from cause
        if frames and frame.shape != frames[0].shape:
            raise DamagedImage(f"a picture of {frame.shape} among others of {frames[0].shape}", i)
        frames.append(frame)
    return np.stack(frames)


def import_pillow() -> Any:
    """The module ``PIL.Image``.

    Raises:
        MissingDependency: Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError as cause:
        raise MissingDependency("images need Pillow: pip install Pillow") from cause
    return Image


@contextlib.contextmanager
def _naming(frame: int) -> Iterator[None]:
    """Let what goes wrong inside say of which frame it is."""
    try:
        yield
    except SourceFormatError as error:
        raise DamagedImage(str(error), frame) from error.__cause__


def _opened(files: Sequence[bytes], image: StoredImage) -> Iterator[tuple[int, Any]]:
    for i, data in enumerate(files):
        with _naming(i):
            opened = _open(data, image)
        yield i, opened


def _open(data: bytes, image: StoredImage) -> Any:
    """The header is read and held against what is expected; no pixel is decoded yet."""
    pillow = import_pillow()
    if has_too_many_scans(data):
        raise SourceFormatError(f"a JPEG image of more than {_MAX_SCANS} scans")
    try:
        opened = pillow.open(io.BytesIO(data), formats=_FORMATS)
    except Exception as cause:  # as above
        raise SourceFormatError(f"not a JPEG or PNG image of sane size: {cause}") from cause
    width, height = opened.size
    fault = size_fault(height, width, image)
    if fault is not None:
        raise SourceFormatError(fault)
    return opened


def size_fault(height: int, width: int, image: StoredImage) -> str | None:
    """What is wrong with a file of so many pixels; asked before any of them is decoded."""
    if (height, width) == image.shape[:2] and height * width <= _MAX_PIXELS:
        return None
    if width * height > _MAX_PIXELS:
        return f"not an image of sane size: {height} x {width} pixels"
    if any(want not in (None, have) for have, want in zip((height, width), image.shape, strict=False)):
        return f"an image of {[height, width, image.shape[2]]} where features.json says {list(image.shape)}"
    return None


def has_too_many_scans(data: bytes) -> bool:
    """Whether a JPEG is made to keep a decoder busy; its marker of a scan stands nowhere else in pixels."""
    return data.startswith(b"\xff\xd8") and data.count(b"\xff\xda") > _MAX_SCANS


def _pixels(image: Any, mode: str | None = None) -> np.ndarray:
    """The decoded image, converted to `mode`."""
    try:
        return np.asarray(image if mode in (None, image.mode) else image.convert(mode))
    except Exception as cause:  # as above
        raise SourceFormatError(f"the image is damaged: {cause}") from cause


def _chroma_layout(image: Any, channels: int) -> _Layout | None:
    """``(height, width, factors)`` of a JPEG in Y, Cb, Cr whose chroma is subsampled, else None.

    `factors` are, per component, how many times fewer samples there are across and down.
    """
    if image.format != "JPEG" or channels != 3 or image.mode != "RGB" or _is_rgb_inside(image):
        return None
    if not all(layer[1] and layer[2] for layer in image.layer):
        return None  # damaged, as decoding will tell
    across = max(layer[1] for layer in image.layer)
    down = max(layer[2] for layer in image.layer)
    factors = tuple((across // layer[1], down // layer[2]) for layer in image.layer)
    if factors == ((1, 1),) * 3:
        return None
    return image.height, image.width, factors


def _is_rgb_inside(image: Any) -> bool:
    # As libjpeg guesses: JFIF means Y, Cb, Cr; then Adobe's marker counts; then the components' names.
    if "jfif" in image.info:
        return False
    if "adobe" in image.info:
        return bool(image.info.get("adobe_transform") == 0)
    return [layer[0] for layer in image.layer] == list(b"RGB")


def _check_jpeg_dtype(dtype: np.dtype) -> None:
    if dtype != np.uint8:
        raise SourceFormatError(f"a JPEG image can't hold {dtype}")


def _decode_other(image: Any, channels: int, dtype: np.dtype) -> np.ndarray:
    """PNG, and JPEG that needs no chroma upsampling."""
    if image.format == "JPEG":
        _check_jpeg_dtype(dtype)
        if image.mode not in ("L", "RGB") or channels not in (1, 3):
            raise SourceFormatError(f"a JPEG image in {image.mode} can't be had as {channels} channels")
        if channels == 1:
            image.draft("L", None)  # the Y component itself
        _use_fast_dct(image)
    elif image.mode.startswith("I"):
        return _decode_deep_png(image, channels, dtype)
    elif channels < 3 and image.mode not in ("1", "L", "LA"):
        raise SourceFormatError(f"a PNG image in {image.mode} can't be had as {channels} channels")
    elif dtype != np.uint8 and any("16" in str(tile[3]) for tile in image.tile):
        # So Pillow names how it unpacks the file, for example "RGB;16B".
        raise SourceFormatError("a PNG image of 16 bits a colour can't be read without losing eight of them")
    pixels = _pixels(image, _MODES[channels])
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    # Eight bits become sixteen by repeating them, so that white stays white.
    return pixels if dtype == np.uint8 else pixels.astype(dtype) * dtype.type(257)


def _decode_deep_png(image: Any, channels: int, dtype: np.dtype) -> np.ndarray:
    """Sixteen bits of gray, the only deep kind that Pillow keeps."""
    if channels not in (1, 3):
        raise SourceFormatError(f"a 16-bit gray PNG image can't be had as {channels} channels")
    pixels = _pixels(image).astype(np.uint16)[..., None]
    if dtype == np.uint8:
        pixels = (pixels >> 8).astype(np.uint8)
    return np.repeat(pixels, channels, axis=-1)


def _use_fast_dct(image: Any) -> None:
    # Pillow hands these two to its JPEG decoder: the scale, and whether to prefer speed.
    image.decoderconfig = (1, 1)


def _decode_chroma_subsampled(images: list[tuple[int, Any]], factors: tuple[tuple[int, int], ...]) -> np.ndarray:
    """Frames of one size and layout to ``[N, height, width, 3] uint8``."""
    decoded = []
    for i, image in images:
        with _naming(i):
            image.draft("YCbCr", None)
            _use_fast_dct(image)
            decoded.append(_pixels(image))
    ycc = np.stack(decoded)
    height, width = ycc.shape[1:3]
    planes = []
    for i, (across, down) in enumerate(factors):
        samples = ycc[:, ::down, ::across, i].astype(np.int16)
        # libjpeg smooths only these factors, and not the narrowest images; the rest stays repeated.
        if (across, down) == (1, 2):
            plane = _smooth_down(samples)[:, :height]
        elif across == 2 and down in (1, 2) and samples.shape[2] > 2:
            plane = _smooth_across(samples) if down == 1 else _smooth_both(samples)
            plane = plane[:, :height, :width]
        else:
            plane = ycc[..., i].astype(np.int16)
        planes.append(plane)
    return _to_rgb(*planes)


def _smooth_across(samples: np.ndarray) -> np.ndarray:
    """Twice as wide: 3/4 the nearer and 1/4 the further sample; ``[N, h, w]`` to ``[N, h, 2w]``."""
    padded = np.pad(samples, ((0, 0), (0, 0), (1, 1)), mode="edge")
    out = np.empty((*samples.shape[:2], 2 * samples.shape[2]), np.int16)
    out[..., ::2] = (3 * samples + padded[..., :-2] + 1) >> 2
    out[..., 1::2] = (3 * samples + padded[..., 2:] + 2) >> 2
    # At the border the nearer sample alone, which the padding gives: (4s + 1) >> 2 == s.
    return out


def _column_sums(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Four times the values at the upper and lower quarter of each sample, ``[N, h, w]`` each."""
    padded = np.pad(samples, ((0, 0), (1, 1), (0, 0)), mode="edge")
    return 3 * samples + padded[:, :-2], 3 * samples + padded[:, 2:]


def _smooth_down(samples: np.ndarray) -> np.ndarray:
    """Twice as high; ``[N, h, w]`` to ``[N, 2h, w]``."""
    upper, lower = _column_sums(samples)
    out = np.empty((samples.shape[0], 2 * samples.shape[1], samples.shape[2]), np.int16)
    out[:, ::2] = (upper + 1) >> 2
    out[:, 1::2] = (lower + 2) >> 2
    return out


def _smooth_both(samples: np.ndarray) -> np.ndarray:
    """Twice as wide and high, rounded once; ``[N, h, w]`` to ``[N, 2h, 2w]``."""
    n, height, width = samples.shape
    out = np.empty((n, 2 * height, 2 * width), np.int16)
    for i, sums in enumerate(_column_sums(samples)):
        padded = np.pad(sums, ((0, 0), (0, 0), (1, 1)), mode="edge")
        out[:, i::2, ::2] = (3 * sums + padded[..., :-2] + 8) >> 4
        out[:, i::2, 1::2] = (3 * sums + padded[..., 2:] + 7) >> 4
    return out


def _fixed(value: float) -> int:
    return int(value * 65536 + 0.5)


_CHROMA = np.arange(256, dtype=np.int32) - 128
_HALF = 1 << 15
_RED_OF_CR = ((_fixed(1.402) * _CHROMA + _HALF) >> 16).astype(np.int16)
_BLUE_OF_CB = ((_fixed(1.772) * _CHROMA + _HALF) >> 16).astype(np.int16)
_GREEN_OF_CR = -_fixed(0.71414) * _CHROMA
_GREEN_OF_CB = -_fixed(0.34414) * _CHROMA + _HALF


def _to_rgb(y: np.ndarray, cb: np.ndarray, cr: np.ndarray) -> np.ndarray:
    """Planes ``[...] int16`` to ``[..., 3] uint8``, by JFIF's formula in 16-bit fixed point."""
    out = np.empty((*y.shape, 3), np.uint8)
    green = _GREEN_OF_CR.take(cr)
    green += _GREEN_OF_CB.take(cb)
    green >>= 16
    for i, shift in enumerate((_RED_OF_CR.take(cr), green.astype(np.int16), _BLUE_OF_CB.take(cb))):
        shift += y
        out[..., i] = shift.clip(0, 255, out=shift)
    return out
