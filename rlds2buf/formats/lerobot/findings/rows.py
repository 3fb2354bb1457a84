"""The rows of the data: times, indices and tasks, and each camera's frames at these times."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import numpy as np

from rlds2buf.core.issue import Issue
from rlds2buf.core.json_text import parse_json
from rlds2buf.errors import SourceError
from rlds2buf.formats.lerobot.columns import RowsReader, Unreadable, runs_of
from rlds2buf.formats.lerobot.files import opened
from rlds2buf.formats.lerobot.findings.dataset import TOLERANCE, Scope
from rlds2buf.formats.lerobot.findings.metadata import column_of_episodes
from rlds2buf.formats.lerobot.findings.statistics import Statistics
from rlds2buf.formats.lerobot.findings.videos import known_facts
from rlds2buf.formats.lerobot.index import Footage
from rlds2buf.formats.lerobot.info import Feature

__all__ = ["row_findings"]

_ROWS: Final = 1 << 14
_BOOKS: Final = {"timestamp": "iuf", "index": "iu", "task_index": "iu"}
"""What is looked at in itself, and the kinds of numbers that it may be of."""


def row_findings(dataset: Scope) -> Iterator[Issue]:
    """In one pass; of episodes whose rows can't be read nothing is said here."""
    features = dataset.info.features
    statistics = Statistics(dataset)
    books = [name for name, kinds in _BOOKS.items() if name in features and _is_one_of(features[name], kinds)]
    names = dict.fromkeys((*books, *statistics.names))
    tasks = _tasks_told(dataset)
    wanted = {name: features[name] for name in names}
    with RowsReader(wanted, dataset.budget, dataset.index.footers) as reader:
        for episodes, columns in _blocks(dataset, reader, bool(wanted)):
            lengths = dataset.index.lengths[episodes]
            starts = np.cumsum(lengths) - lengths
            statistics.take(episodes, columns, starts)
            if "index" in books:
                yield from _global_index(dataset, episodes, starts, columns["index"])
            if "timestamp" in books:
                yield from _times(dataset, episodes, starts, columns["timestamp"])
            if "task_index" in books and tasks is not None:
                yield from _tasks(dataset, episodes, starts, columns["task_index"], tasks)
    yield from statistics.findings()
    yield from _rows_of_nobody(dataset)


def _is_one_of(feature: Feature, kinds: str) -> bool:
    """Whether a row has one number, of these kinds."""
    return feature.is_known and feature.spec.shape == () and feature.spec.dtype.kind in kinds


