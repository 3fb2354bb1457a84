"""ALOHA's and ACT's HDF5 files: an episode each."""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rlds2buf.codecs.hdf5.reading import Hdf5File, open_hdf5
from rlds2buf.codecs.hdf5.rows import native_dtype
from rlds2buf.codecs.images.claims import check_pixels, declared_size
from rlds2buf.codecs.images.decode import DamagedImage
from rlds2buf.codecs.images.pool import DecodePool
from rlds2buf.codecs.images.resize import check_images
from rlds2buf.codecs.images.stored_image import StoredImage
from rlds2buf.core import nest
from rlds2buf.core.arguments import choice
from rlds2buf.core.budget import BUDGET, Budget, Tally
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import EmptyEpisode, EpisodeError, SourceError, SourceFormatError, SourceNotFound, SpecMismatch
from rlds2buf.files.fingerprint import fingerprint_files
from rlds2buf.formats.aloha.format import episode_names
from rlds2buf.io.blocks import blocks_of
from rlds2buf.io.source import Source

__all__ = ["AlohaSource"]

_PICTURES = ("observation", "images")
_NOT_ROWS = ("compress_len",)
_NO_FACTS = ("compress", "rlds2buf")


class AlohaSource(Source):
    """Episodes as ALOHA and ACT record them (https://github.com/tonyzhaozh/act, ``record_sim_episodes.py``).

    A file ``episode_N.hdf5`` is an episode of T rows: ``action [T, ...]``, ``observations/qpos``, ``qvel`` and others,
    ``observations/images/CAMERA [T, height, width, 3]``.  Mobile ALOHA compresses its pictures: JPEG files ``[T, L]``,
    padded with zeros.

    =====================  ========================================================================
    the file               the episode, of T rows
    =====================  ========================================================================
    ``observations/*``     the observation, a dict by their names (``images`` a dict of cameras)
    ``action``             the action of each row; that of the last one starts no transition
    other datasets [T]     extras (``base_action``)
    the end                a cut: nothing tells terminal states, so `is_terminal` is derived
    attributes             metadata ``sim``, and others that are numbers or text
    =====================  ========================================================================

    There are no rewards.  The discount is 1 (float32).  **Which row an action belongs to** differs: in simulation it
    was taken at the row's observation.  Of a real robot (``sim`` is false) ACT's own loader gives row t the action of
    row t - 1, "to make timesteps more aligned"; ``actions="previous"`` does so, too.  **Which channel is red**:
    pictures are decoded as the JPEG files say.  Recorders that gave OpenCV pictures in RGB order have written them
    with red and blue exchanged, and loaders that decode by OpenCV and do not convert (ACT's) exchange them back:
    ``channels="bgr"`` gives what these see.

    Args:
        path: a file, or a folder of them, read in the order of their numbers.
        actions: ``"same"``, each row's own, or ``"previous"``, as above.
        images: ``"decoded"``, or ``"encoded"``: compressed pictures are byte strings, JPEG files.
        channels: of compressed pictures, ``"rgb"`` or ``"bgr"``, as above.
        external: data that a file has in other files: ``"refuse"`` those outside of its folder, or ``"allow"`` any.
        budget: see :class:`~rlds2buf.core.budget.Budget`.

    Raises:
        SourceNotFound, SourceFormatError: nothing is there, or it is no such file.
    """

    format: ClassVar[str] = "aloha"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        actions: str = "same",
        images: str | None = None,
        channels: str = "rgb",
        external: str = "refuse",
        budget: Budget = BUDGET,
    ) -> None:
        choice("actions", actions, ("same", "previous"))
        choice("channels", channels, ("rgb", "bgr"))
        check_images(images)
        if images == "encoded" and channels == "bgr":
            raise ValueError("channels are exchanged in decoded pictures, not with images='encoded'")
        self.path = Path(path)
        self.name = str(path)
        self._actions, self._images, self._channels = actions, images, channels
        self._budget = budget
        self._open = functools.partial(open_hdf5, budget=budget, external=external)
        self._files = self._find()
        self._known = self._first_known()

    def _find(self) -> list[Path]:
        if not self.path.is_dir():
            return [self.path]
        files = [self.path / name for name in episode_names(os.listdir(self.path))]
        if not files:
            raise SourceNotFound(f"{self.path}: no episode_N.hdf5 in it")
        return files

    def _first_known(self) -> _Known:
        """Of the first file that is such a file.

        Raises:
            SourceError: none is; that of the first one.
        """
        first: SourceError | None = None
        for path in self._files:
            try:
                with self._open(path) as file:
                    return _Known(file, self._trees(file))
            except (SourceFormatError, SourceNotFound) as error:
                first = first or error
        assert first is not None
        raise first

    def _trees(self, file: Hdf5File) -> dict[str, Any]:
        """The datasets of each field.

        Raises:
            SourceFormatError: it is no such file.
        """
        fields = {"observation": file.get("observations"), "action": file.get("action")}
        if None in fields.values():
            held = ", ".join(sorted(map(str, file))) or "nothing"
            raise SourceFormatError(f"{file.path}: an ALOHA file needs `observations` and `action`; it holds {held}")
        trees = {name: file.tree(item, f"{file.path}: {name}") for name, item in fields.items()}
        _, action = next(nest.flatten(trees["action"]), (None, None))
        rows = (action.shape or (0,))[0] if action is not None else 0
        others = {name: file.get(name) for name in file if name not in ("action", "observations", *_NOT_ROWS)}
        found = {name: file.tree(item, f"{file.path}: {name}") for name, item in others.items() if item is not None}
        trees["extras"] = {name: tree for name, tree in found.items() if _has_rows(tree, rows)}
        return trees

    @functools.cached_property
    def _spec(self) -> StepSpec:
        fields = {
            name: nest.unflatten(tree, iter([self._field(path, one) for path, one in nest.flatten(tree, (name,))]))
            for name, tree in self._known.fields.items()
        }
        return StepSpec(reward=None, discount=FieldSpec((), np.dtype(np.float32)), **fields)

    def _field(self, path: nest.Path, known: _Leaf) -> FieldSpec:
        if known.picture is None:
            return FieldSpec(known.shape, known.dtype)
        pixels = FieldSpec(known.picture, np.dtype(np.uint8))
        return FieldSpec((), np.dtype(object), image=pixels) if self._images == "encoded" else pixels

    @property
    def spec(self) -> StepSpec:
        return self._spec

    @property
    def num_episodes(self) -> int:
        return len(self._files)

    @functools.cached_property
    def _rows(self) -> int:
        rows = 0
        for path in self._files:
            with self._open(path) as file:
                rows += int((getattr(file.get("action"), "shape", None) or (0,))[0])
        return rows

    @property
    def num_steps(self) -> int:
        return self._rows

    def encoded(self) -> AlohaSource:
        """See :meth:`Source.encoded`; itself if `images` or `channels` was given, or nothing is compressed."""
        if self._images is not None or self._channels != "rgb" or not self._known.pictures:
            return self
        other = copy.copy(self)
        other._images = "encoded"
        vars(other).pop("_spec", None)
        return other

    def read_batches(
        self, start: int = 0, stop: int | None = None, *, rows: int = 1 << 14, bytes: int = 64 << 20
    ) -> Iterator[EpisodeBatch | EpisodeError]:
        stop = len(self._files) if stop is None else min(stop, len(self._files))
        with DecodePool() as pool:
            yield from blocks_of((self._item(index, pool) for index in range(start, stop)), rows, bytes)

    def _item(self, index: int, pool: DecodePool) -> Episode | EpisodeError:
        path = self._files[index]
        try:
            with self._open(path) as file:
                episode = self._episode(file, index, pool)
            self._spec.check(episode)
        except EpisodeError as error:
            return error
        except (SourceFormatError, SourceNotFound) as cause:  # one file says nothing of the others
            if len(self._files) == 1:
                raise
            damaged = EpisodeError(str(cause), source=self.name, episode=index)
            damaged.__cause__ = cause
            return damaged
        return episode

    def _episode(self, file: Hdf5File, index: int, pool: DecodePool) -> Episode:
        where: dict[str, Any] = {"source": str(file.path), "episode": index}
        trees = self._trees(file)
        _, action = next(nest.flatten(trees["action"]), (None, None))
        rows = int((action.shape or (0,))[0]) if action is not None else 0
        if not rows:
            raise EmptyEpisode("`action` has no rows", rule="empty-episode", path="action", **where)
        columns: dict[str, Any] = {}
        for name, tree in trees.items():
            leaves = [self._column(file, one, path, rows, where, pool) for path, one in nest.flatten(tree, (name,))]
            columns[name] = nest.unflatten(tree, iter(leaves))
        if self._actions == "previous":
            columns["action"] = nest.map_structure(lambda c: np.concatenate([c[:1], c[:-1]]), columns["action"])
        return Episode(
            **columns,
            discount=np.ones(rows, np.float32),
            is_first=np.arange(rows) == 0,
            is_last=np.arange(rows) == rows - 1,
            metadata=_facts(file),
            source=self.name,
            index=index,
        )

    def _column(
        self, file: Hdf5File, dataset: Any, path: nest.Path, rows: int, where: dict[str, Any], pool: DecodePool
    ) -> np.ndarray:
        name = nest.path_name(path)
        count = dataset.shape[0] if dataset.shape else 0
        if count != rows:
            raise SpecMismatch(f"{count} rows, but {rows} actions", path=name, rule="ragged-columns", **where)
        values = np.asarray(file.read(dataset)).astype(native_dtype(dataset), copy=False)
        if not _is_compressed(path, dataset):
            return values
        files = np.empty(rows, object)
        files[:] = [row.tobytes().rstrip(b"\0") for row in values]
        if self._images == "encoded":
            return files
        image = StoredImage(_picture(files[0], f"{file.path}: {name}"), np.dtype(np.uint8))
        check_pixels(files.tolist(), image, Tally(self._budget))
        try:
            pixels = pool.submit(files.tolist(), image).result()
        except DamagedImage as damage:
            raise SpecMismatch(str(damage), step=damage.frame, path=name, rule="spec", **where) from damage
        return pixels[..., ::-1] if self._channels == "bgr" else pixels

    def details(self) -> dict[str, Any]:
        warnings = ["no end flags and no rewards: every episode is taken as truncated; its last action starts nothing"]
        if self._known.sim is False and self._actions == "same":
            warnings.append(
                "recorded on a real robot: ACT's own loader gives each row the action of the row before it; "
                "actions='previous' does so"
            )
        if self._known.pictures and self._channels == "rgb":
            warnings.append("pictures are JPEG: where red and blue look exchanged, channels='bgr' exchanges them")
        return {
            "files": len(self._files),
            "sim": self._known.sim,
            "compressed": {name: list(shape) for name, shape in self._known.pictures.items()},
            "warnings": warnings,
        }

    def fingerprint(self) -> str:
        return f"aloha:{fingerprint_files(self._files)}:{self._actions},{self._images},{self._channels}"


