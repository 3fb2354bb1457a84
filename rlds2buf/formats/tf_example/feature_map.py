"""What the features of raw ``tf.train.Example`` records mean: given by the user, or by name for known datasets."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from rlds2buf.core.arguments import choice
from rlds2buf.core.dtypes import as_dtype, dtype_name
from rlds2buf.core.fields import FLAG_FIELDS
from rlds2buf.core.json_text import parse_json
from rlds2buf.core.nest import path_name
from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import SourceError, SourceFormatError, SourceNotFound

__all__ = ["METADATA", "NEXT", "PRESETS", "ExampleSpec", "FieldFeature", "read_spec"]

METADATA: Final = "metadata"
"""Paths below this are facts about the whole episode."""

NEXT: Final = "next_observation"
"""Paths below this are the observation that a step led to; only in records of one step."""

_ENCODINGS: Final = ("none", "bytes", "image")
_STRING: Final = np.dtype(object)
_SCALARS: Final = ("reward", "discount", *FLAG_FIELDS)


@dataclasses.dataclass(frozen=True)
class FieldFeature:
    """Where one field of a step is in a record.

    Attributes:
        path: of the field, ``("observation", "position")``.
        key: of the feature.
        dtype: of the values; ``object`` for byte strings; None: as stored (float32, int64, byte strings).
        shape: of one step's value; None where the first record tells.  Of an image ``(height, width,
            channels)``, whose height and width may be None.
        encoding: ``"none"``, the values themselves; ``"bytes"``, one byte string a step, or one for
            all, with the values in little-endian order; ``"image"``, one PNG or JPEG file a step.
        size: (height, width) that decoded images are resized to, or None.
    """

    path: tuple[str, ...]
    key: str
    dtype: np.dtype | None = None
    shape: tuple[int | None, ...] | None = None
    encoding: str = "none"
    size: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """The path as text."""
        return path_name(self.path)

    def spec(self, encoded: bool) -> FieldSpec:
        """Once shape and dtype are known."""
        assert self.shape is not None and self.dtype is not None
        if self.encoding == "image" and encoded:
            return FieldSpec((), _STRING, image=FieldSpec(self.shape, self.dtype))
        return FieldSpec(self.shape if self.size is None else (*self.size, self.shape[2]), self.dtype)


@dataclasses.dataclass(frozen=True)
class ExampleSpec:
    """All fields, and how rows are to be understood.

    Attributes:
        fields: what is read; a path may end in ``*``, and its key then matches several features.
        shift: fields that are logged one row too late for RLDS: with the observation that they led to.
        terminal_discount: whether a last logged discount of 0 means that the episode's end is terminal.
    """

    fields: tuple[FieldFeature, ...]
    shift: tuple[str, ...] = ()
    terminal_discount: bool = False

    def expand(self, keys: Iterable[str]) -> ExampleSpec:
        """Fields with ``*`` become the features that a record has."""
        fields: list[FieldFeature] = []
        for field in self.fields:
            if not field.key.endswith("*"):
                fields.append(field)
                continue
            given = {other.key for other in self.fields}
            for key in sorted(key for key in keys if key.startswith(field.key[:-1]) and key not in given):
                rest = tuple(key[len(field.key) - 1 :].split("/"))
                fields.append(dataclasses.replace(field, path=(*field.path[:-1], *rest), key=key))
        return dataclasses.replace(self, fields=tuple(fields))

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "features": {
                field.name: {
                    "key": field.key,
                    "dtype": None if field.dtype is None else dtype_name(field.dtype),
                    "shape": None if field.shape is None else list(field.shape),
                    "encoding": field.encoding,
                }
                for field in self.fields
            },
            "shift": list(self.shift),
            "terminal_discount": self.terminal_discount,
        }


_EPISODE_ID: Final = {"metadata/episode_id": "episode_id", "metadata/timestamp": "timestamp"}
_DM_CONTROL: Final = {
    "features": {"observation/*": "observation/*", "action": {}, "reward": {}, "discount": {}, **_EPISODE_ID},
    "shift": ["reward", "discount"],
    "terminal_discount": True,
}
_CAMERA: Final = {
    "key": "observation/walker/egocentric_camera",
    "dtype": "uint8",
    "shape": [64, 64, 3],
    "encoding": "bytes",
}

PRESETS: Final[Mapping[str, Mapping[str, Any]]] = {
    "rlu-control-suite": _DM_CONTROL,
    "rlu-locomotion": {
        **_DM_CONTROL,
        "features": {**_DM_CONTROL["features"], "observation/walker/egocentric_camera": _CAMERA},  # type: ignore[dict-item]
    },
    "rlu-atari": {
        "features": {
            "observation": {"key": "observations", "dtype": "uint8", "shape": [84, 84, 1], "encoding": "image"},
            "action": "actions",
            "reward": "unclipped_rewards",
            "discount": "discounts",
            "metadata/episode_id": "episode_idx",
            "metadata/checkpoint_id": "checkpoint_idx",
            "metadata/episode_return": "episode_return",
        },
        "shift": ["discount"],
        "terminal_discount": True,
    },
}
"""RL Unplugged's raw files, whose records are episodes in GZIP-compressed TFRecords.

