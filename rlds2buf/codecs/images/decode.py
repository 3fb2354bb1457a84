"""JPEG and PNG into pixels, the same ones that TensorFlow makes of them.

simplejpeg decodes what JPEG it can, where it is installed; Pillow the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlds2buf.codecs.images.pillow import DamagedImage, pillow_frames
from rlds2buf.codecs.images.resize import resize_frames
from rlds2buf.codecs.images.stored_image import StoredImage
from rlds2buf.codecs.images.turbo import turbo_decoder

__all__ = ["DamagedImage", "decode_frames", "decode_image"]


def decode_image(data: bytes, channels: int, dtype: np.dtype | type = np.uint8) -> np.ndarray:
    """Decode one JPEG or PNG file to ``[height, width, channels]``.

    Args:
        data: the file.
        channels: 1 to 4; gray is repeated to RGB, an alpha channel not asked for is dropped.
        dtype: uint8; uint16 (PNG); or float32 with one channel, which TFDS stores as the four bytes
            of an RGBA PNG.

    Raises:
        SourceFormatError: it is no such file, is damaged, has more than 67 million pixels, or can't be
            had with those channels.
    """
    return decode_frames([data], StoredImage((None, None, channels), np.dtype(dtype)))[0]


def decode_frames(files: Sequence[bytes], image: StoredImage, out: np.ndarray | None = None) -> list[np.ndarray]:
    """Decode frames to ``[height, width, channels]`` each, resized if the feature says so.

    Args:
        files: JPEG and PNG files.
        image: what they should be.
        out: ``[len(files), *image.out_shape]`` to put them into, where that shape is known.

    Raises:
        DamagedImage: one of them is not, or damaged; says which.
    """
    direct = None if image.size is not None else out
    turbo = turbo_decoder() if image.dtype == np.uint8 else None
    frames: list[np.ndarray | None] = [None] * len(files) if turbo is None else turbo.frames(files, image, direct)
    left = [i for i, frame in enumerate(frames) if frame is None]
    if left:
        try:
            others = pillow_frames([files[i] for i in left], image)
        except DamagedImage as error:
            error.frame = left[error.frame]
            raise
        for i, frame in zip(left, others, strict=True):
            frames[i] = frame
    return _placed([frame for frame in frames if frame is not None], image, out, left)


def _placed(frames: list[np.ndarray], image: StoredImage, out: np.ndarray | None, left: list[int]) -> list[np.ndarray]:
    """The frames resized, and in `out` if there is one; those not `left` are there if that needs no resizing."""
    if image.size is not None:
        return [resize_frames(frame, image.size, out=None if out is None else out[i]) for i, frame in enumerate(frames)]
    if out is not None:
        for i in left:
            out[i] = frames[i]
    return frames
