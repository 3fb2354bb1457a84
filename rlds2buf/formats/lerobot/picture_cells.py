"""Pictures on their way into the rows: files as they come, pixels as PNG or JPEG, on all cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from rlds2buf.codecs.cores import cores
from rlds2buf.codecs.images.decode import decode_frames
from rlds2buf.codecs.images.png import encode_png
from rlds2buf.codecs.images.stored_image import StoredImage
from rlds2buf.codecs.images.writing import encode_jpeg
from rlds2buf.codecs.video.decode import decode_into
from rlds2buf.codecs.video.frame_names import runs
from rlds2buf.core import nest
from rlds2buf.errors import SourceFormatError, SpecMismatch
from rlds2buf.formats.lerobot.features import Camera

__all__ = ["JPEG", "PNG", "cells_of_pictures", "decoded", "pixels_of"]

PNG, JPEG = "png", "jpeg"


def cells_of_pictures(column: np.ndarray, camera: Camera, kind: str) -> np.ndarray:
    """``[M] object``: the file of each row, three channels.

    Args:
        column: ``[M, ...]`` of the camera's field.
        camera: whose.
        kind: PNG or JPEG, what pixels become; files stay what they are.

    Raises:
        SpecMismatch: a row has no picture, or a damaged one; says which.
    """
    out = np.empty(len(column), object)
    if camera.is_encoded and camera.field.spec.shape[2] == 3:
        for row, cell in enumerate(column.tolist()):
            if not cell:
                raise SpecMismatch("no picture", path=nest.path_name(camera.field.path), step=row, rule="spec")
        out[:] = column
        return out
    encode: Callable[[np.ndarray], bytes] = encode_jpeg if kind == JPEG else encode_png
    with ThreadPoolExecutor(cores()) as pool:
        out[:] = list(pool.map(lambda pixels: encode(_of_three(pixels)), pixels_of(column, camera, range(len(column)))))
    return out


def pixels_of(column: np.ndarray, camera: Camera, rows: Sequence[int]) -> Sequence[np.ndarray]:
    """``[height, width, channels] uint8`` of some rows of the camera's field.

    Raises:
        SpecMismatch: one has no picture, or a damaged one; says which.
    """
    some = column[np.asarray(rows, np.int64)]
    if camera.is_video:
        return list(decoded(some, camera))
    if camera.is_encoded:
        image = StoredImage(camera.field.spec.shape, np.dtype(np.uint8))
        try:
            return decode_frames(some.tolist(), image)
        except SourceFormatError as cause:
            raise SpecMismatch(str(cause), path=nest.path_name(camera.field.path), rule="spec") from cause
    return list(some)


def decoded(names: np.ndarray, camera: Camera) -> np.ndarray:
    """``[T, height, width, channels]`` of ``[T] object`` names of frames; what was gray has one channel again.

    Raises:
        SourceNotFound, SourceFormatError: they are not there, or damaged.
    """
    height, width, channels = (side or 0 for side in camera.field.spec.shape)
    out = np.empty((len(names), height, width, 1 if camera.is_depth else 3), camera.field.spec.dtype)
    decode_into(out, runs(names))
    return out[..., :channels]


def _of_three(pixels: np.ndarray) -> np.ndarray:
    """With three channels."""
    return pixels if pixels.shape[2] == 3 else np.repeat(pixels, 3, axis=2)
