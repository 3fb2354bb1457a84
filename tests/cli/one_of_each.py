"""A file or folder of each format, as it is made and as it is opened."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds2buf import Episode, convert
from tests.formats.d3rlpy import files as d3rlpy_file
from tests.formats.lerobot.made import vectors, write_v2
from tests.formats.minari.arrow_folder import columns as arrow_columns
from tests.formats.minari.arrow_folder import write as write_arrow
from tests.formats.robomimic import files as robomimic_file
from tests.formats.step_log import files as step_log_files
from tests.formats.tf_example.records import STEP, step_records
from tests.formats.tf_example.records import write as write_records

Make = Callable[[Path], object]


def episodes() -> list[Episode]:
    rng = np.random.default_rng(0)
    return [
        Episode(
            observation=rng.normal(size=(rows, 3)).astype(np.float32),
            action=rng.integers(0, 4, rows),
            reward=rng.normal(size=rows).astype(np.float32),
            discount=np.ones(rows, np.float32),
            is_terminal=np.arange(rows) == rows - 1,
            extras={"note": np.array([b"left", b"right"], object)[rng.integers(0, 2, rows)]} if words else {},
        )
        for rows, words in ((5, True), (9, True))
    ]


def numbers() -> list[Episode]:
    return [episode.replace(extras={}) for episode in episodes()]


def log(path: Path) -> None:
    rows = 14
    step_log_files.write(
        path,
        {
            "episode": np.repeat([0, 1], rows // 2),
            "observation": np.random.default_rng(0).normal(size=(rows, 3)),
            "action": np.arange(rows) % 3,
            "reward": np.ones(rows),
            "terminated": np.arange(rows) % 7 == 6,
            "truncated": np.zeros(rows, bool),
        },
    )


def rllib(path: Path) -> None:
    columns: dict[str, Any] = {
        "type": "SampleBatch",
        "obs": [[0.5 * i, 1.0] for i in range(6)],
        "actions": [0, 1, 0, 1, 0, 1],
        "rewards": [1.0] * 6,
        "terminateds": [False, False, True] * 2,
        "truncateds": [False] * 6,
        "eps_id": [7, 7, 7, 8, 8, 8],
        "new_obs": [[0.5 * i + 0.5, 1.0] for i in range(6)],
    }
    path.write_text(json.dumps(columns) + "\n")


def continuous() -> list[Episode]:
    """Actions that are vectors, none at the last row."""
    found = []
    for episode in numbers():
        action = np.stack([episode.action, -episode.action], 1).astype(np.float32)
        action[-1] = 0
        found.append(episode.replace(action=action, observation={"qpos": episode.observation}))
    return found


def imitation(path: Path) -> None:
    np.savez(path, obs=np.ones((9, 3)), acts=np.arange(7), rews=np.ones(7), indices=[3], terminal=[True, False])


def sb2(path: Path) -> None:
    starts = np.arange(7) % 4 == 0
    columns = {"obs": np.ones((7, 3)), "actions": np.zeros((7, 1)), "rewards": np.ones(7), "episode_starts": starts}
    np.savez(path, episode_returns=np.array([4.0, 3.0]), **columns)


def maniskill(path: Path) -> None:
    with h5py.File(path, "w") as file:
        for number in range(2):
            group = file.create_group(f"traj_{number}", track_order=True)
            group["obs"], group["actions"] = np.ones((5, 3), np.float32), np.ones((4, 2), np.float32)
            group["terminated"], group["truncated"] = np.arange(4) == 3, np.zeros(4, bool)
            group["rewards"] = np.ones(4, np.float32)


def v_d4rl(path: Path) -> None:
    rows = np.arange(10)
    with h5py.File(path, "w") as file:
        file["observation"] = np.ones((10, 3, 4, 4), np.uint8)
        file["action"] = (rows % 5 > 0)[:, None] * np.ones((1, 2), np.float32)
        file["reward"] = file["discount"] = np.ones(10, np.float32)
        file["step_type"] = np.array([0, 1, 1, 1, 2] * 2)


MAKERS: dict[str, tuple[str, Make]] = {
    "rlds": ("set", lambda path: convert(episodes(), path, to="rlds")),
    "minari": ("set-v0", lambda path: convert(numbers(), path, to="minari")),
    "lerobot": ("set", lambda path: convert(episodes(), path, to="lerobot", sink_options={"fps": 10})),
    "lerobot-v2": ("set", lambda path: write_v2(path, vectors())),
    "minari-arrow": ("set", lambda path: write_arrow(path, [arrow_columns(4), arrow_columns(6, 1)])),
    "rllib": ("batches.json", rllib),
    "tf-example": ("a.tfrecord", lambda path: write_records(path, step_records([3, 4]))),
    "robomimic": (
        "a.hdf5",
        lambda path: robomimic_file.write(path, {f"demo_{i}": robomimic_file.demo(5, i, 3) for i in range(2)}),
    ),
    "d3rlpy": (
        "a.h5",
        lambda path: d3rlpy_file.write_v2(path, [d3rlpy_file.episode(5, True, i, parts=True) for i in range(2)]),
    ),
    "d3rlpy-v1": ("a.h5", lambda path: d3rlpy_file.write_v1(path, **d3rlpy_file.table(9, [4, 8], None))),
    "d4rl": ("a.hdf5", lambda path: convert(numbers(), path, to="d4rl")),
    "zarr": ("a.zarr", lambda path: convert(numbers(), path, to="zarr")),
    "zarr-archive": ("a.zarr.zip", lambda path: convert(numbers(), path, to="zarr")),
    "ogbench": ("a.npz", lambda path: convert(numbers(), path, to="ogbench")),
    "imitation": ("a.npz", imitation),
    "sb2": ("a.npz", sb2),
    "aloha": ("set", lambda path: convert(continuous(), path, to="aloha")),
    "maniskill": ("a.h5", maniskill),
    "dreamer": ("set", lambda path: convert(continuous(), path, to="dreamer")),
    "v-d4rl": ("a.hdf5", v_d4rl),
    "reverb-checkpoint": ("set", lambda path: convert(numbers(), path, to="reverb-checkpoint")),
    "buffer": ("set", lambda path: convert(episodes(), path, to="buffer")),
    "npz": ("a.npz", log),
    "jsonl": ("a.jsonl", log),
    "csv": ("a.csv", log),
    "parquet": ("a.parquet", log),
}


MORE = {"tf-example": ["--format", "tf-example", "-O", f"features={json.dumps(STEP)}", "-O", "record=step"]}
