"""Dreamer's episodes as .npz files, told by their names and arrays; V-D4RL's HDF5 shards, told by step_type."""

from __future__ import annotations

import re

from rlds2buf.io.format import Format
from rlds2buf.io.look import Look

__all__ = ["FORMATS", "episode_names"]

_EPISODE = re.compile(r"\d{8}T\d{6}-[0-9A-Za-z]+-\d+\.npz")
_SHARD = {"action", "discount", "observation", "reward", "step_type"}


def episode_names(names: list[str]) -> list[str]:
    """Those that Dreamer gives to episodes, ``TIMESTAMP-ID-LENGTH.npz``, sorted as it sorts them."""
    return sorted(name for name in names if _EPISODE.fullmatch(name))


def _fits(look: Look) -> bool:
    if look.is_folder:
        names = episode_names(look.names)
        return bool(names) and _fits(look.inside(names[0]))
    names = [name.removesuffix(".npy") for name in look.archive or ()]
    return bool(episode_names([look.path.name])) and {"action", "reward"} <= set(names)


def _is_shard(look: Look) -> bool:
    return _SHARD <= set(look.hdf5 or ())


def _fits_hdf5(look: Look) -> bool:
    if look.is_folder:
        names = [name for name in look.names if name.endswith((".hdf5", ".h5"))]
        return bool(names) and _is_shard(look.inside(names[0]))
    return _is_shard(look)


FORMATS = (
    Format(
        "dreamer",
        "Dreamer's episodes in .npz files",
        source="rlds2buf.formats.dreamer.source:DreamerSource",
        sink="rlds2buf.formats.dreamer.sink:DreamerSink",
        fits=_fits,
        takes=("budget",),
        members=lambda look: episode_names(look.names) if look.is_folder else None,
        told_by="files TIMESTAMP-ID-LENGTH.npz of action and reward",
    ),
    Format(
        "v-d4rl",
        "V-D4RL's HDF5 shards",
        source="rlds2buf.formats.dreamer.shards:VD4rlSource",
        fits=_fits_hdf5,
        takes=("budget",),
        members=lambda look: (
            [name for name in look.names if name.endswith((".hdf5", ".h5"))] if look.is_folder else None
        ),
        told_by="action, discount, observation, reward and step_type at the top",
    ),
)
