"""How much a codec has changed pictures."""

from __future__ import annotations

import numpy as np

__all__ = ["psnr"]


def psnr(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The peak signal-to-noise ratio of each pair of pictures, in dB; infinite for equal ones.

    Args:
        one, other: ``[T, height, width, channels] uint8``.

    Returns:
        ``[T] float64``.

    Raises:
        ValueError: they are not of one shape, or not uint8.

    >>> psnr(np.zeros((1, 2, 2, 3), np.uint8), np.full((1, 2, 2, 3), 255, np.uint8))
    array([0.])
    """
    if one.shape != other.shape or one.dtype != np.uint8 or other.dtype != np.uint8:
        raise ValueError(
            f"pictures of {one.dtype}{[*one.shape]} and of {other.dtype}{[*other.shape]} can't be compared"
        )
    errors = np.empty(len(one))
    for i, (a, b) in enumerate(zip(one, other, strict=True)):  # one by one: the differences take more room
        difference = np.subtract(a, b, dtype=np.int32)
        # No dot product: BLAS's threads would wait for the cores that encoders are at work on.
        errors[i] = np.square(difference, out=difference).sum(dtype=np.int64) / max(1, difference.size)
    with np.errstate(divide="ignore"):
        return 10 * np.log10(255.0**2 / errors)
