"""The ``metadata.json`` of an RLDS folder that rlds2buf wrote: where the data come from, and what RLDS can't say.

TFDS reads the file as a ``MetadataDict``; ours is its entry ``rlds2buf``::

    {"rlds2buf": {"version": "0.1.0", "provenance": {...}, "lost": {...},
                  "tuples": {"steps": [["observation"]], "metadata": []},
                  "python": {"str": [["note"]], "list": [], "texts": []},
                  "limits": [[["action"], {"low": -1.0, "high": 1.0}]]}}

Paths are lists of names.  RLDS has dicts but no tuples, byte strings but no text, and the limits
in features.json are integers.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.episode_batch import FactColumns
from rlds2buf.core.json_text import parse_json
from rlds2buf.core.row_flags import PLACEHOLDER_FINAL_ROW
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import SourceError, SourceFormatError
from rlds2buf.formats.rlds.features_writer import names_of
from rlds2buf.formats.rlds.metadata_writer import MARKERS

__all__ = [
    "FILE_NAME",
    "OwnMetadata",
    "RecordLayout",
    "adopted_metadata_json",
    "own_entry",
    "own_facts",
    "own_metadata_json",
    "read_own_metadata",
    "read_record_layout",
]

FILE_NAME: Final = "metadata.json"
_KEY: Final = "rlds2buf"
_LIMITS: Final = ("low", "high", "values")
_OF_RECORDS: Final = ("tuples", "python", "limits", "markers")
_MOST_BYTES: Final = 1 << 26

Names = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class OwnMetadata:
    """What is put back when such a folder is read; empty for folders of others.

    Attributes:
        written_here: whether rlds2buf wrote the folder.
        step_tuples, metadata_tuples: where dicts with the keys ``"0"``, ``"1"``, ... were tuples,
            inner ones first.
        python: paths of metadata that were ``"str"``, ``"list"`` or ``"texts"`` (a list of str).
        limits: by path, what :class:`~rlds2buf.core.spec.FieldSpec` had.
    """

    written_here: bool = False
    step_tuples: tuple[Names, ...] = ()
    metadata_tuples: tuple[Names, ...] = ()
    python: Mapping[str, tuple[Names, ...]] = dataclasses.field(default_factory=dict)
    limits: Mapping[Names, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def steps(self, fields: nest.Nest) -> nest.Nest:
        """A nest of step fields with its tuples."""
        return _with_tuples(fields, self.step_tuples)

    def specs(self, fields: nest.Nest) -> nest.Nest:
        """A nest of :class:`~rlds2buf.core.spec.FieldSpec` with its limits and tuples."""
        for names, limits in self.limits.items():
            fields = _changed(fields, names, functools.partial(_limited, limits))
        return self.steps(fields)

    def fact_columns(
        self, columns: dict[str, Any], count: int
    ) -> tuple[Sequence[dict[str, Any]] | None, np.ndarray | None]:
        """:meth:`metadata` of many episodes at once.

        Args:
            columns: nest of columns ``[E, ...]``.
            count: E.

        Returns:
            The metadata of each, and ``[E] bool``, of which the final row is a placeholder; None where there is none.
        """
        mark = columns.get(PLACEHOLDER_FINAL_ROW)
        placeholder = mark.astype(np.bool_) if isinstance(mark, np.ndarray) and mark.shape == (count,) else None
        if placeholder is not None and not placeholder.any():
            placeholder = None
        if not columns:
            return None, placeholder
        facts = FactColumns(columns, count)
        if not self.written_here:
            return facts, placeholder
        kept = {name: column for name, column in columns.items() if name not in MARKERS}
        if any(np.any(columns[name]) for name in columns.keys() - kept.keys() - {PLACEHOLDER_FINAL_ROW}):
            return [self.metadata(values) for values in facts], placeholder
        restored: Any = kept
        for kind, paths in self.python.items():
            for names in paths:
                restored = _changed(restored, names, functools.partial(_each, _PYTHON[kind]))
        restored = _with_tuples(restored, self.metadata_tuples)
        return FactColumns(restored, count) if restored else None, placeholder

    def metadata(self, values: dict[str, Any]) -> dict[str, Any]:
        """An episode's metadata as they were; markers that are not set are left out."""
        if not self.written_here:
            return values
        restored: Any = {name: value for name, value in values.items() if name not in MARKERS or value}
        for kind, paths in self.python.items():
            for names in paths:
                restored = _changed(restored, names, _PYTHON[kind])
        return dict(_with_tuples(restored, self.metadata_tuples))


def own_metadata_json(
    spec: StepSpec,
    metadata_paths: Iterable[nest.Path],
    python: Mapping[str, Iterable[nest.Path]],
    **facts: Any,
) -> dict[str, Any]:
    """The content of the file as plain JSON values.

    Args:
        spec: of the steps.
        metadata_paths: of the metadata stored.
        python: paths of those that were a str, a list, or a list of str.
        facts: further entries.

    >>> sorted(own_metadata_json(StepSpec(), [], {}, version="1")["rlds2buf"])
    ['limits', 'python', 'tuples', 'version']
    """
    limits = []
    for path, field in spec.fields():
        given = {name: _to_json(getattr(field, name)) for name in _LIMITS if getattr(field, name) is not None}
        if given:
            limits.append([list(names_of(path)), given])
    entry = {
        **facts,
        "tuples": {
            "steps": _tuples_in(path if path[0] != "extras" else path[1:] for path, _ in spec.fields()),
            "metadata": _tuples_in(metadata_paths),
        },
        "python": {kind: [[str(part) for part in path] for path in paths] for kind, paths in python.items()},
        "limits": limits,
    }
    return {_KEY: entry}


