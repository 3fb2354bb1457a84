"""Minari datasets in their HDF5 layout, read without Minari."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.episode import Episode
from rlds2buf.core.spec import FieldSpec, StepSpec, spec_of
from rlds2buf.errors import EpisodeError, SourceFormatError, SourceNotFound
from rlds2buf.sources.base import Source
from rlds2buf.sources.fingerprint import fingerprint_files
from rlds2buf.sources.hdf5_file import open_hdf5
from rlds2buf.sources.minari_episode import read_episode
from rlds2buf.sources.spaces import space_specs

__all__ = ["MinariDirSource"]

_FILE = "main_data.hdf5"
_METADATA = "metadata.json"
_EPISODE = re.compile(r"episode_(\d+)")


class MinariDirSource(Source):
    """Episodes of a Minari dataset (https://minari.farama.org), HDF5 layout, Minari 0.5.

    Minari stores T actions, rewards and flags with T + 1 observations and infos.  Here that is an
    episode of T + 1 rows: the flags move one row on, to the observation they led to, and action and
    reward get a row of zeros.  Episodes come in the order of their numbers (``episode_10`` after
    ``episode_2``).  ``Dict`` spaces become dicts, ``Tuple`` tuples, ``Text`` columns of bytes, and
    JPEG pictures are decoded; everything keeps its dtype, float64 rewards too.  The discount is
    1 (float32), and 0 on the step into a terminal row and on that row.  A row that is both
    terminated and truncated is terminal.  An episode without an end flag is taken as truncated, and
    ``metadata["open_tail"]`` is True.  Infos are the extra ``infos``; those of T rows get a row of
    zeros, and single values go to ``metadata["infos"]``.  An episode's id, seed, options and
    statistics are its metadata.  The spec has the spaces' limits.

    Args:
        path: the dataset's folder (``.../cartpole/random-v0``), its ``data`` folder, or the
            ``main_data.hdf5`` in there.
        infos: whether to read the infos.

    Raises:
        SourceNotFound: nothing is there.
        SourceFormatError: metadata.json is missing or damaged, the layout is Arrow's, or the two
            files contradict each other.

    >>> import h5py, tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "data"
    >>> folder.mkdir()
    >>> _ = (folder / "metadata.json").write_text('{"data_format": "hdf5", "total_episodes": 1, "total_steps": 2}')
    >>> with h5py.File(folder / "main_data.hdf5", "w") as file:
    ...     file["episode_0/observations"] = np.arange(3.0)
    ...     file["episode_0/actions"] = np.zeros(2, int)
    ...     file["episode_0/rewards"] = np.ones(2)
    ...     file["episode_0/terminations"] = np.array([False, True])
    ...     file["episode_0/truncations"] = np.array([False, False])
    >>> list(MinariDirSource(folder))
    [<Episode 0: 3 steps, terminated>]
    """

    format: ClassVar[str] = "minari"

    def __init__(self, path: str | os.PathLike[str], *, infos: bool = True) -> None:
        self.name = str(path)
        self._infos = infos
        self._file, folder = _locate(Path(path))
        self._metadata_file = folder / _METADATA
        self._metadata = _read_metadata(self._metadata_file)
        layout = self._metadata.get("data_format", "hdf5")
        if layout != "hdf5":
            raise SourceFormatError(f"{folder}: Minari's {layout!r} layout is not read, only its HDF5 layout")
        if not self._file.is_file():
            raise SourceNotFound(f"{self._file}: no such file, though {_METADATA} is beside it")
        self._spaces = {}
        for name in ("observation", "action"):
            if f"{name}_space" in self._metadata:
                try:
                    self._spaces[name] = space_specs(self._metadata[f"{name}_space"])
                except SourceFormatError as cause:
                    raise SourceFormatError(f"{self._metadata_file}: {name}_space: {cause}") from cause
        with open_hdf5(self._file) as file:
            numbers = {int(match[1]): name for name in file if (match := _EPISODE.fullmatch(name))}
            self._groups = [numbers[number] for number in sorted(numbers)]
            self._ignored = sorted(set(file) - set(self._groups))
        told = self._metadata.get("total_episodes", len(self._groups))
        if told != len(self._groups):
            message = f"{self._file} holds {len(self._groups)} episodes, but {_METADATA} says {told}"
            raise SourceFormatError(message)

    @property
    def spec(self) -> StepSpec:
        return self._spec

    @property
    def num_episodes(self) -> int:
        return len(self._groups)

    @property
    def num_steps(self) -> int | None:
        steps = self._metadata.get("total_steps")
        return steps + len(self._groups) if isinstance(steps, int) else None

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Episode | EpisodeError]:
        stop = len(self._groups) if stop is None else min(stop, len(self._groups))
        with open_hdf5(self._file) as file:
            for index in range(start, stop):
                group = file.get(self._groups[index])
                if group is None:
                    raise SourceFormatError(f"{self._file}: {self._groups[index]} is gone; did the file change?")
                try:
                    episode: Episode | EpisodeError = read_episode(
                        group, self._spaces, infos=self._infos, source=self.name, index=index
                    )
                except EpisodeError as error:
                    episode = error
                except SourceFormatError as cause:
                    raise SourceFormatError(f"{self.name}, episode {index}: {cause}") from cause
                yield episode

    def details(self) -> dict[str, Any]:
        known = {key: value for key, value in self._metadata.items() if not key.endswith(("_space", "env_spec"))}
        return {**known, "env_id": _environment(self._metadata), "ignored": self._ignored}

    def fingerprint(self) -> str:
        return f"minari:{fingerprint_files([self._file, self._metadata_file])}:{self._infos}"

    @functools.cached_property
    def _spec(self) -> StepSpec:
        found: Episode | EpisodeError | None = None
        for found in self.read():
            if isinstance(found, Episode):
                break
        if isinstance(found, EpisodeError):
            raise found
        if found is None:
            if len(self._spaces) < 2:
                raise SourceFormatError(f"{self.name}: no episodes and no spaces, so nothing tells what a step is")
            return StepSpec(reward=FieldSpec((), np.dtype(np.float64)), **self._spaces)
        spec = spec_of(found)
        fields = {name: getattr(spec, name) for name in ("reward", "discount", "extras")}
        for name in ("observation", "action"):
            fields[name] = self._limited(name, getattr(spec, name))
        return StepSpec(**fields)

    def _limited(self, name: str, found: nest.Nest) -> nest.Nest:
        """The specs of a field as the file has it, with the limits of its space."""
        if name not in self._spaces:
            return found
        space = self._spaces[name]
        if not nest.same_structure(found, space):
            held = ", ".join(nest.path_name(path) for path, _ in nest.flatten(found, (name,)))
            raise SourceFormatError(f"{self._file} holds {held}, which does not fit {_METADATA}'s {name}_space")
        return nest.map_structure(
            lambda own, told: FieldSpec(own.shape, own.dtype, told.low, told.high, told.values), found, space
        )


def _locate(path: Path) -> tuple[Path, Path]:
    """The HDF5 file and the folder with the metadata."""
    if path.is_file():
        return path, path.parent
    if not path.is_dir():
        raise SourceNotFound(f"{path}: nothing is there")
    here = (path / _FILE).is_file() or (path / _METADATA).is_file()
    folder = path if here else path / "data"
    if not here and not folder.is_dir():
        raise SourceFormatError(f"{path}: not a Minari dataset; there is neither {_FILE} nor a folder `data`")
    return folder / _FILE, folder


def _read_metadata(path: Path) -> dict[str, Any]:
    try:
        metadata = json.loads(path.read_bytes())
    except FileNotFoundError as cause:
        raise SourceFormatError(f"{path.parent}: no {_METADATA}, which Minari 0.5 writes beside {_FILE}") from cause
    except (OSError, ValueError) as cause:
        raise SourceFormatError(f"{path}: not readable as JSON ({cause})") from cause
    if not isinstance(metadata, dict):
        raise SourceFormatError(f"{path}: should hold a JSON object, it holds a {type(metadata).__name__}")
    return metadata


def _environment(metadata: dict[str, Any]) -> str | None:
    try:
        name = json.loads(metadata["env_spec"])["id"]
    except (KeyError, TypeError, ValueError):
        return None
    return str(name)
