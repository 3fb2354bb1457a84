"""ALOHA's and ACT's files, told by `observations/qpos` and `action`: one, or a folder of `episode_N.hdf5`."""

from __future__ import annotations

import re

from rlds2buf.io.format import Format
from rlds2buf.io.look import Look

__all__ = ["FORMATS", "episode_names"]

_EPISODE = re.compile(r"episode_(\d+)\.(hdf5|h5)")


def episode_names(names: list[str]) -> list[str]:
    """Those that are an episode's, in the order of their numbers."""
    numbers = {name: int(match[1]) for name in names if (match := _EPISODE.fullmatch(name))}
    return sorted(numbers, key=lambda name: (numbers[name], name))


def _fits(look: Look) -> bool:
    if look.is_folder:
        names = episode_names(look.names)
        return bool(names) and _fits(look.inside(names[0]))
    return look.hdf5 is not None and "action" in look.hdf5 and look.hdf5_has("observations/qpos")


FORMATS = (
    Format(
        "aloha",
        "ALOHA's episodes in HDF5",
        source="rlds2buf.formats.aloha.source:AlohaSource",
        sink="rlds2buf.formats.aloha.sink:AlohaSink",
        fits=_fits,
        takes=("budget",),
        members=lambda look: episode_names(look.names) if look.is_folder else None,
        told_by="observations/qpos beside action",
        near=lambda look: 2 * (look.hdf5 is not None or look.has_names(".hdf5")),
    ),
)
