"""Small LeRobot datasets, written by pyarrow alone, as LeRobot lays them down."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Camera", "Made", "png", "vectors", "write_v2", "write_v3"]


@dataclasses.dataclass(frozen=True)
class Camera:
    """Where v3 puts a camera's episodes: by episode the chunk, the file, and the seconds at which it begins."""

    chunk: Sequence[int]
    file: Sequence[int]
    start: Sequence[float]


@dataclasses.dataclass
class Made:
    """A dataset to write.

    Attributes:
        episodes: of each episode its columns by feature, ``[T, ...]``; pictures as lists of files, texts as lists.
        features: info.json's entries of these, and of videos.
        tasks: the texts; of each episode ``task_index`` is a column, zeros if it has none.
        fps: rows a second.
        info: further entries of info.json.
        names: of the text's column in v3's tasks.parquet.
        groups: rows of a row group of v3's data files; None: an episode each.
    """

    episodes: list[dict[str, Any]]
    features: dict[str, dict[str, Any]]
    tasks: Sequence[str] = ("lift it",)
    fps: int = 10
    info: dict[str, Any] = dataclasses.field(default_factory=dict)
    task_column: str = "__index_level_0__"
    groups: int | None = None

    def lengths(self) -> list[int]:
        return [len(next(iter(columns.values()))) for columns in self.episodes]

    def rows(self, number: int) -> dict[str, Any]:
        """An episode's columns with those that LeRobot adds."""
        before, count = sum(self.lengths()[:number]), self.lengths()[number]
        usual = {
            "timestamp": (np.arange(count) / self.fps).astype(np.float32),
            "frame_index": np.arange(count),
            "episode_index": np.full(count, number),
            "index": np.arange(before, before + count),
            "task_index": np.zeros(count, np.int64),
        }
        return {**usual, **self.episodes[number]}

    def listed(self) -> dict[str, Any]:
        usual = {name: {"dtype": "int64", "shape": [1], "names": None} for name in self.rows(0) if name in _USUAL}
        return {**self.features, **usual, "timestamp": {"dtype": "float32", "shape": [1], "names": None}}


_USUAL = ("timestamp", "frame_index", "episode_index", "index", "task_index")


def vectors(lengths: tuple[int, ...] = (3, 5, 1, 4), seed: int = 0) -> Made:
    """Vectors, numbers and texts."""
    rng = np.random.default_rng(seed)
    features: dict[str, dict[str, Any]] = {
        "observation.state": {"dtype": "float32", "shape": [4], "names": ["a", "b", "c", "d"]},
        "action": {"dtype": "float64", "shape": [2], "names": None},
        "next.reward": {"dtype": "float32", "shape": [1], "names": None},
        "note": {"dtype": "string", "shape": [1], "names": None},
        "grid.small": {"dtype": "int16", "shape": [2, 3], "names": None},
    }
    episodes = [
        {
            "observation.state": rng.normal(size=(count, 4)).astype(np.float32),
            "action": rng.normal(size=(count, 2)),
            "next.reward": rng.normal(size=count).astype(np.float32),
            "note": [f"row {t}" for t in range(count)],
            "grid.small": rng.integers(-9, 9, (count, 2, 3)).astype(np.int16),
        }
        for count in lengths
    ]
    return Made(episodes, features)


def png(pixels: np.ndarray) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(file, "PNG")
    return file.getvalue()


