"""A dataset as rlds2buf reads it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import rlds2buf
from rlds2buf.core import nest
from rlds2buf.core.fields import FLAG_FIELDS
from tests.lerobot.opened import items, lengths, open_set

INDICES = ("frame_index", "episode_index", "index")
"""What every LeRobot set has, and no field of ours."""

ENDS = ("next.done", "next.truncated")
"""They are the ends of episodes."""


def field_of(feature: str) -> str:
    """Where LeRobot's feature is among our fields."""
    known = {"next.reward": "reward"} | {name: name for name in ("action", "discount", *FLAG_FIELDS)}
    if feature in known:
        return known[feature]
    nested = feature.replace(".", "/")
    return nested if nested.startswith("observation/") else f"extras/{nested}"


def columns(folder: Path, **options: Any) -> dict[str, np.ndarray]:
    """Every column by the name of its field, ``[N, ...]``; text as objects of str; and ``lengths`` and the flags."""
    found: dict[str, list[np.ndarray]] = {}
    lengths = []
    with rlds2buf.open_source(folder, **options) as source:
        for episode in source:
            lengths.append(episode.num_steps)
            for path, column in episode.flatten():
                found.setdefault(nest.path_name(path), []).append(np.asarray(column))
    out = {name: text(np.concatenate(parts)) for name, parts in found.items()}
    return {**out, "lengths": np.array(lengths)}


def text(column: np.ndarray) -> np.ndarray:
    """Byte strings as str."""
    if column.dtype != object or not len(column) or not isinstance(column.reshape(-1)[0], bytes):
        return column
    return np.array([value.decode() for value in column.reshape(-1)], object).reshape(column.shape)


def assert_read_as_handed_out(folder: Path, only: Callable[[str], bool] = lambda feature: True) -> None:
    """What we read of a dataset without a file of ours is what lerobot's ``ds[i]`` gives, and nothing is left out."""
    dataset, ours = open_set(folder), columns(folder)
    theirs = items(dataset)
    assert ours["lengths"].tolist() == lengths(dataset)
    assert set(theirs) == {*dataset.features, "task"}
    for feature, told in theirs.items():
        if feature in (*INDICES, *ENDS) or not only(feature):
            continue
        found = ours[field_of(feature)]
        np.testing.assert_array_equal(found.astype(told.dtype), told.reshape(found.shape), err_msg=feature)
