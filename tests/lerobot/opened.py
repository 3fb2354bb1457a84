"""A dataset as the real lerobot hands it out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


def open_set(folder: Path, **options: Any) -> Any:
    """A `LeRobotDataset`, frames of videos as bytes; the torch tensors of ``ds[i]`` are what is compared."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    return LeRobotDataset(f"test/{folder.name}", root=folder, video_backend="torchcodec", **options)


def items(dataset: Any) -> dict[str, np.ndarray]:
    """All of ``ds[i]``, stacked: ``[N, ...]`` by feature; pictures ``[N, H, W, C] uint8``, text as objects."""
    rows = [dataset[i] for i in range(len(dataset))]
    return {name: column(name, [row[name] for row in rows], dataset.meta.camera_keys) for name in rows[0]}


def column(name: str, values: list[Any], cameras: list[str]) -> np.ndarray:
    if isinstance(values[0], str):
        return np.array(values, object)
    stacked = np.stack([np.asarray(value) for value in values])
    if name in cameras:
        # Bytes divided by 255 as float32: rounding gives each of the 256 back.
        return np.rint(np.moveaxis(stacked, 1, -1).astype(np.float64) * 255).astype(np.uint8)
    return stacked


def lengths(dataset: Any) -> list[int]:
    """Rows of each episode."""
    return [int(n) for n in dataset.meta.episodes["length"]]


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    """Of two ``uint8`` pictures or lists of them, in dB."""
    error = np.mean((a.astype(np.float64) - b.astype(np.float64)) ** 2)
    return float("inf") if error == 0 else float(10 * np.log10(255**2 / error))


def windows(dataset: Any, steps: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """What ``delta_timestamps`` of these steps should give, ``[N, S]``: the rows, and which are padding."""
    sizes = np.array(lengths(dataset))
    starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
    wanted = np.arange(sizes.sum())[:, None] + np.array(steps)
    first, last = starts[:, None], (starts + np.repeat(sizes, sizes) - 1)[:, None]
    return wanted.clip(first, last), (wanted < first) | (wanted > last)
