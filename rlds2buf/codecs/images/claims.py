"""What the values of a record will take, told before they are made: strings, numbers, pictures."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import numpy as np

from rlds2buf.codecs.images.stored_image import StoredImage
from rlds2buf.codecs.tfrecord.example import Feature
from rlds2buf.core.budget import Tally

__all__ = ["check_pixels", "claim_numbers", "claimed_strings", "declared_size"]

_PNG = b"\x89PNG\r\n\x1a\n"
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""JPEG's markers SOF0 to SOF15, but for those in between that are none."""

_USUAL = 100
"""So many bytes of pixels to one of its file are usual; of a picture that is all black there are more."""


def claimed_strings(feature: Feature, tally: Tally) -> list[bytes]:
    """The strings of a feature, if they are not too many.

    Raises:
        LimitExceeded: they are.
        SourceFormatError: as :meth:`Feature.strings`.
    """
    most = tally.objects_left
    if feature.stop - feature.start > 2 * most:  # the shortest string takes two bytes
        tally.objects(feature.count_strings(most + 1), "its list of strings")
    values = feature.strings()
    tally.objects(len(values), "its list of strings")
    return values


def claim_numbers(feature: Feature, dtype: np.dtype, tally: Tally) -> None:
    """Note what numbers take beyond their bytes in the record: small ones are a byte there.

    Raises:
        LimitExceeded: that is too much.
    """
    stored = feature.stop - feature.start
    if stored * dtype.itemsize > tally.bytes_left and dtype.kind in "biuf":
        count = stored // 4 if dtype.kind == "f" else feature.count_ints()
        tally.bytes(max(0, count * dtype.itemsize - stored), "its list of numbers")


def check_pixels(files: Sequence[bytes], image: StoredImage, tally: Tally) -> None:
    """Refuse pictures of one record whose pixels take far more memory than their files and than is allowed.

    Raises:
        LimitExceeded: they do.

    >>> from rlds2buf.core.budget import Budget
    >>> import numpy as np
    >>> check_pixels([b"..."] * 8, StoredImage((64, 64, 3), np.dtype("u1")), Tally(Budget(max_bytes=10_000)))
    Traceback (most recent call last):
    rlds2buf.errors.LimitExceeded: 8 pictures takes 98,304 bytes, and the limit is 10,000; \
max_bytes=98304 (--max-bytes) allows it
    """
    stored = sum(map(len, files))
    known = image.out_shape
    if None not in known:
        pixels = len(files) * math.prod(known)  # type: ignore[arg-type]
    else:
        pixels = sum(math.prod(declared_size(file)) for file in files) * (known[2] or 1)
    size = pixels * image.dtype.itemsize
    if size > tally.bytes_left and size > _USUAL * stored:
        tally.bytes(size, f"{len(files)} pictures")


def declared_size(file: bytes) -> tuple[int, int]:
    """Height and width in the header of a PNG or JPEG file; (0, 0) where there is none.

    >>> declared_size(b"\\x89PNG\\r\\n\\x1a\\n....IHDR" + (7).to_bytes(4, "big") + (5).to_bytes(4, "big"))
    (5, 7)
    """
    if file.startswith(_PNG) and len(file) >= 24:
        width, height = struct.unpack_from(">II", file, 16)
        return height, width
    at = 2 if file.startswith(b"\xff\xd8") else len(file)
    while at + 9 <= len(file):
        if file[at] != 0xFF:
            return 0, 0
        marker = file[at + 1]
        if marker in _FRAMES:
            height, width = struct.unpack_from(">HH", file, at + 5)
            return height, width
        # Between markers there may be any number of fill bytes; the others have a length.
        at += 1 if marker == 0xFF else 2 + int.from_bytes(file[at + 2 : at + 4], "big")
    return 0, 0
