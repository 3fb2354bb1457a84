"""Files as robomimic's own scripts write them (dataset_states_to_obs.py, split_train_val.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np

ENV_ARGS = {"env_name": "Lift", "type": 1, "env_kwargs": {"horizon": 400, "control_freq": 20}}


def demo(samples: int, seed: int, success_from: int | None = None) -> dict[str, Any]:
    """One demonstration's columns; dones as ``--done_mode 2`` writes them."""
    rng = np.random.default_rng(seed)
    object_ = rng.normal(size=(samples + 1, 10))
    image = rng.integers(0, 255, (samples + 1, 8, 8, 3)).astype(np.uint8)
    solved = np.arange(samples) >= (samples if success_from is None else success_from)
    ended = np.arange(samples) == samples - 1
    return {
        "obs/object": object_[:-1],
        "obs/agentview_image": image[:-1],
        "next_obs/object": object_[1:],
        "next_obs/agentview_image": image[1:],
        "actions": rng.uniform(-1, 1, (samples, 7)),
        "states": rng.normal(size=(samples, 32)),
        "rewards": solved.astype(np.float64),
        "dones": (solved | ended).astype(np.int64),
    }


def write(
    path: Path,
    demos: dict[str, dict[str, Any]],
    mask: dict[str, list[str]] | None = None,
    *,
    compress: bool = False,
) -> Path:
    """A file of these demonstrations; a dataset that is None is left out."""
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        for name, columns in demos.items():
            group = data.create_group(name)
            for key, value in columns.items():
                if value is None:
                    continue
                packed = {"compression": "gzip"} if compress and "obs/" in key else {}
                group.create_dataset(key, data=value, **packed)
            group.attrs["model_file"] = f"<mujoco model='{name}'/>"
            group.attrs["num_samples"] = len(columns["actions"])
        data.attrs["total"] = sum(len(columns["actions"]) for columns in demos.values())
        data.attrs["env_args"] = json.dumps(ENV_ARGS, indent=4)
        for key, names in (mask or {}).items():
            file[f"mask/{key}"] = np.array(names, dtype="S")
    return path
