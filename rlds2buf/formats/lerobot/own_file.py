"""``meta/rlds2buf.json`` and what lies beside it: what LeRobot has no place for, in the datasets that rlds2buf writes.

::

    meta/rlds2buf.json                 fields as they were, what all episodes share, where the data come from
    meta/rlds2buf_episodes.parquet     a row per episode: its metadata, and what its last row is
    meta/rlds2buf_rows.parquet         a row per frame: fields that no LeRobot feature holds

LeRobot ignores all of them.  With them a dataset reads back as it was written.  Where somebody has changed the
dataset since, so that the first of them says other things of it than ``info.json``, they are ignored.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.dtypes import parse_dtype
from rlds2buf.core.entries import Entries
from rlds2buf.core.json_text import parse_json
from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import SourceError, SourceFormatError

__all__ = [
    "AS_WRITTEN",
    "EPISODES",
    "FEATURE",
    "FILE_NAME",
    "PADDING",
    "REAL",
    "ROWS",
    "ROWS_FILE",
    "TASK",
    "OwnField",
    "OwnFile",
    "json_line",
    "read_own_file",
    "value_from_json",
    "value_to_json",
]

FILE_NAME: Final = "meta/rlds2buf.json"
EPISODES: Final = "meta/rlds2buf_episodes.parquet"
"""Columns: ``metadata`` and ``final``, JSON of :func:`value_to_json` or null; ``last_row``; ``placeholder``."""
ROWS_FILE: Final = "meta/rlds2buf_rows.parquet"
"""A binary column for each field of the kind ROWS.

Numbers of a fixed shape are the bytes of the row's array (little-endian, C order); everything else is as
:func:`rlds2buf.core.ragged.pack_rows` has it, and files of pictures are what they are.
"""

PADDING: Final = 0
"""``last_row``: no action starts there; the action was zeros, and repeats the one before."""
AS_WRITTEN: Final = 1
"""``last_row``: as far as is known no action starts there; its values are what they were, but for those in ``final``
(a nest name to the value that belongs there)."""
REAL: Final = 2
"""``last_row``: its action is real and has no successor."""

FEATURE: Final = "feature"
TASK: Final = "task"
ROWS: Final = "rows"

_VERSION: Final = 1
_MOST_BYTES: Final = 1 << 26


@dataclasses.dataclass(frozen=True)
class OwnField:
    """One field of a step, as it was.

    Attributes:
        path: of the field in a step, as :meth:`~rlds2buf.core.spec.StepSpec.fields` gives it.
        spec: its shape, dtype and limits; of a picture the pixels'.
        kind: FEATURE; TASK, the text that ``task_index`` stands for; or ROWS, a column of ROWS_FILE.
        name: of the feature or column; ``"task"`` for TASK.
        part: of a feature that joins fields, where this one's numbers are in its vector: first, and behind the last.
        encoded: of a picture, whether its files were kept byte for byte.

    >>> field = OwnField(("action", "arm"), FieldSpec((6,), np.float32), name="action", part=(0, 6))
    >>> OwnField.from_json(Entries(field.to_json())) == field
    True
    """

    path: nest.Path
    spec: FieldSpec
    kind: str = FEATURE
    name: str = ""
    part: tuple[int, int] | None = None
    encoded: bool = False

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; :meth:`from_json` reads it back."""
        out: dict[str, Any] = {
            "path": list(self.path),
            "spec": value_to_json(self.spec.to_json()),
            "kind": self.kind,
            "name": self.name,
        }
        if self.part is not None:
            out["part"] = list(self.part)
        if self.encoded:
            out["encoded"] = True
        return out

    @classmethod
    def from_json(cls, told: Entries) -> OwnField:
        """The inverse of :meth:`to_json`.

        Raises:
            ValueError: it is no such description; the message names the entry.
        """
        path = tuple(told.items("path"))
        if not path or not all(isinstance(part, str) or type(part) is int for part in path):
            raise ValueError(f"{told.path('path')} should be a list of names, got {list(path)}")
        kind = told.text("kind")
        if kind not in (FEATURE, TASK, ROWS):
            raise ValueError(f"{told.path('kind')} should be {FEATURE}, {TASK} or {ROWS}, got {kind!r}")
        part = told.lengths("part", None) if "part" in told else None
        if part is not None and (len(part) != 2 or part[0] > part[1]):
            raise ValueError(f"{told.path('part')} should be two numbers, ascending, got {list(part)}")
        spec = FieldSpec.from_json(value_from_json(dict(told.inside("spec").values)))
        place = None if part is None else (part[0], part[1])
        return cls(path, spec, kind, told.text("name"), place, told.flag("encoded", False))


