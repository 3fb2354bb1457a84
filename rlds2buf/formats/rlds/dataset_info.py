"""Where a TFDS dataset lies and what its dataset_info.json says, read and written: names, splits, shards.

Source: tensorflow_datasets/core/{naming,splits,dataset_info,utils/shard_utils}.py, https://github.com/tensorflow/datasets
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlds2buf.codecs.tfrecord.array_record import count_array_records
from rlds2buf.codecs.tfrecord.frames import count_records
from rlds2buf.core.json_text import integer_of, parse_json
from rlds2buf.errors import SourceError, SourceFormatError, SourceNotFound

__all__ = [
    "FRAME_BYTES",
    "MIN_SHARD",
    "DatasetInfo",
    "Split",
    "WrittenSplit",
    "check_names",
    "dataset_info_json",
    "find_version_folder",
    "names_from",
    "number_of_shards",
    "read_dataset_info",
    "shard_lengths",
    "shard_name",
]

_FILE = "dataset_info.json"
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_NAME = re.compile(r"[a-zA-Z]\w*", re.ASCII)
_SPLIT = re.compile(r"\w[\w-]*", re.ASCII)
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_TFRECORD = "tfrecord"
_COUNT = {_TFRECORD: count_records, "array_record": count_array_records}
"""The record formats that are read, the one that needs no further package first, and what counts their records."""
FRAME_BYTES = 16
"""What a TFRecord file has around every record."""

MIN_SHARD = 64 << 20
MAX_SHARD = 1 << 30
_MOST_USUAL = 1024


@dataclasses.dataclass(frozen=True)
class Split:
    """One split: its shard files, how many records each holds, and their bytes together."""

    name: str
    files: tuple[Path, ...]
    lengths: tuple[int, ...]
    num_bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class DatasetInfo:
    """What is used of dataset_info.json; `config` is ``""`` if the dataset has no configs."""

    name: str
    config: str
    version: str
    file_format: str
    splits: Mapping[str, Split]


def find_version_folder(path: Path) -> Path:
    """The folder with features.json that `path` means.

    `path` names that folder itself, or its config's folder (the newest version is taken), or the
    dataset's folder (if that has one config).

    Raises:
        SourceNotFound: nothing is there, or several configs are and none was named; the message
            lists them.
        SourceFormatError: it is not the folder of a TFDS dataset.
    """
    if not path.exists():
        raise SourceNotFound(f"{path}: no such file or folder")
    if not path.is_dir():
        raise SourceFormatError(f"{path}: a file, but an RLDS dataset is a folder with features.json")
    if (path / "features.json").is_file():
        return path
    versions = _versions(path)
    configs = {} if versions else {child.name: _versions(child) for child in _folders(path) if _versions(child)}
    if len(configs) > 1:
        raise SourceNotFound(f"{path}: several configs, name one of: {', '.join(sorted(configs))}")
    for found in configs.values():
        versions = found
    if not versions:
        raise SourceFormatError(f"{path}: no features.json in it, nor in a version folder such as 1.0.0 below it")
    return versions[max(versions)]


def read_dataset_info(folder: Path) -> DatasetInfo:
    """Parse ``dataset_info.json`` in a version folder.

    Raises:
        SourceNotFound: there is none.
        SourceFormatError: it is not JSON, lacks what is needed, or the records are in a format
            other than TFRecord and ArrayRecord.
    """
    path = folder / _FILE
    try:
        info = parse_json(path.read_text(encoding="utf-8"))
        if not isinstance(info, Mapping):
            raise SourceFormatError(f"{path}: not a JSON object")
        file_format = _file_format(info, folder)
        splits = [_split(entry, info, folder, file_format) for entry in info.get("splits", ())]
        name, version = str(info["name"]), str(info.get("version", ""))
    except FileNotFoundError as cause:
        raise SourceNotFound(f"{path}: no such file") from cause
    except OSError as cause:
        raise SourceError(f"{path}: {cause.strerror or cause}") from cause
    except SourceError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as cause:
        raise SourceFormatError(f"{path}: malformed: {type(cause).__name__}: {cause}") from cause
    config = str(info.get("configName") or "")
    return DatasetInfo(name, config, version, file_format, {split.name: split for split in splits})


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


def number_of_shards(num_bytes: int, num_records: int) -> int:
    """How many shards TFDS makes of a split.

    A power of two up to 1024, the largest with at least 64 MiB a shard; if shards would hold more than
    1 GiB even then, the first multiple of 1024 with which they don't.  Never more than there are
    records.

    Args:
        num_bytes: of all records together, without what the file has around them.
        num_records: how many there are.

    >>> [number_of_shards(n << 20, 5000) for n in (1, 127, 128, 300, 1 << 17, 3 << 20)]
    [1, 1, 2, 4, 1024, 3072]
    """
    total = num_bytes + num_records * FRAME_BYTES
    most, least = total // MIN_SHARD, total // MAX_SHARD
    if least > _MOST_USUAL:
        count = 2 * _MOST_USUAL
        while count < least and count + _MOST_USUAL <= num_records:
            count += _MOST_USUAL
        return min(count, max(1, num_records))
    count = _MOST_USUAL
    while count > 1 and not (least <= count <= most and num_records >= count):
        count //= 2
    return count


def shard_lengths(num_records: int, num_shards: int) -> list[int]:
    """How many records each shard holds; they differ by one at most.

    >>> shard_lengths(10, 4)
    [2, 3, 3, 2]
    """
    ends = [round(num_records * i / num_shards) for i in range(num_shards + 1)]
    return [end - start for start, end in itertools.pairwise(ends)]


def dataset_info_json(name: str, version: str, splits: Sequence[WrittenSplit], description: str) -> dict[str, Any]:
    """The content of dataset_info.json as plain JSON values (numbers of 64 bits are strings in it).

    The order of episodes is kept: ``disableShuffling`` makes TFDS read shard after shard, too.

    >>> dataset_info_json("hopper", "1.0.0", [WrittenSplit("train", [2, 3], 999)], "")["splits"][0]["shardLengths"]
    ['2', '3']
    """
    return {
        "description": description,
        "disableShuffling": True,
        "fileFormat": _TFRECORD,
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


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(child for child in path.iterdir() if child.is_dir())
    except OSError as cause:
        raise SourceError(f"{path}: {cause.strerror or cause}") from cause


def _versions(path: Path) -> dict[tuple[int, ...], Path]:
    """The version folders right below `path`, by number."""
    found = {}
    for child in _folders(path):
        match = _VERSION.fullmatch(child.name)
        if match and (child / "features.json").is_file():
            found[tuple(int(part) for part in match.groups())] = child
    return found


def _file_format(info: Mapping[str, Any], folder: Path) -> str:
    """Which of the formats that the records are in is read: one whose files are there, TFRecord before others."""
    # Files older than the field are TFRecord.
    told = info.get("fileFormat") or _TFRECORD
    readable = [name for name in _COUNT if name in (told, *info.get("alternativeFileFormats", ()))]
    if not readable:
        raise SourceFormatError(
            f"{folder / _FILE}: the records are {told} files, which are not read, only {' and '.join(_COUNT)}; "
            "TFDS converts them: tfds convert_format --root_data_dir=... --out_file_format=array_record"
        )
    there = (name for name in readable if next(folder.glob(f"*{name}*"), None) is not None)
    return next(there, readable[0])


def _split(entry: Mapping[str, Any], info: Mapping[str, Any], folder: Path, file_format: str) -> Split:
    name = str(entry["name"])
    template = str(entry.get("filepathTemplate") or _TEMPLATE)
    values = {"DATASET": str(info["name"]), "SPLIT": name, "FILEFORMAT": file_format}
    num_bytes = integer_of(entry["numBytes"]) if "numBytes" in entry else None
    lengths = tuple(integer_of(length) for length in entry.get("shardLengths", ()))
    if any(length < 0 for length in lengths):
        raise ValueError(f"split {name!r}: negative shardLengths")
    if lengths:
        files = tuple(folder / _file_name(template, values, i, len(lengths)) for i in range(len(lengths)))
        return Split(name, files, lengths, num_bytes)
    # Datasets of old carry no lengths: the files there are tell how many, and are counted.
    files = tuple(sorted(folder.glob(_file_name(template, values, "*", "*"))))
    return Split(name, files, tuple(_COUNT[file_format](file) for file in files), num_bytes)


def _file_name(template: str, values: Mapping[str, str], index: int | str, count: int | str) -> str:
    width = max(5, len(str(count)))
    shard = index if isinstance(index, str) else f"{index:0{width}d}"
    total = count if isinstance(count, str) else f"{count:0{width}d}"
    mapping = {**values, "SHARD_INDEX": shard, "NUM_SHARDS": total, "SHARD_X_OF_Y": f"{shard}-of-{total}"}
    name = template
    for key, value in mapping.items():
        name = name.replace(f"{{{key}}}", value)
    if re.search(r"\{\w+\}", name):
        raise ValueError(f"the filepathTemplate {template!r} has unknown parts")
    if name.startswith("/") or ".." in name.split("/") or name in ("", "."):  # metadata come with data from anywhere
        raise ValueError(f"the filepathTemplate {template!r} names no files in the dataset's folder")
    return name
