#!/usr/bin/env python3
"""Robot data with pictures: RLDS records into a buffer, decoded, against TFDS decoding the same ones.

The records are those of the Bridge dataset (four 64 x 64 JPEG pictures a step), repeated, with the last
step flagged, which they leave out; and the same with every picture enlarged to 256 x 256 and encoded
again.  Contenders take turns, so that a change of
the machine's speed meets all of them; medians count, and the ratio is that of each round's pair.
That everybody decodes the same pixels is asserted first, by their sum.  Then the peak memory of
converting 1x and 8x the records to a folder is compared, decoded and encoded, each in a process of
its own.  TFDS is left out where it is not installed: ``pip install "rlds2buf[tf-agents]"``.

python scripts/bench_convert_images.py path/to/bridge_dataset/1.0.0
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from bench_memory import BAR as MEMORY_BAR
from bench_read import delimited
from PIL import Image

import rlds2buf
from rlds2buf.codecs.images.turbo import turbo_decoder
from rlds2buf.codecs.tfrecord.example import parse_example
from rlds2buf.codecs.tfrecord.frames import frame, read_records
from rlds2buf.formats.rlds.source import RldsDirSource

SPEED_BAR = 1.5
PICTURES = [f"image_{i}" for i in range(4)]
Pass = Callable[[], int]
"""One pass over some data; returns the number of steps it saw."""


# The data


def folder_of(source: Path, target: Path, times: int, size: int | None) -> Path:
    """The dataset so many times over, perhaps with pictures of another size.

    Every copy's files differ by a comment in their headers, so that nobody can store them once.
    """
    target.mkdir(parents=True)
    (shard,) = source.glob("*.tfrecord-*")
    records = [split_record(record, size) for record in read_records(shard)]
    with open(target / shard.name, "wb") as file:
        for copy in range(times):
            comment = b"\xff\xfe\x00\x0a" + copy.to_bytes(8, "big")
            for record in records:
                file.write(frame(joined_record(record, comment)))
    info = json.loads((source / "dataset_info.json").read_text())
    for split in info["splits"]:
        split["shardLengths"] = [str(int(n) * times) for n in split["shardLengths"]]
    (target / "dataset_info.json").write_text(json.dumps(info))
    features = json.loads((source / "features.json").read_text())
    (target / "features.json").write_text(json.dumps(features if size is None else with_size(features, size)))
    return target


Entry = tuple[str, int, bytes | list[bytes]]
"""Name, kind and values of a feature; pictures as the files they are."""


def split_record(record: bytes, size: int | None) -> list[Entry]:
    """The features of a record, its last step flagged, every picture in another size if one is given."""
    entries: list[Entry] = []
    for key, feature in parse_example(record).items():
        if key.rsplit("/", 1)[-1] in PICTURES:
            files = feature.strings()
            entries.append((key, feature.kind, files if size is None else [enlarged(file, size) for file in files]))
        elif key == "steps/is_last":
            steps = len(feature.ints())
            entries.append((key, feature.kind, delimited(1, bytes(steps - 1) + b"\x01")))
        else:
            entries.append((key, feature.kind, record[feature.start : feature.stop]))
    return entries


def joined_record(entries: list[Entry], comment: bytes) -> bytes:
    """The record of these features; `comment` goes into every picture, behind its first marker."""
    out = []
    for key, kind, value in entries:
        if isinstance(value, list):
            value = b"".join(delimited(1, file[:2] + comment + file[2:]) for file in value)
        out.append(delimited(1, delimited(1, key.encode()) + delimited(2, delimited(kind, value))))
    return delimited(1, b"".join(out))


def enlarged(data: bytes, size: int) -> bytes:
    image = Image.open(io.BytesIO(data)).resize((size, size), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)
    return file.getvalue()


def with_size(value: Any, size: int) -> Any:
    """features.json with another shape of every picture."""
    if not isinstance(value, dict):
        return value
    if "image" in value and "Image" in value.get("pythonClassName", ""):
        shape = {"dimensions": [str(size), str(size), "3"]}
        return {**value, "image": {**value["image"], "shape": shape}}
    return {key: with_size(child, size) for key, child in value.items()}


# Who reads it


def convert_to_buffer(folder: Path) -> Pass:
    """The whole way: read, decode, validate every episode, store it in a circular buffer."""
    source = RldsDirSource(folder)
    steps = sum(episode.num_steps for episode in RldsDirSource(folder, images="encoded"))
    buffer = rlds2buf.make_circular(source.spec, steps)

    def run() -> int:
        buffer.clear()
        return int(rlds2buf.convert(source, buffer).steps)

    return run


def read_episodes(folder: Path) -> Pass:
    """Decoded columns, one episode after the other."""
    return lambda: sum(episode.num_steps for episode in RldsDirSource(folder))


def read_encoded(folder: Path) -> Pass:
    """Columns of files, not decoded."""
    return lambda: sum(episode.num_steps for episode in RldsDirSource(folder, images="encoded"))


def read_resized(folder: Path) -> Pass:
    """Decoded and resized to half the size."""
    height = RldsDirSource(folder).spec.observation["image_0"].shape[0]
    return lambda: sum(episode.num_steps for episode in RldsDirSource(folder, resize=height // 2))


def tfds_dataset(folder: Path, **options: Any) -> Any:
    import tensorflow_datasets as tfds

    return tfds.builder_from_directory(folder).as_dataset(split="train", **options)


def count(batches: Any) -> int:
    import tensorflow_datasets as tfds

    return sum(len(batch["is_first"]) for batch in tfds.as_numpy(batches))


def tfds_flat(folder: Path) -> Pass:
    """TFDS as its guides show it: the steps of all episodes one behind the other, in batches."""
    import tensorflow as tf

    def run() -> int:
        steps = tfds_dataset(folder).flat_map(lambda episode: episode["steps"])
        return count(steps.batch(64).prefetch(tf.data.AUTOTUNE))

    return run


def tfds_interleaved(folder: Path) -> Pass:
    """The steps of several episodes decoded at a time, in any order."""
    import tensorflow as tf

    def run() -> int:
        steps = tfds_dataset(folder).interleave(
            lambda episode: episode["steps"],
            cycle_length=16,
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=False,
        )
        return count(steps.batch(64).prefetch(tf.data.AUTOTUNE))

    return run


def tfds_mapped(folder: Path) -> Pass:
    """Episodes left undecoded by TFDS, their pictures then decoded by hand, several episodes at a time."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    def decoded(episode: Any) -> Any:
        steps = episode["steps"]
        observation = dict(steps["observation"])
        for name in PICTURES:
            observation[name] = tf.map_fn(
                lambda file: tf.io.decode_image(file, channels=3, expand_animations=False),
                observation[name],
                fn_output_signature=tf.uint8,
            )
        return {**steps, "observation": observation}

    def run() -> int:
        episodes = tfds_dataset(folder, decoders={"steps": tfds.decode.SkipDecoding()})
        return count(episodes.map(decoded, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE))

    return run


