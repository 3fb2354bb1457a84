"""From the files of a LeRobot dataset to blocks of episodes."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np

from rlds2buf.codecs.images.decode import DamagedImage
from rlds2buf.codecs.images.pool import DecodePool, PendingFrames
from rlds2buf.core import nest
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch, FactColumns
from rlds2buf.core.fields import FLAG_FIELDS
from rlds2buf.core.row_flags import REAL_FINAL_ACTION
from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import EpisodeError, LimitExceeded, SourceFormatError, SourceNotFound
from rlds2buf.formats.lerobot.columns import Rows, RowsReader, Unreadable, runs_of
from rlds2buf.formats.lerobot.ends import discounts, flags_of, real_last_actions
from rlds2buf.formats.lerobot.fields import Field, Layout
from rlds2buf.formats.lerobot.index import Footage, Index
from rlds2buf.formats.lerobot.info import Feature, Info
from rlds2buf.formats.lerobot.own_file import FEATURE, ROWS, ROWS_FILE, TASK, OwnFile
from rlds2buf.formats.lerobot.own_notes import OwnNotes
from rlds2buf.formats.lerobot.own_rows import column_of_cells
from rlds2buf.formats.lerobot.pictures import (
    VideoFrames,
    begin_files,
    check_frames,
    names_of_frames,
    numbers_of_frames,
    pixels_of,
    runs_of_frames,
)
from rlds2buf.formats.lerobot.tasks import Tasks, tasks_file

__all__ = ["BlockReader", "Choices", "Dataset"]

_COUNTS: Final = ("episode_index", "frame_index")
_TIME: Final = "timestamp"
_PIXEL_BYTES: Final = 1 << 24
"""So much of pixels in one block: the memory of some blocks is used again and again."""
_HELD_BYTES: Final = 1 << 30
"""So much is decoded while the block before is in use; of larger ones one is held at a time."""
_VIDEOS: Final = 2
"""Columns of videos that are decoded at a time, each by all cores: when one has no work for some, the other has."""


@dataclasses.dataclass(frozen=True)
class Dataset:
    """What is known of a dataset before its rows are read.

    Attributes:
        name: for messages.
        info, index, tasks, layout: its metadata.
        own, notes: what rlds2buf noted of it, if it wrote it.
    """

    name: str
    info: Info
    index: Index
    tasks: Tasks | None
    layout: Layout
    own: OwnFile | None = None
    notes: OwnNotes | None = None

    @property
    def derives_ends(self) -> bool:
        """Whether flags and discount follow from LeRobot's features; we note such datasets only without flags."""
        return self.own is None or not any(field.path[0] in FLAG_FIELDS for field in self.own.fields)


@dataclasses.dataclass(frozen=True)
class Choices:
    """Which columns are made of the files.

    Attributes:
        ends: as of :class:`~rlds2buf.formats.lerobot.source.LeRobotDirSource`.
        images: ``"encoded"``: files of pictures stay files.
        size: (height, width) that decoded pictures are to have, or None.
        frames_by_name: frames of videos are named, not decoded.
        left_out: fields, and nests of them, that nobody looks at.
        threads: of what decodes pictures; None: one for each core.
        tolerance: seconds that a row's time may be off; None: half of what lies between two.
    """

    ends: str = "flags"
    images: str | None = None
    size: tuple[int, int] | None = None
    frames_by_name: bool = False
    left_out: frozenset[str] = frozenset()
    threads: int | None = None
    tolerance: float | None = None

    def wants(self, path: nest.Path) -> bool:
        """Whether a field is looked at."""
        name = nest.path_name(path)
        return not any(name == one or name.startswith(f"{one}/") for one in self.left_out)

    def spec(self, field: Field) -> FieldSpec:
        """One row of a field, as it is handed out."""
        is_file = field.is_picture and self.images == "encoded" and not field.is_widened
        if is_file or (field.is_video and self.frames_by_name):
            return FieldSpec((), np.dtype(object), image=field.spec, is_video=field.is_video)
        if self.size is not None and (field.is_picture or field.is_video):
            return dataclasses.replace(field.spec, shape=(*self.size, field.spec.shape[2]))
        return field.spec


