"""The metadata against themselves, and against which files there are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from rlds2buf.core.issue import Issue
from rlds2buf.errors import SourceError
from rlds2buf.formats.lerobot.files import opened
from rlds2buf.formats.lerobot.findings.dataset import Scope
from rlds2buf.formats.lerobot.index import episode_files
from rlds2buf.formats.lerobot.splits import RANGE
from rlds2buf.formats.lerobot.tasks import tasks_file

__all__ = ["column_of_episodes", "metadata_findings", "unused_files"]

_SUFFIXES: Final = (".parquet", ".mp4", ".png")
"""Of files that hold rows or frames."""
_MOST_NAMED: Final = 5


def metadata_findings(dataset: Scope) -> Iterator[Issue]:
    """What needs no look into rows and videos."""
    yield from _counts(dataset)
    if dataset.info.is_v3:
        yield from _row_ranges(dataset)
        yield from _order_of_tasks(dataset)
    yield from _footage(dataset)
    yield from _absent_statistics(dataset)


def unused_files(dataset: Scope) -> Iterator[Issue]:
    """Files of rows or frames that no episode is in."""
    root, index = dataset.info.root, dataset.index
    used = {*index.files, *(file for footage in index.footage.values() for file in footage.files)}
    found: list[Path] = []
    for folder, folders, names in os.walk(root):
        here = Path(folder)
        folders[:] = [name for name in folders if name[0] != "." and here / name != root / "meta"]
        found += [here / name for name in names if name.endswith(_SUFFIXES) and name[0] != "."]
    unused = sorted(str(path.relative_to(root)) for path in set(found) - used)
    if unused:
        named = ", ".join(unused[:_MOST_NAMED]) + (", ..." if len(unused) > _MOST_NAMED else "")
        count = "1 file" if len(unused) == 1 else f"{len(unused):,} files"
        yield dataset.issue("unused-files", f"{count} of rows or frames that no episode is in: {named}")


def column_of_episodes(dataset: Scope, name: str) -> list[object] | None:
    """A column of v3's metadata of episodes, a value each; None where not every file has it, or it can't be read."""
    values: list[object] = []
    try:
        for file in episode_files(dataset.info):
            with opened(file) as parquet:
                if name not in parquet.schema_arrow.names:
                    return None
                for batch in parquet.iter_batches(columns=[name], use_threads=False):
                    batch.validate(full=True)
                    values += batch.column(0).to_pylist()
    except (SourceError, ValueError):  # pyarrow's errors are ValueErrors
        return None
    return values if len(values) == len(dataset.index) else None


def _counts(dataset: Scope) -> Iterator[Issue]:
    info, count = dataset.info, len(dataset.index)
    for text in dataset.index.oddities:
        yield dataset.issue("wrong-counts", text, file=info.path)
    told = info.values.get("total_tasks")
    if dataset.tasks is not None and isinstance(told, int) and told != len(dataset.tasks):
        text = f"total_tasks is {told}, {tasks_file(info).name} has {len(dataset.tasks)}"
        yield dataset.issue("wrong-counts", text, file=info.path)
    for name, part in info.splits.items():
        ends = RANGE.fullmatch(part)
        if ends and int(ends[2]) > count:
            text = f"the split {name!r} is {part}, and there are {count} episodes"
            yield dataset.issue("wrong-counts", text, file=info.path)


def _row_ranges(dataset: Scope) -> Iterator[Issue]:
    """That ``dataset_from_index`` and ``dataset_to_index`` cut the rows of all files into the episodes."""
    told = [column_of_episodes(dataset, f"dataset_{end}_index") for end in ("from", "to")]
    if any(column is None or not all(isinstance(value, int) for value in column) for column in told):
        return
    first, stop = (np.array(column, np.float64) for column in told)
    ends = dataset.index.ends
    right = ends - dataset.index.lengths
    before = np.append(0, stop[:-1])
    for i in dataset.chosen[((first != right) | (stop != ends))[dataset.chosen]].tolist():
        text = f"dataset_from_index and dataset_to_index are {first[i]:.0f} and {stop[i]:.0f}"
        text += f", its rows are {right[i]} to {ends[i]}"
        text += "; they overlap the episode before" if first[i] < before[i] else ""
        yield dataset.issue("wrong-index", text, episode=i)


def _order_of_tasks(dataset: Scope) -> Iterator[Issue]:
    if dataset.tasks is None:
        return
    path = tasks_file(dataset.info)
    with opened(path) as parquet:
        numbers = parquet.read(columns=["task_index"]).column(0).to_pylist()
    wrong = [place for place, number in enumerate(numbers) if number != place]
    if wrong:
        text = f"row {wrong[0]} is task {numbers[wrong[0]]}: whoever takes a task's text by its place takes another's"
        yield dataset.issue("wrong-tasks", text, file=path)


def _footage(dataset: Scope) -> Iterator[Issue]:
    """That no two episodes have the same frames, and that each has as many as it has rows."""
    fps, index = dataset.info.fps, dataset.index
    for camera, footage in dataset.footage.items():
        first = np.rint(footage.start * fps)
        order = np.lexsort((first, footage.file))
        before, behind = order[:-1], order[1:]
        overlaps = (footage.file[before] == footage.file[behind]) & (first[behind] < (first + index.lengths)[before])
        pairs = [*zip(before[overlaps].tolist(), behind[overlaps].tolist(), strict=True)]
        for one, other in sorted((*pairs, *((b, a) for a, b in pairs))):
            if one in dataset.chosen:
                text = f"from_timestamp is {footage.start[one]:.6g}, so some of its frames are those of episode {other}"
                file = footage.files[int(footage.file[one])]
                yield dataset.issue("video-overlap", text, file=file, feature=camera, episode=one)
        spans = np.rint((footage.stop - footage.start) * fps)
        wrong = np.isfinite(spans) & (spans != index.lengths)
        for i in dataset.chosen[wrong[dataset.chosen]].tolist():
            text = f"to_timestamp is {footage.stop[i]:.6g}, {spans[i]:.0f} frames behind from_timestamp"
            text += f", and it has {index.lengths[i]} rows"
            yield dataset.issue("wrong-index", text, feature=camera, episode=i)


def _absent_statistics(dataset: Scope) -> Iterator[Issue]:
    name = "episodes_stats.jsonl" if dataset.info.version == "v2.1" else "stats.json"
    path = dataset.info.root / "meta" / name
    if not path.is_file():
        yield dataset.issue("absent-files", "no statistics: there is no such file", file=path)
