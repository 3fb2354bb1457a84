"""Minari's HDF5 layout: one file ``main_data.hdf5`` with a group an episode.

::

    episode_0/            attributes: id, total_steps, seed, options/name, ...
        observations      [T + 1, ...], or a group of them for a Dict, of _index_0, _index_1, ... for a Tuple
        actions           [T, ...], the same
        rewards, terminations, truncations   [T]
        infos/            [T + 1, ...] as Minari collects them

Source: minari/dataset/_storages/hdf5_storage.py, https://github.com/Farama-Foundation/Minari
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.codecs.hdf5.reading import Hdf5File, is_group, open_hdf5
from rlds2buf.codecs.hdf5.rows import native_dtype
from rlds2buf.core import nest
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.errors import SourceFormatError, SourceNotFound, SpecMismatch
from rlds2buf.formats.minari.episode import EpisodeParts

__all__ = ["Hdf5Episodes"]

_EPISODE = re.compile(r"episode_(\d+)")
_PART = re.compile(r"_index_(\d+)")


class Hdf5Episodes:
    """The episodes in such a file, by number.

    Args:
        path: the file.
        infos: whether to read the infos.
        external: data that the file has in other files, by links, external storage or virtual datasets:
            ``"refuse"`` those outside of its folder, or ``"allow"`` any.
        budget: see :class:`~rlds2buf.core.budget.Budget`.

    Attributes:
        names: of the episodes.
        files: all files that hold them.
        ignored: what else lies at the file's top.

    Raises:
        SourceNotFound: there is no such file.
        SourceFormatError: it can't be read.
    """

    def __init__(self, path: Path, *, infos: bool, external: str = "refuse", budget: Budget = BUDGET) -> None:
        if not path.is_file():
            raise SourceNotFound(f"{path}: no such file, though metadata.json is beside it")
        self.path = path
        self.files = [path]
        self._infos = infos
        self._open = functools.partial(open_hdf5, path, budget=budget, external=external)
        with self._open() as file:
            numbers = {int(match[1]): name for name in file if (match := _EPISODE.fullmatch(name))}
            self.names = [numbers[number] for number in sorted(numbers)]
            self.ignored = sorted(set(file) - set(self.names))

    def read(self, start: int, stop: int) -> Iterator[EpisodeParts | SpecMismatch]:
        """Yield the parts of these episodes.

        Raises:
            SourceFormatError: the file is damaged.
        """
        with self._open() as file:
            for name in self.names[start:stop]:
                group = file.get(name)
                if group is None:
                    raise SourceFormatError(f"{self.path}: {name} is gone; did the file change?")
                file.new_record()
                yield self._parts(file, name, group)

    def _parts(self, file: Hdf5File, name: str, group: Any) -> EpisodeParts | SpecMismatch:
        if not is_group(group):
            return SpecMismatch(f"{name} is a {type(group).__name__.lower()}, not a group", rule="spec")

        def part(name: str) -> nest.Nest:
            item = file.get(name, group)
            if item is None:
                return None
            found = file.tree(item, f"{self.path}: {group.name}/{name}")
            return nest.map_structure(lambda dataset: _read(file, dataset), found)

        return EpisodeParts(
            name=name,
            observations=_tuples(part("observations")),
            actions=_tuples(part("actions")),
            rewards=part("rewards"),
            terminations=part("terminations"),
            truncations=part("truncations"),
            infos=part("infos") if self._infos else None,
            metadata=_metadata(group),
        )


def _read(file: Hdf5File, dataset: Any) -> Any:
    if dataset.dtype.metadata and isinstance(dataset.dtype.metadata.get("vlen"), np.dtype):
        dtype = np.dtype(object)  # files in a field
    else:
        dtype = native_dtype(dataset)
    return np.asarray(file.read(dataset)).astype(dtype, copy=False)


def _tuples(value: nest.Nest) -> nest.Nest:
    """Groups whose members are ``_index_0``, ``_index_1``, ... become tuples."""
    if not isinstance(value, dict):
        return value
    numbers = {int(match[1]): key for key in value if (match := _PART.fullmatch(key))}
    if value and sorted(numbers) == list(range(len(value))):
        return tuple(_tuples(value[numbers[i]]) for i in range(len(value)))
    return {key: _tuples(child) for key, child in value.items()}


def _metadata(group: Any) -> dict[str, Any]:
    """The group's attributes; Minari writes nested options as ``options/name``."""
    out: dict[str, Any] = {}
    for key, given in group.attrs.items():
        value = given.item() if isinstance(given, np.generic) else given
        *parents, last = key.split("/")
        here: Any = out
        for parent in parents:
            here = here.setdefault(parent, {}) if isinstance(here, dict) else None
        if isinstance(here, dict):
            here[last] = value
        else:  # beside a value of the group's own name
            out[key] = value
    return out
