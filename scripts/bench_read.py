#!/usr/bin/env python3
"""Reading speed, in steps/s: RLDS records and D4RL files, against TFDS and h5py in the same run.

The data are made up here, HalfCheetah-shaped: 17 + 6 float32, reward, discount and three flags,
about 103 bytes a step, episodes of 1000 steps.  Contenders take turns, so that a change of the
machine's speed meets all of them; medians count.  A pass opens the dataset and reads all of it, as a
conversion does.  Peers that are not installed are left out and named.  With all of them:
``pip install "rlds2buf[tf-agents]"``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import rlds2buf
from rlds2buf.codecs.tfrecord.frames import frame
from rlds2buf.formats.rlds.source import RldsDirSource

OBSERVATION, ACTION, LENGTH = 17, 6, 1000
CORE = "tensorflow_datasets.core.features"
Pass = Callable[[], int]
"""One pass over some data; returns the number of steps it saw."""


# The data


def varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def delimited(field: int, payload: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(payload)) + payload


def record(columns: dict[str, np.ndarray]) -> bytes:
    """An episode as TFDS writes it: float lists, and flags as int64 lists (a byte each)."""
    entries = []
    for name, column in columns.items():
        kind = 2 if column.dtype == np.float32 else 3
        value = delimited(kind, delimited(1, column.tobytes()))
        entries.append(delimited(1, delimited(1, f"steps/{name}".encode()) + delimited(2, value)))
    return delimited(1, b"".join(entries))


def columns(rng: np.random.Generator) -> dict[str, np.ndarray]:
    row = np.arange(LENGTH)
    return {
        "observation": rng.standard_normal((LENGTH, OBSERVATION), np.float32),
        "action": rng.standard_normal((LENGTH, ACTION), np.float32),
        "reward": rng.standard_normal(LENGTH, np.float32) * (row < LENGTH - 1),
        "discount": np.ones(LENGTH, np.float32),
        "is_first": row == 0,
        "is_last": row == LENGTH - 1,
        "is_terminal": np.zeros(LENGTH, np.bool_),
    }


def tensor(shape: tuple[int, ...], dtype: str) -> dict[str, Any]:
    dims = {"dimensions": [str(n) for n in shape]} if shape else {}
    return {
        "pythonClassName": f"{CORE}.tensor_feature.Tensor",
        "tensor": {"shape": dims, "dtype": dtype, "encoding": "none"},
    }


def features_dict(features: dict[str, Any]) -> dict[str, Any]:
    return {"pythonClassName": f"{CORE}.features_dict.FeaturesDict", "featuresDict": {"features": features}}


def write_rlds(folder: Path, episodes: int, shards: int = 4) -> Path:
    """A version folder as TFDS lays it out."""
    rng = np.random.default_rng(0)
    folder = folder / "halfcheetah" / "1.0.0"
    folder.mkdir(parents=True)
    lengths = [len(part) for part in np.array_split(np.arange(episodes), shards)]
    for i, count in enumerate(lengths):
        path = folder / f"halfcheetah-train.tfrecord-{i:05d}-of-{shards:05d}"
        path.write_bytes(b"".join(frame(record(columns(rng))) for _ in range(count)))
    steps = {
        name: tensor(c.shape[1:], "float32" if c.dtype == np.float32 else "bool") for name, c in columns(rng).items()
    }
    dataset = {
        "pythonClassName": f"{CORE}.dataset_feature.Dataset",
        "sequence": {"feature": features_dict(steps), "length": "-1"},
    }
    (folder / "features.json").write_text(json.dumps(features_dict({"steps": dataset})))
    split = {"name": "train", "numBytes": "1", "shardLengths": [str(n) for n in lengths]}
    info = {"name": "halfcheetah", "version": "1.0.0", "fileFormat": "tfrecord", "splits": [split]}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    return folder


def write_d4rl(path: Path, rows: int) -> Path:
    """An uncompressed file of `rows` rows, laid out as D4RL's version 2 files are."""
    import h5py

    rng = np.random.default_rng(0)
    row = np.arange(rows)
    with h5py.File(path, "w") as file:
        observations = rng.standard_normal((rows + 1, OBSERVATION), np.float32)
        file["observations"] = observations[:-1]
        file["next_observations"] = observations[1:]
        file["actions"] = rng.standard_normal((rows, ACTION), np.float32)
        file["rewards"] = rng.standard_normal(rows, np.float32)
        file["terminals"] = np.zeros(rows, np.bool_)
        file["timeouts"] = row % LENGTH == LENGTH - 1
    return path


# Who reads it


def rlds_columns(folder: Path) -> Pass:
    """From the path to every column of every episode, as an array of its own; checksums compared."""
    return lambda: sum(episode.num_steps for episode in RldsDirSource(folder))


def tfds_batches(folder: Path) -> Pass:
    """TFDS as its guides show it: nested datasets, flattened, in batches of 1024 steps."""
    import tensorflow_datasets as tfds

    def run() -> int:
        dataset = tfds.builder_from_directory(folder).as_dataset(split="train")
        flat = dataset.flat_map(lambda episode: episode["steps"]).batch(1024)
        return sum(int(batch["reward"].shape[0]) for batch in flat)

    return run


def skip_decoding(folder: Path) -> Any:
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(folder)
    return builder.as_dataset(split="train", decoders={"steps": tfds.decode.SkipDecoding()})


def tfds_skip_decoding(folder: Path) -> Pass:
    """TFDS told to leave the steps of an episode in one piece."""
    return lambda: sum(int(episode["steps"]["reward"].shape[0]) for episode in skip_decoding(folder))


