"""Files laid out as d3rlpy's own code lays them out (v1.1.1 dataset.pyx; v2.8.1 dataset/io.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np


def write_v1(path: Path, **columns: Any) -> Path:
    """A flat table; what is None is left out."""
    defaults = {"discrete_action": columns["actions"].ndim == 1, "version": "1.0"}
    with h5py.File(path, "w") as file:
        for name, value in {**defaults, **columns}.items():
            if value is not None:
                file.create_dataset(name, data=value)
    return path


def write_v2(path: Path, episodes: list[dict[str, Any]]) -> Path:
    """A dataset for every column of every episode; a list is a tuple observation."""
    with h5py.File(path, "w") as file:
        file.create_dataset("columns", data=list(episodes[0]))
        file.create_dataset("num_episodes", data=len(episodes))
        for i, episode in enumerate(episodes):
            for name, value in episode.items():
                if isinstance(value, list):
                    for j, part in enumerate(value):
                        file.create_dataset(f"{name}_{i}_{j}", data=part)
                else:
                    file.create_dataset(f"{name}_{i}", data=value)
        file.create_dataset("version", data="2.1")
    return path


def table(count: int, terminals: list[int], ends: list[int] | None, seed: int = 0) -> dict[str, Any]:
    """Columns of a first-version file."""
    rng = np.random.default_rng(seed)
    rows = np.arange(count)
    return {
        "observations": rng.normal(size=(count, 4)).astype(np.float32),
        "actions": rng.normal(size=(count, 2)).astype(np.float32),
        "rewards": rng.normal(size=count).astype(np.float32),
        "terminals": np.isin(rows, terminals).astype(np.float32),
        "episode_terminals": None if ends is None else np.isin(rows, ends).astype(np.float32),
    }


def episode(rows: int, terminated: bool, seed: int, *, discrete: bool = False, parts: bool = False) -> dict[str, Any]:
    """Columns of one episode of a second-version file."""
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 255, (rows, 1, 6, 6)).astype(np.uint8)
    vector = rng.normal(size=(rows, 3)).astype(np.float32)
    return {
        "observations": [image, vector] if parts else vector,
        "actions": rng.integers(0, 4, (rows, 1)) if discrete else rng.normal(size=(rows, 2)).astype(np.float32),
        "rewards": rng.normal(size=(rows, 1)).astype(np.float32),
        "terminated": terminated,
    }
