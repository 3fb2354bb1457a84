#!/usr/bin/env python3
"""RLDS folders written: a D4RL file against TFDS's own builder, and records with pictures against copying the files.

The first row's data are made up here, HalfCheetah-shaped: 17 + 6 float32, episodes of 1000 steps.  TFDS
is handed the same episodes in memory, as columns, and runs ``download_and_prepare``; it gets fewer of
them, since a rate is what is compared.  We read the HDF5 file, check every episode, and write.  Both
folders are read back and compared, value by value.

The others' are the records of the Bridge dataset (four JPEG pictures of 64 x 64 a step, cut to 10 steps),
repeated, the same with pictures of 256 x 256, and those with four episodes joined to one of 40 steps, about
what the whole dataset's episodes have.  They are read, checked, cut into shards again and written, the pictures as
the files they are; the peer copies the same files on the same disk (``shutil.copyfile``).  Each syncs what it
wrote to the disk.  What was written is read back and compared, the pictures byte for byte.

Contenders take turns, so that a change of the machine's speed meets all of them; medians count, and the
ratio is that of each round's pair.  What has pictures in it and goes into a buffer, and the memory of that, is
measured by bench_convert_images.py, which is run at the end.

TFDS is left out where it is not installed: ``pip install "rlds2buf[tf-agents]"``.

python scripts/bench_convert.py path/to/bridge_dataset/1.0.0
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import itertools
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from bench_convert_images import folder_of
from bench_read import ACTION, LENGTH, OBSERVATION, write_d4rl

import rlds2buf
from rlds2buf import Episode, EpisodeBatch
from rlds2buf.formats.rlds.sink import RldsDirSink

BUILDER_BAR, COPY_BAR = 20.0, 0.5
Pass = Callable[[], float]
"""One conversion; returns its rate."""


# Ours


def convert(source: Path, target: Path, unit: str) -> Pass:
    """The whole way, validation and the last sync included; the rate in steps or bytes of the source."""
    size = sum(file.stat().st_size for file in source.iterdir()) if source.is_dir() else 0

    def run() -> float:
        shutil.rmtree(target, ignore_errors=True)
        start = time.perf_counter()
        report = rlds2buf.convert(source, target, to="rlds")
        seconds = time.perf_counter() - start
        assert report.episodes == report.read and not report.lost, report
        return (report.steps if unit == "steps" else size) / seconds

    return run


# Peers


def tfds_builder(source: Path, target: Path, episodes: int) -> Pass:
    """``download_and_prepare`` of a builder that yields the file's episodes as columns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tensorflow_datasets as tfds
    logging.disable(logging.WARNING)
    tfds.disable_progress_bar()
    with rlds2buf.open_source(source) as opened:
        columns = [steps_of(episode) for episode in itertools.islice(opened, episodes)]
    tensor, scalar = tfds.features.Tensor, tfds.features.Scalar
    features = {
        "observation": tensor(shape=(OBSERVATION,), dtype=np.float32),
        "action": tensor(shape=(ACTION,), dtype=np.float32),
        **{name: scalar(np.float32) for name in ("reward", "discount")},
        **{name: scalar(np.bool_) for name in ("is_first", "is_last", "is_terminal")},
    }

    class Halfcheetah(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc, name-defined]
        """The same dataset, as TFDS makes it."""

        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> Any:
            return tfds.core.DatasetInfo(
                builder=self,
                features=tfds.features.FeaturesDict({"steps": tfds.features.Dataset(features)}),
                disable_shuffling=True,
            )

        def _split_generators(self, dl_manager: Any) -> Any:
            return {"train": self._generate_examples()}

        def _generate_examples(self) -> Any:
            for i, steps in enumerate(columns):
                yield i, {"steps": steps}

    def run() -> float:
        shutil.rmtree(target, ignore_errors=True)
        builder = Halfcheetah(data_dir=str(target))
        start = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            builder.download_and_prepare()
        return sum(len(steps["reward"]) for steps in columns) / (time.perf_counter() - start)

    return run


def copy_files(source: Path, target: Path) -> Pass:
    """Every file copied and synced, in bytes."""

    def run() -> float:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        start = time.perf_counter()
        size = 0
        for file in source.iterdir():
            size += file.stat().st_size
            shutil.copyfile(file, target / file.name)
            sync(target / file.name)
        sync(target)
        return size / (time.perf_counter() - start)

    return run


def sync(path: Path) -> None:
    """To the disk."""
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


# Equal work


def steps_of(episode: Episode) -> dict[str, np.ndarray]:
    """The columns of a step without infos, by name."""
    return {path[0]: column for path, column in episode.flatten() if len(path) == 1}  # type: ignore[misc]


def assert_same_episodes(one: Any, other: Any, at_most: int | None = None) -> int:
    """Every column of both sources, value by value; returns how many steps there were."""
    steps = 0
    for mine, theirs in itertools.islice(zip(one, other, strict=at_most is None), at_most):
        columns, others = dict(mine.flatten()), dict(theirs.flatten())
        assert list(columns) == list(others)
        for path, column in columns.items():
            same = column.dtype == others[path].dtype and np.array_equal(column, others[path])
            assert same, f"episode {mine.index}: {path}"
        steps += mine.num_steps
    assert steps
    return steps


