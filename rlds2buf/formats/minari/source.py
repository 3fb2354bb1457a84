"""Minari datasets in each of their layouts, read without Minari."""

from __future__ import annotations

import copy
import functools
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rlds2buf.codecs.images.resize import check_images
from rlds2buf.core import nest
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.json_text import parse_json
from rlds2buf.core.same import is_same
from rlds2buf.core.spec import FieldSpec, StepSpec, spec_of
from rlds2buf.errors import EpisodeError, SourceError, SourceFormatError, SourceNotFound, SpecMismatch
from rlds2buf.files.fingerprint import fingerprint_files
from rlds2buf.formats.minari.arrow_layout import LAYOUTS, ArrowEpisodes, read_json
from rlds2buf.formats.minari.episode import BatchParts, EpisodeParts, build_batch, build_episode
from rlds2buf.formats.minari.format import FILE
from rlds2buf.formats.minari.hdf5_layout import Hdf5Episodes
from rlds2buf.formats.minari.spaces import is_image, space_specs
from rlds2buf.io.blocks import blocks_of
from rlds2buf.io.source import Source

__all__ = ["MinariDirSource"]

_METADATA = "metadata.json"
_FACTS = (
    "author",
    "author_email",
    "algorithm_name",
    "code_permalink",
    "description",
    "env_spec",
    "eval_env_spec",
    "requirements",
)


