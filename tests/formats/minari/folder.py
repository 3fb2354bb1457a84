"""Minari's folders in its HDF5 layout, written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np


def write(folder: Path, episodes: list[dict[str, Any]], **metadata: Any) -> Path:
    """A dataset whose episodes have these datasets; attributes of the group under ``attrs``."""
    folder.mkdir(parents=True)
    told = {"data_format": "hdf5", "total_episodes": len(episodes), **metadata}
    (folder / "metadata.json").write_text(json.dumps(told))
    with h5py.File(folder / "main_data.hdf5", "w") as file:
        for number, columns in enumerate(episodes):
            group = file.create_group(f"episode_{number}")
            group.attrs.update(columns.get("attrs", {}))
            for name, value in columns.items():
                if name != "attrs" and value is not None:
                    group[name] = value
    return folder


def columns(steps: int, end: str = "terminations", **more: Any) -> dict[str, Any]:
    """An episode of so many steps: observation t is t, action 10 t, reward 0.5."""
    flags = {name: np.zeros(steps, bool) for name in ("terminations", "truncations")}
    if end:
        flags[end][-1] = True
    return {
        "observations": np.arange(steps + 1.0),
        "actions": 10 * np.arange(steps),
        "rewards": np.full(steps, 0.5),
        **flags,
        **more,
    }
