"""Numbers of pictures: by channel, of a sample of frames, exact over their pixels."""

from __future__ import annotations

import numpy as np

from rlds2buf.core.spec import FieldSpec
from rlds2buf.numbers.quantiles import LEVEL_NAMES, places, weighted

__all__ = ["PictureNumbers", "channel_axis", "frame_sample", "thinned"]

_LEAST_FRAMES, _MOST_FRAMES = 100, 10_000
_LARGE, _USUAL = 300, 150
_MOST_CHANNELS = 4
_LEAST_SIDE = 8


def frame_sample(count: int) -> np.ndarray:
    """Which of an episode's frames LeRobot takes its statistics from: of up to 100 all, of 1000 every sixth or so.

    >>> len(frame_sample(50)), len(frame_sample(1000)), frame_sample(1000)[:3].tolist()
    (50, 177, [0, 6, 11])
    """
    size = max(min(count, _LEAST_FRAMES), min(int(count**0.75), _MOST_FRAMES))
    return np.round(np.linspace(0, count - 1, size)).astype(np.int64)


def thinned(frames: np.ndarray) -> np.ndarray:
    """Frames ``[n, H, W, C]`` with fewer pixels, as LeRobot takes them: sides of 300 and more to about 150.

    >>> thinned(np.zeros((1, 480, 640, 3), np.uint8)).shape
    (1, 120, 160, 3)
    """
    height, width = frames.shape[1:3]
    if max(height, width) < _LARGE:
        return frames
    step = int(max(height, width) / _USUAL)
    return frames[:, ::step, ::step]


def channel_axis(field: FieldSpec) -> int | None:
    """Where the channels of a field's pictures are, counted from the last axis; None if it holds no pictures.

    Pictures are ``uint8`` of two axes, or of three of which the last or the first is of 1 to 4 channels, and what is
    kept as image files or frames of videos.

    >>> channel_axis(FieldSpec((64, 64, 3), np.uint8)), channel_axis(FieldSpec((4, 84, 84), np.uint8))
    (-1, -3)
    >>> channel_axis(FieldSpec((128,), np.uint8)) is None
    True
    """
    field = field if field.image is None else field.image
    shape = [_LEAST_SIDE if n is None else n for n in field.shape]
    if field.dtype != np.uint8 or len(shape) not in (2, 3):
        return None
    if len(shape) == 2:
        return 0 if min(shape) >= _LEAST_SIDE else None
    for axis in (-1, -3):
        sides = shape[:2] if axis == -1 else shape[1:]
        if shape[axis] <= _MOST_CHANNELS and min(sides) >= _LEAST_SIDE:
            return axis
    return None


class PictureNumbers:
    """How often each value is in each channel; whatever the order of the frames, the numbers are the same.

    Attributes:
        frames: how many were counted.

    >>> numbers = PictureNumbers()
    >>> numbers.add(np.array([[[[0], [255]]]], np.uint8))
    >>> found = numbers.numbers()
    >>> found["mean"].tolist(), found["max"].tolist(), found["count"].tolist()
    ([0.5], [1.0], [1])
    """

    def __init__(self) -> None:
        self.frames = 0
        self._counts = np.zeros((0, 256), np.int64)

    def add(self, frames: np.ndarray) -> None:
        """Count ``[n, H, W, C]`` or ``[n, H, W]`` frames, uint8.

        Raises:
            ValueError: they have not as many channels as those before.
        """
        if frames.ndim == 3:
            frames = frames[..., None]
        if not len(self._counts):
            self._counts = np.zeros((frames.shape[-1], 256), np.int64)
        if frames.shape[-1] != len(self._counts):
            raise ValueError(f"pictures of {frames.shape[-1]} channels among others of {len(self._counts)}")
        for counts, channel in zip(self._counts, np.moveaxis(frames, -1, 0), strict=True):
            counts += np.bincount(channel.reshape(-1), minlength=256)
        self.frames += len(frames)

    def join(self, other: PictureNumbers) -> None:
        """Count what another one has counted."""
        if not len(self._counts):
            self._counts = other._counts.copy()
        elif len(other._counts):
            self._counts += other._counts
        self.frames += other.frames

    def numbers(self) -> dict[str, np.ndarray]:
        """LeRobot's ten numbers, ``[C]``, of pixels from 0 to 1; ``count`` is of frames.  NaN where there are none."""
        channels = len(self._counts)
        found = {name: np.full(channels, np.nan) for name in ("min", "max", "mean", "std", *LEVEL_NAMES)}
        for c, counts in enumerate(self._counts):
            pixels = int(counts.sum())
            if not pixels:
                continue
            ends = np.cumsum(counts)
            below, above, weight = places(pixels)
            ranks = np.concatenate([[0, pixels - 1], below, above])
            ordered = np.searchsorted(ends, ranks, "right").astype(np.float64)
            levels = np.arange(256.0)
            mean = float(counts @ np.arange(256)) / pixels
            found["min"][c], found["max"][c] = ordered[:2]
            found["mean"][c], found["std"][c] = mean, np.sqrt(float(counts @ np.square(levels - mean)) / pixels)
            low, high = ordered[2:].reshape(2, -1)
            for name, value in zip(LEVEL_NAMES, weighted(low, high, weight), strict=True):
                found[name][c] = value
        scaled = {name: values / 255 for name, values in found.items()}
        return {**scaled, "count": np.full(channels, self.frames, np.int64)}