@dataclasses.dataclass(frozen=True)
class _Leaf:
    """One dataset: the shape and type of its rows, and of their pictures, if they are compressed."""

    shape: tuple[int, ...]
    dtype: np.dtype
    picture: tuple[int, ...] | None


class _Known:
    """What a file tells of all of them.

    Attributes:
        fields: of each field its nest of :class:`_Leaf`.
        pictures: what is compressed, by path, with the shape of the pictures.
        sim: whether it was recorded in simulation; None where it does not say.
    """

    def __init__(self, file: Hdf5File, trees: dict[str, Any]) -> None:
        self.fields = {
            name: nest.unflatten(tree, iter([_leaf(file, path, one) for path, one in nest.flatten(tree, (name,))]))
            for name, tree in trees.items()
        }
        leaves = {nest.path_name(path): leaf for path, leaf in nest.flatten(self.fields)}
        self.pictures = {path: leaf.picture for path, leaf in leaves.items() if leaf.picture is not None}
        sim = file.root.attrs.get("sim")
        self.sim = None if sim is None else bool(sim)


def _leaf(file: Hdf5File, path: nest.Path, dataset: Any) -> _Leaf:
    picture = None
    if _is_compressed(path, dataset) and len(dataset):
        picture = _picture(file.rows(dataset, 0, 1)[0].tobytes(), f"{file.path}: {nest.path_name(path)}")
    return _Leaf(dataset.shape[1:] if dataset.shape else (), native_dtype(dataset), picture)


def _picture(file: bytes, name: str) -> tuple[int, ...]:
    """The shape of a JPEG or PNG file's pixels.

    Raises:
        SourceFormatError: it is none.
    """
    size = declared_size(file)
    if 0 in size:
        raise SourceFormatError(f"{name}: rows of bytes that are neither pictures nor JPEG files")
    return (*size, 3)


def _is_compressed(path: nest.Path, dataset: Any) -> bool:
    return path[:2] == _PICTURES and dataset.ndim == 2 and dataset.dtype == np.uint8


def _has_rows(tree: Any, rows: int) -> bool:
    leaves = [leaf for _, leaf in nest.flatten(tree)]
    return bool(leaves) and all(leaf.shape and leaf.shape[0] == rows for leaf in leaves)


def _facts(file: Hdf5File) -> dict[str, Any]:
    facts = {name: value for name, value in file.root.attrs.items() if name not in _NO_FACTS}
    return {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in facts.items()
        if isinstance(value, str | np.generic)
    }
