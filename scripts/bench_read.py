#!/usr/bin/env python3
"""Reading, and validating into a new buffer, episodes of 20 and of 1000 steps: against who reads the same files.

The data are made up here, HalfCheetah-shaped.  A pass opens the dataset and reads all of it, as a conversion does;
"validated" is the whole way: read, check every episode, store it in a circular buffer made for the purpose.

rlds      TFDS as its guides show it, and told to skip decoding; with checksums on both sides
d4rl      h5py reading the file's columns
minari    Minari's iterate_episodes
memory    np.concatenate of the episodes' columns
saved     a saved buffer: np.load of its files
logs      pyarrow reading the CSV, JSON Lines and Parquet file

Peers: ``pip install "rlds2buf[tf-agents,arrow]" minari``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from bench import Bench, ByLength, Pass, columns, cut, minari_buffers, write_d4rl, write_log, write_minari

import rlds2buf
from rlds2buf import Episode

PARTS = ["rlds", "d4rl", "minari", "memory", "saved", "logs"]
VALIDATED = "rlds2buf, validated, into a buffer"
BATCHES = "rlds2buf, batches into a buffer"
READ = "rlds2buf, episode by episode"


def validated(source: Any, steps: int, **options: Any) -> Pass:
    """Read, check every episode, store it in a new circular buffer."""

    def run() -> int:
        with rlds2buf.open_source(source, **options) as opened:
            buffer = rlds2buf.make_circular(opened.spec, 2 * steps, seed=0)
            report = rlds2buf.convert(opened, buffer)
        assert report.episodes == report.read, report
        return steps

    return run


def batches(source: Any, steps: int) -> Pass:
    """The fast lane, without validation."""

    def run() -> int:
        with rlds2buf.open_source(source) as opened:
            buffer = rlds2buf.make_circular(opened.spec, 2 * steps, seed=0)
            for batch in opened.batches():
                buffer.add(batch)
        return steps

    return run


def one_by_one(source: Any) -> Pass:
    """Every column of every episode as an array."""

    def run() -> int:
        with rlds2buf.open_source(source) as opened:
            return sum(max(len(np.asarray(column)) for _, column in e.flatten()) for e in opened)

    return run


def tfds_passes(folder: Path) -> dict[str, Pass]:
    """TFDS's ways to read a version folder."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    def skipped() -> Any:
        builder = tfds.builder_from_directory(folder)
        return builder.as_dataset(split="train", decoders={"steps": tfds.decode.SkipDecoding()})

    def flat() -> int:
        steps = tfds.builder_from_directory(folder).as_dataset(split="train").flat_map(lambda e: e["steps"])
        return sum(len(batch["reward"]) for batch in steps.take(50_000).batch(1024).as_numpy_iterator())

    def flat_skipped() -> int:
        steps = skipped().flat_map(lambda e: tf.data.Dataset.from_tensor_slices(e["steps"]))
        return sum(len(batch["reward"]) for batch in steps.take(50_000).batch(1024).as_numpy_iterator())

    def whole(dataset: Callable[[], Any]) -> Pass:
        return lambda: sum(len(e["steps"]["reward"]) for e in dataset().as_numpy_iterator())

    built = skipped()
    return {
        "TFDS, flat_map + batch(1024)": flat,
        "TFDS, SkipDecoding + flat_map + batch(1024)": flat_skipped,
        "TFDS, SkipDecoding": whole(skipped),
        "TFDS, SkipDecoding, iterated again": whole(lambda: built),
    }


def rlds(bench: Bench, folder: Path, steps: int) -> None:
    """TFDS's own reader."""

    def make(length: int) -> dict[str, Pass]:
        path = folder / f"made{length}" / "1.0.0"
        rlds2buf.convert([Episode(**part) for part in cut(columns(steps, length), length)], path, to="rlds")
        ours = {VALIDATED: validated(path, steps), READ: one_by_one(path), BATCHES: batches(path, steps)}
        return ours | (tfds_passes(path) if bench.has("tensorflow_datasets") else {})

    found = ByLength(bench, "RLDS records", make)
    found.against("RLDS validated into a buffer", VALIDATED, "TFDS, flat_map + batch(1024)", 20, 25)
    found.against("RLDS read episode by episode", READ, "TFDS, SkipDecoding", 10)
    found.against("RLDS read episode by episode", READ, "TFDS, SkipDecoding, iterated again", None, 5)
    found.short_against_long("RLDS validated into a buffer", VALIDATED, 0.5)


