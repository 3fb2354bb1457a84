"""Episodes into a Minari dataset."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rlds2buf.codecs.hdf5.datasets import clash, extra_fault, field_fault, is_plain_name, texts_misfit
from rlds2buf.codecs.hdf5.writing import Hdf5Writer, create_hdf5, find_h5py
from rlds2buf.core import nest
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.json_text import parse_json
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import SinkError, SpecMismatch
from rlds2buf.files.durable import replace_text
from rlds2buf.files.foreign import replaceable_folder
from rlds2buf.formats.minari.format import FILE
from rlds2buf.formats.minari.spaces import TextRange, is_image, space_json
from rlds2buf.io.column_spool import BLOCK_BYTES, ColumnSpool
from rlds2buf.io.metadata_values import facts_of, from_json, to_json
from rlds2buf.io.spooled_sink import SpooledSink, started

__all__ = ["MinariDirSink", "place_of"]

_METADATA = "metadata.json"
_LENGTHS, _ENDS, _FACTS = "lengths", "ends", "facts"
_TERMINATED, _TRUNCATED = 1, 2
_MAX_ATTRIBUTE = 60_000
"""Bytes; HDF5 takes attributes of up to 64 KiB."""

_ID = re.compile(r"([-_\w]+/)*[-_\w]+-v\d+")
_VERSIONED = re.compile(r"-v\d+$")
_NAMESPACE = "namespace_metadata.json"
_SUFFIXES = (".json", ".hdf5", ".arrow", ".parquet")
"""Of files in any of Minari's layouts."""
_ROOT_NAME = re.compile("minari|data|out", re.IGNORECASE)
_VERSION, _PICTURE_VERSION = "0.5.0", "0.5.4"
"""What Minari has to be to read the dataset; before the latter it takes every picture for a JPEG."""


