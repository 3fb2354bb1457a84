"""The episodes of a damaged LeRobot dataset, as far as its rows and videos prove where they are.

A recording that was killed has lost its last metadata, or the footer of its last Parquet file; sets that were merged
or cut may tell of the wrong frames.  lerobot appends: row groups that were written are whole; the rows say themselves
which episode and which row of it they are, so an episode's are a run of one ``episode_index`` whose ``frame_index``
counts up from 0; and the frames of neighbouring episodes lie one behind the other.  Taken is what that proves, and what
is not proven is said to be lost.  Nothing is written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from rlds2buf.codecs.arrow.lost_footer import footer_of, made_footer, recovered_footer
from rlds2buf.codecs.video.probe import probe
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.errors import MissingDependency, SourceError, SourceFormatError, SourceNotFound
from rlds2buf.formats.lerobot.columns import Rows, RowsReader, Unreadable
from rlds2buf.formats.lerobot.files import has_footer, opened
from rlds2buf.formats.lerobot.index import Footage, Index, Told, read_index, read_told
from rlds2buf.formats.lerobot.info import Info
from rlds2buf.formats.lerobot.tasks import Tasks, read_tasks

__all__ = ["mended"]

_COUNTS: Final = ("episode_index", "frame_index")
_NUMBER: Final = re.compile(r"\d+")


@dataclasses.dataclass(frozen=True)
class _Run:
    """An episode's rows, as they say themselves."""

    number: int
    file: int
    first: int
    length: int


def mended(info: Info, budget: Budget = BUDGET) -> tuple[Index, Tasks | None, list[str]]:
    """The episodes whose rows and frames are known, and the texts of tasks.

    Args:
        info: the dataset's.
        budget: what one row may take.

    Returns:
        And what was done, and what is lost, each as a sentence; where there is none, the metadata are right.

    Raises:
        SourceFormatError: the rows don't say which episode they are of, or no episode is left.
        MissingDependency: pyarrow, or for videos PyAV, is not installed.
    """
    notes: list[str] = []
    index = _mended_index(info, budget, notes)
    if not notes:
        try:
            index = read_index(info, budget)
        except (SourceFormatError, SourceNotFound) as error:
            notes.append(f"{error}; the rows tell where episodes are")
    try:
        return index, read_tasks(info, budget), notes
    except SourceFormatError as error:
        return index, None, [*notes, f"{error}; the texts of the tasks are lost"]


def _mended_index(info: Info, budget: Budget, notes: list[str]) -> Index:
    told, unread = read_told(info, budget)
    notes += [f"{error}; what it tells of episodes is taken from their rows" for error in unread]
    files = _files(info, info.data_path)
    footers = dict(_lost_footers(info, files, notes))
    runs = _whole(_runs(info, files, footers, budget, notes), told, notes)
    footage, runs = _footage(info, runs, told, notes) if info.is_v3 else (_footage_v2(info, runs), runs)
    if not runs:
        raise SourceFormatError(f"{info.root}: no episode is left; " + "; ".join(notes))
    numbers = {run.number for run in runs}
    if told.keys() - numbers:
        lost = sorted(told.keys() - numbers)
        notes.append(f"lost {'is' if len(lost) == 1 else 'are'} {_numbers(lost)}, of which the metadata tell")
    if numbers - told.keys():
        notes.append(f"{_numbers(sorted(numbers - told.keys()))}: not in the metadata, and whole in the data")
    number, file, first, length = (np.array(column, np.int64) for column in zip(*map(_columns, runs), strict=True))
    return Index(number, length, files, file, first, footage, footers=footers)


def _columns(run: _Run) -> tuple[int, int, int, int]:
    return run.number, run.file, run.first, run.length


def _files(info: Info, template: str) -> list[Path]:
    """What there is by a template, in the order of the numbers in the names."""
    pattern = re.sub(r"\{[^{}]*\}", "*", template)
    found = (path for path in info.root.glob(pattern) if path.is_file())
    return sorted(found, key=lambda path: ([int(n) for n in _NUMBER.findall(str(path.relative_to(info.root)))], path))


