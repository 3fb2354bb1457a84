#!/usr/bin/env python3
"""LeRobot datasets written, read and brought to v3.0: against the real lerobot, the encoder, the decoder and copying.

write     RLDS (observation [17], action [6], reward) to LeRobot v3.0, read, checked, written and synced; lerobot's
          ``add_frame`` and ``save_episode`` on the same rows in memory, of which it gets fewer: a rate is compared
pictures  RLDS with a camera of 256 x 256 JPEGs to LeRobot with a video, of lerobot's codec and settings; lerobot's own
          way from pictures in memory; PyAV encoding such pictures into one file, and nothing else
numbers   the LeRobot dataset of numbers into a buffer, validated; lerobot's ``ds[i]`` one by one (of fewer), and four
          columns of its ``hf_dataset`` as numpy's
video     the one with a video into a buffer; PyAV decoding the same frames to RGB, with as many threads for a file, or
          with a thread for each of as many files
upgrade   v2.1 to v3.0, 100 episodes with a video of 2 MB each; copying all its files.  Each syncs

That both wrote and read the same is asserted: numbers value by value, pictures by their distance.
``scripts/bench_all`` makes the environment with lerobot 0.4.4 (``.venv/lerobot``).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("SVT_LOG", "1")

import av
import numpy as np
from bench import ACTION, OBSERVATION, Bench, ByLength, Camera, Pass, columns, cut, jpegs, turns

import rlds2buf
from rlds2buf import Episode

PARTS = ["write", "pictures", "numbers", "video", "upgrade"]
FPS = 10
SIDE = 256
CORES = os.cpu_count() or 1
CODEC = {"g": "2", "crf": "30", "preset": "12"}
"""lerobot's settings of libsvtav1."""
OURS = "rlds2buf"
SAVED = "lerobot, add_frame + save_episode"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """lerobot, its bars and the encoders tell much on standard error."""
    import datasets

    datasets.disable_progress_bars()
    logging.disable(logging.WARNING)
    with open(os.devnull, "w") as nowhere:
        kept = os.dup(2)
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            av.logging.set_libav_level(av.logging.PANIC)  # lerobot leaves it talking


def emptied(folder: Path) -> Any:
    """Who removes what was written before: outside of the time."""

    def clear(name: str) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()

    return clear


# The data


def scenes(frames: int, seed: int) -> np.ndarray:
    """``[T, 256, 256, 3] uint8``: a textured scene that moves, as a camera sees it, with some noise."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (24, 24, 3)).astype(np.float32)
    grown = np.kron(coarse, np.ones((16, 16, 1), np.float32))
    for axis in (0, 1):
        for shift in (1, 2, 4, 8):
            grown = (grown + np.roll(grown, shift, axis)) / 2
    noise = rng.normal(0, 3, (SIDE, SIDE, 3)).astype(np.float32)
    out = np.empty((frames, SIDE, SIDE, 3), np.uint8)
    for t in range(frames):
        left = t % 128
        out[t] = (grown[left // 2 : left // 2 + SIDE, left : left + SIDE] + np.roll(noise, t, 0)).clip(0, 255)
    return out


def write_pictures(path: Path, count: int, length: int) -> Path:
    """RLDS of a robot with a camera, whose pictures are JPEG files."""
    made = []
    for i, part in enumerate(cut(columns(count * length, length), length)):
        observation = {"image": jpegs(scenes(length, i)), "state": part["observation"]}
        made.append(Episode(**{**part, "observation": observation}))
    rlds2buf.convert(Camera(made, SIDE), path, to="rlds")
    return path


def write_numbers(path: Path, steps: int, length: int) -> Path:
    """RLDS without a camera."""
    rlds2buf.convert([Episode(**part) for part in cut(columns(steps, length), length)], path, to="rlds")
    return path


def converted(source: Path, target: Path, **options: Any) -> Path:
    """Our conversion to LeRobot."""
    options = {"fps": FPS, "task_text": "do it"} | options
    report = rlds2buf.convert(source, target, to="lerobot", sink_options=options)
    assert report.episodes == report.read, report
    return target


def convert(source: Path, target: Path, steps: int, **options: Any) -> Pass:
    """The whole way, validation and the last sync included."""

    def run() -> int:
        converted(source, target, **options)
        return steps

    return run


# lerobot


def features(picture: bool) -> dict[str, Any]:
    """The features of the data above."""
    told = {
        "observation.state": {"dtype": "float32", "shape": (OBSERVATION,), "names": None},
        "action": {"dtype": "float32", "shape": (ACTION,), "names": None},
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
    }
    if picture:
        names = ["height", "width", "channels"]
        told["observation.images.image"] = {"dtype": "video", "shape": (SIDE, SIDE, 3), "names": names}
    return told


def saved(target: Path, parts: list[dict[str, np.ndarray]], pictures: list[np.ndarray] | None = None) -> Pass:
    """lerobot's own writing."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    def run() -> int:
        with quiet():
            made = LeRobotDataset.create("made/bench", fps=FPS, features=features(bool(pictures)), root=target)
            for i, part in enumerate(parts):
                for t in range(len(part["reward"])):
                    frame = {
                        "observation.state": part["observation"][t],
                        "action": part["action"][t],
                        "next.reward": part["reward"][t : t + 1],
                        "task": "do it",
                    }
                    if pictures:
                        frame["observation.images.image"] = pictures[i][t]
                    made.add_frame(frame)
                made.save_episode()
            made.finalize()
        return sum(len(part["reward"]) for part in parts)

    return run