Source: how tensorflow_datasets/rl_unplugged/{rlu_control_suite, rlu_locomotion, atari_utils}.py read
``gs://rl_unplugged/dm_control_suite_episodes``, ``.../dm_locomotion_episodes`` and ``.../atari_episodes``;
episodes come out as those builders give them.
"""


def read_spec(features: Any) -> ExampleSpec:
    """The spec from what a user gave.

    Args:
        features: a mapping from a step field's path to ``{"key", "dtype", "shape", "encoding"}`` (each
            may be missing) or to a key; a mapping with that under ``"features"`` beside ``"shift"`` and
            ``"terminal_discount"``; the path of a JSON file with one of them; or a name in `PRESETS`.

    Raises:
        SourceNotFound, SourceFormatError: the file is not there, or is not JSON.
        ValueError, TypeError: it is none of these; the message names the field.

    >>> spec = read_spec({"observation/position": {"key": "pos", "shape": [3]}, "action": "act"})
    >>> [(field.name, field.key, field.shape) for field in spec.fields]
    [('observation/position', 'pos', (3,)), ('action', 'act', None)]
    """
    if isinstance(features, str) and features in PRESETS:
        features = PRESETS[features]
    elif isinstance(features, str | os.PathLike):
        features = _read_json(Path(features))
    if not isinstance(features, Mapping) or not features:
        raise TypeError(
            "features must be a mapping from step fields to features, the path of a JSON file with one, or one of "
            f"{', '.join(PRESETS)}; got {type(features).__name__}"
        )
    nested = isinstance(features.get("features"), Mapping) and features.keys() <= {
        "features",
        "shift",
        "terminal_discount",
    }
    options = {key: value for key, value in features.items() if key != "features"} if nested else {}
    fields = tuple(_field(str(path), given) for path, given in (features["features"] if nested else features).items())
    paths = {field.path for field in fields}
    for path in paths:
        if any(path[:i] in paths for i in range(1, len(path))):
            raise ValueError(f"features: {path_name(path)} is below another field")
    shift = tuple(str(name) for name in options.get("shift", ()))
    names = {field.path[0] for field in fields}
    for name in shift:
        if name not in names or name in FLAG_FIELDS or name == METADATA:
            raise ValueError(f"shift: {name!r} is none of the data fields")
    return ExampleSpec(fields, shift, bool(options.get("terminal_discount", False)))


def _field(name: str, given: Any) -> FieldFeature:
    path = tuple(name.split("/"))
    if not all(path) or (path[0] in (*FLAG_FIELDS, "reward") and len(path) > 1):
        raise ValueError(f"features: {name!r} is no path of a step's field")
    if isinstance(given, str):
        given = {"key": given}
    if not isinstance(given, Mapping):
        raise TypeError(f"features: {name}: should be a key or a mapping, got {type(given).__name__}")
    unknown = sorted(set(given) - {"key", "dtype", "shape", "encoding"})
    if unknown:
        raise ValueError(f"features: {name}: unknown entry {unknown[0]!r}; known: key, dtype, shape, encoding")
    key, encoding = str(given.get("key", name)), str(given.get("encoding") or "none")
    choice(f"features: {name}: encoding", encoding, _ENCODINGS)
    if key.endswith("*") != name.endswith("*") or "*" in key[:-1]:
        raise ValueError(f"features: {name}: a * at the end of the path stands for one at the end of the key")
    dtype = _dtype(name, given.get("dtype"), encoding)
    shape = _shape(name, given.get("shape"), encoding)
    if shape is None and path[0] in _SCALARS:
        shape = ()
    if path[0] in FLAG_FIELDS:
        dtype = np.dtype(np.bool_)
    return FieldFeature(path, key, dtype, shape, encoding)


def _dtype(name: str, given: Any, encoding: str) -> np.dtype | None:
    if given is None:
        if encoding == "bytes":
            raise ValueError(f"features: {name}: values encoded as bytes need a dtype")
        return np.dtype(np.uint8) if encoding == "image" else None
    try:
        dtype = _STRING if given in ("string", "bytes") else as_dtype(given)
    except TypeError as cause:
        raise ValueError(f"features: {name}: unknown dtype {given!r}") from cause
    if dtype.kind not in "biufO" or (dtype == _STRING and encoding != "none"):
        raise ValueError(f"features: {name}: values of {given} encoded as {encoding!r} are not read")
    return dtype


def _shape(name: str, given: Any, encoding: str) -> tuple[int | None, ...] | None:
    if given is None:
        if encoding == "image":
            raise ValueError(f"features: {name}: an image needs its shape [height, width, channels]")
        return None
    if not isinstance(given, list | tuple) or not all(isinstance(n, int) or n is None for n in given):
        raise ValueError(f"features: {name}: shape should be a list of lengths, got {given!r}")
    shape = tuple(given)
    fixed = shape[2:] if encoding == "image" else shape
    if None in fixed or any(n is not None and n < 0 for n in shape) or (encoding == "image" and len(shape) != 3):
        raise ValueError(f"features: {name}: the shape {list(shape)} is not read")
    return shape


def _read_json(path: Path) -> Any:
    try:
        return parse_json(path.read_bytes())
    except FileNotFoundError as cause:
        raise SourceNotFound(f"{path}: no such file of features, nor one of {', '.join(PRESETS)}") from cause
    except OSError as cause:
        raise SourceError(f"{path}: {cause.strerror or cause}") from cause
    except ValueError as cause:
        raise SourceFormatError(f"{path}: not readable as JSON ({cause})") from cause
