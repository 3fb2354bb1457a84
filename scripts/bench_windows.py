#!/usr/bin/env python3
"""Windows sampled from a buffer, against lerobot's delta_timestamps.

2 observations (a 64 x 64 picture, a state) and 16 actions, batches of 64, of episodes of a LeRobot dataset whose
pictures are PNG files in Parquet; lerobot's dataset with ``delta_timestamps``, by PyTorch's DataLoader in the same
process.  Ours has read it into a buffer, once as pixels and once as the same PNG files.  Everybody gives PyTorch's
tensors, pictures as float32 from 0 to 1, channels first; that they are the same ones is asserted.

``scripts/bench_all`` makes the environment with lerobot 0.4.4 (``.venv/lerobot``).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
from bench import Bench, Pass, turns

import rlds2buf

FPS, SIDE, STATE, ACTION, LENGTH = 10, 64, 14, 7, 100
CHUNK, BATCH = 16, 64
OURS = "rlds2buf"
LEROBOT = "lerobot, delta_timestamps"


def write_lerobot(folder: Path, frames: int) -> Path:
    """Episodes as lerobot's recorder writes them, pictures as PNG files in Parquet."""
    import logging

    import datasets
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    datasets.disable_progress_bars()
    logging.disable(logging.WARNING)
    features = {
        "observation.images.top": {
            "dtype": "image",
            "shape": (SIDE, SIDE, 3),
            "names": ["height", "width", "channels"],
        },
        "observation.state": {"dtype": "float32", "shape": (STATE,), "names": None},
        "action": {"dtype": "float32", "shape": (ACTION,), "names": None},
        "next.done": {"dtype": "bool", "shape": (1,), "names": None},
    }
    rng = np.random.default_rng(0)
    made = LeRobotDataset.create("made/bench", fps=FPS, features=features, root=folder, use_videos=False)
    for _ in range(max(2, frames // LENGTH)):
        scene = np.kron(rng.integers(0, 256, (16, 16, 3), np.uint8), np.ones((8, 8, 1), np.uint8))
        for t in range(LENGTH):
            left = t % SIDE
            made.add_frame(
                {
                    "observation.images.top": scene[left // 2 : left // 2 + SIDE, left : left + SIDE],
                    "observation.state": rng.standard_normal(STATE, np.float32),
                    "action": rng.standard_normal(ACTION, np.float32),
                    "next.done": np.array([t == LENGTH - 1]),
                    "task": "do it",
                }
            )
        made.save_episode()
    made.finalize()
    return folder


def lerobots(path: Path) -> Any:
    """The real lerobot's dataset, with windows."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    before = [-1 / FPS, 0.0]
    deltas = {
        "observation.images.top": before,
        "observation.state": before,
        "action": [i / FPS for i in range(CHUNK)],
    }
    return LeRobotDataset("made/bench", root=path, delta_timestamps=deltas)


def loaded(path: Path, images: str | None) -> Any:
    """A buffer with all the dataset's steps; with `images` of ``"encoded"`` pictures stay PNG files."""
    options = {} if images is None else {"images": images}
    with rlds2buf.open_source(path, **options) as source:
        rows = source.num_steps + source.num_episodes
        view = {"offsets": {"observation": [-1 / FPS, 0], "action": [i / FPS for i in range(CHUNK)]}, "fps": FPS}
        buffer = rlds2buf.make_circular(source.spec, rows, seed=0, view=view)
        rlds2buf.convert(source, buffer, final_transition="keep")
    return buffer


def as_pixels(pictures: Any) -> Any:
    """``[B, K, C, H, W] float32`` of ``[B, K, H, W, C] uint8``."""
    import torch

    return torch.from_numpy(pictures).permute(0, 1, 4, 2, 3).float().div_(255)


def ours_of(buffer: Any, data: Any) -> dict[str, Any]:
    """A batch as lerobot gives it."""
    import torch

    seen = data.observation
    return {
        "observation.images.top": as_pixels(seen["images"]["top"]),
        "observation.state": torch.from_numpy(seen["state"]),
        "action": torch.from_numpy(data.action),
        "action_is_pad": torch.from_numpy(data.is_pad["action"]),
        "observation.state_is_pad": torch.from_numpy(data.is_pad["observation"]),
    }


def windows(bench: Bench, folder: Path, scale: float) -> None:
    """Histories and chunks of actions."""
    import torch

    path = write_lerobot(folder / "made", int(4000 * scale))
    dataset = lerobots(path)
    loader = torch.utils.data.DataLoader(dataset, batch_size=BATCH, shuffle=True, drop_last=True)
    batches = iter(loader)
    buffers = {f"{OURS}, pixels": loaded(path, None), f"{OURS}, PNG files": loaded(path, "encoded")}
    for buffer in buffers.values():
        assert_same(dataset, buffer)

    def theirs() -> int:
        nonlocal batches
        try:
            next(batches)
        except StopIteration:
            batches = iter(loader)
            next(batches)
        return BATCH

    def mine(buffer: Any) -> Pass:
        def run() -> int:
            for _ in range(10):
                ours_of(buffer, buffer.sample(BATCH).data)
            return 10 * BATCH

        return run

    rates = turns({**{name: mine(buffer) for name, buffer in buffers.items()}, LEROBOT: theirs}, bench.rounds, calls=5)
    bench.show(f"windows of 2 pictures of {SIDE} x {SIDE} and {CHUNK} actions, batches of {BATCH}", rates, "windows/s")
    for name in buffers:
        kept = name.removeprefix(f"{OURS}, ")
        bench.ratio(f"windows of 2 observations, 16 actions, kept as {kept}", rates, name, LEROBOT, least=10)


def assert_same(dataset: Any, buffer: Any) -> None:
    """Every value of some windows, their padding too."""
    some = np.unique(np.linspace(0, len(dataset) - 1, 60).astype(int))
    keys = buffer.keys()
    assert len(keys) == len(dataset), (len(keys), len(dataset))
    mine = ours_of(buffer, buffer.get(keys[some]))
    for row, i in enumerate(some.tolist()):
        theirs = dataset[i]
        for name, values in mine.items():
            assert np.allclose(values[row].numpy(), theirs[name].numpy(), atol=1e-6), (i, name)


def main() -> None:
    """Measure and print."""
    bench = Bench(__doc__, rounds=5, scale=1.0)
    with bench.folder() as folder:
        os.environ["HF_HOME"] = str(folder / "cache")  # where lerobot keeps a copy of what it opens
        windows(bench, folder, bench.options.scale)
    bench.finish()


if __name__ == "__main__":
    main()