class MinariDirSource(Source):
    """Episodes of a Minari dataset (https://minari.farama.org), as Minari 0.5 writes it: HDF5, Arrow or Parquet.

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
        images: ``"decoded"``, pictures are columns of pixels; ``"encoded"``, those stored as JPEG are
            byte strings, the files untouched, whose FieldSpec has an ``image``.  None is
            ``"decoded"``, unless :meth:`encoded` is asked for.
        resize: size that decoded pictures are to have, one number for a square or (height, width).
        external: data that the file has in other files, by links, external storage or virtual datasets:
            ``"refuse"`` those outside of its folder, or ``"allow"`` any.
        budget: see :class:`~rlds2buf.core.budget.Budget`.

    Raises:
        SourceNotFound: nothing is there.
        SourceFormatError: metadata.json is missing or damaged, the layout is unknown, a space has no
            fixed columns (``Sequence``, ``Graph``, ``OneOf``: Minari can't write them either), or the
            files contradict each other.
        MissingDependency: the layout is Arrow's or Parquet's, and pyarrow is not installed.
        ValueError: no such choice of images.

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

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        infos: bool = True,
        images: str | None = None,
        resize: int | tuple[int, int] | None = None,
        external: str = "refuse",
        budget: Budget = BUDGET,
    ) -> None:
        self._size = check_images(images, resize)
        self.name = str(path)
        self._infos = infos
        self._images = images
        self._budget = budget
        file, folder = _locate(Path(path))
        self._metadata_file = folder / _METADATA
        metadata = read_json(self._metadata_file)
        if metadata is None:
            raise SourceFormatError(f"{folder}: no {_METADATA}, which Minari 0.5 writes beside its data")
        self._metadata = metadata
        self._spaces = _spaces(self._metadata, self._metadata_file, budget)
        layout = self._metadata.get("data_format", "hdf5")
        self._episodes: Hdf5Episodes | ArrowEpisodes
        if layout == "hdf5":
            self._episodes = Hdf5Episodes(file, infos=infos, external=external, budget=budget)
        elif layout in LAYOUTS:
            if len(self._spaces) < 2:
                raise SourceFormatError(f"{self._metadata_file}: no spaces, without which {layout} has no shapes")
            self._episodes = ArrowEpisodes(folder, layout, self._spaces, infos=infos, budget=budget)
        else:
            known = ", ".join(("hdf5", *LAYOUTS))
            raise SourceFormatError(f"{folder}: Minari's {layout!r} layout is not read, only {known}")
        count = len(self._episodes.names)
        told = self._metadata.get("total_episodes", count)
        if told != count:
            where = file if layout == "hdf5" else folder
            raise SourceFormatError(f"{where} holds {count} episodes, but {_METADATA} says {told}")

    @property
    def spec(self) -> StepSpec:
        return self._spec

    @property
    def num_episodes(self) -> int:
        return len(self._episodes.names)

    @property
    def num_steps(self) -> int | None:
        steps = self._metadata.get("total_steps")
        return steps + self.num_episodes if isinstance(steps, int) else None

    def read_batches(
        self, start: int = 0, stop: int | None = None, *, rows: int = 1 << 14, bytes: int = 64 << 20
    ) -> Iterator[EpisodeBatch | EpisodeError]:
        """See :meth:`Source.read_batches`."""
        stop = self.num_episodes if stop is None else min(stop, self.num_episodes)
        return blocks_of(self._items(start, stop, rows, bytes), rows, bytes)

    def _items(self, start: int, stop: int, rows: int, bytes: int) -> Iterator[EpisodeBatch | Episode | EpisodeError]:
        for parts in self._episodes.read_batches(start, stop, rows, bytes, self._is_proof):
            yield build_batch(parts, self.name) if isinstance(parts, BatchParts) else self._built(parts, start)
            start += len(parts) if isinstance(parts, BatchParts) else 1

    def _built(self, parts: EpisodeParts | SpecMismatch, index: int) -> Episode | EpisodeError:
        try:
            return self._episode(parts, index)
        except EpisodeError as error:
            return error
        except SourceFormatError as cause:
            raise cause.at(f"{self.name}, episode {index}") from cause

    def _is_proof(self, index: int, alone: EpisodeParts, together: BatchParts) -> bool:
        try:
            return is_same(self._episode(alone, index), *build_batch(together, self.name))
        except (EpisodeError, SourceError):
            return False

    def _episode(self, parts: EpisodeParts | SpecMismatch, index: int) -> Episode | EpisodeError:
        if isinstance(parts, SpecMismatch):
            return SpecMismatch(parts.message, source=self.name, episode=index, rule=parts.rule)
        encoded = self._images == "encoded"
        where: dict[str, Any] = {"source": self.name, "index": index}
        return build_episode(parts, self._spaces, encoded=encoded, size=self._size, budget=self._budget, **where)

    def encoded(self) -> MinariDirSource:
        pictures = [leaf for _, leaf in nest.flatten(self._spaces) if is_image(leaf)]
        plain = self._images is None and self._size is None
        if not plain or not pictures or not self._metadata.get("jpeg_encoding", True):
            return self
        other = copy.copy(self)
        other._images = "encoded"
        other.__dict__.pop("_spec", None)
        return other

    def details(self) -> dict[str, Any]:
        known = {key: value for key, value in self._metadata.items() if not key.endswith(("_space", "env_spec"))}
        return {**known, "env_id": _environment(self._metadata), "ignored": self._episodes.ignored}

    def facts(self) -> dict[str, Any]:
        """See :meth:`Source.facts`: by Minari's names."""
        return {name: self._metadata[name] for name in _FACTS if self._metadata.get(name) is not None}

    def fingerprint(self) -> str:
        files = fingerprint_files(itertools.chain(self._episodes.files, [self._metadata_file]))
        size = "" if self._size is None else f":{self._size}"
        return f"minari:{files}:{self._infos}{size}" + (":encoded" if self._images == "encoded" else "")

    @functools.cached_property
    def _spec(self) -> StepSpec:
        found: Episode | EpisodeError | None = None
        for index, parts in enumerate(self._episodes.read(0, self.num_episodes)):
            found = self._built(parts, index)
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
            raise SourceFormatError(f"{self.name} holds {held}, which does not fit {_METADATA}'s {name}_space")

        def limited(own: FieldSpec, told: FieldSpec) -> FieldSpec:
            if own.is_string:
                return FieldSpec(own.shape, own.dtype, image=told if is_image(told) else None)
            return FieldSpec(own.shape, own.dtype, told.low, told.high, told.values)

        return nest.map_structure(limited, found, space)


def _locate(path: Path) -> tuple[Path, Path]:
    """The HDF5 file and the folder with the metadata."""
    if path.is_file():
        return path, path.parent
    if not path.is_dir():
        raise SourceNotFound(f"{path}: nothing is there")
    here = (path / FILE).is_file() or (path / _METADATA).is_file()
    folder = path if here else path / "data"
    if not here and not folder.is_dir():
        raise SourceFormatError(f"{path}: not a Minari dataset; there is neither {FILE} nor a folder `data`")
    return folder / FILE, folder


def _spaces(metadata: dict[str, Any], path: Path, budget: Budget) -> dict[str, nest.Nest]:
    spaces = {}
    for name in ("observation", "action"):
        if f"{name}_space" in metadata:
            try:
                spaces[name] = space_specs(metadata[f"{name}_space"], budget)
            except SourceFormatError as cause:
                raise cause.at(f"{path}: {name}_space") from cause
    return spaces


def _environment(metadata: dict[str, Any]) -> str | None:
    try:
        name = parse_json(metadata["env_spec"])["id"]
    except (KeyError, TypeError, ValueError):
        return None
    return str(name)