def opened(path: Path) -> Any:
    """The real lerobot's reader."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    with quiet():
        return LeRobotDataset("made/bench", root=path, video_backend="torchcodec")


# Writing


def write(bench: Bench, folder: Path, steps: int) -> None:
    """Numbers."""
    target = folder / "out"

    def make(length: int) -> dict[str, Pass]:
        path = write_numbers(folder / f"rlds{length}", steps, length)
        few = cut(columns(steps, length), length)[: max(1, steps // 100 // length)]
        return {OURS: convert(path, target / "ours", steps), SAVED: saved(target / "theirs", few)}

    found = ByLength(bench, "RLDS without pictures to LeRobot v3.0", make, clear=emptied(target))
    found.against("RLDS without pictures to LeRobot v3.0", OURS, SAVED, 100, 100)
    dataset = opened(converted(folder / "rlds1000", target / "ours"))
    rows = dataset.hf_dataset.with_format("numpy")
    for name, column in (("observation.state", "observation"), ("action", "action")):
        assert np.array_equal(rows[name][:], columns(steps, 1000)[column])


def encode(path: Path, frames: np.ndarray, codec: str = "libsvtav1") -> int:
    """PyAV's encoder, and nothing else; returns the number of frames."""
    with quiet(), av.open(str(path), "w") as container:
        options = {key: value for key, value in CODEC.items() if codec == "libsvtav1" or key != "preset"}
        stream = container.add_stream(codec, FPS, options=options)
        stream.pix_fmt, stream.width, stream.height = "yuv420p", SIDE, SIDE
        stream.time_base = Fraction(1, FPS)
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return len(frames)


