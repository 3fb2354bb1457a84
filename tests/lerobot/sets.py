"""Datasets that the real lerobot writes, with every kind of feature that it has: ``python -m tests.lerobot.sets DIR``.

Each is recorded as a robot's is, frame by frame, from columns made here, so that what was recorded is known too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

FPS = 10
Columns = dict[str, Any]
"""What one episode records: ``[T, ...]`` by feature, and ``task``, one text for each frame."""


def smooth(rng: np.random.Generator, frames: int, height: int, width: int) -> np.ndarray:
    """Pictures ``[T, H, W, 3] uint8`` that a codec can hold: colours that change slowly, and a square that moves."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    phase = rng.uniform(0, 6, 3)
    time = np.arange(frames)[:, None, None, None]
    waves = np.stack([np.sin((x + y * k) / 20 + p) for k, p in enumerate(phase)], axis=-1)
    pictures = (128 + 60 * waves[None] + 40 * np.sin(time / 5)).clip(0, 255).astype(np.uint8)
    for t in range(frames):
        left = (3 * t) % (width - 16)
        pictures[t, 8:24, left : left + 16] = (255, 32 * (t % 8), 0)
    return pictures


def vector(size: int, dtype: str = "float32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": (size,), "names": [f"motor_{i}" for i in range(size)]}


def scalar(dtype: str) -> dict[str, Any]:
    return {"dtype": dtype, "shape": (1,), "names": None}


def camera(height: int, width: int, dtype: str) -> dict[str, Any]:
    return {"dtype": dtype, "shape": (height, width, 3), "names": ["height", "width", "channels"]}


def numbers(seed: int = 0, episodes: int = 5) -> tuple[dict[str, Any], list[Columns]]:
    """Every kind of number and text, two tasks that change within an episode, rewards and ends."""
    features = {
        "observation.state": vector(3),
        "observation.environment_state": vector(4, "float64"),
        "observation.grid": {"dtype": "float32", "shape": (2, 3), "names": None},
        "observation.deep": {"dtype": "int32", "shape": (2, 2, 3), "names": None},
        "action": vector(2),
        "next.reward": scalar("float32"),
        "next.done": scalar("bool"),
        "next.truncated": scalar("bool"),
        "next.success": scalar("bool"),
        "counter": scalar("int64"),
        "small": scalar("uint8"),
        "flags": vector(2, "bool"),
        "note": {"dtype": "string", "shape": (1,), "names": None},
    }
    rng = np.random.default_rng(seed)
    made = []
    for e in range(episodes):
        frames = 4 + 3 * e
        ends = np.arange(frames) == frames - 1
        made.append(
            {
                "observation.state": rng.standard_normal((frames, 3), np.float32),
                "observation.environment_state": rng.standard_normal((frames, 4)),
                "observation.grid": rng.standard_normal((frames, 2, 3), np.float32),
                "observation.deep": rng.integers(-9, 9, (frames, 2, 2, 3), np.int32),
                "action": rng.standard_normal((frames, 2), np.float32),
                "next.reward": rng.standard_normal((frames, 1), np.float32),
                "next.done": ends[:, None],
                "next.truncated": (ends & bool(e % 2))[:, None],
                "next.success": (ends & (e == 2))[:, None],
                "counter": np.arange(frames)[:, None] + 2**20,
                "small": rng.integers(0, 255, (frames, 1), np.uint8),
                "flags": rng.integers(0, 2, (frames, 2)).astype(np.bool_),
                "note": [f"note {e}.{t} é" for t in range(frames)],
                "task": [f"task {(e + (t > 5)) % 3}" for t in range(frames)],
            }
        )
    return features, made


def flat(seed: int = 2) -> tuple[dict[str, Any], list[Columns]]:
    """Numbers in at most one dimension: lerobot's converter and tools fail at its own types of more."""
    features, made = numbers(seed)
    return {name: told for name, told in features.items() if len(told["shape"]) == 1}, [
        {name: column for name, column in columns.items() if np.ndim(column) < 3} for columns in made
    ]


def pictures(dtypes: dict[str, str], seed: int = 0, episodes: int = 4, size: tuple[int, int] = (96, 128)) -> Any:
    """A state, an action, and a camera for each name."""
    features: dict[str, Any] = {"observation.state": vector(6), "action": vector(6)}
    features |= {f"observation.images.{name}": camera(*size, dtype) for name, dtype in dtypes.items()}
    rng = np.random.default_rng(seed)
    made = []
    for e in range(episodes):
        frames = 7 + 4 * e
        made.append(
            {
                "observation.state": rng.standard_normal((frames, 6), np.float32),
                "action": rng.standard_normal((frames, 6), np.float32),
                **{f"observation.images.{name}": smooth(rng, frames, *size) for name in dtypes},
                "task": ["lift the cube" if e % 2 else "push the cube"] * frames,
            }
        )
    return features, made


def record(folder: Path, features: dict[str, Any], episodes: list[Columns], **options: Any) -> Path:
    """Write a dataset by lerobot; `data_mb`, `video_mb` and `chunk` are the sizes of its files while it is written."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    sizes = {
        "data_files_size_in_mb": options.pop("data_mb", None),
        "video_files_size_in_mb": options.pop("video_mb", None),
        "chunks_size": options.pop("chunk", None),
    }
    made = LeRobotDataset.create(
        f"test/{folder.name}", fps=FPS, features=features, root=folder, robot_type="test", **options
    )
    usual = made.meta.get_chunk_settings()
    made.meta.update_chunk_settings(**sizes)
    for columns in episodes:
        for t in range(len(columns["task"])):
            made.add_frame({name: column[t] for name, column in columns.items()})
        made.save_episode()
    if sizes["chunks_size"] is None:
        made.meta.update_chunk_settings(**usual)
    made.finalize()
    return folder


SETS: dict[str, Callable[[Path], Path]] = {
    "numbers": lambda folder: record(folder, *numbers()),
    # Every episode in a file of its own, two files in a chunk.
    "number_files": lambda folder: record(folder, *numbers(1), data_mb=0.001, chunk=2),
    "flat_files": lambda folder: record(folder, *flat(), data_mb=0.001),
    "images": lambda folder: record(folder, *pictures({"front": "image", "wrist": "image"})),
    "av1": lambda folder: record(folder, *pictures({"front": "video", "wrist": "video"})),
    "h264": lambda folder: record(folder, *pictures({"front": "video"}), vcodec="h264"),
    "hevc": lambda folder: record(folder, *pictures({"front": "video"}), vcodec="hevc"),
    # Videos and Parquet files change at different episodes; a picture in Parquet beside a video.
    "video_files": lambda folder: record(
        folder, *pictures({"front": "video", "still": "image"}, episodes=6), vcodec="h264", data_mb=0.3, video_mb=0.02
    ),
}
"""What makes each set in a folder, by its name."""


def make(name: str, folder: Path) -> Path:
    """One set, in a folder of this name."""
    return SETS[name](folder / name)


def main() -> None:
    folder = Path(sys.argv[1])
    for name in sys.argv[2:] or SETS:
        print(make(name, folder))


if __name__ == "__main__":
    main()
