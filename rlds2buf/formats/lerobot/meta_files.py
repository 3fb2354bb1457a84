"""The files in ``meta/`` of a dataset that is written: info, tasks, episodes and statistics, of v3.0 and of v2.1."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from rlds2buf.codecs.arrow.writing import TableFile, lists, text_lists, texts, write_table
from rlds2buf.errors import SinkError
from rlds2buf.numbers.by_episode import KEYS
from rlds2buf.version import __version__

__all__ = [
    "CHUNK",
    "DATA_BYTES",
    "VALUES",
    "VERSIONS",
    "VIDEO_BYTES",
    "Footage",
    "WrittenEpisodes",
    "data_place",
    "info_of",
    "video_place",
    "write_meta",
]

VERSIONS: Final = {"3.0": "v3.0", "2.1": "v2.1"}
CHUNK: Final = 1000
"""Files of a folder; of v2.1 episodes."""
DATA_BYTES: Final = 100 << 20
VIDEO_BYTES: Final = 200 << 20
_EPISODES_AT_ONCE: Final = 1000

VALUES: Final = tuple(key for key in KEYS if key != "count")
"""What is kept of each episode's numbers, in this order; how many there are is the episode's length."""

PATHS: Final = {
    "v3.0": (
        "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    ),
    "v2.1": (
        "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    ),
}


def data_place(version: str, number: int) -> str:
    """Of a data file, by its number (of v2.1 the episode's)."""
    return _filled(PATHS[version][0], number)


def video_place(version: str, camera: str, number: int) -> str:
    """Of a video, likewise."""
    return _filled(PATHS[version][1], number, camera)


def _filled(template: str, number: int, camera: str = "") -> str:
    chunk, place = divmod(number, CHUNK)
    return template.format(
        chunk_index=chunk, file_index=place, episode_chunk=chunk, episode_index=number, video_key=camera
    )


@dataclasses.dataclass(frozen=True)
class Footage:
    """Where the frames of each episode are, of one camera.

    Attributes:
        file: ``[E] int64``, the number of the video.
        start, stop: ``[E] float64``, seconds in it.
    """

    file: np.ndarray
    start: np.ndarray
    stop: np.ndarray


@dataclasses.dataclass(frozen=True)
class WrittenEpisodes:
    """What is known of the episodes of a dataset.

    Attributes:
        lengths: ``[E] int64``, rows.
        data_file: ``[E] int64``, the number of the data file.
        task_texts: all tasks, by their numbers.
        tasks: the tasks of episodes from one up to another.
        footage: by camera.
        statistics: by feature, of episodes from one up to another ``[n, values, ...] float64`` in the order of
            :data:`VALUES`, and ``[n] int64`` how many rows or pictures were counted.
        summary: by feature the same keys for the whole dataset, and ``count``, as plain JSON values.
    """

    lengths: np.ndarray
    data_file: np.ndarray
    task_texts: Sequence[str]
    tasks: Callable[[int, int], list[list[int]]]
    footage: Mapping[str, Footage]
    statistics: Mapping[str, Callable[[int, int], tuple[np.ndarray, np.ndarray]]]
    summary: Mapping[str, Mapping[str, Any]]

    def blocks(self) -> Iterator[tuple[int, int]]:
        """From one episode up to another, some at a time."""
        for start in range(0, len(self.lengths), _EPISODES_AT_ONCE):
            yield start, min(start + _EPISODES_AT_ONCE, len(self.lengths))


def info_of(
    version: str, features: Mapping[str, Any], episodes: WrittenEpisodes, fps: int, robot_type: str | None
) -> dict[str, Any]:
    """The content of ``info.json``."""
    count = len(episodes.lengths)
    videos = [name for name, feature in features.items() if feature["dtype"] == "video"]
    data_path, video_path = PATHS[version]
    totals: dict[str, Any] = {
        "total_episodes": count,
        "total_frames": int(episodes.lengths.sum()),
        "total_tasks": len(episodes.task_texts),
    }
    if version == "v2.1":
        more = {"total_videos": count * len(videos), "total_chunks": -(-count // CHUNK), "chunks_size": CHUNK}
    else:
        more = {
            "chunks_size": CHUNK,
            "data_files_size_in_mb": DATA_BYTES >> 20,
            "video_files_size_in_mb": VIDEO_BYTES >> 20,
        }
    return {
        "codebase_version": version,
        "robot_type": robot_type,
        **totals,
        **more,
        "fps": fps,
        "splits": {"train": f"0:{count}"},
        "data_path": data_path,
        "video_path": video_path if videos else None,
        "features": dict(features),
    }


def write_meta(folder: Path, info: Mapping[str, Any], episodes: WrittenEpisodes) -> None:
    """Write all of them.

    Raises:
        SinkError: one can't be written.
    """
    meta = folder / "meta"
    try:
        meta.mkdir(parents=True, exist_ok=True)
        _write_json(meta / "info.json", info)
        if info["codebase_version"] == "v2.1":
            _write_lines(meta / "tasks.jsonl", _task_lines(episodes))
            _write_lines(meta / "episodes.jsonl", _episode_lines(episodes))
            _write_lines(meta / "episodes_stats.jsonl", _statistics_lines(episodes))
        else:
            _write_tasks(meta / "tasks.parquet", episodes.task_texts)
            _write_episodes(folder, episodes)
        _write_json(meta / "stats.json", episodes.summary)
    except OSError as cause:
        raise SinkError(f"{cause.filename or meta}: {cause.strerror or cause}") from cause


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=4, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_lines(path: Path, lines: Iterator[Any]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _task_lines(episodes: WrittenEpisodes) -> Iterator[Any]:
    for number, text in enumerate(episodes.task_texts):
        yield {"task_index": number, "task": text}


def _episode_lines(episodes: WrittenEpisodes) -> Iterator[Any]:
    for start, stop in episodes.blocks():
        for i, numbers in enumerate(episodes.tasks(start, stop)):
            texts = [episodes.task_texts[number] for number in numbers]
            yield {"episode_index": start + i, "tasks": texts, "length": int(episodes.lengths[start + i])}


def _statistics_lines(episodes: WrittenEpisodes) -> Iterator[Any]:
    for start, stop in episodes.blocks():
        read = {name: of(start, stop) for name, of in episodes.statistics.items()}
        for i in range(stop - start):
            stats = {
                name: {**dict(zip(VALUES, values[i].tolist(), strict=True)), "count": [int(counts[i])]}
                for name, (values, counts) in read.items()
            }
            yield {"episode_index": start + i, "stats": stats}


def _write_tasks(path: Path, tasks: Sequence[str]) -> None:
    """A pandas frame whose index are the texts."""
    columns = [("task_index", "int64", "int64"), ("task", "unicode", "object")]
    told = {
        "index_columns": ["task"],
        "column_indexes": [
            {"name": None, "field_name": None, "pandas_type": "unicode", "numpy_type": "object", "metadata": None}
        ],
        "columns": [
            {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": numpy_type, "metadata": None}
            for name, kind, numpy_type in columns
        ],
        "creator": {"library": "rlds2buf", "version": __version__},
        "pandas_version": "2.0.0",
    }
    write_table(path, {"task_index": np.arange(len(tasks)), "task": texts(tasks)}, {"pandas": json.dumps(told)})


def _write_episodes(folder: Path, episodes: WrittenEpisodes) -> None:
    """The table of episodes; a new file is begun where one has become too large."""
    number, file = -1, None
    try:
        for start, stop in episodes.blocks():
            if file is None or file.path.stat().st_size >= DATA_BYTES:
                if file is not None:
                    file.close()
                number += 1
                chunk, place = divmod(number, CHUNK)
                file = TableFile(folder / f"meta/episodes/chunk-{chunk:03d}/file-{place:03d}.parquet")
            file.append(_episodes_columns(episodes, start, stop, number))
    finally:
        if file is not None:
            file.close()


def _episodes_columns(episodes: WrittenEpisodes, start: int, stop: int, file: int) -> dict[str, Any]:
    """A row for each of some episodes."""
    count = stop - start
    ends = np.cumsum(episodes.lengths)[start:stop]
    lengths = episodes.lengths[start:stop]
    data_chunk, data_file = np.divmod(episodes.data_file[start:stop], CHUNK)
    tasks = [[episodes.task_texts[number] for number in numbers] for numbers in episodes.tasks(start, stop)]
    columns: dict[str, Any] = {
        "episode_index": np.arange(start, stop),
        "tasks": text_lists(tasks),
        "length": lengths,
        "data/chunk_index": data_chunk,
        "data/file_index": data_file,
        "dataset_from_index": ends - lengths,
        "dataset_to_index": ends,
    }
    for camera, footage in episodes.footage.items():
        chunk, place = np.divmod(footage.file[start:stop], CHUNK)
        columns[f"videos/{camera}/chunk_index"] = chunk
        columns[f"videos/{camera}/file_index"] = place
        columns[f"videos/{camera}/from_timestamp"] = footage.start[start:stop]
        columns[f"videos/{camera}/to_timestamp"] = footage.stop[start:stop]
    for name, read in episodes.statistics.items():
        values, counts = read(start, stop)
        for i, key in enumerate(VALUES):
            columns[f"stats/{name}/{key}"] = lists(values[:, i])
        columns[f"stats/{name}/count"] = lists(counts[:, None])
    columns["meta/episodes/chunk_index"] = np.full(count, file // CHUNK)
    columns["meta/episodes/file_index"] = np.full(count, file % CHUNK)
    return columns