@dataclasses.dataclass
class _Work:
    """Some episodes that are being read: their rows, or why there are none, and their pictures."""

    chosen: np.ndarray
    starts: np.ndarray
    told: dict[str, np.ndarray]
    rows: dict[str, np.ndarray]
    pending: dict[nest.Path, PendingFrames]
    videos: dict[nest.Path, VideoFrames]
    error: EpisodeError | None = None


class BlockReader:
    """Reads blocks of a dataset's episodes once; a context manager.

    Args:
        dataset: what is read.
        choices: what of it.
        budget: see :class:`~rlds2buf.core.budget.Budget`.
    """

    def __init__(self, dataset: Dataset, choices: Choices, budget: Budget = BUDGET) -> None:
        self._dataset, self._choices, self._budget = dataset, choices, budget
        self._fields = [field for field in dataset.layout.fields if choices.wants(field.path)]
        self._derives_discount = dataset.derives_ends and choices.wants(("discount",))
        self._rows = RowsReader(self._columns(), budget, dataset.index.footers)
        kept = {field.name: Feature(field.name, "string", (1,)) for field in self._fields if field.kind == ROWS}
        self._own_rows = RowsReader(kept, budget) if kept else None
        decodes = [
            field
            for field in self._fields
            if (field.is_picture or field.is_video) and choices.spec(field).image is None
        ]
        self._pool = DecodePool(choices.threads) if decodes else None
        self._turns = threading.Semaphore(_VIDEOS)
        self._row_bytes = sum(choices.spec(field).row_bytes for field in self._fields)

    def read(self, chosen: np.ndarray, rows: int, bytes: int) -> Iterator[EpisodeBatch | EpisodeError]:
        """Episodes in blocks.

        Args:
            chosen: ``[n] int64``, their positions in the dataset, ascending.
            rows, bytes: as of :meth:`~rlds2buf.io.source.Source.read_batches`.

        Raises:
            LimitExceeded: an episode takes more memory than is allowed.
            MissingDependency: PyAV is not installed, and there are videos.
        """
        if self._pool is not None:
            bytes = min(bytes, _PIXEL_BYTES)
        most = max(1, min(rows, bytes // max(1, self._row_bytes)))
        ends = np.cumsum(self._dataset.index.lengths[chosen])
        ahead = 0 if self._pool is None or self._pool.threads < 2 else 1
        waiting: deque[_Work] = deque()
        first = 0
        try:
            while first < len(chosen):
                before = int(ends[first - 1]) if first else 0
                upto = min(max(int(np.searchsorted(ends, before + most, "right")), first + 1), len(chosen))
                size = self._row_bytes * (int(ends[upto - 1]) - before)
                while waiting and size + self._size(waiting) > _HELD_BYTES:
                    yield from self._finish(waiting.popleft())
                waiting.append(self._begin(chosen[first:upto], is_ahead=ahead > 0))
                first = upto
                if len(waiting) > ahead:
                    yield from self._finish(waiting.popleft())
            while waiting:
                yield from self._finish(waiting.popleft())
        finally:
            for work in waiting:
                for video in work.videos.values():
                    video.wait()

    def _size(self, waiting: Iterable[_Work]) -> int:
        """About how many bytes some blocks take."""
        return self._row_bytes * sum(int(self._dataset.index.lengths[work.chosen].sum()) for work in waiting)

    def close(self) -> None:
        """Close files and threads; idempotent."""
        self._rows.close()
        if self._own_rows is not None:
            self._own_rows.close()
        if self._pool is not None:
            self._pool.close()

    def __enter__(self) -> BlockReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _columns(self) -> dict[str, Feature]:
        """The features whose columns are read."""
        features = self._dataset.info.features
        names = dict.fromkeys(field.name for field in self._fields if field.kind == FEATURE and not field.is_video)
        names |= dict.fromkeys(self._dataset.layout.ends)
        others = [*_COUNTS]
        if any(field.kind == TASK for field in self._fields):
            others.append("task_index")
        if any(field.is_video for field in self._fields):
            others.append(_TIME)
        names |= dict.fromkeys(name for name in others if name in features and features[name].is_one_number)
        return {name: features[name] for name in names}

    def _begin(self, chosen: np.ndarray, is_ahead: bool = False) -> _Work:
        """Read the rows of some episodes, and begin to decode their pictures, those of videos if this is ahead."""
        lengths = self._dataset.index.lengths[chosen]
        work = _Work(chosen, np.cumsum(lengths) - lengths, {}, {}, {}, {})
        try:
            work.told = self._read(work, self._rows, list(runs_of(self._dataset.index, chosen)))
            if self._own_rows is not None:
                path = self._dataset.info.root / ROWS_FILE
                work.rows = self._read(work, self._own_rows, list(self._own_runs(chosen, path)))
            self._check_counts(work)
            self._check_times(work)
            for field in self._fields:
                if self._pool is not None and field.is_picture and self._choices.spec(field).image is None:
                    files = (work.rows if field.kind == ROWS else work.told)[field.name]
                    pixels = field.stored
                    work.pending[field.path] = begin_files(self._pool, files, pixels, self._choices.size, self._budget)
                elif is_ahead and field.is_video and not self._choices.frames_by_name:
                    # What is wrong is told when it is this column's turn.
                    with contextlib.suppress(Unreadable, SourceNotFound, SourceFormatError, ValueError):
                        work.videos[field.path] = self._begin_video(field, work, ahead=True)
        except LimitExceeded:
            raise
        except EpisodeError as error:
            work.error = error
        except (SourceFormatError, SourceNotFound) as error:
            work.error = self._error(work, None, str(error))
        return work

    def _finish(self, work: _Work) -> Iterator[EpisodeBatch | EpisodeError]:
        """A block; where that fails, the same of fewer episodes at a time."""
        error = work.error
        if error is None:
            try:
                yield self._batch(work)
                return
            except EpisodeError as cause:
                error = cause
        if len(work.chosen) == 1:
            yield error
            return
        middle = len(work.chosen) // 2
        for part in (work.chosen[:middle], work.chosen[middle:]):
            yield from self._finish(self._begin(part))

    def _error(self, work: _Work, row: int | None, why: str, path: str | None = None, advice: str | None = None) -> Any:
        """What is wrong with a row of a block, or with its first episode."""
        place = 0 if row is None else int(np.searchsorted(work.starts, row, "right")) - 1
        step = None if row is None else row - int(work.starts[place])
        told: dict[str, Any] = {"step": step, "path": path, "rule": "unreadable", "advice": advice}
        return EpisodeError(why, source=self._dataset.name, episode=int(work.chosen[place]), **told)

    def _read(self, work: _Work, reader: RowsReader, runs: Sequence[Rows]) -> dict[str, np.ndarray]:
        try:
            return reader.read(runs)
        except Unreadable as cause:
            path = None if cause.feature is None else self._path_of(cause.feature)
            raise self._error(work, cause.row, cause.why, path) from cause

    def _path_of(self, feature: str) -> str:
        """What a feature is called in the step."""
        paths = [nest.path_name(field.path) for field in self._fields if field.name == feature]
        return paths[0] if paths else feature

    def _own_runs(self, chosen: np.ndarray, path: Path) -> Iterator[Rows]:
        """Likewise of our own file, which has all rows."""
        high = self._dataset.index.ends[chosen]
        low = high - self._dataset.index.lengths[chosen]
        begins = np.flatnonzero(np.append(True, low[1:] != high[:-1]))
        for first, upto in zip(begins.tolist(), [*begins[1:].tolist(), len(chosen)], strict=True):
            yield Rows(path, int(low[first]), int(high[upto - 1]))

    def _check_counts(self, work: _Work) -> None:
        """That the rows are those of the episodes, in order."""
        index = self._dataset.index
        lengths = index.lengths[work.chosen]
        for name in (name for name in _COUNTS if name in work.told and work.told[name].ndim == 1):
            if name == "episode_index":
                expected = np.repeat(index.numbers[work.chosen], lengths)
            else:
                expected = _frame_numbers(work.starts, lengths)
            wrong = work.told[name] != expected
            if wrong.any():
                row = int(np.argmax(wrong))
                why = (
                    f"{self._file(work, row)}: {name} is {work.told[name][row]} where the metadata say "
                    f"{expected[row]}: rows are missing, or are not where the metadata say"
                )
                raise self._error(work, row, why, name)

    def _has_times(self, work: _Work) -> bool:
        return _TIME in work.told and self._dataset.info.features[_TIME].is_one_number

    def _check_times(self, work: _Work) -> None:
        """That rows are as far apart as the rate says."""
        if not self._has_times(work):
            return
        fps, tolerance = self._dataset.info.fps, self._tolerance
        times = work.told[_TIME].astype(np.float64)
        expected = _frame_numbers(work.starts, self._dataset.index.lengths[work.chosen]) / fps
        wrong = ~(np.abs(times - expected) <= tolerance)
        if wrong.any():
            row = int(np.argmax(wrong))
            why = (
                f"{self._file(work, row)}: timestamp is {times[row]:g} s where the rate of {fps:g} rows a second makes "
                f"{expected[row]:g} s"
            )
            advice = f"-O tolerance={np.abs(times - expected).max():.3g} takes it as it is"
            raise self._error(work, row, why, self._path_of(_TIME), advice)

    @property
    def _tolerance(self) -> float:
        told = self._choices.tolerance
        return 0.5 / self._dataset.info.fps if told is None else told

    def _file(self, work: _Work, row: int) -> Path:
        """The data file that a row is of."""
        place = int(np.searchsorted(work.starts, row, "right")) - 1
        index = self._dataset.index
        return index.files[int(index.file[work.chosen[place]])]

    def _batch(self, work: _Work) -> EpisodeBatch:
        lengths = self._dataset.index.lengths[work.chosen]
        count = int(lengths.sum())
        columns: dict[str, Any] = {}
        flags: dict[str, np.ndarray] = {}
        for field in self._fields:
            column = self._column(field, work)
            if field.path[0] in FLAG_FIELDS:
                flags[str(field.path[0])] = column
            else:
                put(columns, field.path, column)
        columns = as_nests(columns)
        if not self._dataset.derives_ends:
            return self._own_batch(work, columns, flags, ())
        ends = {name: work.told[name] for name in self._dataset.layout.ends}
        made, derived = flags_of(ends, work.starts, count, self._choices.ends)
        if "discount" not in columns and self._derives_discount:
            columns["discount"] = discounts(made["is_terminal"], work.starts)
        if self._dataset.own is not None:
            return self._own_batch(work, columns, made, derived)
        real = real_last_actions(ends, work.starts, lengths)
        shared, facts = _marked(real, {}, None)
        rows = Episode(**columns, **made, metadata=shared, source=self._dataset.name, index=int(work.chosen[0]))  # type: ignore[arg-type]
        return EpisodeBatch(rows, work.starts, index=work.chosen, metadata=facts, derived=derived)

    def _own_batch(
        self, work: _Work, columns: dict[str, Any], flags: dict[str, np.ndarray], derived: Collection[str]
    ) -> EpisodeBatch:
        """Episodes as they were written."""
        own, notes, chosen = self._dataset.own, self._dataset.notes, work.chosen
        assert own is not None and notes is not None
        last = work.starts + self._dataset.index.lengths[chosen] - 1
        padded = last[notes.padded(chosen)]
        for _, column in nest.flatten(columns.get("action")):
            if column is not None and column.dtype.kind in "biufc":
                column[padded] = 0
        try:
            for place, values in notes.finals(chosen).items():
                for name, value in values.items():
                    found = dict((nest.path_name(path), column) for path, column in nest.flatten(columns))
                    if name in found:
                        found[name][last[place]] = value
            facts = notes.facts(chosen)
        except (ValueError, TypeError) as cause:
            raise self._error(work, None, f"{self._dataset.info.root}: what rlds2buf noted: {cause}") from cause
        shared, metadata = _marked(notes.real(chosen), dict(own.metadata), facts)
        rows = Episode(**columns, **flags, metadata=shared, source=self._dataset.name, index=int(chosen[0]))  # type: ignore[arg-type]
        placeholder = notes.placeholder[chosen]
        marks = placeholder if placeholder.any() else None
        return EpisodeBatch(rows, work.starts, marks, index=chosen, metadata=metadata, derived=derived)

    def _column(self, field: Field, work: _Work) -> np.ndarray:
        where = nest.path_name(field.path)
        try:
            if field.path in work.pending:
                found = pixels_of(work.pending[field.path], field.spec)
                return np.ascontiguousarray(found[..., :1]) if field.is_widened else found
            if field.is_video:
                return self._frames(field, work)
            if field.kind == TASK:
                return self._texts(work)
            if field.kind == ROWS:
                assert field.own is not None
                cells = work.rows[field.name]
                return cells if field.is_picture else column_of_cells(cells, field.own)
            return _shaped(work.told[field.name], field)
        except Unreadable as cause:
            raise self._error(work, cause.row, cause.why, where, self._way_around(field)) from cause
        except DamagedImage as cause:
            why = f"{self._file(work, cause.frame)}: {cause}"
            raise self._error(work, cause.frame, why, where) from cause
        except LimitExceeded:
            raise
        except (SourceNotFound, SourceFormatError, ValueError) as cause:
            raise self._error(work, None, str(cause), where, self._way_around(field)) from cause

    def _way_around(self, field: Field) -> str | None:
        if not field.is_video:
            return None
        footage = self._dataset.index.footage
        absent = [
            other
            for other in self._fields
            if other.is_video and not any(file.is_file() for file in footage[other.name].files)
        ]
        return way_around(field, self._fields, absent)

    def _texts(self, work: _Work) -> np.ndarray:
        tasks, numbers = self._dataset.tasks, work.told["task_index"]
        unknown = None if tasks is None else tasks.unknown(numbers)
        if tasks is None or unknown is not None:
            row = unknown or 0
            raise Unreadable(f"{tasks_file(self._dataset.info)} has no task {numbers[row]}", row)
        return tasks.of(numbers)

    def _frames(self, field: Field, work: _Work) -> np.ndarray:
        """The rows' frames of a camera, by name or decoded."""
        if self._choices.frames_by_name:
            footage = self._dataset.index.footage[field.name]
            parts = [names_of_frames(path, numbers) for path, _, numbers in self._frame_numbers(footage, work)]
            return parts[0] if len(parts) == 1 else np.concatenate(parts)
        video = work.videos.pop(field.path, None) or self._begin_video(field, work, ahead=False)
        found = video.result()
        channels = field.spec.shape[2]
        return found if found.shape[3] == channels else np.ascontiguousarray(found[..., :channels])

    def _begin_video(self, field: Field, work: _Work, ahead: bool) -> VideoFrames:
        """A camera's frames, which are decoded from now on, or when somebody asks."""
        footage = self._dataset.index.footage[field.name]
        by_episode = list(self._frame_numbers(footage, work))
        count = sum(len(numbers) for _, _, numbers in by_episode)
        check_frames(footage, set(footage.file[work.chosen].tolist()), count, field.spec, self._budget)
        requests = [run for path, row, numbers in by_episode for run in runs_of_frames(path, numbers, row)]
        pixels = field.spec
        if pixels.dtype == np.uint8:  # a gray one is decoded as colours
            pixels = dataclasses.replace(pixels, shape=(*pixels.shape[:2], max(3, pixels.shape[2] or 0)))
        assert self._pool is not None
        turns = self._turns if ahead else None
        return VideoFrames(requests, count, pixels, self._choices.size, self._pool.room, self._choices.threads, turns)

    def _frame_numbers(self, footage: Footage, work: _Work) -> Iterator[tuple[Path, int, np.ndarray]]:
        """Of each episode the video, its first row, and the numbers of its frames."""
        lengths = self._dataset.index.lengths[work.chosen]
        for place, (start, length) in enumerate(zip(work.starts.tolist(), lengths.tolist(), strict=True)):
            episode = work.chosen[place]
            path = footage.files[int(footage.file[episode])]
            times = work.told[_TIME][start : start + length] if self._has_times(work) else None
            if times is None:
                times = np.arange(length) / self._dataset.info.fps
            try:
                numbers = numbers_of_frames(path, float(footage.start[episode]), times, 0.5 / self._dataset.info.fps)
            except Unreadable as cause:
                raise Unreadable(cause.why, start + (cause.row or 0)) from cause
            yield path, start, numbers


def put(tree: dict[Any, Any], path: nest.Path, value: Any) -> None:
    """Hang a value into nested dicts; :func:`as_nests` makes tuples of those whose names are numbers."""
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value


def as_nests(tree: Any) -> Any:
    """The same as nests."""
    if not isinstance(tree, dict):
        return tree
    children = {name: as_nests(child) for name, child in tree.items()}
    if children and all(type(name) is int for name in children):
        return tuple(children[name] for name in sorted(children))
    return {str(name): child for name, child in children.items()}


def _shaped(column: np.ndarray, field: Field) -> np.ndarray:
    """A feature's column as the field's: some of its numbers, of the shape and type that they had."""
    if field.columns is not None:
        flat = column.reshape(len(column), -1)
        column = flat[:, field.columns]
    if field.own is None or field.is_picture or field.spec.is_string:
        return column
    shape = tuple(n or 0 for n in field.spec.shape)
    return column.reshape(len(column), *shape).astype(field.spec.dtype, copy=False)


def _frame_numbers(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """``[M] int64``: each row's number in its episode."""
    return np.arange(int(lengths.sum())) - np.repeat(starts, lengths)


def way_around(field: Field, fields: Sequence[Field], absent: Sequence[Field]) -> str:
    """How to read a dataset without a camera, and without those others that can't be read either.

    Args:
        field: the camera.
        fields: all that are read.
        absent: those that can't be.
    """
    nearby = [other for other in fields if other.path[:-1] == field.path[:-1]]
    together = len(nearby) > 1 and len(field.path) > 1 and all(other in absent for other in nearby)
    return f"--drop {nest.path_name(field.path[:-1] if together else field.path)} reads the rest"


def _marked(real: np.ndarray, shared: dict[str, Any], facts: list[dict[str, Any]] | None) -> tuple[dict[str, Any], Any]:
    """What episodes share, and what is known of each, with the mark of those whose last action is real."""
    if real.all():
        return {**shared, REAL_FINAL_ACTION: True}, facts
    if facts is None:
        return shared, FactColumns({REAL_FINAL_ACTION: real}, len(real)) if real.any() else None
    marks: list[Mapping[str, Any]] = [{REAL_FINAL_ACTION: True} if one else {} for one in real.tolist()]
    return shared, [{**own, **mark} for own, mark in zip(facts, marks, strict=True)]
