"""What a stored picture is, for whoever decodes it."""

from __future__ import annotations

import dataclasses

import numpy as np

__all__ = ["StoredImage"]


@dataclasses.dataclass(frozen=True)
class StoredImage:
    """One JPEG or PNG file per value.

    Attributes:
        shape: of the pixels, ``(height, width, channels)``.
        dtype: of the pixels.
        keep_encoded: whether values are to be the files themselves, not their pixels.
        size: (height, width) that the decoded pixels are to be resized to; None: as they are.
    """

    shape: tuple[int | None, ...]
    dtype: np.dtype
    keep_encoded: bool = False
    size: tuple[int, int] | None = None

    @property
    def out_shape(self) -> tuple[int | None, ...]:
        """Of one value's pixels as they are handed out."""
        return self.shape if self.size is None else (*self.size, self.shape[2])