# The table


def take_turns(passes: dict[str, Pass], rounds: int) -> dict[str, list[float]]:
    """The rates of each round, after one that warms up."""
    rates: dict[str, list[float]] = {name: [] for name in passes}
    for turn in range(rounds + 1):
        for name, run in passes.items():
            rate = run()
            if turn:
                rates[name].append(rate)
    return rates


def report(title: str, rates: dict[str, list[float]], scale: float, unit: str, bar: float) -> bool:
    """Print one row per contender; whether the first one reaches `bar` times the second one's rate."""
    print(title)
    for name, values in rates.items():
        print(f"  {name:42s} {statistics.median(values) / scale:12,.1f} {unit}")
    if len(rates) < 2:
        return True
    ours, theirs = rates.values()
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    ratio = statistics.median(ratios)
    print(f"  ratio {ratio:.2f}x ({ratios[0]:.2f} to {ratios[-1]:.2f}), bar {bar}x")
    return ratio >= bar


def d4rl_to_rlds(folder: Path, episodes: int, peer_episodes: int, rounds: int) -> bool:
    """The first row."""
    source = write_d4rl(folder / "halfcheetah.hdf5", episodes * LENGTH)
    passes = {"rlds2buf, D4RL file to RLDS, checked": convert(source, folder / "ours", "steps")}
    if importlib.util.find_spec("tensorflow_datasets"):
        name = f"TFDS, download_and_prepare, {peer_episodes} episodes"
        passes[name] = tfds_builder(source, folder / "theirs", peer_episodes)
    else:
        print("(TFDS is not installed, left out)")
    rates = take_turns(passes, rounds)
    with rlds2buf.open_source(folder / "ours") as ours, rlds2buf.open_source(source) as meant:
        steps = assert_same_episodes(ours, meant)
        if len(passes) > 1:
            with rlds2buf.open_source(folder / "theirs" / "halfcheetah") as theirs:
                assert_same_episodes(ours, theirs, peer_episodes)
    return report(f"D4RL HDF5 to RLDS, {steps:,} steps", rates, 1e3, "k steps/s", BUILDER_BAR)


def joined(source: Path, target: Path, count: int) -> Path:
    """The dataset with so many episodes in a row made one."""
    with rlds2buf.open_source(source, images="encoded") as opened:
        episodes = list(opened)
        sink = RldsDirSink(target)
        sink.open(opened.spec, {"source": str(source)})
    for first in range(0, len(episodes) - count + 1, count):
        rows = EpisodeBatch.of(episodes[first : first + count]).rows
        flags = {name: np.zeros(rows.num_steps, np.bool_) for name in ("is_first", "is_last", "is_terminal")}
        flags["is_first"][0] = flags["is_last"][-1] = True
        sink.write(rows.replace(metadata=episodes[first].metadata, **flags))
    sink.commit()
    return target


def rlds_to_rlds(folder: Path, bridge: Path, times: int, size: int | None, join: int, rounds: int) -> bool:
    """Records with pictures, cut into shards again."""
    if join > 1:
        bridge = joined(bridge, folder / "joined" / "1.0.0", join)
    source = folder_of(bridge, folder / "bridge" / "1.0.0", times, size)
    passes = {
        "rlds2buf, pictures as they are, checked": convert(source, folder / "out", "bytes"),
        "shutil.copyfile of the same files": copy_files(source, folder / "copy"),
    }
    rates = take_turns(passes, rounds)
    with rlds2buf.open_source(folder / "out") as ours, rlds2buf.open_source(source) as meant:
        assert_same_episodes(ours.encoded(), meant.encoded())
    shards = len(list((folder / "out").glob("*.tfrecord-*")))
    total = sum(file.stat().st_size for file in source.iterdir())
    shape = f"pictures of {size or 64} x {size or 64}, {10 * join} steps an episode"
    title = f"RLDS to RLDS, {shape}, {total / 1e6:,.0f} MB, 1 shard to {shards}"
    return report(title, rates, 1e6, "MB/s", COPY_BAR)


def main() -> None:
    """The command line; exits with 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bridge", type=Path, nargs="?", help="the version folder of a Bridge dataset of one shard")
    parser.add_argument("--episodes", type=int, default=300, help="of 1000 steps each, in the D4RL file")
    parser.add_argument("--peer-episodes", type=int, default=20, help="of them, for TFDS's builder")
    parser.add_argument("--times", type=int, default=96, help="how often Bridge's records are repeated")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with tempfile.TemporaryDirectory() as name:
        good = d4rl_to_rlds(Path(name), options.episodes, options.peer_episodes, options.rounds)
    for size, join in ((None, 1), (256, 1), (256, 4)) if options.bridge else ():
        times = options.times // (4 if size else 1)
        with tempfile.TemporaryDirectory() as name:
            good &= rlds_to_rlds(Path(name), options.bridge, times, size, join, options.rounds)
    if options.bridge:
        pictures = Path(__file__).with_name("bench_convert_images.py")
        good &= (
            subprocess.run([sys.executable, pictures, options.bridge, "--rounds", str(options.rounds)]).returncode == 0
        )
    sys.exit(int(not good))


if __name__ == "__main__":
    main()