def tfds_skip_decoding_again(folder: Path) -> Pass:
    """The same dataset iterated again: without building its pipeline, which is most of the time here."""
    dataset = skip_decoding(folder)
    return lambda: sum(int(episode["steps"]["reward"].shape[0]) for episode in dataset)


def tfds_skip_decoding_batches(folder: Path) -> Pass:
    """The same, cut into steps again, in batches of 1024."""
    import tensorflow as tf

    def run() -> int:
        flat = skip_decoding(folder).flat_map(lambda e: tf.data.Dataset.from_tensor_slices(e["steps"])).batch(1024)
        return sum(int(batch["reward"].shape[0]) for batch in flat)

    return run


def tfds_steps(folder: Path) -> Pass:
    """TFDS step by step, of two episodes only."""
    import tensorflow_datasets as tfds

    def run() -> int:
        dataset = tfds.builder_from_directory(folder).as_dataset(split="train[:2]")
        return sum(1 for episode in dataset for step in episode["steps"])

    return run


def rlds_to_buffer(folder: Path) -> Pass:
    """The whole way: read, validate every episode, store it in a circular buffer."""
    source = RldsDirSource(folder)
    episodes = source.num_episodes
    buffer = rlds2buf.make_circular(source.spec, episodes * LENGTH)

    def run() -> int:
        buffer.clear()
        return int(rlds2buf.convert(source, buffer).steps)

    return run


def copy_columns(folder: Path) -> Pass:
    """The bytes of those columns copied into arrays that are there already: what memory alone allows."""
    source = RldsDirSource(folder)
    parts = [[column for _, column in episode.flatten()] for episode in source]
    wholes = [np.concatenate(same) for same in zip(*parts, strict=True)]

    def run() -> int:
        for i, part in enumerate(parts):
            for whole, column in zip(wholes, part, strict=True):
                whole[i * LENGTH : (i + 1) * LENGTH] = column
        return len(parts) * LENGTH

    return run


def d4rl_to_buffer(path: Path) -> Pass:
    """The whole way for HDF5, validation included."""
    source = rlds2buf.open_source(path)
    buffer = rlds2buf.make_circular(source.spec, source.num_steps)

    def run() -> int:
        buffer.clear()
        rlds2buf.convert(source, buffer)
        return ROWS

    return run


def d4rl_batches_to_buffer(path: Path) -> Pass:
    """The fast lane, without validation: several episodes at a time."""
    source = rlds2buf.open_source(path)
    buffer = rlds2buf.make_circular(source.spec, source.num_steps)

    def run() -> int:
        buffer.clear()
        for batch in source.batches():
            buffer.add(batch)
        return ROWS

    return run


def h5py_columns(path: Path) -> Pass:
    """h5py reading whole columns, of those that end up in the buffer."""
    import h5py

    def run() -> int:
        with h5py.File(path, "r") as file:
            read = [file[name][:] for name in ("observations", "actions", "rewards", "terminals", "timeouts")]
        return len(read[0])

    return run


ROWS = 1_000_000

RLDS = {
    "rlds2buf, all columns": (rlds_columns, None),
    "TFDS, flat_map + batch(1024)": (tfds_batches, "tensorflow_datasets"),
    "TFDS, SkipDecoding": (tfds_skip_decoding, "tensorflow_datasets"),
    "TFDS, SkipDecoding, iterated again": (tfds_skip_decoding_again, "tensorflow_datasets"),
    "TFDS, SkipDecoding + batch(1024)": (tfds_skip_decoding_batches, "tensorflow_datasets"),
    "TFDS, step by step": (tfds_steps, "tensorflow_datasets"),
    "rlds2buf, validated, into a buffer": (rlds_to_buffer, None),
    "copying the columns in memory": (copy_columns, None),
}
D4RL = {
    "rlds2buf, into a buffer": (d4rl_batches_to_buffer, None),
    "rlds2buf, validated, into a buffer": (d4rl_to_buffer, None),
    "h5py, columns": (h5py_columns, "h5py"),
}


def measure(
    contenders: dict[str, tuple[Callable[[Path], Pass], str | None]], path: Path, rounds: int
) -> dict[str, float]:
    """Median steps/s of each, in turns, after one pass to warm up."""
    passes = {}
    for name, (make, package) in contenders.items():
        if package is not None and importlib.util.find_spec(package) is None:
            print(f"({name}: {package} is not installed, left out)")
        else:
            passes[name] = make(path)
    speeds: dict[str, list[float]] = {name: [] for name in passes}
    for turn in range(rounds + 1):
        for name, run in passes.items():
            start = time.perf_counter()
            steps = run()
            if turn:
                speeds[name].append(steps / (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in speeds.items()}


def main() -> None:
    """Print one row per contender: steps/s, and the first one's as a multiple of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=300, help="of 1000 steps each, in the RLDS dataset")
    parser.add_argument("--rows", type=int, default=ROWS, help="of the D4RL file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    globals()["ROWS"] = options.rows
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with tempfile.TemporaryDirectory() as folder:
        results = {
            f"RLDS records, {options.episodes:,} episodes": measure(
                RLDS, write_rlds(Path(folder), options.episodes), options.rounds
            ),
            f"D4RL HDF5, {options.rows:,} rows": measure(
                D4RL, write_d4rl(Path(folder) / "halfcheetah.hdf5", options.rows), options.rounds
            ),
        }
    if options.json:
        print(json.dumps(results))
        return
    for title, speeds in results.items():
        first = next(iter(speeds.values()))
        print(f"{title}, median of {options.rounds}")
        for name, speed in speeds.items():
            print(f"  {name:36s} {speed:12,.0f} steps/s   {first / speed:7.2f}x")


if __name__ == "__main__":
    main()
