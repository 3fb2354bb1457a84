"""Small LeRobot datasets laid out by hand with pyarrow and PyAV, and ways to break them; without the package.

A frame shows the number of its row: all its pixels are about ``number_of(camera, episode, row)``, so that a picture
that belongs to another row is known at sight.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FPS = 10
LENGTHS = (5, 7, 4, 6)
TOP, WRIST = "observation.images.top", "observation.images.wrist"
SIZE = 64
Columns = dict[str, Any]

DATA_V3 = "data/chunk-{chunk:03d}/file-{file:03d}.parquet"
VIDEO = "videos/{camera}/chunk-{chunk:03d}/file-{file:03d}.mp4"
DATA_V2 = "data/chunk-000/episode_{episode:06d}.parquet"
VIDEO_V2 = "videos/chunk-000/{camera}/episode_{episode:06d}.mp4"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
NUMBERS = {
    "observation.state": {"dtype": "float32", "shape": [3], "names": ["x", "y", "z"]},
    "action": {"dtype": "float32", "shape": [2], "names": None},
    "timestamp": {"dtype": "float32", "shape": [1], "names": None},
    "frame_index": {"dtype": "int64", "shape": [1], "names": None},
    "episode_index": {"dtype": "int64", "shape": [1], "names": None},
    "index": {"dtype": "int64", "shape": [1], "names": None},
    "task_index": {"dtype": "int64", "shape": [1], "names": None},
}


def camera_feature(codec: str = "h264") -> Columns:
    facts = {"video.height": SIZE, "video.width": SIZE, "video.codec": codec, "video.pix_fmt": "yuv420p"}
    facts |= {"video.is_depth_map": False, "video.fps": FPS, "video.channels": 3, "has_audio": False}
    return {"dtype": "video", "shape": [SIZE, SIZE, 3], "names": ["height", "width", "channels"], "info": facts}


def number_of(camera: str, episode: int, row: int) -> int:
    """About the value of every pixel of a frame."""
    return (30 + 40 * episode + 5 * row + 3 * (camera == WRIST)) % 230


def columns_of(lengths: Sequence[int] = LENGTHS, tasks: int = 2, seed: int = 0) -> list[Columns]:
    """The columns of each episode."""
    rng = np.random.default_rng(seed)
    found, start = [], 0
    for episode, length in enumerate(lengths):
        rows = np.arange(length)
        found.append(
            {
                "observation.state": rng.normal(size=(length, 3)).astype(np.float32),
                "action": rng.normal(size=(length, 2)).astype(np.float32),
                "timestamp": (rows / FPS).astype(np.float32),
                "frame_index": rows,
                "episode_index": np.full(length, episode),
                "index": start + rows,
                "task_index": np.full(length, episode % tasks),
            }
        )
        start += length
    return found


def stats_of(columns: Columns) -> dict[str, dict[str, Any]]:
    """The ten keys of each feature of numbers."""
    found = {}
    for name, column in columns.items():
        values = np.asarray(column, np.float64).reshape(len(column), -1)
        ten = {"min": values.min(0), "max": values.max(0), "mean": values.mean(0), "std": values.std(0)}
        ten["count"] = np.array([len(values)])
        ten |= {key: np.quantile(values, q, axis=0) for key, q in QUANTILES.items()}
        found[name] = {key: value.tolist() for key, value in ten.items()}
    return found


def joined(parts: Sequence[Columns]) -> Columns:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def table(columns: Columns) -> pa.Table:
    arrays = {}
    for name, column in columns.items():
        values = np.asarray(column)
        if values.ndim == 2:
            arrays[name] = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
        else:
            arrays[name] = pa.array(values)
    return pa.table(arrays)


def write_data(path: Path, parts: Sequence[Columns]) -> None:
    """A data file with a row group for each part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, table(parts[0]).schema) as writer:
        for part in parts:
            writer.write_table(table(part))


