"""Episodes into a LeRobot dataset, of v3.0 or of v2.1."""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from rlds2buf.codecs.arrow.row_groups import BINARY, PICTURE, TEXT, RowColumn, RowGroups
from rlds2buf.codecs.video.encode import CODECS
from rlds2buf.core import nest
from rlds2buf.core.arguments import choice, integer
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.fields import FLAG_FIELDS
from rlds2buf.core.ragged import as_bytes
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import EpisodeError, SinkError, SnapshotCorrupt, SpecMismatch
from rlds2buf.files.partial import PartialFolder, plain_json
from rlds2buf.formats.lerobot import last_rows
from rlds2buf.formats.lerobot.episode_notes import final_cells, metadata_cells, write_episode_notes
from rlds2buf.formats.lerobot.features import IMAGE, VIDEO, Camera, Plan, index_features, plan_of
from rlds2buf.formats.lerobot.last_rows import LaidOutRows, laid_out
from rlds2buf.formats.lerobot.meta_files import (
    DATA_BYTES,
    VALUES,
    VERSIONS,
    VIDEO_BYTES,
    Footage,
    WrittenEpisodes,
    data_place,
    info_of,
    video_place,
    write_meta,
)
from rlds2buf.formats.lerobot.names import DONE, TRUNCATED
from rlds2buf.formats.lerobot.own_file import FILE_NAME, ROWS_FILE, OwnFile
from rlds2buf.formats.lerobot.own_rows import cells_of
from rlds2buf.formats.lerobot.picture_cells import JPEG, PNG, cells_of_pictures, pixels_of
from rlds2buf.formats.lerobot.picture_numbers import numbers_of_pictures, sampled_frames, summary_of_pictures
from rlds2buf.formats.lerobot.rate import Rate
from rlds2buf.formats.lerobot.replacing import replaceable
from rlds2buf.formats.lerobot.row_files import RowFiles
from rlds2buf.formats.lerobot.task_texts import TaskTexts, numbers_by_episode
from rlds2buf.formats.lerobot.videos import CameraVideos, Encoding
from rlds2buf.formats.lerobot.whole_numbers import WholeNumbers
from rlds2buf.io.column_spool import ColumnSpool
from rlds2buf.io.sink import Sink
from rlds2buf.numbers.by_episode import statistics_by_episode
from rlds2buf.version import __version__

__all__ = ["LeRobotDirSink"]

_LENGTH, _FILE, _TASKS, _FACTS, _FINAL, _LAST_ROW, _PLACEHOLDER = (
    "length",
    "file",
    "tasks",
    "facts",
    "final",
    "last_row",
    "placeholder",
)
_STATISTICS, _COUNTED = "statistics", "counted"
_AT_ONCE: Final = 1000
"""Episodes whose statistics are read together."""
_TOGETHER: Final = 16
"""Episodes whose pictures are decoded together, on all cores."""
_SPOOL, _PARTS = "spool", "parts"
_DERIVED: Final = ("discount", *FLAG_FIELDS)
"""What a source makes up where its dataset has none: a dataset of LeRobot's does not get them."""
_SORTED: Final = ("episode_index", "index")
"""Columns whose limits each row group tells, so that who wants one episode finds it."""
_TEXT: Final = FieldSpec((), np.dtype(object))


