#!/usr/bin/env python3
"""Windows sampled from a buffer: against lerobot's delta_timestamps, and cpprb's compressed stacks.

windows   2 observations (a 64 x 64 picture, a state) and 16 actions, batches of 64, of episodes of a LeRobot dataset
          whose pictures are PNG files in Parquet; lerobot's dataset with ``delta_timestamps``, by PyTorch's DataLoader
          in the same process. Ours has read it into a buffer, once as pixels and once as the same PNG files. Everybody
          gives PyTorch's tensors, pictures as float32 from 0 to 1, channels first
stack     the 4 newest of 84 x 84 frames, before and after a step, batches of 32; cpprb with ``stack_compress`` and
          ``next_of``. And the memory of both

That both give the same is asserted.  ``scripts/bench_all`` makes the environments, with lerobot 0.4.4 for the first
part and cpprb for the second; what is not installed is left out.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
from bench import Bench, Pass, peak, turns

import rlds2buf
from rlds2buf import Episode

PARTS = ["windows", "stack"]
FPS, SIDE, STATE, ACTION, LENGTH = 10, 64, 14, 7, 100
CHUNK, BATCH = 16, 64
FRAME, STACK, STACKED = 84, 4, 32
OURS = "rlds2buf"
LEROBOT = "lerobot, delta_timestamps"


# Windows


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
    if not bench.has("lerobot"):
        return
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


# Stacks


def frames_of(count: int) -> np.ndarray:
    """``[N, 84, 84] uint8``: frames that differ."""
    out = np.empty((count, FRAME, FRAME), np.uint8)
    out[:] = (np.arange(count) % 251).astype(np.uint8)[:, None, None]
    out[:, 0, :4] = np.arange(count, dtype="<u4")[:, None].view(np.uint8)
    return out


def stacked_ours(count: int, length: int = 1000) -> Any:
    """A buffer of episodes, whose frames are there once."""
    buffer = None
    frames = frames_of(count)
    for start in range(0, count, length):
        part = frames[start : start + length]
        rows = np.arange(len(part))
        ep = Episode(
            observation=part,
            action=rows.astype(np.int32),
            reward=rows.astype(np.float32),
            discount=np.ones(len(part), np.float32),
            is_terminal=rows == len(part) - 1,
        )
        if buffer is None:
            buffer = rlds2buf.make_circular(rlds2buf.spec_of(ep), count, seed=0, view={"stack": STACK})
        buffer.add(ep)
    return buffer


def stacked_cpprb(count: int, length: int = 1000) -> Any:
    """cpprb's, which is given the stacks and keeps each frame once."""
    import cpprb

    shape = (FRAME, FRAME, STACK)
    fields = {
        "obs": {"shape": shape, "dtype": np.uint8},
        "act": {"dtype": np.int32},
        "rew": {"dtype": np.float32},
        "done": {"dtype": np.uint8},
    }
    buffer = cpprb.ReplayBuffer(count, fields, next_of="obs", stack_compress="obs")
    frames = frames_of(count)
    for start in range(0, count, length):
        part = frames[start : start + length]
        for t in range(len(part) - 1):
            before, after = (
                np.stack([part[max(0, at - STACK + 1 + k)] for k in range(STACK)], -1) for at in (t, t + 1)
            )
            done = t == len(part) - 2
            buffer.add(obs=before, act=t, rew=t, next_obs=after, done=done)
            if done:
                buffer.on_episode_end()
    return buffer


def stack(bench: Bench, folder: Path, scale: float) -> None:
    """Frame stacks and their memory."""
    if not bench.has("cpprb"):
        return
    count = max(2000, int(20_000 * scale))
    ours, theirs = stacked_ours(count), stacked_cpprb(count)
    got, expected = ours.sample(200).data, theirs.sample(200)
    for seen, number in ((got.observation, got.action), (np.moveaxis(expected["obs"], -1, 1), expected["act"][:, 0])):
        newest = np.ascontiguousarray(seen[:, -1, 0, :4]).view("<u4")[:, 0]
        assert np.array_equal(newest % 1000, number)
        oldest = np.ascontiguousarray(seen[:, 0, 0, :4]).view("<u4")[:, 0]
        assert np.array_equal(np.minimum(number, STACK - 1), newest - oldest)

    def calls(sample: Any) -> Pass:
        def run() -> int:
            for _ in range(50):
                sample(STACKED)
            return 50

        return run

    rates = turns({OURS: calls(ours.sample), "cpprb, stack_compress": calls(theirs.sample)}, bench.rounds, calls=5)
    bench.show(f"stacks of {STACK} frames of {FRAME} x {FRAME}, before and after, batches of {STACKED}", rates, "us")
    bench.ratio(
        f"stack of 4 frames of {FRAME} x {FRAME}, batch {STACKED}", rates, OURS, "cpprb, stack_compress", least=1
    )
    here = Path(__file__).resolve().parent
    lead = f"import sys; sys.path.insert(0, {str(here)!r}); import bench_windows as b; b.frames_of({count}); "
    sizes = {name: peak(f"{lead} buffer = b.{name}({count})") for name in ("stacked_ours", "stacked_cpprb")}
    work = f"memory of {count:,} frames of {FRAME} x {FRAME} to be stacked"
    bench.figure(work, "cpprb, stack_compress", sizes["stacked_ours"] / sizes["stacked_cpprb"], most=1.05)


def main() -> None:
    """Measure and print."""
    bench = Bench(__doc__, rounds=5, parts=PARTS, scale=1.0)
    cache = tempfile.TemporaryDirectory(prefix="rlds2buf-bench-")
    os.environ["HF_HOME"] = cache.name  # where lerobot keeps a copy of what it opens
    for part in bench.options.parts:
        with bench.folder() as folder:
            globals()[part](bench, folder, bench.options.scale)
    cache.cleanup()
    bench.finish()


if __name__ == "__main__":
    main()
