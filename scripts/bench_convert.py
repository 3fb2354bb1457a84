#!/usr/bin/env python3
"""Datasets written: episodes of 20 and of 1000 steps against TFDS's and Minari's own writing, pictures against copying.

rlds      RLDS to RLDS and D4RL to RLDS: ours reads files, checks every episode, writes and syncs; TFDS runs
          ``download_and_prepare`` on the same episodes in memory, as columns.  Both results are read back and compared.
minari    Minari to Minari, checked; Minari's ``create_dataset_from_buffers`` on buffers in memory.  Compared too.
targets   the same RLDS records to each kind of target: 20 steps against 1000
pictures  the records of the Bridge dataset (four JPEG pictures of 64 x 64 a step, 10 steps), repeated; the same with
          pictures of 256 x 256; and those with four episodes joined, about what the whole dataset's have.  They are
          read, checked, cut into shards again and written, the pictures as the files they are; the peer copies the
          same files on the same disk (``shutil.copyfile``).  Each syncs.  What was written is compared, byte for byte.

Slow peers get fewer episodes, since a rate is what is compared.  ``pip install "rlds2buf[tf-agents]" minari``.

python scripts/bench_convert.py --bridge path/to/bridge_dataset/1.0.0
"""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from bench import (
    ACTION,
    OBSERVATION,
    Bench,
    ByLength,
    Pass,
    columns,
    cut,
    minari_buffers,
    turns,
    write_d4rl,
    write_minari,
)
from bench_convert_images import folder_of

import rlds2buf
from rlds2buf import Episode, EpisodeBatch
from rlds2buf.formats.rlds.sink import RldsDirSink

COPY_BAR = 0.5


def convert(source: Path, target: Path, to: str, size: int) -> Pass:
    """The whole way, validation and the last sync included; `size` is what is done."""

    def run() -> int:
        report = rlds2buf.convert(source, target, to=to)
        assert report.episodes == report.read, report
        return size

    return run


def emptied(folder: Path) -> Any:
    """Who removes what was written before: outside of the time."""

    def clear(name: str) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()

    return clear


def assert_same_episodes(one: Path, other: Path, at_most: int | None = None, **options: Any) -> None:
    """Every column of both datasets, value by value."""
    count = 0
    with rlds2buf.open_source(one, **options) as mine, rlds2buf.open_source(other, **options) as theirs:
        for a, b in itertools.islice(zip(mine, theirs, strict=at_most is None), at_most):
            ours, meant = dict(a.flatten()), dict(b.flatten())
            assert list(ours) == list(meant)
            for path, column in ours.items():
                same = column.dtype == meant[path].dtype and np.array_equal(column, meant[path])
                assert same, f"episode {a.index}: {path}"
            count += 1
    assert count


# RLDS


def tfds_builder(folder: Path, called: str, episodes: list[dict[str, np.ndarray]]) -> Pass:
    """``download_and_prepare`` of a builder that yields these episodes as columns."""
    import tensorflow_datasets as tfds

    logging.disable(logging.WARNING)
    tfds.disable_progress_bar()
    tensor, scalar = tfds.features.Tensor, tfds.features.Scalar
    features = {
        "observation": tensor(shape=(OBSERVATION,), dtype=np.float32),
        "action": tensor(shape=(ACTION,), dtype=np.float32),
        **{name: scalar(np.float32) for name in ("reward", "discount")},
        **{name: scalar(np.bool_) for name in ("is_first", "is_last", "is_terminal")},
    }

    class Made(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc, name-defined]
        """The same dataset, as TFDS makes it."""

        name = called
        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> Any:
            features_of = tfds.features.FeaturesDict({"steps": tfds.features.Dataset(features)})
            return tfds.core.DatasetInfo(builder=self, features=features_of, disable_shuffling=True)

        def _split_generators(self, dl_manager: Any) -> Any:
            return {"train": self._generate_examples()}

        def _generate_examples(self) -> Any:
            for i, steps in enumerate(episodes):
                yield i, {"steps": steps}

    def run() -> int:
        with contextlib.redirect_stdout(io.StringIO()):
            Made(data_dir=str(folder)).download_and_prepare()
        return sum(len(steps["reward"]) for steps in episodes)

    return run


def write_rlds(path: Path, steps: int, length: int) -> Path:
    """The episodes as an RLDS folder."""
    rlds2buf.convert([Episode(**part) for part in cut(columns(steps, length), length)], path, to="rlds")
    return path


