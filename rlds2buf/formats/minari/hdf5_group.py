"""One of Minari's episodes in the HDF5 layout: a group."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from rlds2buf.codecs.hdf5.reading import Hdf5File, is_group
from rlds2buf.codecs.hdf5.rows import native_dtype
from rlds2buf.core import nest
from rlds2buf.errors import SpecMismatch
from rlds2buf.formats.minari.episode import EpisodeParts

__all__ = ["nested", "read_dataset", "read_facts", "read_group", "tuples"]

_PART = re.compile(r"_index_(\d+)")


def read_group(file: Hdf5File, name: str, group: Any, *, infos: bool) -> EpisodeParts | SpecMismatch:
    """What a group holds; or why it holds nothing.

    Args:
        file: the open file.
        name: the group's, at the top.
        group: what is there by it.
        infos: whether to read the infos.

    Raises:
        SourceFormatError, LimitExceeded: as :class:`~rlds2buf.codecs.hdf5.reading.Hdf5File`.
    """
    if not is_group(group):
        return SpecMismatch(f"{name} is a {type(group).__name__.lower()}, not a group", rule="spec")

    def part(name: str) -> nest.Nest:
        item = file.get(name, group)
        if item is None:
            return None
        found = file.tree(item, f"{file.path}: {group.name}/{name}")
        return nest.map_structure(lambda dataset: read_dataset(file, dataset), found)

    return EpisodeParts(
        name=name,
        observations=tuples(part("observations")),
        actions=tuples(part("actions")),
        rewards=part("rewards"),
        terminations=part("terminations"),
        truncations=part("truncations"),
        infos=part("infos") if infos else None,
        metadata=read_facts(group),
    )


def read_dataset(file: Hdf5File, dataset: Any) -> Any:
    """The values of a dataset, in a dtype that columns have."""
    if dataset.dtype.metadata and isinstance(dataset.dtype.metadata.get("vlen"), np.dtype):
        dtype = np.dtype(object)  # files in a field
    else:
        dtype = native_dtype(dataset)
    return np.asarray(file.read(dataset)).astype(dtype, copy=False)


def tuples(value: nest.Nest) -> nest.Nest:
    """Groups whose members are ``_index_0``, ``_index_1``, ... become tuples."""
    if not isinstance(value, dict):
        return value
    numbers = {int(match[1]): key for key in value if (match := _PART.fullmatch(key))}
    if value and sorted(numbers) == list(range(len(value))):
        return tuple(tuples(value[numbers[i]]) for i in range(len(value)))
    return {key: tuples(child) for key, child in value.items()}


def read_facts(group: Any) -> dict[str, Any]:
    """A group's attributes."""
    return nested((key, given.item() if isinstance(given, np.generic) else given) for key, given in group.attrs.items())


def nested(attributes: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Attributes as facts: Minari writes nested options as ``options/name``.

    >>> nested([("seed", 1), ("options/x", 2), ("options/y", 3)])
    {'seed': 1, 'options': {'x': 2, 'y': 3}}
    """
    out: dict[str, Any] = {}
    for key, value in attributes:
        *parents, last = key.split("/")
        here: Any = out
        for parent in parents:
            here = here.setdefault(parent, {}) if isinstance(here, dict) else None
        if isinstance(here, dict):
            here[last] = value
        else:  # beside a value of the group's own name
            out[key] = value
    return out