def write_video(path: Path, values: Sequence[int], *, codec: str = "libx264", fps: int = FPS, gop: int = 2) -> None:
    """A video of one grey picture for each value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=fps)
        stream.width = stream.height = SIZE
        stream.pix_fmt = "yuv420p"
        stream.gop_size = gop
        stream.options = {"bf": "0"} if codec == "libx264" else {}
        stream.time_base = Fraction(1, fps)
        for i, value in enumerate(values):
            frame = av.VideoFrame.from_ndarray(np.full((SIZE, SIZE, 3), value, np.uint8), format="rgb24")
            frame.pts, frame.time_base = i, Fraction(1, fps)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def info_of(version: str, lengths: Sequence[int], cameras: Sequence[str], tasks: int) -> Columns:
    info: Columns = {
        "codebase_version": version,
        "robot_type": "made",
        "total_episodes": len(lengths),
        "total_frames": sum(lengths),
        "total_tasks": tasks,
        "chunks_size": 1000,
        "fps": FPS,
        "splits": {"train": f"0:{len(lengths)}"},
        "features": {**NUMBERS, **{camera: camera_feature() for camera in cameras}},
    }
    if version == "v3.0":
        info |= {"data_files_size_in_mb": 100, "video_files_size_in_mb": 200}
        info["data_path"] = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
        info["video_path"] = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
    else:
        info |= {"total_videos": len(cameras) * len(lengths), "total_chunks": 1}
        info["data_path"] = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
        info["video_path"] = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
    return info


def write_v3(
    root: Path,
    *,
    lengths: Sequence[int] = LENGTHS,
    cameras: Sequence[str] = (TOP, WRIST),
    per_file: int = 2,
    per_video: dict[str, int] | None = None,
    tasks: int = 2,
) -> Path:
    """A dataset of v3.0.

    Args:
        per_file: episodes of a data file.
        per_video: episodes of a video, by camera; 3 and 1 unless given.
    """
    per_video = per_video or {TOP: 3, WRIST: 1}
    parts = columns_of(lengths, tasks)
    for file, first in enumerate(range(0, len(parts), per_file)):
        write_data(root / DATA_V3.format(chunk=0, file=file), parts[first : first + per_file])
    episodes: list[Columns] = []
    for episode, part in enumerate(parts):
        told = {"episode_index": episode, "tasks": [f"task {episode % tasks}"], "length": len(part["index"])}
        told |= {"data/chunk_index": 0, "data/file_index": episode // per_file}
        told |= {"dataset_from_index": int(part["index"][0]), "dataset_to_index": int(part["index"][-1]) + 1}
        episodes.append(told)
    for camera in cameras:
        for file, first in enumerate(range(0, len(parts), per_video[camera])):
            values: list[int] = []
            for episode in range(first, min(first + per_video[camera], len(parts))):
                start, stop = len(values), len(values) + lengths[episode]
                values += [number_of(camera, episode, row) for row in range(lengths[episode])]
                place: Columns = {"chunk_index": 0, "file_index": file}
                place |= {"from_timestamp": start / FPS, "to_timestamp": stop / FPS}
                episodes[episode] |= {f"videos/{camera}/{name}": value for name, value in place.items()}
            write_video(root / VIDEO.format(camera=camera, chunk=0, file=file), values)
    for told, part in zip(episodes, parts, strict=True):
        told |= {f"stats/{name}/{key}": v for name, ten in stats_of(part).items() for key, v in ten.items()}
        told |= {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
    _write_rows(root / EPISODES, episodes)
    texts = [{"task_index": i, "__index_level_0__": f"task {i}"} for i in range(tasks)]
    _write_rows(root / "meta/tasks.parquet", texts)
    _write_json(root / "meta/info.json", info_of("v3.0", lengths, cameras, tasks))
    _write_json(root / "meta/stats.json", stats_of(joined(parts)))
    return root


def write_v2(
    root: Path, *, lengths: Sequence[int] = LENGTHS, cameras: Sequence[str] = (TOP, WRIST), tasks: int = 2
) -> Path:
    """A dataset of v2.1."""
    parts = columns_of(lengths, tasks)
    for episode, part in enumerate(parts):
        write_data(root / DATA_V2.format(episode=episode), [part])
        for camera in cameras:
            values = [number_of(camera, episode, row) for row in range(lengths[episode])]
            write_video(root / VIDEO_V2.format(camera=camera, episode=episode), values)
    told = [{"episode_index": e, "tasks": [f"task {e % tasks}"], "length": n} for e, n in enumerate(lengths)]
    _write_lines(root / "meta/episodes.jsonl", told)
    _write_lines(root / "meta/tasks.jsonl", [{"task_index": i, "task": f"task {i}"} for i in range(tasks)])
    five = ("min", "max", "mean", "std", "count")
    stats = [
        {
            "episode_index": e,
            "stats": {name: {key: ten[key] for key in five} for name, ten in stats_of(part).items()},
        }
        for e, part in enumerate(parts)
    ]
    _write_lines(root / "meta/episodes_stats.jsonl", stats)
    _write_json(root / "meta/info.json", info_of("v2.1", lengths, cameras, tasks))
    return root


def _write_rows(path: Path, rows: list[Columns]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def _write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=4))


def _write_lines(path: Path, rows: list[Columns]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


# -- breaking them ----------------------------------------------------------------------------------


def change_json(path: Path, change: Callable[[Columns], None]) -> None:
    """Change the object in a file of JSON in place."""
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value, indent=4))


def change_lines(path: Path, change: Callable[[list[Columns]], None]) -> None:
    """Change the objects of a file of JSON lines in place."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    change(rows)
    _write_lines(path, rows)


def change_rows(path: Path, change: Callable[[list[Columns]], None]) -> None:
    """Change the rows of a Parquet file in place; its types and row groups stay."""
    file = pq.ParquetFile(path)
    sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    held = file.read()
    rows = held.to_pylist()
    change(rows)
    changed = pa.Table.from_pylist(rows, schema=held.schema)
    sizes[-1] += len(rows) - sum(sizes)
    with pq.ParquetWriter(path, held.schema) as writer:
        start = 0
        for size in sizes:
            if size > 0:
                writer.write_table(changed.slice(start, size))
            start += size


def without_footer(path: Path) -> None:
    """As a Parquet file is whose writer was never closed: the row groups are there, what tells of them is not."""
    content = path.read_bytes()
    length = int.from_bytes(content[-8:-4], "little")
    path.write_bytes(content[: -8 - length])


def as_pointer(path: Path) -> None:
    """As a clone without Git LFS has the file."""
    path.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 123456\n")


def frames_of(path: Path) -> list[int]:
    """The value of each frame of a video, as PyAV decodes it."""
    with av.open(io.BytesIO(path.read_bytes())) as container:
        return [round(float(frame.to_ndarray(format="rgb24").mean())) for frame in container.decode(video=0)]