OURS = {
    "rlds2buf, validated, into a buffer": convert_to_buffer,
    "rlds2buf, episodes": read_episodes,
    "rlds2buf, episodes, half the size": read_resized,
    "rlds2buf, episodes, kept encoded": read_encoded,
}
THEIRS = {
    "TFDS, flat_map + batch": tfds_flat,
    "TFDS, interleave + batch": tfds_interleaved,
    "TFDS, SkipDecoding + map": tfds_mapped,
}


def assert_equal_work(folder: Path) -> None:
    """The sum of all pixels is the same for us and for TFDS."""
    import tensorflow_datasets as tfds

    ours = sum(
        int(episode.observation[name].sum(dtype=np.int64)) for episode in RldsDirSource(folder) for name in PICTURES
    )
    steps = tfds_dataset(folder).flat_map(lambda episode: episode["steps"]).batch(64)
    theirs = sum(
        int(batch["observation"][name].sum(dtype=np.int64)) for batch in tfds.as_numpy(steps) for name in PICTURES
    )
    assert ours == theirs, (ours, theirs)


def measure(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Steps/s of each in every round, in turns, after one pass to warm up."""
    makers: dict[str, Callable[[Path], Pass]] = dict(OURS)
    if importlib.util.find_spec("tensorflow_datasets") is None:
        print("(TFDS is not installed, left out)", file=sys.stderr)
    else:
        assert_equal_work(folder)
        makers |= THEIRS
    passes = {name: make(folder) for name, make in makers.items()}
    speeds: dict[str, list[float]] = {name: [] for name in passes}
    for turn in range(rounds + 1):
        for name, run in passes.items():
            start = time.perf_counter()
            steps = run()
            if turn:
                speeds[name].append(steps / (time.perf_counter() - start))
    return speeds


def report(title: str, speeds: dict[str, list[float]]) -> float:
    """Print one row per contender; returns how many times the best of TFDS the first one reaches."""
    print(f"{title}, median of {len(next(iter(speeds.values())))}")
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    first = next(iter(medians))
    for name, speed in medians.items():
        ratio = statistics.median(a / b for a, b in zip(speeds[first], speeds[name], strict=True))
        print(f"  {name:36s} {speed:10,.0f} steps/s {4 * speed:10,.0f} pictures/s   {ratio:6.2f}x")
    peers = [name for name in THEIRS if name in medians]
    return min((medians[first] / medians[name] for name in peers), default=float("inf"))


# Memory


def peak(source: Path, target: Path, images: str) -> tuple[int, int]:
    """Peak resident bytes of a process that converts to a folder, and the steps it wrote."""
    # Linux's ru_maxrss starts at what the parent had, which TensorFlow has made large here; VmHWM does not.
    code = f"""
import json, pathlib, re, resource, sys, rlds2buf
report = rlds2buf.convert({str(source)!r}, {str(target)!r}, images={images!r})
status = pathlib.Path("/proc/self/status")
if status.exists():
    peak = int(re.search(r"VmHWM:\\s*(\\d+) kB", status.read_text())[1]) * 1024
else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(json.dumps([peak, report.steps]))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    shutil.rmtree(target)
    most, steps = json.loads(done.stdout)
    return most, steps


def compare_memory(title: str, folders: tuple[Path, Path], target: Path) -> float:
    """Print one line for decoded and encoded; returns by how much more memory 8x the data takes, at worst."""
    worst = 0.0
    for images in ("decoded", "encoded"):
        (one, steps), (eight, more) = (peak(path, target, images) for path in folders)
        print(
            f"{title}, {images}: {steps:,} steps {one / 2**20:.0f} MiB, {more:,} steps {eight / 2**20:.0f} MiB, "
            f"ratio {eight / one:.2f} (bar {MEMORY_BAR})"
        )
        worst = max(worst, eight / one)
    return worst


def main() -> None:
    """The command line; exits with 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bridge", type=Path, help="the version folder of a Bridge dataset of one shard")
    parser.add_argument("--times", type=int, default=16, help="how often its records are repeated")
    parser.add_argument("--size", type=int, default=256, help="of the enlarged pictures")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-memory", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    print("JPEG decoder:", "Pillow" if turbo_decoder() is None else "simplejpeg", file=sys.stderr)
    good = True
    for title, size, times in (
        ("64 x 64", None, options.times),
        (f"{options.size} x {options.size}", options.size, max(1, options.times // 8)),
    ):
        with tempfile.TemporaryDirectory() as name:
            once = folder_of(options.bridge, Path(name) / "1" / "1.0.0", times, size)
            ratio = report(f"Bridge, {title}", measure(once, options.rounds))
            print(f"  into a buffer at {ratio:.2f}x the best of TFDS (bar {SPEED_BAR})")
            good &= ratio >= SPEED_BAR
            if not options.no_memory:
                more = folder_of(options.bridge, Path(name) / "8" / "1.0.0", 8 * times, size)
                good &= compare_memory(f"Bridge, {title}", (once, more), Path(name) / "out") <= MEMORY_BAR
    sys.exit(int(not good))


if __name__ == "__main__":
    main()
