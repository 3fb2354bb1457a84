"""LeRobot datasets on disk, read without lerobot and torch."""

from __future__ import annotations

import copy
import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.arguments import choice
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch, FactColumns
from rlds2buf.core.row_flags import REAL_FINAL_ACTION
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import EpisodeError, LimitExceeded, SourceFormatError, SourceNotFound
from rlds2buf.files.fingerprint import fingerprint_files
from rlds2buf.formats.lerobot.columns import Rows, RowsReader, Unreadable
from rlds2buf.formats.lerobot.ends import CHOICES, discounts, flags_of, real_last_actions
from rlds2buf.formats.lerobot.fields import MODALITY, TASK, Field, Layout, layout_of
from rlds2buf.formats.lerobot.index import Index, read_index
from rlds2buf.formats.lerobot.info import Feature, Info, read_info
from rlds2buf.formats.lerobot.tasks import Tasks, read_tasks, tasks_file
from rlds2buf.io.source import Source

__all__ = ["LeRobotDirSource"]

_COUNTS: Final = ("episode_index", "frame_index")
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
        ends: what tells whether an episode's end is terminal: its ``"flags"``, or every one is ``"truncated"``, or
            ``"terminal"``.
        modality: whether vectors are cut into the parts that ``meta/modality.json`` names.
        budget: see :class:`~rlds2buf.core.budget.Budget`.

    Raises:
        SourceNotFound: it, or a file of its metadata, is not there.
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
        ends: str = "flags",
        modality: bool = True,
        budget: Budget = BUDGET,
    ) -> None:
        choice("ends", ends, CHOICES)
        self.name = str(path)
        self._budget = budget
        self._ends = ends
        self._modality = modality
        self._info: Info = read_info(Path(path))
        self._index: Index = read_index(self._info, budget)
        self._tasks: Tasks | None = read_tasks(self._info, budget)
        self._layout: Layout = layout_of(
            self._info, has_tasks=self._tasks is not None, takes_ends=ends == "flags", modality=modality
        )
        self._left_out: frozenset[str] = frozenset()
        self._wanted: Callable[[int], bool] | None = None

    @property
    def _fields(self) -> Sequence[Field]:
        return [field for field in self._layout.fields if not _is_under(field.path, self._left_out)]

    @property
    def spec(self) -> StepSpec:
        return self._spec

    @functools.cached_property
    def _spec(self) -> StepSpec:
        tree: dict[str, Any] = {}
        for field in self._fields:
            _put(tree, field.path, field.spec)
        known: dict[str, Any] = {name: tree.get(name) for name in ("observation", "action", "reward", "discount")}
        if known["discount"] is None and "discount" not in self._left_out:
            known["discount"] = FieldSpec((), np.dtype(np.float32))
        return StepSpec(**known, extras=tree.get("extras", {}))

    @property
    def num_episodes(self) -> int:
        return len(self._index)

    @property
    def num_steps(self) -> int:
        return self._index.num_rows

    def read_batches(
        self, start: int = 0, stop: int | None = None, *, rows: int = 1 << 14, bytes: int = 64 << 20
    ) -> Iterator[EpisodeBatch | EpisodeError]:
        """See :meth:`Source.read_batches`; an episode whose files are not there, or damaged, is its EpisodeError."""
        stop = len(self._index) if stop is None else min(stop, len(self._index))
        chosen = np.arange(start, max(start, stop))
        if self._wanted is not None:
            chosen = np.array([i for i in chosen.tolist() if self._wanted(i)], np.int64)
        most = max(1, min(rows, bytes // max(1, self.spec.row_bytes)))
        ends = np.cumsum(self._index.lengths[chosen])
        with RowsReader(self._columns, self._budget) as reader:
            first = 0
            while first < len(chosen):
                before = int(ends[first - 1]) if first else 0
                upto = min(max(int(np.searchsorted(ends, before + most, "right")), first + 1), len(chosen))
                yield from self._block(reader, chosen[first:upto])
                first = upto

    def without(self, paths: Iterable[str]) -> LeRobotDirSource:
        """See :meth:`Source.without`: their columns are not read, their pictures not decoded."""
        other = copy.copy(self)
        other.__dict__.pop("_spec", None)
        other._left_out = self._left_out | set(paths)
        known = {nest.path_name(path) for path, _ in self.spec.fields()}
        for path in other._left_out - self._left_out:
            if not any(name == path or name.startswith(f"{path}/") for name in known):
                raise ValueError(f"{self.name}: no field is called {path!r}; there are: {', '.join(sorted(known))}")
        if not other._fields:
            raise ValueError(f"{self.name}: without {', '.join(sorted(other._left_out))} no field is left")
        return other

    def only(self, wanted: Callable[[int], bool]) -> LeRobotDirSource:
        """See :meth:`Source.only`: the rows of the others are not decoded."""
        fewer = copy.copy(self)
        fewer._wanted = wanted
        return fewer

    def details(self) -> dict[str, Any]:
        info = self._info
        return {
            "version": info.version,
            "fps": int(info.fps) if info.fps == int(info.fps) else info.fps,
            "robot_type": info.robot_type,
            "rows": self.num_steps,
            "tasks": 0 if self._tasks is None else len(self._tasks),
            "splits": dict(info.splits),
            "data_files": len(self._index.files),
            "cameras": {
                name: {"files": len(footage.files), "absent": len(_absent(footage.files))}
                for name, footage in self._index.footage.items()
            },
            "fields": {nest.path_name(field.path): field.feature for field in self._fields},
            "ends_by": list(self._layout.ends) if self._ends == "flags" else self._ends,
            "ignored": dict(self._layout.unfit),
            "warnings": self._warnings(),
        }

    def facts(self) -> dict[str, Any]:
        """See :meth:`Source.facts`: rate, robot, and the names of vectors' numbers."""
        info = self._info
        names = {name: one.names for name, one in info.features.items() if one.names and not one.is_picture}
        known = {"fps": info.fps, "robot_type": info.robot_type, "names": names}
        return {name: value for name, value in known.items() if value}

    def fingerprint(self) -> str:
        told = [self._ends, self._modality, sorted(self._left_out)]
        files = [file for file in self._files() if file.is_file()]
        return f"{self.format}:{fingerprint_files(files)}:{json.dumps(told)}"

    def _files(self) -> Iterator[Path]:
        """All that there should be."""
        meta = self._info.root / "meta"
        yield self._info.path
        yield tasks_file(self._info)
        yield self._info.root / MODALITY
        yield from sorted(meta.glob("episodes/*/*.parquet")) if self._info.is_v3 else (meta / "episodes.jsonl",)
        yield from self._index.files
        for footage in self._index.footage.values():
            yield from footage.files

    def _warnings(self) -> list[str]:
        found = [*self._layout.notes, *self._index.oddities]
        if self._ends == "flags" and not self._layout.ends:
            found.append("no end flags: every episode is taken as truncated")
        for name, why in self._layout.unfit.items():
            found.append(f"feature {name} {why}: it is left out")
        if self._tasks is None and "task_index" in self._info.features:
            found.append(f"no {tasks_file(self._info)}: the texts of the tasks are not known")
        for field in self._fields:
            footage = self._index.footage.get(field.feature)
            absent = [] if footage is None else _absent(footage.files)
            if absent:
                assert footage is not None
                found.append(
                    f"{field.feature}: {len(absent)} of {len(footage.files)} videos are not there "
                    f"({', '.join(map(str, absent[:_MOST_LISTED]))}); "
                    f"--drop {nest.path_name(field.path)} reads the rest"
                )
        return found

    @property
    def _columns(self) -> dict[str, Feature]:
        """The features whose columns are read."""
        features = self._info.features
        wanted = [field.feature for field in self._fields]
        names = dict.fromkeys([*wanted, *self._layout.ends, *(name for name in _COUNTS if name in features)])
        if TASK in names and TASK not in features:
            names |= {"task_index": None}
        return {name: features[name] for name in names if name in features and not features[name].is_video}

    def _block(self, reader: RowsReader, chosen: np.ndarray) -> Iterator[EpisodeBatch | EpisodeError]:
        """Some episodes in one go; where that fails, fewer of them at a time."""
        try:
            yield self._batch(reader, chosen)
            return
        except (LimitExceeded, EpisodeError, SourceFormatError, SourceNotFound) as error:
            if len(chosen) == 1 and not isinstance(error, EpisodeError):
                if isinstance(error, LimitExceeded):
                    raise
                yield self._error(int(chosen[0]), str(error))
                return
            if len(chosen) == 1:
                assert isinstance(error, EpisodeError)
                yield error
                return
        middle = len(chosen) // 2
        yield from self._block(reader, chosen[:middle])
        yield from self._block(reader, chosen[middle:])

    def _error(self, episode: int, why: str, step: int | None = None, path: str | None = None) -> EpisodeError:
        return EpisodeError(why, source=self.name, episode=episode, step=step, path=path, rule="unreadable")

    def _batch(self, reader: RowsReader, chosen: np.ndarray) -> EpisodeBatch:
        index = self._index
        lengths = index.lengths[chosen]
        starts = np.cumsum(lengths) - lengths
        count = int(lengths.sum())
        try:
            told = reader.read(list(self._runs(chosen)))
        except Unreadable as cause:
            place = 0 if cause.row is None else int(np.searchsorted(starts, cause.row, "right")) - 1
            step = None if cause.row is None else cause.row - int(starts[place])
            raise self._error(int(chosen[place]), cause.why, step, self._path_of(cause.feature)) from cause
        self._check_counts(told, chosen, starts)
        ends = {name: told[name] for name in self._layout.ends}
        flags, derived = flags_of(ends, starts, count, self._ends)
        columns: dict[str, Any] = {}
        for field in self._fields:
            _put(columns, field.path, self._column(field, told, chosen, starts))
        if "discount" not in columns and self.spec.discount is not None:
            columns["discount"] = discounts(flags["is_terminal"], starts)
        real = real_last_actions(ends, starts, lengths)
        shared = {REAL_FINAL_ACTION: True} if real.all() else {}
        return EpisodeBatch(
            Episode(**columns, **flags, metadata=shared, source=self.name, index=int(chosen[0])),  # type: ignore[arg-type]
            starts,
            index=chosen,
            metadata=None if shared else FactColumns({REAL_FINAL_ACTION: real}, len(real)),
            derived=derived,
        )

    def _runs(self, chosen: np.ndarray) -> Iterator[Rows]:
        """The rows of the data files that some episodes have."""
        file, low = self._index.file[chosen], self._index.first[chosen]
        high = low + self._index.lengths[chosen]
        begins = np.flatnonzero(np.append(True, (np.diff(file) != 0) | (low[1:] != high[:-1])))
        for first, upto in zip(begins.tolist(), [*begins[1:].tolist(), len(chosen)], strict=True):
            yield Rows(self._index.files[int(file[first])], int(low[first]), int(high[upto - 1]))

    def _check_counts(self, told: Mapping[str, np.ndarray], chosen: np.ndarray, starts: np.ndarray) -> None:
        """That the rows are those of the episodes, in order."""
        lengths = self._index.lengths[chosen]
        for name in (name for name in _COUNTS if name in told):
            if name == "episode_index":
                expected = np.repeat(self._index.numbers[chosen], lengths)
            else:
                expected = np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
            wrong = told[name] != expected
            if wrong.any():
                row = int(np.argmax(wrong))
                place = int(np.searchsorted(starts, row, "right")) - 1
                raise self._error(
                    int(chosen[place]),
                    f"{self._index.files[int(self._index.file[chosen[place]])]}: {name} is {told[name][row]} where "
                    f"the metadata say {expected[row]}: rows are missing, or are not where the metadata say",
                    row - int(starts[place]),
                    name,
                )

    def _column(
        self, field: Field, told: Mapping[str, np.ndarray], chosen: np.ndarray, starts: np.ndarray
    ) -> np.ndarray:
        if field.feature == TASK and TASK not in self._info.features:
            assert self._tasks is not None
            numbers = told["task_index"]
            unknown = self._tasks.unknown(numbers)
            if unknown is not None:
                place = int(np.searchsorted(starts, unknown, "right")) - 1
                why = f"{tasks_file(self._info)} has no task {numbers[unknown]}"
                raise self._error(int(chosen[place]), why, unknown - int(starts[place]), "task_index")
            return self._tasks.of(numbers)
        if self._info.features[field.feature].is_video:
            raise self._error(int(chosen[0]), "videos are not read yet", None, nest.path_name(field.path))
        column = told[field.feature]
        return column if field.columns is None else column[:, field.columns]

    def _path_of(self, feature: str | None) -> str | None:
        """What a feature is called in the step."""
        paths = [nest.path_name(field.path) for field in self._fields if field.feature == feature]
        return paths[0] if paths else feature


def _put(tree: dict[str, Any], path: nest.Path, value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(str(name), {})
    tree[str(path[-1])] = value


def _is_under(path: nest.Path, names: Iterable[str]) -> bool:
    """Whether a field, or a nest that it is in, is among some names."""
    name = nest.path_name(path)
    return any(name == one or name.startswith(f"{one}/") for one in names)


def _absent(files: Iterable[Path]) -> list[Path]:
    return [file for file in files if not file.is_file()]