def _blocks(
    dataset: Scope, reader: RowsReader, has_columns: bool
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Episodes, some at a time, each with its rows."""
    chosen = dataset.chosen
    ends = np.cumsum(dataset.index.lengths[chosen])
    first = 0
    while has_columns and first < len(chosen):
        before = int(ends[first - 1]) if first else 0
        upto = min(max(int(np.searchsorted(ends, before + _ROWS, "right")), first + 1), len(chosen))
        yield from _readable(dataset, reader, chosen[first:upto])
        first = upto


def _readable(
    dataset: Scope, reader: RowsReader, episodes: np.ndarray
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Episodes whose rows can be read, together as far as that can be."""
    try:
        yield episodes, reader.read([*runs_of(dataset.index, episodes)])
        return
    except (SourceError, Unreadable):
        if len(episodes) == 1:
            return
    for half in (episodes[: len(episodes) // 2], episodes[len(episodes) // 2 :]):
        yield from _readable(dataset, reader, half)


def _first_wrong(wrong: np.ndarray, starts: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Of each episode with a wrong row: its place, the row's place, and the row's number in the episode."""
    rows = np.flatnonzero(wrong)
    places = np.searchsorted(starts, rows, "right") - 1
    for place, first in zip(*np.unique(places, return_index=True), strict=True):
        yield int(place), int(rows[first]), int(rows[first] - starts[place])


def _global_index(dataset: Scope, episodes: np.ndarray, starts: np.ndarray, found: np.ndarray) -> Iterator[Issue]:
    lengths = dataset.index.lengths[episodes]
    begins = dataset.index.ends[episodes] - lengths
    right = np.repeat(begins - starts, lengths) + np.arange(len(found))
    for place, row, step in _first_wrong(found != right, starts):
        text = f"index is {found[row]}, and it is row {right[row]} of the dataset"
        yield dataset.issue("wrong-index", text, feature="index", episode=episodes[place], step=step)


def _times(dataset: Scope, episodes: np.ndarray, starts: np.ndarray, times: np.ndarray) -> Iterator[Issue]:
    """That rows are evenly spaced, and that every camera has a frame at each row's time."""
    fps = dataset.info.fps
    lengths = dataset.index.lengths[episodes]
    frame = np.arange(len(times)) - np.repeat(starts, lengths)
    # What float32 rounds at long times is no jitter.
    rounded = np.spacing(np.abs(times)).astype(np.float64) if times.dtype == np.float32 else 0.0
    allowed = TOLERANCE + np.broadcast_to(rounded, times.shape)
    times = times.astype(np.float64)
    for place, row, step in _first_wrong(~(np.abs(times - frame / fps) <= allowed), starts):
        text = f"timestamp is {times[row]:.6g}, and row {step} is {step / fps:.6g} s from the start at {fps:g} fps"
        yield dataset.issue("uneven-timestamps", text, feature="timestamp", episode=episodes[place], step=step)
    for camera, footage in dataset.footage.items():
        at = np.repeat(footage.start[episodes], lengths) + times
        nearest, known = _nearest_frames(footage, episodes, lengths, at, fps)
        for place, row, step in _first_wrong(known & ~(np.abs(nearest - at) <= allowed), starts):
            file = footage.files[int(footage.file[episodes[place]])]
            text = f"the row is at {at[row]:.6g} s of the video, whose nearest frame is at {nearest[row]:.6g} s"
            yield dataset.issue("video-timestamps", text, file=file, feature=camera, episode=episodes[place], step=step)


def _nearest_frames(
    footage: Footage, episodes: np.ndarray, lengths: np.ndarray, at: np.ndarray, fps: float
) -> tuple[np.ndarray, np.ndarray]:
    """``[M] float64``: when the frame nearest to each row's time is shown; and ``[M] bool``: whether that is known.

    It is not where the video can't be read, nor in episodes for which it is too short, which is said elsewhere.
    """
    nearest, known = np.zeros(len(at)), np.zeros(len(at), np.bool_)
    files = np.repeat(footage.file[episodes], lengths)
    needed = np.repeat(np.rint(footage.start[episodes] * fps) + lengths, lengths)
    for number in np.unique(files).tolist():
        facts = known_facts(footage.files[number])
        if facts is None or not facts.frames:
            continue
        rows = np.flatnonzero((files == number) & (needed <= facts.frames))
        behind = np.clip(np.searchsorted(facts.timestamps, at[rows]), 1, max(1, facts.frames - 1))
        pair = facts.timestamps[np.stack([behind - 1, np.minimum(behind, facts.frames - 1)])]
        which = np.argmin(np.abs(pair - at[rows]), axis=0)
        nearest[rows], known[rows] = pair[which, np.arange(len(rows))], True
    return nearest, known


def _tasks(
    dataset: Scope, episodes: np.ndarray, starts: np.ndarray, numbers: np.ndarray, told: Sequence[Collection[str]]
) -> Iterator[Issue]:
    """That the tasks which the metadata tell of an episode are those of its rows."""
    assert dataset.tasks is not None
    for place, part in enumerate(np.split(numbers, starts[1:])):
        held = np.unique(part)
        if dataset.tasks.unknown(held) is not None:
            continue
        texts = {bytes(text).decode("utf-8", "replace") for text in dataset.tasks.of(held)}
        if texts != set(told[int(episodes[place])]):
            listed = ", ".join(map(repr, sorted(told[int(episodes[place])]))) or "none"
            text = f"the metadata tell of the tasks {listed}, its rows have {', '.join(map(repr, sorted(texts)))}"
            yield dataset.issue("wrong-tasks", text, feature="task_index", episode=episodes[place])


def _tasks_told(dataset: Scope) -> Sequence[Collection[str]] | None:
    """The texts of each episode's tasks by the metadata; None where they don't tell."""
    if dataset.tasks is None:
        return None
    if dataset.info.is_v3:
        told: Sequence[Any] | None = column_of_episodes(dataset, "tasks")
    else:
        told = _tasks_in_lines(dataset)
    fits = told is not None and all(
        isinstance(texts, list) and all(isinstance(text, str) for text in texts) for texts in told
    )
    return told if fits else None


def _tasks_in_lines(dataset: Scope) -> Sequence[Any] | None:
    """v2's of each episode of the index; None where the file is not whole."""
    try:
        lines = (dataset.info.root / "meta/episodes.jsonl").read_bytes().splitlines()
        rows = [parse_json(line) for line in lines if line.strip()]
        told = {row["episode_index"]: row["tasks"] for row in rows}
        return [told[number] for number in dataset.index.numbers.tolist()]
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _rows_of_nobody(dataset: Scope) -> Iterator[Issue]:
    """That a data file has no rows beyond those of its episodes."""
    index = dataset.index
    if not dataset.is_whole:
        return
    rows_of = np.bincount(index.file, index.lengths, minlength=len(index.files))
    for number, file in enumerate(index.files):
        needed = int(rows_of[number])
        try:
            with opened(file, index.footers.get(file)) as parquet:
                held = int(parquet.metadata.num_rows)
        except SourceError:
            continue
        if held > needed:
            text = f"{held:,} rows, and the metadata tell of {needed:,}: the others belong to no episode"
            yield dataset.issue("wrong-counts", text, file=file)
