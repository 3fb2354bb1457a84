"""Minari's HDF5 layout, an episode at a time by h5py's usual calls."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds2buf import Episode
from rlds2buf.core import nest
from rlds2buf.io.metadata_values import facts_of


def write_groups(path: Path, episodes: Iterable[Episode]) -> None:
    """The file for episodes whose extras are ``infos``, and of whose metadata all has a place."""
    with h5py.File(path, "w") as file:
        for index, episode in enumerate(episodes):
            name = f"episode_{index}"
            for field in ("observation", "action"):
                for place, column in nest.flatten(getattr(episode, field), (f"{field}s",)):
                    parts = [f"_index_{part}" if isinstance(part, int) else part for part in place]
                    _write(file, "/".join([name, *parts]), column if field == "observation" else column[:-1])
            for place, column in nest.flatten(episode.extras, (name,)):
                _write(file, nest.path_name(place), column)
            _write(file, f"{name}/rewards", episode.reward[:-1])
            for flag, end in (("terminations", "terminated"), ("truncations", "truncated")):
                flags = np.zeros(episode.num_transitions, np.bool_)
                flags[-1:] = episode.end == end
                _write(file, f"{name}/{flag}", flags)
            file.require_group(f"{name}/infos")
            file[name].attrs["id"] = np.int64(index)
            file[name].attrs["total_steps"] = np.int64(episode.num_transitions)
            for key, value in facts_of(episode.metadata, _never).items():
                if key.startswith("infos/"):
                    _write(file, f"{name}/{key}", value)
                else:
                    _attribute(file[name], key, value)


def _write(file: Any, name: str, value: Any) -> None:
    is_text = isinstance(value, bytes) or value.dtype == object
    file.create_dataset(name, data=value, dtype=h5py.string_dtype() if is_text else value.dtype, track_times=False)


def _attribute(group: Any, name: str, value: Any) -> None:
    if isinstance(value, np.ndarray) and value.dtype == object:
        group.attrs.create(name, value, dtype=h5py.string_dtype())
    else:
        # An empty text of no fixed length: HDF5 has none of length 0.
        group.attrs[name] = (np.bytes_(value) if value else "") if isinstance(value, bytes) else value


def _never(path: str, why: str) -> None:
    raise AssertionError(f"{path}: {why}")
