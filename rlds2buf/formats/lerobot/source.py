"""LeRobot datasets on disk, read without lerobot and torch."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from rlds2buf.codecs.images.resize import check_images
from rlds2buf.core import nest
from rlds2buf.core.arguments import choice
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.fields import DATA_FIELDS, FLAG_FIELDS
from rlds2buf.core.issue import Issue
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import EpisodeError, LimitExceeded, SourceError, SourceFormatError
from rlds2buf.files.fingerprint import fingerprint_files
from rlds2buf.formats.lerobot.block_reader import BlockReader, Choices, Dataset, as_nests, put, way_around
from rlds2buf.formats.lerobot.ends import CHOICES
from rlds2buf.formats.lerobot.fields import MODALITY, Field, Layout, layout_of, layout_of_own
from rlds2buf.formats.lerobot.index import Index, read_index
from rlds2buf.formats.lerobot.info import Info, read_info
from rlds2buf.formats.lerobot.own_file import EPISODES, FILE_NAME, ROWS_FILE, OwnFile, read_own_file
from rlds2buf.formats.lerobot.own_notes import OwnNotes, read_own_notes
from rlds2buf.formats.lerobot.repair import mended
from rlds2buf.formats.lerobot.splits import places_of_split
from rlds2buf.formats.lerobot.tasks import read_tasks, tasks_file
from rlds2buf.io.source import Source

__all__ = ["LeRobotDirSource"]

_MOST_LISTED: Final = 5


class LeRobotDirSource(Source):
    """A LeRobot dataset of version 3.0, 2.1 or 2.0, GR00T's among them.

    A dotted name is a nest: ``observation.state`` is ``observation/state``, ``observation.images.top`` is
    ``observation/images/top``; ``next.reward`` is the reward of its row, and a feature ``discount`` the discount.
    What has another name is an extra, ``timestamp`` and ``task_index`` too; ``extras/task`` is the task's text.  A
    feature of shape ``[1]`` is one number a row.  Values are of the types that ``info.json`` says.  Vectors of which
    ``meta/modality.json`` names parts (GR00T) are nests of these.

    An episode of T rows has T actions: the last one was taken, and what came of it was not recorded; its metadata say
    so (``real_final_action``).  ``is_first``, ``is_last`` and ``is_terminal`` are taken where they are recorded; else
    ``next.done`` is terminal unless ``next.truncated``; else every episode is taken as truncated.

    Args:
        path: the dataset's folder, which holds ``meta/info.json``.
        split: of the ``splits`` that ``info.json`` names, which are ranges of episodes, written as TFDS writes them:
            ``"train"``, ``"train[:10%]"``, ``"train[5:20]+test"``; None: all episodes.
        ends: what tells whether an episode's end is terminal: its ``"flags"``, or every one is ``"truncated"``, or
            ``"terminal"``.
        tolerance: seconds that a row's timestamp may be off from what the rate says; None: half of what lies between
            two rows.
        images: "decoded", pictures are columns of pixels; "encoded", those that lie in the rows are byte strings, the
            PNG and JPEG files untouched, whose FieldSpec has an image.  None is "decoded", unless encoded() is asked
            for.  Frames of videos are pixels.
        resize: size that pictures are to have, one number for a square or (height, width).
        image_threads: how many threads decode pictures; None: one for each core.
        modality: whether vectors are cut into the parts that ``meta/modality.json`` names.
        repair: where metadata are damaged or contradict the rows, read the episodes that rows and videos prove
            (:mod:`~rlds2buf.formats.lerobot.repair`); what was done, and what is lost, is among the warnings.
        budget: see :class:`~rlds2buf.core.budget.Budget`.

    Raises:
        SourceNotFound: it, a file of its metadata, or the split is not there.
        SourceFormatError: its metadata are damaged, contradict themselves, are Git LFS pointers, or are of a version or
            storage that is not read.
        MissingDependency: pyarrow is not installed.
        ValueError: no such choice of ends.

    For a dataset on disk::

        source = LeRobotDirSource("svla_so101_pickplace")
        source.num_episodes, source.spec.action  # 50, float32[6]
    """

    format: ClassVar[str] = "lerobot"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        split: str | None = None,
        ends: str = "flags",
        modality: bool = True,
        tolerance: float | None = None,
        images: str | None = None,
        resize: int | tuple[int, int] | None = None,
        image_threads: int | None = None,
        repair: bool = False,
        budget: Budget = BUDGET,
    ) -> None:
        choice("ends", ends, CHOICES)
        size = check_images(images, resize)
        if image_threads is not None and image_threads < 1:
            raise ValueError(f"image_threads must be at least 1, got {image_threads}")
        if tolerance is not None and not tolerance >= 0:
            raise ValueError(f"tolerance must be 0 or more seconds, got {tolerance}")
        self.name = str(path) if split is None else f"{path} [{split}]"
        self._split = split
        self._budget = budget
        self._choices = Choices(ends, images, size, threads=image_threads, tolerance=tolerance)
        self._modality = modality
        self._repairs = repair
        self._notes: list[str] = []
        self._dataset = self._opened(Path(path))
        self._wanted: Callable[[int], bool] | None = None
        # Of each episode of this source, its place in the dataset.
        self._places = places_of_split(self._dataset.info, len(self._dataset.index), split)

    def _opened(self, root: Path) -> Dataset:
        info = read_info(root)
        if self._repairs:
            index, tasks, self._notes = mended(info, self._budget)
        else:
            index, tasks = read_index(info, self._budget), read_tasks(info, self._budget)
        own = self._own(info, index)
        if own is not None:
            return Dataset(self.name, info, index, tasks, *own)
        takes_ends = self._choices.ends == "flags"
        layout = layout_of(info, has_tasks=tasks is not None, takes_ends=takes_ends, modality=self._modality)
        return Dataset(self.name, info, index, tasks, layout)

    def _own(self, info: Info, index: Index) -> tuple[Layout, OwnFile, OwnNotes] | None:
        """What rlds2buf noted when it wrote the dataset; None where it did not, or somebody has changed it since."""
        if self._choices.ends != "flags":
            return None
        try:
            own = read_own_file(info.root)
            if own is None:
                return None
            if not own.fits(info.values) or len(index) != info.total_episodes or index.num_rows != info.total_frames:
                why = "it says other things than info.json: the dataset was changed since"
                raise SourceFormatError(f"{info.root / FILE_NAME}: {why}")
            return layout_of_own(info, own), own, read_own_notes(info.root, len(index), self._budget)
        except LimitExceeded:
            raise
        except (SourceError, ValueError) as cause:
            self._notes.append(f"{cause}; it is ignored, and the dataset read as one of LeRobot's own")
            return None

    @property
    def _fields(self) -> Sequence[Field]:
        return [field for field in self._dataset.layout.fields if self._choices.wants(field.path)]

    @property
    def spec(self) -> StepSpec:
        return self._spec

    @functools.cached_property
    def _spec(self) -> StepSpec:
        tree: dict[str, Any] = {}
        for field in self._fields:
            put(tree, field.path, self._choices.spec(field))
        tree = as_nests(tree)
        known: dict[str, Any] = {name: tree.get(name) for name in DATA_FIELDS}
        if known["discount"] is None and self._dataset.derives_ends and self._choices.wants(("discount",)):
            known["discount"] = FieldSpec((), np.dtype(np.float32))
        return StepSpec(**known, extras=tree.get("extras", {}))

    @property
    def num_episodes(self) -> int:
        return len(self._places)

    @property
    def num_steps(self) -> int:
        return int(self._dataset.index.lengths[self._places].sum())

    def read_batches(
        self, start: int = 0, stop: int | None = None, *, rows: int = 1 << 14, bytes: int = 64 << 20
    ) -> Iterator[EpisodeBatch | EpisodeError]:
        """See :meth:`Source.read_batches`; an episode whose files are not there, or damaged, is its EpisodeError.

        Raises:
            LimitExceeded: an episode takes more memory than is allowed.
            MissingDependency: there are videos, and PyAV is not installed.
        """
        stop = self.num_episodes if stop is None else min(stop, self.num_episodes)
        chosen = np.arange(start, max(start, stop))
        if self._wanted is not None:
            chosen = np.array([i for i in chosen.tolist() if self._wanted(i)], np.int64)
        with BlockReader(self._dataset, self._choices, self._budget) as reader:
            for part in _ascending(chosen, self._places):
                found = reader.read(self._places[part], rows, bytes)
                yield from found if self._split is None else _numbered(found, part)

    def encoded(self) -> LeRobotDirSource:
        """See :meth:`Source.encoded`: pictures in columns as the files that they are; those of videos are decoded."""
        if not self._is_plain or not any(field.is_picture for field in self._fields):
            return self
        return self._changed(images="encoded")

    def with_video_frames(self) -> LeRobotDirSource:
        """See :meth:`Source.with_video_frames`."""
        changes: dict[str, Any] = {}
        if self._choices.size is None and any(field.is_video for field in self._fields):
            changes["frames_by_name"] = True
        if self._is_plain and any(field.is_picture for field in self._fields):
            changes["images"] = "encoded"
        return self._changed(**changes) if changes else self

    @property
    def _is_plain(self) -> bool:
        """Whether nobody said how pictures are to be had."""
        return self._choices.images is None and self._choices.size is None

    def without(self, paths: Iterable[str]) -> LeRobotDirSource:
        """See :meth:`Source.without`: their columns are not read, their pictures not decoded."""
        given = set(paths)
        known = {nest.path_name(path) for path, _ in self.spec.fields()}
        for path in given - self._choices.left_out:
            if not any(name == path or name.startswith(f"{path}/") for name in known):
                raise ValueError(f"{self.name}: no field is called {path!r}; there are: {', '.join(sorted(known))}")
        other = self._changed(left_out=self._choices.left_out | given)
        if not any(field.path[0] not in FLAG_FIELDS for field in other._fields):
            raise ValueError(f"{self.name}: without {', '.join(sorted(given))} no field is left")
        return other

    def only(self, wanted: Callable[[int], bool]) -> LeRobotDirSource:
        """See :meth:`Source.only`: the rows of the others are not decoded."""
        fewer = copy.copy(self)
        fewer._wanted = wanted
        return fewer

    def _changed(self, **changes: Any) -> LeRobotDirSource:
        other = copy.copy(self)
        other.__dict__.pop("_spec", None)
        other._choices = dataclasses.replace(self._choices, **changes)
        return other

    def details(self) -> dict[str, Any]:
        info = self._dataset.info
        return {
            "version": info.version,
            "fps": int(info.fps) if info.fps == int(info.fps) else info.fps,
            "robot_type": info.robot_type,
            "rows": self.num_steps,
            "tasks": 0 if self._dataset.tasks is None else len(self._dataset.tasks),
            "splits": dict(info.splits),
            "split": self._split,
            "data_files": len(self._dataset.index.files),
            "cameras": {
                name: {"files": len(footage.files), "absent": len(_absent(footage.files))}
                for name, footage in self._dataset.index.footage.items()
            },
            "fields": {nest.path_name(field.path): field.name for field in self._fields},
            "ends_by": list(self._dataset.layout.ends) if self._choices.ends == "flags" else self._choices.ends,
            "ignored": dict(self._dataset.layout.unfit),
            "warnings": self._warnings(),
        }

    def facts(self) -> dict[str, Any]:
        """See :meth:`Source.facts`: rate, robot, names of features and of vectors' numbers; of ours what was known."""
        own = self._dataset.own
        known_before = own.provenance.get("dataset") if own is not None else None
        info = self._dataset.info
        names = {name: one.names for name, one in info.features.items() if one.names and not one.is_picture}
        known: dict[str, Any] = {"fps": info.fps, "robot_type": info.robot_type, "names": names}
        told = {name: value for name, value in known.items() if value}
        tasks = self._dataset.tasks
        if own is not None and tasks is not None and len(tasks) == 1:  # it may be that of no field
            told["task"] = tasks.texts[0].decode("utf-8", "replace")
        found = {**known_before, **told} if isinstance(known_before, dict) else told
        found["features"] = list(info.features) if self._choices.ends == "flags" else None
        return {name: value for name, value in found.items() if value is not None}

    def findings(self, *, quick: bool = False) -> Iterator[Issue]:
        """See :meth:`Source.findings`; without `quick` the rows are read and the videos' tables, nothing is decoded."""
        from rlds2buf.formats.lerobot.findings import Scope, findings

        known = self._dataset
        numbers = (number for number in range(self.num_episodes) if self._wanted is None or self._wanted(number))
        mine: dict[int, int] = {}
        for number in numbers:
            mine.setdefault(int(self._places[number]), number)
        chosen = np.array(sorted(mine), np.int64)
        features = known.info.features
        paths = {field.name: nest.path_name(field.path) for field in reversed(self._fields) if field.name in features}
        scope = Scope(self.name, known.info, known.index, known.tasks, paths, chosen, self._budget)
        for issue in findings(scope, quick=quick):
            if issue.episode is None or issue.episode in mine:
                yield dataclasses.replace(issue, episode=None if issue.episode is None else mine[issue.episode])

    def fingerprint(self) -> str:
        chosen = self._choices
        told = [chosen.ends, self._modality, sorted(chosen.left_out), chosen.images, chosen.size]
        told += [chosen.frames_by_name, chosen.tolerance, *(["repair"] if self._repairs else [])]
        told += [] if self._split is None else [{"split": self._split}]
        files = [file for file in self._files() if file.is_file()]
        return f"{self.format}:{fingerprint_files(files)}:{json.dumps(told)}"

    def _files(self) -> Iterator[Path]:
        """All that there should be."""
        meta = self._dataset.info.root / "meta"
        yield self._dataset.info.path
        yield tasks_file(self._dataset.info)
        yield from (self._dataset.info.root / name for name in (MODALITY, FILE_NAME, EPISODES, ROWS_FILE))
        yield from sorted(meta.glob("episodes/*/*.parquet")) if self._dataset.info.is_v3 else (meta / "episodes.jsonl",)
        yield from self._dataset.index.files
        for footage in self._dataset.index.footage.values():
            yield from footage.files

    @property
    def _absent(self) -> list[Field]:
        """The cameras some of whose videos are not there."""
        footage = self._dataset.index.footage
        return [field for field in self._fields if field.is_video and _absent(footage[field.name].files)]

    def _warnings(self) -> list[str]:
        found = [*self._notes, *self._dataset.layout.notes]
        if self._choices.ends == "flags" and self._dataset.own is None and not self._dataset.layout.ends:
            found.append("no end flags: every episode is taken as truncated")
        for name, why in self._dataset.layout.unfit.items():
            found.append(f"feature {name} {why}: it is left out")
        if self._dataset.tasks is None and "task_index" in self._dataset.info.features:
            found.append(f"no {tasks_file(self._dataset.info)}: the texts of the tasks are not known")
        for field in self._absent:
            footage = self._dataset.index.footage[field.name]
            absent = _absent(footage.files)
            listed = ", ".join(map(str, absent[:_MOST_LISTED])) + (", ..." if len(absent) > _MOST_LISTED else "")
            found.append(
                f"{field.name}: {len(absent)} of {len(footage.files)} videos are not there ({listed}); "
                f"{way_around(field, self._fields, self._absent)}"
            )
        return found


def _ascending(chosen: np.ndarray, places: np.ndarray) -> list[np.ndarray]:
    """Numbers of episodes in runs whose places in the dataset ascend."""
    return np.split(chosen, np.flatnonzero(np.diff(places[chosen]) <= 0) + 1) if len(chosen) else []


def _numbered(
    found: Iterable[EpisodeBatch | EpisodeError], numbers: np.ndarray
) -> Iterator[EpisodeBatch | EpisodeError]:
    """What was read of a dataset with the numbers that its episodes have here."""
    at = 0
    for item in found:
        if isinstance(item, EpisodeBatch):
            item.index = numbers[at : at + len(item)]
            item.rows.index = int(item.index[0])
            at += len(item)
        else:
            item.episode = int(numbers[at])
            at += 1
        yield item


def _absent(files: Iterable[Path]) -> list[Path]:
    return [file for file in files if not file.is_file()]
