"""RLDS: what TFDS writes, told by its two JSON files; and a ``tf.data.Dataset`` of it."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from rlds2buf.io.format import Format, Refusal
from rlds2buf.io.look import Look

__all__ = ["FORMATS", "is_file_of_folder"]

_RAW_ADVICE = 'format="tf-example" with features= reads records whose features you can name'

_FILES = ("features.json", "dataset_info.json")
_SHARD = re.compile(r".+\.(tfrecord|array_record|riegeli).*-\d{5}-of-\d{5}$")
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_MAX_FOLDERS = 500


def is_file_of_folder(name: str) -> bool:
    """Whether a file in a version folder is one that TFDS or rlds2buf writes there.

    >>> [is_file_of_folder(name) for name in ("a-train.tfrecord-00000-of-00001", "action.labels.txt", "notes.txt")]
    [True, True, False]
    """
    if "/" in name:
        return False
    return name in (*_FILES, "metadata.json") or name.endswith(".labels.txt") or bool(_SHARD.fullmatch(name))


def _fits(look: Look) -> bool:
    """A version folder of TFDS's, or the config or dataset folder above it."""
    return _is_one(look) or bool(_configs(look))


def _members(look: Look) -> Collection[str] | None:
    return None if _is_one(look) else _configs(look)


def _is_one(look: Look) -> bool:
    return any(name in look.names for name in _FILES) or _has_versions(look)


def _configs(look: Look) -> list[str]:
    return [name for name in look.names[:_MAX_FOLDERS] if _has_versions(look.inside(name))]


def _has_versions(look: Look) -> bool:
    versions = (look.inside(name) for name in look.names if _VERSION.fullmatch(name))
    return any(name in version.names for version in versions for name in _FILES)


def _is_tf_dataset(value: Any) -> bool:
    """Told by its class's bases, so that TensorFlow isn't imported where there is none."""
    return any(
        base.__module__.split(".")[0] == "tensorflow" and base.__name__ in ("DatasetV2", "DatasetV1")
        for base in type(value).__mro__
    )


def _is_shard(look: Look) -> bool:
    return bool(_SHARD.match(look.path.name)) and look.path.is_file()


def _shard_advice(look: Look) -> str:
    parent = look.path.parent
    if (parent / "features.json").is_file():
        return f"one shard of an RLDS folder; name the folder: {parent}"
    return f"one shard of an RLDS folder, without the features.json that tells how to read it; {_RAW_ADVICE}"


FORMATS = (
    Format(
        "rlds",
        "an RLDS folder of TFDS",
        source="rlds2buf.formats.rlds.source:RldsDirSource",
        sink="rlds2buf.formats.rlds.sink:RldsDirSink",
        fits=_fits,
        members=_members,
        has_splits=True,
        takes=("budget",),
        told_by="features.json and dataset_info.json beside the shards",
        near=lambda look: int(look.is_folder),
        refusals=(
            Refusal(_is_shard, _shard_advice),
            Refusal(
                lambda look: any(_SHARD.match(name) for name in look.names),
                lambda look: f"record shards without the features.json that tells how to read them; {_RAW_ADVICE}",
            ),
        ),
        extras={"array-record": "ArrayRecord shards"},
    ),
    Format(
        "tf.data",
        "a tf.data.Dataset",
        source="rlds2buf.formats.rlds.tf_data_source:RldsDatasetSource",
        fits_object=_is_tf_dataset,
        extras={"server": "TensorFlow"},
    ),
)
