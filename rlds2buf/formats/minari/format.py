"""Minari's datasets, told by a file's name, a metadata.json or groups called after episodes."""

from __future__ import annotations

import re
from typing import Any

from rlds2buf.io.format import Format, Refusal
from rlds2buf.io.look import Look

__all__ = ["FILE", "FORMATS"]

FILE = "main_data.hdf5"
"""What holds the episodes in the HDF5 layout."""


def _fits(look: Look) -> bool:
    if look.hdf5:
        return all(re.fullmatch(r"episode_\d+", name) for name in look.hdf5)
    if look.path.name == FILE:
        return look.path.is_file()
    folders = [look, look.inside("data")]
    return any(FILE in folder.names or _metadata(folder) is not None for folder in folders)


def _metadata(folder: Look) -> Any:
    if "metadata.json" not in folder.names:
        return None
    metadata = folder.inside("metadata.json").json()
    known = isinstance(metadata, dict) and {"data_format", "minari_version", "total_episodes"} & set(metadata)
    return metadata if known else None


def _namespace_members(look: Look) -> str:
    held = [name for name in look.names if _fits(look.inside(name))]
    return f"a Minari namespace; name one of its datasets: {', '.join(held) or 'there is none'}"


FORMATS = (
    Format(
        "minari",
        "a Minari dataset",
        source="rlds2buf.formats.minari.source:MinariDirSource",
        sink="rlds2buf.formats.minari.sink:MinariDirSink",
        fits=_fits,
        takes=("budget",),
        told_by=f"data/{FILE}",
        near=lambda look: int(look.is_folder or look.hdf5 is not None),
        refusals=(Refusal(lambda look: "namespace_metadata.json" in look.names, _namespace_members),),
        extras={"arrow": "its Arrow and Parquet layouts"},
    ),
)
