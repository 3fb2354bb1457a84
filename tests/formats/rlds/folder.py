"""Small RLDS folders for tests, written without TensorFlow."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlds2buf.codecs.tfrecord.frames import frame
from tests.formats.reverb.messages import example

CORE = "tensorflow_datasets.core.features"


def tensor(shape: Sequence[int], dtype: str, encoding: str = "none") -> dict[str, Any]:
    dims = {"dimensions": [str(n) for n in shape]} if shape else {}
    content = {"shape": dims, "dtype": dtype, "encoding": encoding}
    return {"pythonClassName": f"{CORE}.tensor_feature.Tensor", "tensor": content}


def features_dict(features: Mapping[str, Any]) -> dict[str, Any]:
    return {"pythonClassName": f"{CORE}.features_dict.FeaturesDict", "featuresDict": {"features": dict(features)}}


def sequence(feature: Any, length: int = -1, name: str = "sequence_feature.Sequence") -> dict[str, Any]:
    return {"pythonClassName": f"{CORE}.{name}", "sequence": {"feature": feature, "length": str(length)}}


def rlds(steps: Mapping[str, Any], **metadata: Any) -> dict[str, Any]:
    return features_dict({"steps": sequence(features_dict(steps), name="dataset_feature.Dataset"), **metadata})


STEPS = {
    "observation": tensor((2,), "float32"),
    "action": tensor((), "int64"),
    "reward": tensor((), "float32"),
    "discount": tensor((), "float32"),
    "is_first": tensor((), "bool"),
    "is_last": tensor((), "bool"),
    "is_terminal": tensor((), "bool"),
}


def episode(number: int, length: int) -> dict[str, tuple[str, list]]:
    """An episode of `length` rows for :data:`STEPS`; observation ``[number, row]``."""
    last = [0] * (length - 1) + [1] if length else []
    return {
        "steps/observation": ("float", [x for row in range(length) for x in (number, row)]),
        "steps/action": ("int64", [-row for row in range(length)]),
        "steps/reward": ("float", [0.5] * length),
        "steps/discount": ("float", [1.0] * length),
        "steps/is_first": ("int64", last[::-1]),
        "steps/is_last": ("int64", last),
        "steps/is_terminal": ("int64", last if number % 2 else [0] * length),
    }


def write_folder(
    folder: Path,
    shards: Mapping[str, Sequence[Sequence[Mapping[str, tuple[str, list]]]]],
    features: Any = None,
    *,
    name: str = "toy",
    **info: Any,
) -> Path:
    """Write ``{split: [shard: [record]]}`` as a version folder; `info` is added to dataset_info.json."""
    folder.mkdir(parents=True)
    splits = []
    for split, files in shards.items():
        for i, records in enumerate(files):
            path = folder / f"{name}-{split}.tfrecord-{i:05d}-of-{len(files):05d}"
            path.write_bytes(b"".join(frame(example(record)) for record in records))
        lengths = [str(len(records)) for records in files]
        splits.append({"name": split, "shardLengths": lengths, "numBytes": "1"})
    (folder / "features.json").write_text(json.dumps(features or rlds(STEPS)))
    content = {"name": name, "version": folder.name, "fileFormat": "tfrecord", "splits": splits, **info}
    (folder / "dataset_info.json").write_text(json.dumps(content))
    return folder
