"""Statistics of pictures: by channel, of some frames of each episode, as LeRobot samples them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from rlds2buf.codecs.images.writing import histogram
from rlds2buf.formats.lerobot.meta_files import VALUES
from rlds2buf.numbers.quantiles import LEVEL_NAMES, LEVELS

__all__ = ["numbers_of_pictures", "sampled_frames", "summary_of_pictures"]

_LEAST, _MOST, _POWER = 100, 10_000, 0.75
_THINNED_FROM: Final = 200
_THINNED_TO: Final = 150
"""Pixels of the longer side, of pictures that are thinned before they are counted, and about what they are then.
LeRobot begins with it at 300."""


def sampled_frames(count: int) -> np.ndarray:
    """The numbers of those of an episode's frames that are counted.

    >>> sampled_frames(3).tolist(), len(sampled_frames(1000))
    ([0, 1, 2], 177)
    """
    samples = max(min(count, _LEAST), min(int(count**_POWER), _MOST))
    return np.round(np.linspace(0, count - 1, samples)).astype(np.int64)


def numbers_of_pictures(pictures: Sequence[np.ndarray]) -> np.ndarray:
    """``[values, 3, 1, 1] float64`` in the order of :data:`VALUES`, of pixels divided by 255.

    Args:
        pictures: ``[height, width, 3 or 1] uint8`` each; of uint16 the upper half counts.
    """
    counts = np.zeros((3, 256), np.int64)
    for pixels in pictures:
        pixels = pixels if pixels.dtype == np.uint8 else (pixels >> 8).astype(np.uint8)
        height, width = pixels.shape[:2]
        if max(height, width) >= _THINNED_FROM:
            factor = max(2, int(max(width, height) / _THINNED_TO))
            pixels = pixels[::factor, ::factor]
        counts += histogram(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))
    total = counts.sum(1)
    levels = np.arange(256)
    mean = counts @ levels / total
    found = {
        "min": np.argmax(counts > 0, axis=1),
        "max": 255 - np.argmax(counts[:, ::-1] > 0, axis=1),
        "mean": mean,
        "std": np.sqrt(np.maximum(0, counts @ levels**2 / total - mean**2)),
    }
    ends = np.cumsum(counts, axis=1)
    for name, level in zip(LEVEL_NAMES, LEVELS, strict=True):
        place = level * (total - 1)
        below, above = _ordered(ends, np.floor(place)), _ordered(ends, np.ceil(place))
        found[name] = below + (above - below) * (place - np.floor(place))
    return np.stack([np.asarray(found[key], np.float64) / 255 for key in VALUES]).reshape(len(VALUES), 3, 1, 1)


def _ordered(ends: np.ndarray, places: np.ndarray) -> np.ndarray:
    """``[3]``: the value at a place of each channel's sorted values, of which so many are up to each of the 256."""
    return np.array([np.searchsorted(of, place, "right") for of, place in zip(ends, places, strict=True)])


def summary_of_pictures(values: np.ndarray, counts: np.ndarray) -> dict[str, object]:
    """Of a whole dataset, from those of its episodes, put together as LeRobot does: plain JSON values.

    Args:
        values: ``[E, values, 3, 1, 1]``.
        counts: ``[E]``, how many pictures were counted.
    """
    each = {key: values[:, i] for i, key in enumerate(VALUES)}
    weight = (counts / max(1, counts.sum()))[:, None, None, None]
    mean = (each["mean"] * weight).sum(0)
    variance = ((each["std"] ** 2 + (each["mean"] - mean) ** 2) * weight).sum(0)
    found = {"min": each["min"].min(0), "max": each["max"].max(0), "mean": mean, "std": np.sqrt(variance)}
    told: dict[str, object] = {key: value.tolist() for key, value in found.items()}
    told["count"] = [int(counts.sum())]
    for name in LEVEL_NAMES:
        told[name] = (each[name] * weight).sum(0).tolist()
    return told