def own_entry(folder: Path) -> dict[str, Any]:
    """The part of our entry in a folder's ``metadata.json`` that says how records are read; empty if there is none."""
    try:
        entry = _entry(folder)
    except LookupError:
        return {}
    return {name: entry[name] for name in _OF_RECORDS if name in entry} if isinstance(entry, dict) else {}


@dataclasses.dataclass(frozen=True)
class RecordLayout:
    """The files beside the shards that say how to read them.

    Attributes:
        features: the text of ``features.json``.
        own: what rlds2buf has noted about fields (tuples, limits, kinds of text) in ``metadata.json``.
    """

    features: str
    own: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """Tells one layout from another."""
        text = self.features + json.dumps(self.own, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def read_record_layout(folder: Path) -> RecordLayout | None:
    """The layout of a version folder; None where further files belong to it (the names of labels).

    Raises:
        SourceError: ``features.json`` can't be read.
    """
    if any(folder.glob("*.labels.txt")):
        return None
    try:
        features = (folder / "features.json").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        raise SourceError(f"{folder / 'features.json'}: {cause}") from cause
    return RecordLayout(features, own_entry(folder))


def own_facts(folder: Path) -> dict[str, Any]:
    """What was known of the dataset that the folder was made from; empty for folders of others."""
    try:
        facts = _entry(folder)["provenance"]["dataset"]
    except (LookupError, TypeError):
        return {}
    return dict(facts) if isinstance(facts, dict) else {}


def adopted_metadata_json(own: Mapping[str, Any], **facts: Any) -> dict[str, Any]:
    """The content of the file for records that are as they were, as :func:`own_entry` gave it.

    >>> adopted_metadata_json({}, version="1")["rlds2buf"]["limits"]
    []
    """
    empty: dict[str, Any] = {"tuples": {"steps": [], "metadata": []}, "python": {}, "limits": []}
    return {_KEY: {**facts, **empty, **own}}


def read_own_metadata(folder: Path) -> OwnMetadata:
    """What the folder's ``metadata.json`` says under our name; nothing if there is none.

    Raises:
        SourceFormatError: there is, and it is not what we write.
    """
    try:
        entry = _entry(folder)
    except LookupError:
        return OwnMetadata()
    try:
        return OwnMetadata(
            True,
            _innermost_first(entry["tuples"]["steps"]),
            _innermost_first(entry["tuples"]["metadata"]),
            {kind: tuple(map(_names, paths)) for kind, paths in entry["python"].items() if kind in _PYTHON},
            {_names(path): {name: _from_json(given[name]) for name in given} for path, given in entry["limits"]},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as cause:
        what = f"{type(cause).__name__}: {cause}"
        raise SourceFormatError(f"{folder / FILE_NAME}: malformed entry {_KEY!r}: {what}") from cause


def _entry(folder: Path) -> Any:
    """What the folder's ``metadata.json`` has under our name; LookupError if there is no such thing."""
    path = folder / FILE_NAME
    try:
        content = parse_json(path.read_bytes()) if path.stat().st_size <= _MOST_BYTES else None
    except (OSError, ValueError):  # others' files are none of our business
        content = None
    if not isinstance(content, dict):
        raise LookupError(_KEY)
    return content[_KEY]


def _tuples_in(paths: Iterable[nest.Path]) -> list[list[str]]:
    """Where tuples are: every path up to a number."""
    found = {tuple(map(str, path[:i])) for path in paths for i, part in enumerate(path) if isinstance(part, int)}
    return [list(names) for names in sorted(found)]


def _innermost_first(paths: Any) -> tuple[Names, ...]:
    return tuple(sorted(map(_names, paths), key=len, reverse=True))


def _names(path: Any) -> Names:
    if not isinstance(path, list) or not all(isinstance(name, str) for name in path):
        raise TypeError(f"a path is a list of names, got {path!r}")
    return tuple(path)


def _with_tuples(fields: nest.Nest, paths: Iterable[Names]) -> nest.Nest:
    for names in paths:
        fields = _changed(fields, names, _as_tuple)
    return fields


def _as_tuple(value: Any) -> Any:
    if not isinstance(value, dict) or set(value) != {str(i) for i in range(len(value))}:
        return value
    return tuple(value[str(i)] for i in range(len(value)))


def _changed(fields: nest.Nest, names: Names, change: Callable[[Any], Any]) -> nest.Nest:
    """The nest with what is at `names` changed; as it is if nothing is there."""
    if not names:
        return change(fields)
    if not isinstance(fields, dict) or names[0] not in fields:
        return fields
    return {**fields, names[0]: _changed(fields[names[0]], names[1:], change)}


def _limited(limits: Mapping[str, Any], leaf: Any) -> Any:
    if not isinstance(leaf, FieldSpec):
        return leaf
    values = limits.get("values")
    return dataclasses.replace(
        leaf, low=limits.get("low"), high=limits.get("high"), values=None if values is None else tuple(values)
    )


def _to_json(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_to_json(child) for child in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no infinity
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(child) for child in value]
    if isinstance(value, str):
        return float(value)
    if not isinstance(value, int | float):
        raise TypeError(f"a limit is a number, got {type(value).__name__}")
    return value


def _decoded(value: Any) -> Any:
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value


def _each(change: Callable[[Any], Any], column: Any) -> Any:
    """A column with every value changed."""
    if not isinstance(column, np.ndarray):
        return change(column)
    out = np.empty(len(column), object)
    for i, value in enumerate(column):
        out[i] = change(value)
    return out


def _listed(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _texts(value: Any) -> Any:
    return [_decoded(cell) for cell in value.tolist()] if isinstance(value, np.ndarray) else value


_PYTHON: Final[Mapping[str, Callable[[Any], Any]]] = {"str": _decoded, "list": _listed, "texts": _texts}
