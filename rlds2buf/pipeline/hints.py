"""What somebody may have meant whose file or folder no format fits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

from rlds2buf.io.look import Look

__all__ = ["closest"]

_MOST: Final = 3


@dataclasses.dataclass(frozen=True)
class _Hint:
    """A format by name, what it is told by, and whether something could be meant to be it."""

    name: str
    told_by: str
    near: Callable[[Look], bool]


def _is_hdf5(look: Look) -> bool:
    return look.hdf5 is not None


def _is_folder(look: Look) -> bool:
    return look.is_folder


def _has(*ends: str) -> Callable[[Look], bool]:
    """A file whose name ends so, or a folder with such a file in it."""
    return lambda look: any(name.lower().endswith(ends) for name in (look.names or [look.path.name]))


_HINTS: Final = (
    _Hint("d4rl", "observations, actions, rewards and terminals at the top", _is_hdf5),
    _Hint("robomimic", "data/demo_0/obs", _is_hdf5),
    _Hint("csv", "a file .csv, or a folder of nothing else", _has(".csv", ".tsv", ".txt")),
    _Hint("parquet", "a file .parquet, or a folder of nothing else", _has(".parquet", ".pq", ".parq")),
    _Hint("jsonl", "a file .jsonl, or a folder of nothing else", _has(".json", ".jsonl", ".ndjson")),
    _Hint("npz", "a file .npz, or a folder of nothing but .npz or .npy", _has(".npz", ".npy")),
    _Hint("rllib", 'lines with "type": "SampleBatch", or with eps_id, obs and actions', _has(".json", ".jsonl")),
    _Hint("buffer", "manifest.json", _has("manifest.json")),
    _Hint("reverb-checkpoint", "DONE, tables.tfrecord and chunks.tfrecord", _has("tables.tfrecord", "done")),
    _Hint("rlds", "features.json and dataset_info.json beside the shards", _is_folder),
    _Hint("minari", "data/main_data.hdf5", lambda look: _is_folder(look) or _is_hdf5(look)),
)


def closest(look: Look) -> str:
    """The few formats that may be meant, each with what it is told by; for the end of a message.

    >>> import pathlib, tempfile
    >>> closest(Look(pathlib.Path(tempfile.mkdtemp())))
    '; closest: rlds (features.json and dataset_info.json beside the shards), minari (data/main_data.hdf5)'
    """
    near = [f"{hint.name} ({hint.told_by})" for hint in _HINTS if hint.near(look)]
    return f"; closest: {', '.join(near[:_MOST])}" if near else ""