@dataclasses.dataclass(frozen=True)
class OwnFile:
    """What ``meta/rlds2buf.json`` says.

    Attributes:
        fields: of a step, in the order of :meth:`~rlds2buf.core.spec.StepSpec.fields`.
        written: ``total_episodes``, ``total_frames`` and ``features`` (name to dtype and shape) as ``info.json`` had
            them; see :meth:`fits`.
        metadata: what all episodes share.
        provenance: where the data come from; ``provenance["dataset"]`` is what was known of them as a whole.
        details: what else is good to know: the version, the sink's options, what was lost.
    """

    fields: tuple[OwnField, ...]
    written: Mapping[str, Any]
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def fits(self, info: Mapping[str, Any]) -> bool:
        """Whether a dataset with this ``info.json`` is still what was written."""
        return all(info.get(name) == self.written.get(name) for name in ("total_episodes", "total_frames")) and (
            _shapes(info.get("features")) == _shapes(self.written.get("features"))
        )

    @staticmethod
    def written_of(info: Mapping[str, Any]) -> dict[str, Any]:
        """What of an ``info.json`` goes into `written`."""
        totals = {name: info[name] for name in ("total_episodes", "total_frames")}
        features = {
            name: {"dtype": dtype, "shape": shape} for name, (dtype, shape) in _shapes(info["features"]).items()
        }
        return {**totals, "features": features}

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; :meth:`from_json` reads it back."""
        return {
            "version": _VERSION,
            "fields": [field.to_json() for field in self.fields],
            "written": dict(self.written),
            "metadata": value_to_json(dict(self.metadata)),
            "provenance": dict(self.provenance),
            "details": dict(self.details),
        }

    @classmethod
    def from_json(cls, data: Any) -> OwnFile:
        """The inverse of :meth:`to_json`.

        Raises:
            ValueError: it is no such description; the message names the entry.
        """
        told = Entries(data)
        version = told.integer("version")
        if version != _VERSION:
            raise ValueError(f"version {version}, this rlds2buf knows {_VERSION}")
        metadata = value_from_json(told.values.get("metadata", {}))
        if not isinstance(metadata, dict):
            raise ValueError("metadata should be an object")
        return cls(
            tuple(OwnField.from_json(field) for field in told.each("fields")),
            told.inside("written").values,
            metadata,
            told.inside("provenance", None).values,
            told.inside("details", None).values,
        )


def read_own_file(folder: Path) -> OwnFile | None:
    """What a dataset's ``meta/rlds2buf.json`` says; None where there is none.

    Raises:
        SourceError: it can't be read.
        SourceFormatError: it is not what rlds2buf writes.
    """
    path = folder / FILE_NAME
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise SourceFormatError(f"{path}: {path.stat().st_size:,} bytes are too many for what rlds2buf notes there")
        return OwnFile.from_json(parse_json(path.read_bytes()))
    except FileNotFoundError:
        return None
    except OSError as cause:
        raise SourceError(f"{path}: {cause.strerror or cause}") from cause
    except (ValueError, TypeError) as cause:
        raise SourceFormatError(f"{path}: {cause}") from cause


def value_to_json(value: Any) -> Any:
    """A value of an episode's metadata as plain JSON; :func:`value_from_json` reads it back, with its type.

    Raises:
        TypeError: JSON can't say it: it is none of numbers, text, bytes, arrays of these, lists, tuples, dicts, None.

    >>> value_to_json({"a": (1, b"x")})
    {'dict': {'a': {'tuple': [1, {'bytes': 'x'}]}}}
    """
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, Mapping):
        if not all(type(name) is str for name in value):
            raise TypeError("a dict with names that are no text")
        return {"dict": {name: value_to_json(child) for name, child in value.items()}}
    if isinstance(value, list | tuple):
        return {"list" if isinstance(value, list) else "tuple": [value_to_json(child) for child in value]}
    if isinstance(value, bytes | str):
        return {"bytes": value.decode("latin-1")} if isinstance(value, bytes) else str(value)
    if isinstance(value, np.ndarray | np.generic):
        return _array_to_json(value)
    raise TypeError(f"a {type(value).__name__}")


def value_from_json(value: Any) -> Any:
    """The inverse of :func:`value_to_json`.

    Raises:
        ValueError: nothing that it writes.
    """
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        kind, child = next(iter(value.items()))
        try:
            if kind in _READ:
                return _READ[kind](child)
        except (TypeError, AttributeError, KeyError, ValueError) as cause:
            raise ValueError(f"malformed {kind}: {repr(child)[:60]} ({cause})") from cause
    raise ValueError(f"{repr(value)[:60]} is no value")


def json_line(value: Any) -> str:
    """A value as the text of one cell."""
    return json.dumps(value_to_json(value), separators=(",", ":"))


def _array_to_json(value: np.ndarray | np.generic) -> dict[str, Any]:
    array = np.asarray(value)
    if array.dtype.kind in "biufcmM" and array.dtype.itemsize <= (16 if array.dtype.kind == "c" else 8):
        told = {"dtype": array.dtype.str, "data": base64.b64encode(array.tobytes()).decode()}
        return {"array": {**told, "shape": list(array.shape)}} if isinstance(value, np.ndarray) else {"scalar": told}
    if array.dtype.kind in "OSU" and isinstance(value, np.ndarray):
        cells = [value_to_json(cell) for cell in array.reshape(-1).tolist()]
        kind = {} if array.dtype.kind == "O" else {"dtype": array.dtype.str}
        return {"objects": {"cells": cells, "shape": list(array.shape), **kind}}
    raise TypeError(f"an array of {array.dtype}")


def _array(told: Mapping[str, Any]) -> np.ndarray:
    data = base64.b64decode(told["data"])
    return np.frombuffer(data, parse_dtype(told["dtype"])).reshape(told.get("shape", ())).copy()


def _objects(told: Mapping[str, Any]) -> np.ndarray:
    out = np.empty(len(told["cells"]), object)
    out[:] = [value_from_json(cell) for cell in told["cells"]]
    out = out.reshape(told["shape"])
    return out.astype(parse_dtype(told["dtype"])) if "dtype" in told else out


_READ: Final = {
    "dict": lambda child: {name: value_from_json(value) for name, value in child.items()},
    "list": lambda child: [value_from_json(value) for value in child],
    "tuple": lambda child: tuple(value_from_json(value) for value in child),
    "bytes": lambda child: child.encode("latin-1"),
    "float": float,
    "array": _array,
    "scalar": lambda child: _array(child)[()],
    "objects": _objects,
}


def _shapes(features: Any) -> dict[str, tuple[Any, list[Any]]]:
    """Dtype and shape of each feature."""
    if not isinstance(features, Mapping):
        return {}
    return {
        str(name): (told.get("dtype"), list(shape) if isinstance(shape := told.get("shape"), list | tuple) else [])
        for name, told in features.items()
        if isinstance(told, Mapping)
    }