def _numbers(numbers: Sequence[int]) -> str:
    """Ascending numbers of episodes as text.

    >>> _numbers([3]), _numbers([3, 4, 5, 9])
    ('episode 3', 'episodes 3 to 5, 9')
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    text = ", ".join(str(low) if low == high else f"{low} to {high}" for low, high in runs)
    return f"episode{'s' * (len(numbers) > 1)} {text}"


# -- rows -------------------------------------------------------------------------------------------


def _lost_footers(info: Info, files: Sequence[Path], notes: list[str]) -> Iterator[tuple[Path, bytes]]:
    """Of files that were not closed, a footer for the row groups that are whole.

    Their columns are those of another file, or as lerobot writes them: in info.json's order.
    """
    open_ended = [file for file in files if file.stat().st_size and not has_footer(file)]
    if not open_ended:
        return
    columns = {name: one for name, one in info.features.items() if not one.is_video}
    widths = {name: 1 if one.is_picture or one.is_text else math.prod(one.shape) for name, one in columns.items()}
    closed = next((file for file in files if file.stat().st_size and file not in open_ended), None)
    like = [] if closed is None else [footer_of(closed)]
    with contextlib.suppress(ValueError):  # a type that pyarrow does not know
        kinds = {name: (one.dtype, () if one.shape == (1,) else one.shape) for name, one in columns.items()}
        like.append(made_footer(kinds))
    for file in open_ended:
        footer = next(filter(None, (recovered_footer(file, one, widths) for one in like)), None)
        if footer is not None:
            notes.append(f"{file}: its footer was never written; row groups that are whole are read without it")
            yield file, footer


def _runs(
    info: Info, files: Sequence[Path], footers: Mapping[Path, bytes], budget: Budget, notes: list[str]
) -> Iterator[_Run]:
    """The runs of rows in all files that can be read; of others it is noted that they are lost."""
    wanted = {name: info.features[name] for name in _COUNTS if name in info.features}
    if len(wanted) < len(_COUNTS) or not all(one.is_known and one.spec.dtype.kind in "iu" for one in wanted.values()):
        raise SourceFormatError(f"{info.path}: no whole numbers {' and '.join(_COUNTS)}: nothing tells episodes apart")
    for place, file in enumerate(files):
        try:
            with opened(file, footers.get(file)) as parquet:
                count = int(parquet.metadata.num_rows)
            with RowsReader(wanted, budget, footers) as reader:
                columns = reader.read([Rows(file, 0, count)])
        except MissingDependency:
            raise
        except (SourceError, Unreadable) as error:
            notes.append(f"{error}; its episodes are lost")
            continue
        number, frame = (columns[name] for name in _COUNTS)
        goes_on = (np.diff(number) == 0) & (np.diff(frame) == 1)
        firsts = np.flatnonzero(np.append(True, ~goes_on)) if count else np.empty(0, np.int64)
        lengths = np.diff(firsts, append=count)
        whole = frame[firsts] == 0
        if not whole.all():
            bad = sorted({int(n) for n in number[firsts[~whole]]})
            notes.append(f"{file}: rows of {_numbers(bad)} that do not begin with frame_index 0 are lost")
        for first, length in zip(firsts[whole].tolist(), lengths[whole].tolist(), strict=True):
            yield _Run(int(number[first]), place, first, length)


def _whole(runs: Iterator[_Run], told: Mapping[int, Told], notes: list[str]) -> list[_Run]:
    """One run for each episode, ascending; without those that are there twice, or have another length than is told."""
    by_number: dict[int, list[_Run]] = {}
    for run in runs:
        by_number.setdefault(run.number, []).append(run)
    found, twice, cut = [], [], []
    for number, same in sorted(by_number.items()):
        one = told.get(number)
        if len(same) > 1:
            twice.append(number)
        elif one is not None and one.length != same[0].length:
            cut.append(number)
        else:
            found.append(same[0])
    if twice:
        notes.append(f"the rows of {_numbers(twice)} are there twice; lost")
    if cut:
        notes.append(f"{_numbers(cut)}: not as many rows as the metadata tell of; lost")
    return found


# -- frames -----------------------------------------------------------------------------------------


def _footage_v2(info: Info, runs: Sequence[_Run]) -> dict[str, Footage]:
    """A video for each episode."""
    found = {}
    for camera in info.cameras:
        files = [
            info.video_file(camera, episode_chunk=run.number // info.chunks_size, episode_index=run.number)
            for run in runs
        ]
        stop = np.array([run.length / info.fps for run in runs], np.float64)
        found[camera] = Footage(files, np.arange(len(runs)), np.zeros(len(runs)), stop)
    return found


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where an episode's frames begin: a file, by its place among the camera's, and a frame."""

    file: int
    first: int