class LeRobotDirSink(Sink):
    """Writes a folder that LeRobot opens and trains on, and :func:`rlds2buf.open_source` reads back as it was.

    ::

        DST/meta/       info.json, tasks, episodes, statistics; rlds2buf.json has what LeRobot has no place for
        DST/data/       rows in Parquet, a row group for each episode
        DST/videos/     a video for many episodes (v2.1: for each) of each camera

    :mod:`rlds2buf.formats.lerobot.features` says what each field becomes,
    :mod:`rlds2buf.formats.lerobot.names` what it is called.  All N rows of an episode are written: LeRobot has an
    action in every row, so a last action that is padding (zeros) repeats the one before, and is given back as it was.

    Args:
        path: the folder to make.
        overwrite: replace a LeRobot dataset that is there, if there is nothing else in its folder.
        resume: continue a killed run, and leave this one's part in place if it is aborted.
        version: "3.0", or "2.1" with files of one episode each.
        fps: rows a second, a whole number; None: the dataset's own rate, or what its timestamps say.
        task: a text field that is the task; None: one called language_instruction, natural_language_instruction, task
            or instruction.
        task_text: the one task of all episodes where no field is; None: the dataset's own, or its name.
        state: fields whose numbers are joined to observation.state, with commas between; None: one called state or
            proprio.
        final_row: "keep" all rows, or "drop" the last ones, whose action is padding.
        images: "video", or files in the rows, "png" (lossless) or "jpeg"; None: videos, but what comes as files
            (from the rows of a LeRobot dataset; with images="encoded") stays those files.  Frames of videos are
            copied, not encoded again, where they are whole runs of a video.
        codec: of videos: "libsvtav1" (AV1), "h264" (faster) or "hevc"; None: AV1, but what is a video is copied, or
            stays of its codec where frames must be encoded again.
        crf: their quality: the lower, the better and larger.
        g: frames from keyframe to keyframe.
        preset: of the encoder; None: 12 for AV1, else its own.
        robot_type: what info.json says of the robot; None: what the source knows.

    Raises:
        ValueError: an option is not of that form.

    >>> LeRobotDirSink("data/bridge-lerobot")
    <LeRobotDirSink data/bridge-lerobot>
    """

    holds_last_actions = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        resume: bool = False,
        version: str | float = "3.0",
        fps: int | None = None,
        task: str | None = None,
        task_text: str | None = None,
        state: str | Sequence[str] | None = None,
        final_row: str = "keep",
        images: str | None = None,
        codec: str | None = None,
        crf: int = 30,
        g: int = 2,
        preset: str | int | None = None,
        robot_type: str | None = None,
    ) -> None:
        self.name = str(path)
        version = str(version).removeprefix("v")
        choice("version", version, tuple(VERSIONS))
        choice("final_row", final_row, last_rows.CHOICES)
        if images is not None:
            choice("images", images, (VIDEO, PNG, JPEG))
        if codec is not None:
            choice("codec", codec, tuple(CODECS))
        if task is not None and task_text is not None:
            raise ValueError("give task or task_text, not both")
        self._version = VERSIONS[version]
        self._options: dict[str, Any] = {
            "version": version,
            "fps": None if fps is None else integer("fps", fps, 1),
            "task": task,
            "task_text": task_text,
            "state": [] if state is None else state.split(",") if isinstance(state, str) else list(state),
            "final_row": final_row,
            "images": images,
            "codec": codec,
            "crf": integer("crf", crf, 0),
            "g": integer("g", g, 1),
            "preset": preset,
            "robot_type": robot_type,
        }
        self.takes_video_frames = images in (None, VIDEO)
        self.takes_encoded_images = images in (PNG, JPEG)
        self._encoding = Encoding(codec, crf, g, preset)
        self._overwrite, self._resume = overwrite, resume
        self._part: PartialFolder | None = None
        self._spool: ColumnSpool | None = None
        self._files: list[RowFiles] = []
        self._videos: list[CameraVideos] = []
        self._losses: dict[str, str] = {}

    def open(self, spec: StepSpec, provenance: Mapping[str, Any]) -> None:
        """Make the part folder, or find the one to resume.

        Raises:
            SnapshotExists: the target is there already, or another process is writing it.
            SnapshotError: resuming, and the source or the options are not the same.
            SinkError: the files can't be written, or are what is read.
            MissingDependency: pyarrow is not installed.
            ValueError: the options don't fit the data, or nothing tells how many rows a second there are.
        """
        self._spec, self._provenance = spec, plain_json(provenance)
        _refuse_own_source(Path(self.name), self._provenance)
        facts = self._provenance.get("dataset")
        self._facts: dict[str, Any] = facts if isinstance(facts, dict) else {}
        is_own = self._provenance.get("format") == "lerobot"
        known = self._facts.get("features") if is_own else None
        known = known if isinstance(known, list) else [*FLAG_FIELDS]
        is_bare = not {*FLAG_FIELDS} & {*known}
        absent = {name for name in (*_DERIVED, DONE, TRUNCATED) if is_bare and name not in known}
        images = self._options["images"]
        self._ends = tuple(name for name in (DONE, TRUNCATED) if name not in absent)
        self._plan: Plan = plan_of(
            spec,
            state=self._options["state"],
            task=self._options["task"],
            images=None if images is None else VIDEO if images == VIDEO else IMAGE,
            omit=[(name,) for name in absent],
            indices=is_own,
        )
        self._rate = Rate(spec, self._options["fps"], self._facts.get("fps"))
        self._losses = dict(self._plan.lost)
        self._episodes = self._rows = 0
        self.notes = ()
        self._part = PartialFolder(
            Path(self.name),
            provenance={"source": self._provenance, "spec": spec.to_json(), "sink": self._options},
            overwrite=self._overwrite,
            resume=self._resume,
            replaceable=replaceable,
            what="a LeRobot dataset",
        )
        self.found = self._part.notes
        try:
            self._begin(self._part)
        except BaseException:
            self.abort()
            raise

    def write_batch(self, batch: EpisodeBatch) -> int:
        """Append episodes: an item for each row.

        Raises:
            SpecMismatch: one doesn't fit the spec, or LeRobot can't hold a text or number in it; those before it are
                written.
            SinkError: they can't be written.
            ValueError: their timestamps are not those of a whole number of rows a second.
        """
        first = next(iter(batch))
        self._spec.check(first)
        try:
            return self._take(batch)
        except SpecMismatch as error:
            if len(batch) == 1:
                error.source, error.episode = first.source, first.index
                raise
        items = 0
        for place in range(len(batch)):
            try:
                items += self.write_batch(batch.take([place]))
            except EpisodeError as error:
                error.written = place, items
                raise
        return items

    def resumed(self) -> Mapping[str, Any] | None:
        """What the last checkpoint of the killed run was given."""
        assert self._part is not None, "resumed before open"
        return self._part.journal["progress"] if self._part.journal else None

    def checkpoint(self, progress: Mapping[str, Any]) -> None:
        """Sync the files and note how far they are."""
        assert self._part is not None and self._spool is not None, "checkpoint before open"
        for videos in self._videos:
            videos.drain()
        self._place_frames()
        self._part.write_journal(
            {
                "progress": dict(progress),
                "videos": [videos.checkpoint() for videos in self._videos],
                "sizes": self._sizes,
                "files": [files.checkpoint() for files in self._files],
                "episodes": self._spool.sync(),
                "tasks": [text.decode() for text in self._tasks.texts],
                "reached": [self._episodes, self._rows],
                "fps": self._rate.fps,
                "lost": self._losses,
            }
        )
        for videos in self._videos:
            videos.forget()

    def lost(self) -> Mapping[str, str]:
        """Fields and metadata that are not in the folder, or not as they were."""
        return dict(self._losses)

    def commit(self) -> None:
        """Write what stands in ``meta/``, and move the folder to its place.

        Raises:
            SinkError: it can't be written.
            ValueError: there are no episodes, and nothing tells how many rows a second there are.
        """
        assert self._part is not None and self._spool is not None, "commit before open"
        folder = self._part.folder
        for files in self._files:
            files.finish()
        for videos in self._videos:
            videos.finish()
        self._place_frames()
        self._spool.finish()
        self._write_meta(folder)
        self._numbers.close()
        self._spool.close()
        self.notes = (*self._plan.notes, *self._said())
        self._part.forget_journal()
        for name in (_SPOOL, _PARTS):
            self._part.fresh(name)
        self._part.publish()
        self._part = self._spool = None
        self._files, self._videos = [], []

    def abort(self) -> None:
        """Remove the part folder, or with `resume` leave it for another run to resume."""
        part, self._part = self._part, None
        if part is None:
            return
        for files in self._files:
            files.abandon()
        for videos in self._videos:
            videos.abandon()
        if self._spool is not None:
            self._spool.close()
        self._numbers.close()
        self._files, self._videos, self._spool = [], [], None
        part.close(keep=self._resume)

    def _begin(self, part: PartialFolder) -> None:
        """Open the files, at their beginning or where the last checkpoint was."""
        journal = part.journal
        self._number_fields = self._numbers_of_features()
        fields = {
            _LENGTH: FieldSpec((), np.dtype(np.int64)),
            _FILE: FieldSpec((), np.dtype(np.int64)),
            _TASKS: _TEXT,
            _FACTS: _TEXT,
            _FINAL: _TEXT,
            _LAST_ROW: FieldSpec((), np.dtype(np.uint8)),
            _PLACEHOLDER: FieldSpec((), np.dtype(np.bool_)),
        }
        self._statistics: dict[str, tuple[int, ...]] = {
            name: (len(VALUES), *(n or 0 for n in field.shape or (1,))) for name, field in self._number_fields.items()
        }
        self._statistics.update({camera.name: (len(VALUES), 3, 1, 1) for camera in self._plan.cameras})
        size = sum(map(math.prod, self._statistics.values()))
        fields[_STATISTICS] = FieldSpec((size,), np.dtype(np.float64))
        fields[_COUNTED] = FieldSpec((len(self._plan.cameras),), np.dtype(np.int64))
        for camera in self._plan.cameras:
            if camera.kind == VIDEO:
                fields[f"frames/{camera.name}"] = FieldSpec((3,), np.dtype(np.int64))
        cameras = [camera for camera in self._plan.cameras if camera.kind == VIDEO]
        try:
            reached = None if journal is None else journal["episodes"]
            files = [None, None] if journal is None else journal["files"]
            videos = [None] * len(cameras) if journal is None else journal["videos"]
            self._sizes: dict[str, list[int]] = {} if journal is None else dict(journal["sizes"])
            self._tasks = TaskTexts(text.encode() for text in ([] if journal is None else journal["tasks"]))
            if journal is not None:
                self._episodes, self._rows = map(int, journal["reached"])
                self._rate.fps = journal["fps"]
                self._losses.update(journal["lost"])
        except (LookupError, TypeError, ValueError, AttributeError) as cause:
            raise SnapshotCorrupt(f"{self.name}: the journal is not one of this conversion ({cause!r})") from cause
        self._numbers = WholeNumbers(self._number_fields, part.folder, complete=journal is None)
        self._spool = ColumnSpool(part.folder / _SPOOL, fields, reached)
        self._files = [self._data_files(part.folder, files[0])]
        if self._plan.rows:
            self._files.append(self._own_rows(part.folder, files[-1]))
        self._videos = [
            self._camera_videos(part.folder, camera, i, at)
            for i, (camera, at) in enumerate(zip(cameras, videos, strict=True))
        ]

    def _numbers_of_features(self) -> dict[str, FieldSpec]:
        """Shape and dtype of a row of every feature of numbers, in the order of the columns."""
        found = {one.name: FieldSpec(one.shape, one.dtype) for one in self._plan.numbers}
        found.update(dict.fromkeys(self._ends, FieldSpec((), np.dtype(np.bool_))))
        for name, feature in index_features().items():
            found[name] = FieldSpec((), np.dtype(feature["dtype"]))
        return found

    def _data_files(self, folder: Path, reached: Mapping[str, Any] | None) -> RowFiles:
        columns = [
            RowColumn(name, field.dtype.name, tuple(n or 0 for n in field.shape), sorted=name in _SORTED)
            for name, field in self._number_fields.items()
        ]
        columns += [RowColumn(text.name, TEXT) for text in self._plan.texts]
        columns += [RowColumn(camera.name, PICTURE) for camera in self._plan.cameras if camera.kind == IMAGE]
        one_each = self._version == "v2.1"
        return RowFiles(
            lambda number: folder / data_place(self._version, number),
            RowGroups(columns),
            _limits,
            reached=reached,
            **{"most_episodes": 1} if one_each else {"most_bytes": DATA_BYTES},
        )

    def _own_rows(self, folder: Path, reached: Mapping[str, Any] | None) -> RowFiles:
        groups = RowGroups([RowColumn(field.name, BINARY) for field in self._plan.rows])
        return RowFiles(lambda number: folder / ROWS_FILE, groups, _limits, reached=reached)

    def _camera_videos(
        self, folder: Path, camera: Camera, number: int, reached: Mapping[str, Any] | None
    ) -> CameraVideos:
        return CameraVideos(
            camera,
            lambda video: folder / video_place(self._version, camera.name, video),
            folder / _PARTS / f"{number:02d}",
            self._encoding,
            most_bytes=0 if self._version == "v2.1" else VIDEO_BYTES,
            reached=reached,
        )

    def _take(self, batch: EpisodeBatch) -> int:
        """Write episodes.

        Raises:
            SpecMismatch: one can't be written; nothing is.
        """
        laid = self._laid_out(batch)
        columns = self._columns(laid)
        own = {field.name: cells_of(laid.columns[field.path], field) for field in self._plan.rows}
        texts = [text.field.path for text in self._plan.texts]
        _check_texts(laid, [*texts, *([self._plan.task.path] if self._plan.task else [])])
        told, counted = self._pictures(laid)
        for camera in self._plan.cameras:
            if camera.kind == IMAGE:
                column = laid.columns[camera.field.path]
                columns[camera.name] = cells_of_pictures(column, camera, self._options["images"] or PNG)
        tasks = self._task_numbers(laid)
        columns["task_index"] = tasks
        for field in self._plan.indices:
            if not np.allclose(laid.columns[field.path], columns[field.name], rtol=0, atol=1e-4):
                self._lose(nest.path_name(field.path), f"{field.name} is written as LeRobot has it for these episodes")
        count = len(batch)
        assert self._spool is not None
        starts = laid.edges[:-1]
        files = self._files[0].append(columns, laid.edges)
        if own:
            self._files[1].append(own, laid.edges)
        self._numbers.add(columns)
        rows: dict[str, np.ndarray] = {
            _LENGTH: laid.lengths,
            _FILE: files,
            _TASKS: _cells(",".join(map(str, numbers)) for numbers in numbers_by_episode(tasks, laid.edges)),
            _FACTS: metadata_cells(batch, self._lose),
            _FINAL: final_cells(laid.final, count),
            _LAST_ROW: laid.last_row,
            _PLACEHOLDER: np.zeros(count, np.bool_) if batch.placeholder is None else batch.placeholder,
        }
        for name in self._number_fields:
            found = statistics_by_episode(columns[name], starts)
            told[name] = np.stack([found[key].astype(np.float64) for key in VALUES], axis=1)
        rows[_STATISTICS] = np.concatenate([told[name].reshape(count, -1) for name in self._statistics], axis=1)
        rows[_COUNTED] = counted
        self._spool.append(rows)
        self._append_frames(laid)
        self._episodes += count
        self._rows += int(laid.edges[-1])
        return int(laid.edges[-1])

    def _pictures(self, laid: LaidOutRows) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """What is counted of the pictures of each episode, by camera, and of how many, ``[E, cameras]``."""
        found: dict[str, np.ndarray] = {}
        count = len(laid.lengths)
        counted = np.empty((count, len(self._plan.cameras)), np.int64)
        for i, camera in enumerate(self._plan.cameras):
            column = laid.columns[camera.field.path]
            found[camera.name] = np.empty((count, *self._statistics[camera.name]))
            shown = _middles(column, camera, laid.edges) if camera.is_video else _samples(column, camera, laid.edges)
            for episode, pixels in enumerate(shown):
                if camera.name not in self._sizes:
                    self._sizes[camera.name] = list(pixels[0].shape[:2])
                found[camera.name][episode] = numbers_of_pictures(pixels)
                counted[episode, i] = len(pixels)
        return found, counted

    def _append_frames(self, laid: LaidOutRows) -> None:
        """The frames of each episode into the videos of each camera."""
        assert self._rate.fps is not None
        for start, stop in itertools.pairwise(laid.edges.tolist()):
            for videos in self._videos:
                videos.append(laid.columns[videos.camera.field.path][start:stop], self._rate.fps)
        self._place_frames()

    def _place_frames(self) -> None:
        """Note where the frames of episodes came to be."""
        assert self._spool is not None
        for videos in self._videos:
            placed, videos.placed = videos.placed, []
            if placed:
                self._spool.append({f"frames/{videos.camera.name}": np.array(placed, np.int64)})

    def _laid_out(self, batch: EpisodeBatch) -> LaidOutRows:
        if self._options["final_row"] == "drop" and (batch.lengths == 1).any():
            raise SpecMismatch("its only row has no action, and final_row=drop leaves none", rule="spec")
        return laid_out(batch, self._options["final_row"])

    def _columns(self, laid: LaidOutRows) -> dict[str, np.ndarray]:
        """``[M, ...]`` of each feature but the number of the task."""
        count, lengths = int(laid.edges[-1]), laid.lengths
        frame = np.arange(count) - np.repeat(laid.edges[:-1], lengths)
        found: dict[str, np.ndarray] = {}
        try:
            for one in self._plan.numbers:
                found[one.name] = one.column(laid.columns)
        except OverflowError as cause:
            why = "a whole number that is too large to be joined with others in one vector"
            raise SpecMismatch(why, path=str(cause), rule="spec") from cause
        for text in self._plan.texts:
            found[text.name] = as_bytes(laid.columns[text.field.path], text.field.path)
        found[DONE], found[TRUNCATED] = laid.done, laid.truncated
        found["timestamp"] = (frame / self._rate.see(laid.columns, laid.edges)).astype(np.float32)
        found["frame_index"] = frame
        found["episode_index"] = np.repeat(np.arange(self._episodes, self._episodes + len(lengths)), lengths)
        found["index"] = np.arange(self._rows, self._rows + count)
        return found

    def _task_numbers(self, laid: LaidOutRows) -> np.ndarray:
        """``[M] int64``."""
        field = self._plan.task
        if field is not None:
            return self._tasks.numbers(as_bytes(laid.columns[field.path], field.path))
        self._tasks.numbers(_cells([self._task_text]))
        return np.zeros(int(laid.edges[-1]), np.int64)

    @property
    def _task_text(self) -> str:
        """The task where no field is."""
        known = self._facts.get("task")
        usual = known if isinstance(known, str) and known else Path(os.path.abspath(self.name)).name
        return str(self._options["task_text"] or usual)

    def _lose(self, path: str, why: str) -> None:
        """Note that something is not kept, and why."""
        self._losses.setdefault(path, why)

    def _write_meta(self, folder: Path) -> None:
        """All files of ``meta/``."""
        assert self._spool is not None
        spooled = self._spool.columns

        def column(name: str) -> np.ndarray:
            return spooled[name].read(0, self._episodes)

        if self._rate.fps is None:
            raise ValueError("there are no rows, and nothing tells how many rows a second there would be: -T fps=N")
        lengths, data_file = column(_LENGTH), column(_FILE)

        def tasks(start: int, stop: int) -> list[list[int]]:
            return [list(map(int, cell.split(b","))) for cell in spooled[_TASKS].read(start, stop).tolist()]

        @functools.lru_cache(maxsize=2)
        def read(start: int, stop: int) -> dict[str, np.ndarray]:
            ends = np.cumsum([math.prod(shape) for shape in self._statistics.values()])
            parts = np.split(spooled[_STATISTICS].read(start, stop), ends[:-1], axis=1)
            shaped = zip(self._statistics.items(), parts, strict=True)
            return {name: part.reshape(stop - start, *shape) for (name, shape), part in shaped}

        counted = {camera.name: column(_COUNTED)[:, i] for i, camera in enumerate(self._plan.cameras)}

        def statistics(name: str) -> Callable[[int, int], tuple[np.ndarray, np.ndarray]]:
            return lambda start, stop: (read(start, stop)[name], counted.get(name, lengths)[start:stop])

        def pictures(name: str) -> np.ndarray:
            starts = range(0, self._episodes, _AT_ONCE)
            each = (read(start, min(start + _AT_ONCE, self._episodes))[name] for start in starts)
            return np.concatenate([np.empty((0, *self._statistics[name])), *each])

        footage = {}
        for videos in self._videos:
            file, first, count = column(f"frames/{videos.camera.name}").T
            footage[videos.camera.name] = Footage(file, first / self._rate.fps, (first + count) / self._rate.fps)
        paths = (folder / data_place(self._version, number) for number in range(int(data_file.max(initial=-1)) + 1))
        episodes = WrittenEpisodes(
            lengths=lengths,
            data_file=data_file,
            task_texts=[text.decode() for text in self._tasks.texts],
            tasks=tasks,
            footage=footage,
            statistics={name: statistics(name) for name in self._statistics},
            summary={
                **self._numbers.summary(paths),
                **{name: summary_of_pictures(pictures(name), counts) for name, counts in counted.items()},
            },
        )
        robot_type = self._options["robot_type"] or self._facts.get("robot_type")
        info = info_of(self._version, self._features(), episodes, self._rate.fps, robot_type)
        write_meta(folder, info, episodes)
        details = {"rlds2buf": __version__, "options": self._options, "lost": self._losses}
        own = OwnFile(tuple(self._plan.fields), OwnFile.written_of(info), {}, self._provenance, details)
        try:
            (folder / FILE_NAME).write_text(json.dumps(own.to_json(), indent=1) + "\n", encoding="utf-8")
            write_episode_notes(folder, column(_FACTS), column(_FINAL), column(_LAST_ROW), column(_PLACEHOLDER))
        except OSError as cause:
            raise SinkError(f"{cause.filename or folder}: {cause.strerror or cause}") from cause

    def _features(self) -> dict[str, dict[str, Any]]:
        """As ``info.json`` has them."""
        names = self._facts.get("names")
        flags = {name: {"dtype": "bool", "shape": [1], "names": None} for name in self._ends}
        features = {**self._plan.features(names if isinstance(names, dict) else {}, self._sizes), **flags}
        if self._episodes:
            for videos in self._videos:
                features[videos.camera.name]["info"] = videos.info()
        return {**features, **index_features()}

    def _said(self) -> Iterator[str]:
        """What is known only at the end."""
        if self._plan.task is None:
            said = "-T task_text=TEXT says it otherwise" if self._options["task_text"] is None else "as was said"
            yield f"no text field is a task: that of all episodes is {self._task_text!r}, {said}"
        for videos in self._videos:
            yield from videos.said()