class MinariDirSink(SpooledSink):
    """Writes a dataset that Minari 0.5 opens (https://minari.farama.org), in its HDF5 layout.

    ::

        DST/data/metadata.json     spaces, counts, provenance
        DST/data/main_data.hdf5    episode_0/{observations, actions, rewards, terminations, truncations, infos}

    ``minari.MinariDataset(DST / "data")`` opens it anywhere, ``minari.load_dataset(id)`` where DST is
    ``$MINARI_DATASETS_PATH/<id>``.  What lies between that folder and DST is its namespace, and gets a
    ``namespace_metadata.json``, so that Minari lists it; :func:`place_of` says how far up that goes.

    An episode of N rows becomes N observations and infos, and N - 1 actions, rewards and flags.  Dicts and
    tuples nest as they are; pictures are stored as pixels, not as JPEG, so that nothing is lost.  Extras are
    infos: those in ``extras["infos"]`` under their own names, so are others.  An episode's metadata are the
    attributes of its group.

    What such a dataset has no place for is listed by :meth:`lost`: discounts other than 1 and 0 at a
    terminal, the final row's action and reward if they aren't zeros, metadata larger than 60 kB,
    another numbering of the episodes.

    Args:
        path: the folder to make.
        dataset_id: ``namespace/name-v0``; from the path if None (:func:`place_of`).
        author, author_email, algorithm_name, code_permalink, description: what is kept with the dataset.
        env_spec: the environment, as ``gymnasium.envs.registration.EnvSpec.to_json`` gives it.
        overwrite: replace a Minari dataset that is there, if there is nothing else in its folder.
        resume: continue a killed run, and leave this one's part in place if it is aborted.

    Raises:
        ValueError: a `dataset_id` that Minari would not take, or an `env_spec` that is no JSON.

    >>> MinariDirSink("hopper/medium-v0")
    <MinariDirSink hopper/medium-v0>
    """

    what: ClassVar[str] = "a Minari dataset"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        dataset_id: str | None = None,
        author: str | None = None,
        author_email: str | None = None,
        algorithm_name: str | None = None,
        code_permalink: str | None = None,
        description: str | None = None,
        env_spec: str | None = None,
        overwrite: bool = False,
        resume: bool = False,
    ) -> None:
        self._root, usual_id = place_of(Path(path))
        dataset_id = usual_id if dataset_id is None else dataset_id
        if not _ID.fullmatch(dataset_id):
            raise ValueError(f"dataset_id must be like namespace/name-v0, got {dataset_id!r}")
        if env_spec is not None:
            _check_env_spec(env_spec)
        told = {
            "dataset_id": dataset_id,
            "author": None if author is None else [author],
            "author_email": None if author_email is None else [author_email],
            "algorithm_name": algorithm_name,
            "code_permalink": code_permalink,
            "description": description,
            "env_spec": env_spec,
        }
        options = {key: value for key, value in told.items() if value is not None}
        super().__init__(path, overwrite=overwrite, resume=resume, options=options)
        self._fields: dict[str, tuple[nest.Path, FieldSpec]] = {}
        self._infos: dict[str, nest.Path] = {}
        self._texts: dict[str, TextRange] = {}
        self._episodes = self._steps = 0

    @classmethod
    def usual_target(cls, path: str) -> tuple[str, str | None]:
        """A new folder is called NAME-vN: others make Minari's listing of local datasets fail."""
        target = Path(path)
        known = os.path.lexists(target) or os.path.lexists(_part_of(target))
        if known or _VERSIONED.search(target.name):
            return path, None
        named = target.with_name(f"{target.name}-v0")
        return str(named), f"written as {named}: the names of Minari's datasets end in a version"

    def commit(self) -> None:
        """Move the dataset to its place, and mark the folders above it, up to the root, as namespaces."""
        super().commit()
        where = Path(os.path.abspath(self.name))
        if not _VERSIONED.search(where.name):
            why = "its name does not end in a version, which makes Minari's listing of local datasets fail"
            self.notes = (*self.notes, f"{self.name}: {why}: rename it to {where.name}-v0 to keep it there")
        identity = self.options["dataset_id"]
        if (self._root / identity) != where:
            return
        self.notes = (*self.notes, f"Minari's id is {identity}, where MINARI_DATASETS_PATH is {self._root}")
        for folder in where.parents:
            if folder == self._root:
                break
            _mark_namespace(folder)

    def plan(self, spec: StepSpec) -> dict[str, FieldSpec]:
        self._fields, self._infos, self._texts = {}, {}, {}
        self._episodes = self._steps = 0
        for name in ("observation", "action"):
            self._nested(name, getattr(spec, name))
        columns = {name: field for name, (_, field) in self._fields.items()}
        # The infos first: what has to make way for another is what would be put among them.
        for path, field in sorted(nest.flatten(spec.extras), key=lambda leaf: leaf[0][0] != "infos"):
            if field is not None and (place := self._info(path, field)) is not None:
                self._infos[place] = path
                columns[place] = field
        columns["rewards"] = self.reward_field(spec.reward)
        columns[_LENGTHS] = FieldSpec((), np.dtype(np.int64))
        columns[_ENDS] = FieldSpec((), np.dtype(np.uint8))
        columns[_FACTS] = FieldSpec((), np.dtype(object))
        find_h5py()
        return columns

    def misfit(self, batch: EpisodeBatch) -> tuple[int, SpecMismatch] | None:
        fields = {path: nest.get(getattr(batch.rows, str(path[0])), path[1:]) for path, _ in self._fields.values()}
        infos = {("extras", *path): nest.get(batch.rows.extras, path) for path in self._infos.values()}
        return texts_misfit(batch, {**fields, **infos}, utf8=fields)

    def take(self, batch: EpisodeBatch) -> None:
        rows: dict[str, np.ndarray] = {}
        for name, (path, _) in self._fields.items():
            column = nest.get(getattr(batch.rows, str(path[0])), path[1:])
            rows[name] = column if path[0] == "observation" else started(batch, column)
            if path[0] == "action":
                self.notice_final(batch, path, column)
        for name, path in self._infos.items():
            rows[name] = nest.get(batch.rows.extras, path)
        rows["rewards"] = self.rewards(batch)
        for name, texts in self._texts.items():
            texts.add(rows[name])
        self.notice_discount(batch)
        self.notice_ends(batch)
        terminated, last = batch.rows.is_terminal[batch.ends], batch.rows.is_last[batch.ends]
        if (terminated & (batch.lengths == 1)).any():
            self.lose("is_terminal", "an episode of one row has no step to flag: it is read back as cut off")
        rows[_LENGTHS] = batch.lengths
        rows[_ENDS] = np.where(terminated, _TERMINATED, np.where(last, _TRUNCATED, 0)).astype(np.uint8)
        rows[_FACTS] = np.empty(len(batch), object)
        for i, (facts, length) in enumerate(zip(batch.facts(), batch.lengths.tolist(), strict=True)):
            rows[_FACTS][i] = json.dumps(self._facts(facts, self._episodes + i, length - 1)).encode()
        self.append(rows)
        self._episodes += len(batch)
        self._steps += batch.num_transitions

    def produce(self, spool: ColumnSpool, target: Path) -> None:
        folder = target / "data"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as cause:
            raise SinkError(f"{folder}: {cause.strerror or cause}") from cause
        lengths = spool.columns[_LENGTHS].read(0, spool.columns[_LENGTHS].rows)
        edges = np.append(0, np.cumsum(lengths))
        with create_hdf5(folder / FILE) as file:
            for start, stop in self._runs(edges):
                self._write(file, spool, start, edges[start : stop + 1])
        size = (folder / FILE).stat().st_size
        replace_text(folder / _METADATA, json.dumps(self._metadata(size)))

    def replaceable(self, path: Path) -> bool | str:
        try:
            metadata = parse_json((path / "data" / _METADATA).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        if not isinstance(metadata, dict) or "minari_version" not in metadata:
            return False
        return replaceable_folder(
            path, lambda name: name.startswith("data/") and name.endswith(_SUFFIXES), "a Minari dataset"
        )

    def state(self) -> dict[str, Any]:
        texts = {name: texts.to_json() for name, texts in self._texts.items()}
        return {"texts": texts, "episodes": self._episodes, "steps": self._steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._texts = {name: TextRange(*state["texts"][name]) for name in self._texts}
        self._episodes, self._steps = int(state["episodes"]), int(state["steps"])

    def _nested(self, name: str, value: nest.Nest) -> None:
        """Where the leaves of a field go."""
        leaves: list[tuple[nest.Path, FieldSpec]] = [leaf for leaf in nest.flatten(value) if leaf[1] is not None]
        if not leaves:
            raise SinkError(f"{self.name}: the data have no {name}, which {self.what} needs")
        for path, field in leaves:
            fault = _space_fault(path, field)
            if fault is not None:
                raise SinkError(f"{self.name}: {nest.path_name((name, *path))}: {fault}; drop it or map it to another")
            parts = [f"_index_{part}" if isinstance(part, int) else part for part in path]
            place = "/".join([f"{name}s", *parts])
            self._fields[place] = ((name, *path), field)
            if field.is_string:
                self._texts[place] = TextRange()

    def _info(self, path: nest.Path, field: FieldSpec) -> str | None:
        """Where an extra goes; None if it can't."""
        own = path[0] == "infos" and len(path) > 1
        place = path if own else ("infos", *path)
        return self.extra_name(path, place, extra_fault(field, path, place, self._infos))

    def _facts(self, metadata: Mapping[str, Any], number: int, steps: int) -> dict[str, Any]:
        """The attributes of an episode's group, and single infos, as plain JSON."""
        found = facts_of(metadata, self.lose)
        own = {"id": number, "total_steps": steps}
        for name, value in own.items():
            if name in found and not _is_number(found.pop(name), value):
                self.lose(f"metadata/{name}", f"Minari's own is written: {_OWN[name]}")
        kept: dict[str, Any] = {}
        for path, value in found.items():
            fault = self._fact_fault(path, value, own)
            if fault is None:
                kept[path] = to_json(value)
            else:
                self.lose(f"metadata/{path}", fault)
        return kept

    def _fact_fault(self, path: str, value: Any, own: Mapping[str, int]) -> str | None:
        """Why a fact can't be kept; None if it can."""
        if value is None:
            return "it is None, which an attribute can't be"
        if path.startswith("infos/"):
            if (isinstance(value, np.ndarray) and value.ndim) or isinstance(value, str):
                return "beside the infos of steps there is place for single numbers and bytes only"
            taken = any(clash(path, name) for name in self._infos)
            return "an info of the steps has its name" if taken else None
        if any(clash(path, name) for name in own):
            return "an attribute of Minari's has its name"
        size = value.size * 16 if isinstance(value, np.ndarray) and value.dtype == object else _bytes_of(value)
        return f"it has {size:,} bytes, too many for an attribute" if size > _MAX_ATTRIBUTE else None

    def _runs(self, edges: np.ndarray) -> Iterator[tuple[int, int]]:
        """Runs of episodes, of some megabytes each or one episode."""
        fields = [field for _, field in self._fields.values()]
        row_bytes = sum(field.dtype.itemsize * math.prod(n or 0 for n in field.shape) for field in fields)
        start, count = 0, len(edges) - 1
        while start < count:
            most = edges[start] + max(1, BLOCK_BYTES // max(1, row_bytes))
            stop = max(start + 1, int(np.searchsorted(edges, most, "right")) - 1)
            yield start, stop
            start = stop

    def _write(self, file: Hdf5Writer, spool: ColumnSpool, start: int, edges: np.ndarray) -> None:
        """Write groups; `edges` are the episodes' first rows in the spool's longer columns, and where the last ends."""
        stop = start + len(edges) - 1
        columns: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for name in (*self._fields, *self._infos, "rewards"):
            longer = name.startswith(("observations", "infos"))
            rows = edges if longer else edges - np.arange(start, stop + 1)
            columns[name] = spool.columns[name].read(int(rows[0]), int(rows[-1])), (rows - rows[0]).tolist()
        ends = spool.columns[_ENDS].read(start, stop).tolist()
        facts = spool.columns[_FACTS].read(start, stop).tolist()
        for i, steps in enumerate((np.diff(edges) - 1).tolist()):
            group = file.group(f"episode_{start + i}")
            for name, (column, rows) in columns.items():
                group.column(name, column[rows[i] : rows[i + 1]])
            for name, code in (("terminations", _TERMINATED), ("truncations", _TRUNCATED)):
                flags = np.zeros(steps, np.bool_)
                flags[-1:] = ends[i] == code
                group.column(name, flags)
            group.group("infos")
            group.attribute("id", np.int64(start + i))
            group.attribute("total_steps", np.int64(steps))
            for path, value in sorted(json.loads(facts[i]).items()):
                write = group.value if path.startswith("infos/") else group.attribute
                write(path, from_json(value))

    def _metadata(self, size: int) -> dict[str, Any]:
        spaces = {}
        for name in ("observation", "action"):
            spec = getattr(self._spec, name)
            spaces[f"{name}_space"] = json.dumps(space_json(spec, self._text_range(name)))
        pictures = any(is_image(field) for _, field in self._fields.values())
        return {
            "total_episodes": self._episodes,
            "total_steps": self._steps,
            "data_format": "hdf5",
            "jpeg_encoding": False,
            **spaces,
            "dataset_size": round(size / 1e6, 1),
            **_known_facts(self.provenance),
            **self.options,
            "minari_version": _PICTURE_VERSION if pictures else _VERSION,
            "rlds2buf": self.provenance,
        }

    def _text_range(self, name: str) -> Any:
        known = {
            path[1:]: self._texts[place]
            for place, (path, _) in self._fields.items()
            if place in self._texts and path[0] == name
        }
        return known.__getitem__


_KEPT = {
    **dict.fromkeys(("author", "author_email", "requirements"), list),
    **dict.fromkeys(("algorithm_name", "code_permalink", "description", "env_spec", "eval_env_spec"), str),
}
"""What Minari keeps of a dataset, and as what."""


def _known_facts(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """What the source knew of its dataset, in so far as Minari has a place for it."""
    facts = provenance.get("dataset", {})
    return {name: facts[name] for name, kind in _KEPT.items() if isinstance(facts.get(name), kind)}


_OWN = {"id": "episodes are numbered from 0", "total_steps": "how many steps the episode has"}


def _space_fault(path: nest.Path, field: FieldSpec) -> str | None:
    """Why a field of the observation or action can't be written; None if it can."""
    if field.is_string and field.shape:
        return "it is an array of texts, for which Gymnasium has no space"
    if field.dtype.kind == "c":
        return "it is complex, for which Gymnasium has no space"
    if field.dtype.kind == "f" and field.dtype.itemsize > 8:
        return f"it is {field.dtype}, whose limits JSON can't hold"
    if not all(is_plain_name(part) for part in path):
        return "its name can't be one in an HDF5 file"
    return field_fault(field)


def _is_number(value: Any, number: int) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "iu" and int(value) == number


def _bytes_of(value: Any) -> int:
    return value.nbytes if isinstance(value, np.ndarray) else len(value) * (4 if isinstance(value, str) else 1)


def place_of(path: Path) -> tuple[Path, str]:
    """The folder of all datasets that a dataset's path is in, and its id there, as far as the path tells.

    The folder is the first of these that there is:

    1. what an interrupted run at this path went by;
    2. ``$MINARI_DATASETS_PATH``, or ``~/.minari/datasets``, if the path is below it;
    3. the one above all parents that have a ``namespace_metadata.json``;
    4. the one above the parent, if that is yet to be made, and not called as if it were for all datasets;
    5. the parent.
    """
    whole = Path(os.path.abspath(path))
    known = _interrupted_id(whole)
    root = Path(os.path.abspath(os.environ.get("MINARI_DATASETS_PATH") or Path("~/.minari/datasets").expanduser()))
    if known is not None:
        return whole.parents[known.count("/")], known
    if root not in whole.parents:
        root = whole.parent
        while (root / _NAMESPACE).is_file() and root != root.parent:
            root = root.parent
        if root == whole.parent and not root.exists() and not _ROOT_NAME.search(root.name):
            root = root.parent
    names = [re.sub(r"[^-\w]", "_", part) for part in whole.relative_to(root).parts]
    if not _VERSIONED.search(names[-1]):
        names[-1] += "-v0"
    return root, "/".join(names)


def _part_of(target: Path) -> Path:
    return target.parent / f".{target.name}.partial"


def _interrupted_id(target: Path) -> str | None:
    try:
        journal = parse_json((_part_of(target) / "journal.json").read_text(encoding="utf-8"))
        found = journal["provenance"]["options"]["dataset_id"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return found if isinstance(found, str) and _ID.fullmatch(found) else None


def _mark_namespace(folder: Path) -> None:
    """As Minari's create_namespace does; what is there stays."""
    try:
        with open(folder / _NAMESPACE, "x", encoding="utf-8") as file:
            file.write("{}")
    except FileExistsError:
        pass
    except OSError as cause:
        raise SinkError(f"{folder / _NAMESPACE}: {cause.strerror or cause}") from cause


def _check_env_spec(text: str) -> None:
    try:
        named = isinstance(parse_json(text).get("id"), str)
    except (ValueError, AttributeError):
        named = False
    if not named:
        raise ValueError("env_spec must be the JSON of an EnvSpec, with an id")
