"""dataset_info.json and the names in it: what TFDS calls a dataset, its version, its shards.

Source: tensorflow_datasets/core/{naming,dataset_info}.py, https://github.com/tensorflow/datasets
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

__all__ = ["WrittenSplit", "check_names", "dataset_info_json", "names_from", "shard_name"]

_TEMPLATE: Final = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+")
_NAME: Final = re.compile(r"[a-zA-Z]\w*", re.ASCII)
_SPLIT: Final = re.compile(r"\w[\w-]*", re.ASCII)


class WrittenSplit(NamedTuple):
    """One split: how many records each shard has, and the bytes of all records."""

    name: str
    lengths: Sequence[int]
    num_bytes: int


def names_from(folder: Path) -> tuple[str, str]:
    """A dataset's name and version for a folder: those of the folder, as far as TFDS allows them.

    >>> names_from(Path("data/hopper/1.2.0")), names_from(Path("my-data.v2"))
    (('hopper', '1.2.0'), ('my_data_v2', '1.0.0'))
    """
    folder = Path(folder).absolute()
    version = folder.name if _VERSION.fullmatch(folder.name) else "1.0.0"
    name = folder.parent.name if folder.name == version else folder.name
    name = re.sub(r"\W", "_", name, flags=re.ASCII).strip("_")
    return (name if _NAME.fullmatch(name) else f"dataset_{name}".rstrip("_")), version


def check_names(name: str, version: str, splits: Sequence[str]) -> None:
    """Raise unless TFDS can use them.

    Raises:
        ValueError: one is of no form that TFDS knows, or two splits have one name.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"a dataset's name is a letter, then letters, digits and underscores, got {name!r}")
    if not _VERSION.fullmatch(version):
        raise ValueError(f"a version is three numbers as in 1.0.0, got {version!r}")
    for split in splits:
        if not _SPLIT.fullmatch(split) or split == "all":
            raise ValueError(f"a split's name is of letters, digits, - and _ and not 'all', got {split!r}")
    if len(set(splits)) < len(splits):
        raise ValueError(f"two splits are called {splits[0]!r}")


def shard_name(name: str, split: str, index: int, count: int) -> str:
    """What TFDS calls one shard's file.

    >>> shard_name("hopper", "train", 0, 2)
    'hopper-train.tfrecord-00000-of-00002'
    """
    return f"{name}-{split}.tfrecord-{index:05d}-of-{count:05d}"


def dataset_info_json(name: str, version: str, splits: Sequence[WrittenSplit], description: str) -> dict[str, Any]:
    """The content of dataset_info.json as plain JSON values (numbers of 64 bits are strings in it).

    The order of episodes is kept: ``disableShuffling`` makes TFDS read shard after shard, too.

    >>> dataset_info_json("hopper", "1.0.0", [WrittenSplit("train", [2, 3], 999)], "")["splits"][0]["shardLengths"]
    ['2', '3']
    """
    return {
        "description": description,
        "disableShuffling": True,
        "fileFormat": "tfrecord",
        "moduleName": "rlds2buf.sinks.rlds_dir",
        "name": name,
        "releaseNotes": {version: "Written by rlds2buf."},
        "splits": [
            {
                "filepathTemplate": _TEMPLATE,
                "name": split.name,
                "numBytes": str(split.num_bytes),
                "shardLengths": [str(length) for length in split.lengths],
            }
            for split in splits
        ],
        "version": version,
    }