def _samples(column: np.ndarray, camera: Camera, edges: np.ndarray) -> Iterator[Sequence[np.ndarray]]:
    """Of each episode the pictures that are counted."""
    for start, stop in itertools.pairwise(edges.tolist()):
        yield pixels_of(column, camera, start + sampled_frames(stop - start))


def _middles(column: np.ndarray, camera: Camera, edges: np.ndarray) -> Iterator[Sequence[np.ndarray]]:
    """Of each episode of a video, whose frames are copied, the one in the middle: nothing else is decoded."""
    rows = edges[:-1] + np.diff(edges) // 2
    for first in range(0, len(rows), _TOGETHER):
        for pixels in pixels_of(column, camera, rows[first : first + _TOGETHER].tolist()):
            yield [pixels]


def _refuse_own_source(target: Path, provenance: Mapping[str, Any]) -> None:
    """Raise where the target is what is read: its videos are copied from there while it would be replaced."""
    parts = provenance.get("options", {}).get("mixture", [])
    for name in (provenance.get("source"), *(part["source"] for part in parts)):
        if name is not None and target.exists() and Path(str(name)).resolve() == target.resolve():
            raise SinkError(f"{target}: the dataset that is read; write to another folder")


def _limits(episode: int, row: int, lengths: np.ndarray) -> dict[str, np.ndarray]:
    """Of the columns that are sorted, by row group."""
    numbers = np.arange(episode, episode + len(lengths))
    ends = row + np.cumsum(lengths)
    return {"episode_index": np.stack([numbers, numbers], 1), "index": np.stack([ends - lengths, ends - 1], 1)}


def _cells(texts: Iterable[str]) -> np.ndarray:
    """``[n] object`` of bytes."""
    cells = [text.encode() for text in texts]
    out = np.empty(len(cells), object)
    out[:] = cells
    return out


def _check_texts(laid: LaidOutRows, paths: Iterable[nest.Path]) -> None:
    """Raise where a text is not UTF-8, which Parquet's texts are.

    Raises:
        SpecMismatch: one is; says which.
    """
    for path in paths:
        texts = as_bytes(laid.columns[path], path).tolist()
        if _is_utf8(b"\n".join(texts)):
            continue
        row = next(i for i, text in enumerate(texts) if not _is_utf8(text))
        step = row - int(laid.edges[np.searchsorted(laid.edges, row, "right") - 1])
        raise SpecMismatch("a text that is not UTF-8", path=nest.path_name(path), step=step, rule="spec")


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
