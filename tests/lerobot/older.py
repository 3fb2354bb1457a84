"""A v2.1 dataset as lerobot 0.3 wrote them: lerobot 0.4.4 only converts it. Its statistics and videos are lerobot's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.lerobot.sets import FPS, Columns

INDICES = ("frame_index", "episode_index", "index", "task_index")


def write(folder: Path, features: dict[str, Any], episodes: list[Columns], vcodec: str = "h264") -> Path:
    """The dataset of these episodes, a Parquet file and a video per camera for each."""
    tasks = list(dict.fromkeys(task for columns in episodes for task in columns["task"]))
    described = {name: dict(told) for name, told in features.items()}
    described["timestamp"] = {"dtype": "float32", "shape": (1,), "names": None}
    described |= {name: {"dtype": "int64", "shape": (1,), "names": None} for name in INDICES}
    started, lines = 0, {"episodes": [], "episodes_stats": []}
    for e, columns in enumerate(episodes):
        rows = with_indices(columns, e, started, tasks)
        started += len(columns["task"])
        write_rows(folder / f"data/chunk-000/episode_{e:06d}.parquet", described, rows)
        for name, told in described.items():
            if told["dtype"] == "video":
                write_video(folder / f"videos/chunk-000/{name}/episode_{e:06d}.mp4", rows[name], vcodec)
        said = list(dict.fromkeys(columns["task"]))
        lines["episodes"].append({"episode_index": e, "tasks": said, "length": len(columns["task"])})
        lines["episodes_stats"].append({"episode_index": e, "stats": statistics(described, rows)})
    lines["tasks"] = [{"task_index": i, "task": task} for i, task in enumerate(tasks)]
    (folder / "meta").mkdir()
    for name, told in lines.items():
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in told)
        (folder / "meta" / f"{name}.jsonl").write_text(text, encoding="utf-8")
    cameras = [name for name, told in described.items() if told["dtype"] == "video"]
    for name in cameras:
        described[name]["info"] = video_info(folder / f"videos/chunk-000/{name}/episode_000000.mp4")
    info = {
        "codebase_version": "v2.1",
        "robot_type": "test",
        "total_episodes": len(episodes),
        "total_frames": started,
        "total_tasks": len(tasks),
        "total_videos": len(cameras) * len(episodes),
        "total_chunks": 1,
        "chunks_size": 1000,
        "fps": FPS,
        "splits": {"train": f"0:{len(episodes)}"},
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
        if cameras
        else None,
        "features": described,
    }
    (folder / "meta/info.json").write_text(json.dumps(info, indent=4), encoding="utf-8")
    return folder


def with_indices(columns: Columns, episode: int, started: int, tasks: list[str]) -> Columns:
    """The columns, and those that every set has."""
    count = len(columns["task"])
    rows = {name: column for name, column in columns.items() if name != "task"}
    rows["timestamp"] = (np.arange(count) / FPS).astype(np.float32)
    rows["frame_index"] = np.arange(count)
    rows["episode_index"] = np.full(count, episode)
    rows["index"] = np.arange(count) + started
    rows["task_index"] = np.array([tasks.index(task) for task in columns["task"]])
    return rows


def write_rows(path: Path, features: dict[str, Any], rows: Columns) -> None:
    """The columns that are no videos, in the types that lerobot gives them."""
    import datasets
    from lerobot.datasets.utils import embed_images, get_hf_features_from_features

    path.parent.mkdir(parents=True, exist_ok=True)
    kinds = get_hf_features_from_features(features)
    columns = {name: rows[name] for name in kinds}
    for name, kind in kinds.items():
        if isinstance(kind, datasets.Image):
            columns[name] = [Image.fromarray(picture) for picture in columns[name]]
        elif isinstance(kind, datasets.Value) and not isinstance(columns[name], list):
            columns[name] = columns[name].reshape(-1)
    embed_images(datasets.Dataset.from_dict(columns, features=kinds)).to_parquet(path)


def write_video(path: Path, frames: np.ndarray, vcodec: str) -> None:
    """By way of PNG files, as lerobot encodes."""
    from lerobot.datasets.video_utils import encode_video_frames

    stills = path.parent / "stills"
    stills.mkdir(parents=True)
    for t, frame in enumerate(frames):
        Image.fromarray(frame).save(stills / f"frame-{t:06d}.png")
    encode_video_frames(stills, path, FPS, vcodec=vcodec, overwrite=True)
    shutil.rmtree(stills)


def video_info(path: Path) -> dict[str, Any]:
    from lerobot.datasets.video_utils import get_video_info

    return get_video_info(path)


def statistics(features: dict[str, Any], rows: Columns) -> dict[str, Any]:
    """Of an episode, the five keys of v2.1."""
    from lerobot.datasets.compute_stats import compute_episode_stats

    out = {}
    for name, told in features.items():
        if told["dtype"] == "string":
            continue
        values = rows[name]
        if told["dtype"] in ("image", "video"):
            pixels = values.reshape(-1, 3) / 255
            found = {key: getattr(pixels, key)(axis=0).reshape(3, 1, 1) for key in ("min", "max", "mean", "std")}
            found["count"] = np.array([len(values)])
        else:
            flat = values.reshape(-1) if told["shape"] == (1,) else values
            flat = flat.astype(np.float64)
            found = compute_episode_stats({name: flat}, {name: told})[name]
        out[name] = {key: found[key].tolist() for key in ("min", "max", "mean", "std", "count")}
    return out
