"""RLDS datasets as tf.data holds them: made from columns, or read by TFDS."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np

from tests.data import DATA
from tests.full.quiet import tf, tfds
from tests.made import MADE

PATHS = {
    "bridge": "rlds/bridge_dataset/1.0.0",
    "hopper-v0": "rlds/d4rl_mujoco_hopper/v0-medium/1.2.0",
    "hopper-v2": "rlds/d4rl_mujoco_hopper/v2-medium/1.2.0",
    "cartpole": "rlds/rlu_control_suite/cartpole_swingup/1.0.0",
    "robomimic": "rlds/robomimic_ph/lift_ph_low_dim/1.0.1",
}
NAMES = (*PATHS, *(f"made-{name}" for name in PATHS))
"""Real datasets, and their stand-ins."""


def columns(rows: int, start: float = 0.0, **changes: Any) -> dict[str, Any]:
    """A good episode that ends in a terminal step, as columns; `changes` replace some."""
    ramp = start + np.arange(rows, dtype=np.float32)
    edge = np.arange(rows)
    return {
        "observation": ramp[:, None] * np.ones(3, np.float32),
        "action": ramp[:, None] + np.float32(0.5),
        "reward": ramp * 2,
        "discount": np.ones(rows, np.float32),
        "is_first": edge == 0,
        "is_last": edge == rows - 1,
        "is_terminal": edge == rows - 1,
        **changes,
    }


def dataset(episodes: list[dict[str, Any]]) -> Any:
    """Episodes of one structure, given as columns, as a dataset of datasets."""
    return tf.data.Dataset.from_tensor_slices({"steps": [tf.data.Dataset.from_tensor_slices(e) for e in episodes]})


def step_lists(episodes: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The same episodes as lists of step dicts."""
    return [
        [tf.nest.map_structure(lambda column, t=t: column[t], episode) for t in range(len(episode["is_first"]))]
        for episode in episodes
    ]


def folder(name: str) -> Path:
    """Where a dataset lies; the test is skipped where it is absent."""
    return MADE / PATHS[name.removeprefix("made-")] if name.startswith("made-") else DATA / PATHS[name]


def is_there(name: str) -> bool:
    return name.startswith("made-") or DATA.has(PATHS[name])


@functools.cache
def loaded(name: str) -> Any:
    """A dataset as TFDS reads it."""
    return tfds.builder_from_directory(str(folder(name))).as_dataset(split="train")


@functools.cache
def mended(name: str) -> Any:
    """A dataset in the form that TF-Agents' util can convert: flat, flags right, float32 discounts."""

    def mend_episode(episode: dict[str, Any]) -> dict[str, Any]:
        count = episode["steps"].reduce(tf.constant(0, tf.int64), lambda n, _: n + 1)

        def mend_step(number: Any, step: dict[str, Any]) -> dict[str, Any]:
            observation = step["observation"]
            if isinstance(observation, dict):
                leaves = [leaf for leaf in tf.nest.flatten(observation) if leaf.dtype.is_floating]
                observation = tf.concat([tf.reshape(leaf, [-1]) for leaf in leaves], 0)
            is_last = number == count - 1
            return {
                **step,
                "observation": observation,
                "discount": tf.cast(step["discount"], tf.float32),
                "is_first": number == 0,
                "is_last": is_last,
                "is_terminal": step["is_terminal"] & is_last,
            }

        return {"steps": episode["steps"].enumerate().map(mend_step)}

    return loaded(name).map(mend_episode)