def d4rl(bench: Bench, folder: Path, steps: int) -> None:
    """h5py reading all columns of the file."""
    import h5py

    def make(length: int) -> dict[str, Pass]:
        path = write_d4rl(folder / f"{length}.hdf5", steps, length)

        def theirs() -> int:
            with h5py.File(path, "r") as file:
                return max(len(file[name][:]) for name in file)

        return {VALIDATED: validated(path, steps), BATCHES: batches(path, steps), "h5py, columns": theirs}

    found = ByLength(bench, "D4RL HDF5", make)
    found.against("D4RL validated into a buffer", VALIDATED, "h5py, columns", 0.15, 0.25)
    found.against("D4RL by source.batches() into a buffer", BATCHES, "h5py, columns")
    found.short_against_long("D4RL validated into a buffer", VALIDATED, 0.4)


def minari(bench: Bench, folder: Path, steps: int) -> None:
    """Minari's own reader, of its HDF5 files."""
    if not bench.has("minari"):
        return

    def make(length: int) -> dict[str, Pass]:
        dataset = write_minari(folder, f"read{length}", minari_buffers(steps, length))
        path = folder / "made" / f"read{length}-v0"

        def theirs() -> int:
            return sum(len(episode.rewards) for episode in dataset.iterate_episodes())

        return {VALIDATED: validated(path, steps), READ: one_by_one(path), "Minari, iterate_episodes": theirs}

    found = ByLength(bench, "Minari HDF5", make)
    found.against("Minari read episode by episode", READ, "Minari, iterate_episodes", 2.2)
    found.against("Minari validated into a buffer", VALIDATED, "Minari, iterate_episodes", 2)


def memory(bench: Bench, folder: Path, steps: int) -> None:
    """Episodes in memory."""

    def make(length: int) -> dict[str, Pass]:
        parts = cut(columns(steps, length), length)

        def joined() -> int:
            return max(len(np.concatenate([part[name] for part in parts])) for name in parts[0])

        episodes = [Episode(**part) for part in parts]
        return {VALIDATED: validated(episodes, steps), "np.concatenate": joined}

    found = ByLength(bench, "episodes in memory", make)
    found.against("episodes in memory validated into a buffer", VALIDATED, "np.concatenate", 0.15)
    found.short_against_long("episodes in memory validated into a buffer", VALIDATED, 0.5)


def saved(bench: Bench, folder: Path, steps: int) -> None:
    """A saved buffer."""

    def make(length: int) -> dict[str, Pass]:
        path = folder / str(length)
        rlds2buf.convert([Episode(**part) for part in cut(columns(steps, length), length)], path)
        files = list(path.rglob("*.npy"))
        return {VALIDATED: validated(path, steps), "np.load": lambda: max(len(np.load(file)) for file in files)}

    found = ByLength(bench, "a saved buffer", make)
    found.against("a saved buffer validated into a buffer", VALIDATED, "np.load")
    found.short_against_long("a saved buffer validated into a buffer", VALIDATED, 0.4)


def logs(bench: Bench, folder: Path, steps: int) -> None:
    """CSV, JSON Lines and Parquet."""
    if not bench.has("pyarrow"):
        return
    import pyarrow.csv
    import pyarrow.json
    import pyarrow.parquet

    readers: dict[str, Callable[[Path], int]] = {
        "csv": lambda path: pyarrow.csv.read_csv(path).num_rows,
        "jsonl": lambda path: pyarrow.json.read_json(path).num_rows,
        "parquet": lambda path: max(len(c.to_numpy()) for c in pyarrow.parquet.read_table(path).columns),
    }
    for suffix, bar in (("csv", 0.2), ("jsonl", 0.2), ("parquet", 0.1)):

        def make(length: int, suffix: str = suffix) -> dict[str, Pass]:
            path = write_log(folder / f"{length}.{suffix}", steps, length)
            ours = validated(path, steps, map={"observation": "obs_*"})
            return {VALIDATED: ours, f"pyarrow, {suffix}": lambda: readers[suffix](path)}

        found = ByLength(bench, f"a log in {suffix}", make)
        found.against(f"a log in {suffix} validated into a buffer", VALIDATED, f"pyarrow, {suffix}", bar, bar)


def main() -> None:
    """Measure and print."""
    bench = Bench(__doc__, parts=PARTS, steps=200_000)
    # A pass takes from milliseconds to seconds, so sets differ: about as long for each part.
    times = {"d4rl": 5.0, "minari": 0.25, "memory": 2.0}
    for part in bench.options.parts:
        with bench.folder() as folder:
            globals()[part](bench, folder, int(bench.options.steps * times.get(part, 1)) // 1000 * 1000)
    bench.finish()


if __name__ == "__main__":
    main()