def rlds(bench: Bench, folder: Path, steps: int) -> None:
    """RLDS and D4RL to RLDS, against TFDS building it."""
    out = folder / "out"
    few = max(1000, steps // 10)

    def make(length: int) -> dict[str, Pass]:
        records = write_rlds(folder / f"made{length}" / "1.0.0", steps, length)
        rows = write_d4rl(folder / f"{length}.hdf5", steps, length)
        passes = {
            "rlds2buf, RLDS to RLDS": convert(records, out / f"ours{length}", "rlds", steps),
            "rlds2buf, D4RL to RLDS": convert(rows, out / f"rows{length}", "rlds", steps),
        }
        if bench.has("tensorflow_datasets"):
            theirs = tfds_builder(out, f"theirs{length}", cut(columns(steps, length), length)[: few // length])
            passes["TFDS, download_and_prepare"] = theirs
            emptied(out)("")
            passes["rlds2buf, RLDS to RLDS"]()
            theirs()
            assert_same_episodes(out / f"ours{length}", out / f"theirs{length}", few // length)
            assert_same_episodes(out / f"ours{length}", records)
        return passes

    found = ByLength(bench, "written as RLDS, checked and synced", make, clear=emptied(out))
    for what in ("RLDS", "D4RL"):
        found.against(f"{what} to RLDS", f"rlds2buf, {what} to RLDS", "TFDS, download_and_prepare", 20, 20)


def minari(bench: Bench, folder: Path, steps: int) -> None:
    """Minari to Minari, against Minari's own writing."""
    if not bench.has("minari"):
        return
    out = folder / "theirs"

    def make(length: int) -> dict[str, Pass]:
        buffers = minari_buffers(steps, length)
        write_minari(folder / "read", f"read{length}", buffers)
        source, target = folder / "read" / "made" / f"read{length}-v0", out / "made" / f"ours{length}-v0"
        ours = convert(source, target, "minari", steps)
        emptied(out)("")
        ours()
        assert_same_episodes(source, target)

        def theirs() -> int:
            return int(write_minari(out, f"theirs{length}", buffers).total_steps)

        return {"rlds2buf, Minari to Minari": ours, "Minari, create_dataset_from_buffers": theirs}

    found = ByLength(bench, "written as Minari, checked", make, clear=emptied(out))
    work = "Minari to Minari", "rlds2buf, Minari to Minari", "Minari, create_dataset_from_buffers"
    found.against(*work, 2)


def targets(bench: Bench, folder: Path, steps: int) -> None:
    """One dataset to each kind of target."""
    out = folder / "out"
    kinds = {"rlds": "r", "d4rl": "d.hdf5", "minari": "made/m-v0", "buffer": "b"}

    def make(length: int) -> dict[str, Pass]:
        source = write_rlds(folder / f"made{length}" / "1.0.0", steps, length)
        return {f"RLDS to {to}": convert(source, out / name, to, steps) for to, name in kinds.items()}

    found = ByLength(bench, "one dataset to each target", make, clear=emptied(out))
    for to in kinds:
        found.short_against_long(f"RLDS to {to}", f"RLDS to {to}")


# Pictures


def copy_files(source: Path, target: Path, size: int) -> Pass:
    """Every file copied and synced, in bytes."""

    def run() -> int:
        target.mkdir()
        for file in source.iterdir():
            shutil.copyfile(file, target / file.name)
            sync(target / file.name)
        sync(target)
        return size

    return run


def sync(path: Path) -> None:
    """To the disk."""
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


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


def pictures(bench: Bench, folder: Path, steps: int) -> None:
    """Records with pictures, cut into shards again."""
    if bench.options.bridge == Path():
        return
    for size, join in ((64, 1), (256, 1), (256, 4)):
        bridge, here = bench.options.bridge, folder / f"{size}-{join}"
        if join > 1:
            bridge = joined(bridge, here / "joined" / "1.0.0", join)
        times = bench.options.times // (4 if size > 64 else 1)
        source = folder_of(bridge, here / "bridge" / "1.0.0", times, None if size == 64 else size)
        total, out = sum(file.stat().st_size for file in source.iterdir()), here / "out"
        ours, theirs = "rlds2buf, pictures as they are, checked", "shutil.copyfile of the same files"
        passes = {
            ours: convert(source, out / "ours", "rlds", total),
            theirs: copy_files(source, out / "copy", total),
        }
        emptied(out)("")
        passes[ours]()
        assert_same_episodes(out / "ours", source, images="encoded")
        rates = turns(passes, bench.rounds, emptied(out))
        shape = f"JPEGs of {size} x {size} in episodes of {10 * join} steps"
        bench.show(f"RLDS to RLDS, {shape}, {total / 1e6:,.0f} MB", rates, "bytes/s")
        bench.ratio(f"RLDS to RLDS, {shape}", rates, ours, theirs, least=COPY_BAR)
        shutil.rmtree(here)


def main() -> None:
    """Measure and print."""
    parts = ["rlds", "minari", "targets", "pictures"]
    bench = Bench(__doc__, parts=parts, steps=200_000, bridge=Path(), times=96)
    for part in bench.options.parts:
        with bench.folder() as folder:
            steps = bench.options.steps // (4 if part == "minari" else 1)
            globals()[part](bench, folder, steps // 1000 * 1000)
    bench.finish()


if __name__ == "__main__":
    main()