def pictures(bench: Bench, folder: Path, steps: int) -> None:
    """A camera."""
    length, target = 200, folder / "out"
    count = max(1, steps // length)
    path = write_pictures(folder / "rlds", count, length)
    # What everybody encodes is what the JPEG files hold.
    with rlds2buf.open_source(path) as source:
        decoded = [np.asarray(episode.observation["image"]) for episode in source]
    frames, few = np.concatenate(decoded), cut(columns(length, length), length)
    makers = {
        OURS: convert(path, target / "ours", len(frames)),
        SAVED: saved(target / "theirs", few, decoded),
        "PyAV, encoding alone": lambda: encode(target / "alone.mp4", frames),
        "rlds2buf, H.264": convert(path, target / "h264", len(frames), codec="h264"),
        "PyAV, encoding H.264 alone": lambda: encode(target / "alone264.mp4", frames, "h264"),
    }
    rates = turns(makers, bench.rounds, emptied(target))
    bench.show(f"RLDS with JPEGs of {SIDE} x {SIDE} to LeRobot with a video", rates)
    work = f"RLDS with JPEGs of {SIDE} x {SIDE} to LeRobot video"
    bench.ratio(work, rates, OURS, SAVED, least=3)
    bench.ratio(work, rates, OURS, "PyAV, encoding alone", least=0.85)
    bench.ratio(f"{work}, H.264", rates, "rlds2buf, H.264", "PyAV, encoding H.264 alone")
    dataset = opened(converted(path, target / "ours"))
    for i in (0, len(frames) - 1):
        picture = np.moveaxis(dataset[i]["observation.images.image"].numpy(), 0, -1) * 255
        assert np.mean((picture - frames[i]) ** 2) < 100, "another picture"


# Reading


def validated(path: Path, steps: int) -> Pass:
    """Read, check every episode, store it in a circular buffer whose memory is there."""
    with rlds2buf.open_source(path) as opened:
        buffer = rlds2buf.make_circular(opened.spec, steps + 1, seed=0)

    def run() -> int:
        buffer.clear()
        with rlds2buf.open_source(path) as source:
            report = rlds2buf.convert(source, buffer, final_transition="drop")
        assert report.episodes == report.read, report
        return steps

    return run


def numbers(bench: Bench, folder: Path, steps: int) -> None:
    """Numbers into a buffer."""

    def make(length: int) -> dict[str, Pass]:
        path = converted(write_numbers(folder / f"rlds{length}", steps, length), folder / f"lerobot{length}")
        dataset = opened(path)
        few = min(steps, 5000)

        def one_by_one() -> int:
            return len([dataset[i] for i in range(few)])

        def as_columns() -> int:
            rows = dataset.hf_dataset.with_format("numpy")
            return min(len(rows[name][:]) for name in ("observation.state", "action", "next.reward", "next.done"))

        return {OURS: validated(path, steps), "lerobot, ds[i]": one_by_one, "lerobot, hf_dataset columns": as_columns}

    found = ByLength(bench, "LeRobot v3.0 without pictures into a buffer", make)
    work = "LeRobot numbers validated into a buffer"
    found.against(work, OURS, "lerobot, ds[i]", 50, 50)
    found.against(work, OURS, "lerobot, hf_dataset columns", 0.3, 0.3)


def decode(path: Path, threads: int) -> int:
    """PyAV's decoder, every frame as RGB, and nothing else."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.thread_type, stream.codec_context.thread_count = "AUTO", threads
        return sum(len(frame.to_ndarray(format="rgb24")) // SIDE for frame in container.decode(stream))


def video(bench: Bench, folder: Path, steps: int) -> None:
    """Videos into a buffer: all episodes in one, as v3.0 has them, and one for each."""
    length = 100
    count = max(2, steps // length)
    steps = count * length
    rlds = write_pictures(folder / "rlds", count, length)
    one = converted(rlds, folder / "one")
    many = converted(rlds, folder / "many", version="2.1")
    (file,), files = one.glob("videos/*/*/*.mp4"), sorted(many.glob("videos/*/*/*.mp4"))
    dataset, few = opened(one), min(steps, 200)

    def pooled() -> int:
        with ThreadPoolExecutor(CORES) as pool:
            return sum(pool.map(lambda file: decode(file, 1), files))

    makers = {
        OURS: validated(one, steps),
        f"PyAV, {CORES} threads": lambda: decode(file, CORES),
        "lerobot, ds[i]": lambda: len([dataset[i] for i in range(few)]),
        "rlds2buf, a video for each episode": validated(many, steps),
        f"PyAV, {CORES} videos at a time": pooled,
    }
    rates = turns(makers, bench.rounds)
    bench.show(f"LeRobot with a video of {SIDE} x {SIDE} into a buffer", rates)
    work = "LeRobot video validated into a buffer"
    bench.ratio(work, rates, OURS, f"PyAV, {CORES} threads", least=0.85)
    bench.ratio(work, rates, OURS, "lerobot, ds[i]")
    apart = "rlds2buf, a video for each episode"
    bench.ratio(f"{work}, one for each episode", rates, apart, f"PyAV, {CORES} videos at a time")


# From version to version


def write_older(folder: Path, episodes: int, length: int) -> Path:
    """A v2.1 dataset by hand, a video of about 2 MB for each episode; only a few of the videos differ."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    camera = "observation.images.image"
    rng = np.random.default_rng(0)
    kinds = 4
    data, videos = folder / "data/chunk-000", folder / f"videos/chunk-000/{camera}"
    for made in (data, videos, folder / "meta"):
        made.mkdir(parents=True)
    for e in range(kinds):
        noise = rng.integers(0, 96, (length, SIDE, SIDE, 3), np.uint8)
        encode(videos / f"episode_{e:06d}.mp4", (scenes(length, e) // 2 + noise).astype(np.uint8), "h264")
    lines: dict[str, list[Any]] = {"tasks": [{"task_index": 0, "task": "do it"}], "episodes": [], "episodes_stats": []}
    for e in range(episodes):
        if e >= kinds:
            shutil.copyfile(videos / f"episode_{e % kinds:06d}.mp4", videos / f"episode_{e:06d}.mp4")
        vectors = {
            name: rng.standard_normal((length, size), np.float32)
            for name, size in (("observation.state", OBSERVATION), ("action", ACTION))
        }
        scalars = {
            "timestamp": (np.arange(length) / FPS).astype(np.float32),
            "frame_index": np.arange(length),
            "episode_index": np.full(length, e),
            "index": np.arange(length) + e * length,
            "task_index": np.zeros(length, np.int64),
        }
        rows = {
            name: pa.FixedSizeListArray.from_arrays(pa.array(column.ravel()), column.shape[1])
            for name, column in vectors.items()
        }
        pq.write_table(pa.table({**rows, **scalars}), data / f"episode_{e:06d}.parquet")
        stats = {
            name: {
                key: np.atleast_1d(getattr(np, key)(column, axis=0)).tolist() for key in ("min", "max", "mean", "std")
            }
            for name, column in (vectors | scalars).items()
        }
        stats[camera] = {key: [[[0.5]]] * 3 for key in ("min", "max", "mean", "std")}
        for found in stats.values():
            found["count"] = [length]
        lines["episodes"].append({"episode_index": e, "tasks": ["do it"], "length": length})
        lines["episodes_stats"].append({"episode_index": e, "stats": stats})
    for name, told in lines.items():
        (folder / f"meta/{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in told))
    described = {name: told for name, told in features(True).items() if name != "next.reward"}
    described[camera]["info"] = {
        "video.height": SIDE,
        "video.width": SIDE,
        "video.codec": "h264",
        "video.pix_fmt": "yuv420p",
        "video.is_depth_map": False,
        "video.fps": FPS,
        "video.channels": 3,
        "has_audio": False,
    }
    for name, column in scalars.items():
        described[name] = {"dtype": str(column.dtype), "shape": [1], "names": None}
    info = {
        "codebase_version": "v2.1",
        "robot_type": None,
        "total_episodes": episodes,
        "total_frames": episodes * length,
        "total_tasks": 1,
        "total_videos": episodes,
        "total_chunks": 1,
        "chunks_size": 1000,
        "fps": FPS,
        "splits": {"train": f"0:{episodes}"},
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
        "features": described,
    }
    (folder / "meta/info.json").write_text(json.dumps(info))
    return folder


def copied(source: Path, target: Path) -> Pass:
    """Every file copied and synced."""

    def run() -> int:
        for file in source.rglob("*"):
            if file.is_file():
                out = target / file.relative_to(source)
                out.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, out)
                with open(out, "rb") as copy:
                    os.fsync(copy.fileno())
        return 1

    return run


def upgrade(bench: Bench, folder: Path, steps: int) -> None:
    """v2.1 to v3.0."""
    episodes, length, target = 100, max(20, min(200, steps // 5)), folder / "out"
    path = write_older(folder / "v21", episodes, length)

    def ours() -> int:
        rlds2buf.convert(path, target / "ours", to="lerobot")
        return 1

    makers = {OURS: ours, "copying the files": copied(path, target / "copy")}
    rates = turns(makers, bench.rounds, emptied(target))
    size = sum(file.stat().st_size for file in path.rglob("*.mp4"))
    megabytes = {name: [rate * size / 1e6 for rate in found] for name, found in rates.items()}
    bench.show(f"v2.1 to v3.0, {episodes} episodes with {size / 1e6:.0f} MB of video", megabytes, "MB/s")
    bench.ratio("v2.1 to v3.0 of 100 episodes with video", rates, OURS, "copying the files", least=1 / 3)
    ours()
    dataset = opened(target / "ours")
    assert len(dataset) == episodes * length and dataset[len(dataset) - 1]["observation.images.image"].shape[1] == SIDE


def main() -> None:
    """Measure and print."""
    bench = Bench(__doc__, rounds=3, parts=PARTS, steps=200_000)
    cache = tempfile.TemporaryDirectory(prefix="rlds2buf-bench-")
    os.environ["HF_HOME"] = cache.name  # where lerobot keeps a copy of what it opens
    times = {"pictures": 0.004, "video": 0.01, "upgrade": 0.005}
    for part in bench.options.parts:
        with bench.folder() as folder:
            globals()[part](bench, folder, int(bench.options.steps * times.get(part, 1)))
    cache.cleanup()
    bench.finish()


if __name__ == "__main__":
    main()