def _footage(
    info: Info, runs: list[_Run], told: Mapping[int, Told], notes: list[str]
) -> tuple[dict[str, Footage], list[_Run]]:
    """Of each camera, and the episodes whose frames are known of all cameras."""
    cameras: dict[str, tuple[list[Path], dict[int, _Place]]] = {}
    for camera in info.cameras:
        files = _files(info, info.video_path.replace("{video_key}", camera))
        places = _Camera(info, camera, files, notes).places(runs, told)
        lost = [run.number for run in runs if run.number not in places]
        if lost:
            notes.append(f"{camera}: nothing proves where the frames of {_numbers(lost)} are; lost")
        cameras[camera] = files, places
    kept = [run for run in runs if all(run.number in places for _, places in cameras.values())]
    found = {}
    for camera, (files, places) in cameras.items():
        file = np.array([places[run.number].file for run in kept], np.int64)
        first = np.array([places[run.number].first for run in kept], np.float64)
        stop = first + [run.length for run in kept]
        found[camera] = Footage(files, file, first / info.fps, stop / info.fps)
    return found, kept


class _Camera:
    """One camera's videos, and which frames of them belong to whom."""

    def __init__(self, info: Info, camera: str, files: Sequence[Path], notes: list[str]) -> None:
        self._fps = info.fps
        self._camera = camera
        self._file_of = {path: place for place, path in enumerate(files)}
        self._files = files
        self._notes = notes
        self._frames = [self._count(file) for file in files]

    def _count(self, file: Path) -> int:
        """How many frames a video has; of one that can't be read none, which is noted."""
        try:
            return probe(file).frames
        except MissingDependency:
            raise
        except SourceError as error:
            self._notes.append(f"{error}; its frames are lost")
            return 0

    def places(self, runs: Sequence[_Run], told: Mapping[int, Told]) -> dict[int, _Place]:
        """By episode, for those of which it is known."""
        by_file: dict[int, list[_Run]] = {}
        for run in runs:
            place = told[run.number].footage.get(self._camera) if run.number in told else None
            file = None if place is None else self._file_of.get(place[0])
            if file is not None:
                by_file.setdefault(file, []).append(run)
        found: dict[int, _Place] = {}
        moved: list[int] = []
        for file, same in sorted(by_file.items()):
            starts = {run.number: round(told[run.number].footage[self._camera][1] * self._fps) for run in same}
            right = self._in_one_file(file, same, starts)
            moved += [number for number, first in right.items() if first != starts[number]]
            found |= {number: _Place(file, first) for number, first in right.items()}
        if moved:
            self._notes.append(f"{self._camera}: from_timestamp of {_numbers(sorted(moved))} is by the frames' count")
        return found | self._appended([run for run in runs if run.number not in told], runs, found)

    def _in_one_file(self, file: int, same: Sequence[_Run], starts: Mapping[int, int]) -> dict[int, int]:
        """First frames of episodes that are in one file, of those for whom they are certain.

        If they have as many rows as it has frames, they lie in it one behind the other; else they are where they are
        told to be, unless another one is told to be there too.
        """
        ends = np.cumsum([run.length for run in same])
        if ends[-1] == self._frames[file]:
            return {run.number: int(end) - run.length for run, end in zip(same, ends.tolist(), strict=True)}
        order = sorted(same, key=lambda run: (starts[run.number], run.number))
        low = np.array([starts[run.number] for run in order], np.int64)
        high = low + [run.length for run in order]
        before = np.append(0, np.maximum.accumulate(high)[:-1])
        behind = np.append(low[1:], self._frames[file])
        certain = (before <= low) & (high <= behind)
        return {
            run.number: first for run, first, is_it in zip(order, low.tolist(), certain.tolist(), strict=True) if is_it
        }

    def _appended(self, untold: Sequence[_Run], runs: Sequence[_Run], known: Mapping[int, _Place]) -> dict[int, _Place]:
        """Of episodes behind the last one that the metadata know: appended frame by frame, file by file.

        Where a video does not end with an episode, nothing behind that is certain.
        """
        last = max((run for run in runs if run.number in known), key=lambda run: run.number, default=None)
        number = -1 if last is None else last.number
        file, at = (0, 0) if last is None else (known[last.number].file, known[last.number].first + last.length)
        found: dict[int, _Place] = {}
        for run in untold:
            if run.number < number:
                continue
            if file < len(self._frames) and at == self._frames[file]:
                file, at = file + 1, 0
            if run.number != number + 1 or file >= len(self._frames) or at + run.length > self._frames[file]:
                break
            found[run.number] = _Place(file, at)
            number, at = run.number, at + run.length
        return found