def table(columns: Mapping[str, Any]) -> Any:
    """A table as LeRobot's: vectors in lists of fixed size, pictures as structs of bytes and path."""
    import pyarrow as pa

    def column(values: Any) -> Any:
        if isinstance(values, np.ndarray) and values.ndim > 1:
            array = pa.array(values.reshape(-1))
            for size in reversed(values.shape[1:]):
                array = pa.FixedSizeListArray.from_arrays(array, size)
            return array
        if len(values) and isinstance(values[0], bytes):
            structs = [{"bytes": value, "path": f"frame-{i}.png"} for i, value in enumerate(values)]
            return pa.array(structs, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
        return pa.array(values)

    return pa.table({name: column(values) for name, values in columns.items()})


def write_v3(
    root: Path,
    made: Made,
    *,
    data: Sequence[tuple[int, int]] | None = None,
    cameras: Mapping[str, Camera] | None = None,
    meta_rows: int = 1000,
) -> Path:
    """A v3.0 dataset.

    Args:
        root: a folder that is not there yet.
        made: what it holds.
        data: chunk and file of each episode's rows; one file if None.
        cameras: where the videos would be; they are not written.
        meta_rows: episodes of a file of their metadata.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = len(made.episodes)
    places = list(data or [(0, 0)] * count)
    for place in dict.fromkeys(places):
        path = root / f"data/chunk-{place[0]:03d}/file-{place[1]:03d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        parts = [table(made.rows(number)) for number in range(count) if places[number] == place]
        with pq.ParquetWriter(path, parts[0].schema) as writer:
            if made.groups is not None:
                writer.write_table(pa.concat_tables(parts), row_group_size=made.groups)
            else:
                for part in parts:
                    writer.write_table(part)
    lengths = made.lengths()
    stops = np.cumsum(lengths)
    columns: dict[str, Any] = {
        "episode_index": np.arange(count),
        "tasks": [[made.tasks[0]] if made.tasks else [] for _ in range(count)],
        "length": np.array(lengths),
        "data/chunk_index": np.array([chunk for chunk, _ in places]),
        "data/file_index": np.array([file for _, file in places]),
        "dataset_from_index": stops - lengths,
        "dataset_to_index": stops,
    }
    for name, camera in (cameras or {}).items():
        columns[f"videos/{name}/chunk_index"] = np.array(camera.chunk)
        columns[f"videos/{name}/file_index"] = np.array(camera.file)
        columns[f"videos/{name}/from_timestamp"] = np.array(camera.start, np.float64)
        columns[f"videos/{name}/to_timestamp"] = np.array(camera.start, np.float64) + np.array(lengths) / made.fps
    columns["stats/action/min"] = [[0.0]] * count
    for number, first in enumerate(range(0, count, meta_rows)):
        path = root / f"meta/episodes/chunk-000/file-{number:03d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table({name: values[first : first + meta_rows] for name, values in columns.items()}), path)
    if made.tasks:
        tasks = {"task_index": np.arange(len(made.tasks)), made.task_column: list(made.tasks)}
        pq.write_table(table(tasks), root / "meta/tasks.parquet")
    _write_info(root, made, {"codebase_version": "v3.0"})
    return root


def write_v2(root: Path, made: Made, *, version: str = "v2.1", chunks_size: int = 1000) -> Path:
    """A v2.1 or v2.0 dataset, a file of rows for each episode."""
    import pyarrow.parquet as pq

    for number in range(len(made.episodes)):
        path = root / f"data/chunk-{number // chunks_size:03d}/episode_{number:06d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table(made.rows(number)), path)
    (root / "meta").mkdir(parents=True, exist_ok=True)
    lines = [
        {"episode_index": number, "tasks": list(made.tasks[:1]), "length": length}
        for number, length in enumerate(made.lengths())
    ]
    (root / "meta/episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    tasks = [{"task_index": number, "task": text} for number, text in enumerate(made.tasks)]
    (root / "meta/tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in tasks))
    _write_info(root, made, {"codebase_version": version, "chunks_size": chunks_size})
    return root


def _write_info(root: Path, made: Made, told: dict[str, Any]) -> None:
    count = len(made.episodes)
    info = {
        "robot_type": "arm",
        "total_episodes": count,
        "total_frames": sum(made.lengths()),
        "total_tasks": len(made.tasks),
        "chunks_size": 1000,
        "fps": made.fps,
        "splits": {"train": f"0:{count}"},
        "features": made.listed(),
        **told,
        **made.info,
    }
    (root / "meta/info.json").write_text(json.dumps(info))
