"""Pictures decoded one behind the other, without a pool."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlds2buf.codecs.images.decode import decode_frames
from rlds2buf.codecs.images.resize import stack_frames
from rlds2buf.codecs.images.stored_image import StoredImage


def decode_images(files: Sequence[bytes], channels: int) -> np.ndarray:
    """``[N, height, width, channels]``, or ``[N] object`` where their sizes differ."""
    return stack_frames(decode_frames(files, StoredImage((None, None, channels), np.dtype(np.uint8))))
