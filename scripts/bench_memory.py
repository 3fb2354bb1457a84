#!/usr/bin/env python3
"""Peak memory of a conversion, for 1x and 8x the data: it should be a few blocks, whatever there is.

Kinds of sources to kinds of targets, in episodes of 20 steps, each conversion in a process of its own; and with
`--rlds FOLDER` the records of a version folder with one shard, repeated.  The kernels are compiled before.  Growth is
told as a share of the bytes of rows that came in addition, too: what an index of episodes takes is seen there, when
Python and its libraries hide it in the ratio.  Saved buffers aren't read here: their columns are mapped from their
files, which the system counts for the process as long as memory is free.

python scripts/bench_memory.py --parts rlds,d4rl
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from bench import Bench, columns, cut, peak, write_d4rl, write_log

import rlds2buf
from rlds2buf import Episode

BAR = 1.2
ROW = 103
"""Bytes of a row."""
SOURCES = ["rlds", "minari", "d4rl", "csv", "jsonl", "parquet"]
TARGETS = {"rlds": "out", "minari": "made/out-v0", "d4rl": "out.hdf5", "buffer": "out"}


def write(kind: str, folder: Path, steps: int, length: int) -> Path:
    """A dataset of that kind."""
    if kind == "d4rl":
        return write_d4rl(folder / "in.hdf5", steps, length)
    if kind in ("rlds", "minari"):
        target = folder / ("in-v0" if kind == "minari" else "in")
        rlds2buf.convert([Episode(**part) for part in cut(columns(steps, length), length)], target, to=kind)
        return target
    return write_log(folder / f"in.{kind}", steps, length)


def repeated(source: Path, target: Path, times: int) -> Path:
    """A copy of a version folder whose only shard is repeated so many times."""
    target.mkdir(parents=True)
    info = json.loads((source / "dataset_info.json").read_text())
    (shard,) = source.glob("*.tfrecord-*")
    with open(target / shard.name, "wb") as file:
        for _ in range(times):
            file.write(shard.read_bytes())
    for split in info["splits"]:
        split["shardLengths"] = [str(int(n) * times) for n in split["shardLengths"]]
    (target / "dataset_info.json").write_text(json.dumps(info))
    shutil.copyfile(source / "features.json", target / "features.json")
    return target


def converting(source: Path, to: str, options: str = "") -> int:
    """Peak resident bytes of a process that converts."""
    out = source.parent / "converted"
    target = out / TARGETS[to]
    out.mkdir()
    found = peak(f"import rlds2buf; rlds2buf.convert({str(source)!r}, {str(target)!r}, to={to!r}{options})")
    shutil.rmtree(out)
    return found


def compare(bench: Bench, work: str, sources: list[Path], to: str, added: int | None = None, options: str = "") -> None:
    """One row: 8x against 1x the data."""
    converting(sources[0], to, options)
    one, eight = (converting(source, to, options) for source in sources)
    sizes = {"MiB of 1x": round(one / 2**20), "MiB of 8x": round(eight / 2**20)}
    if added:
        sizes["growth per cent of the bytes added"] = round(100 * (eight - one) / added)
    print(", ".join(f"{name} {value}" for name, value in sizes.items()))
    bench.figure(f"peak memory, {work}, 8x the data", "1x the data", eight / one, most=BAR, **sizes)


def main() -> None:
    """Measure and print."""
    bench = Bench(__doc__, parts=SOURCES, to=list(TARGETS), steps=100_000, length=20, rlds=Path(), times=60)
    for kind in bench.options.parts:
        with bench.folder() as folder:
            sources = []
            for times in (1, 8):
                (folder / str(times)).mkdir()
                sources.append(write(kind, folder / str(times), times * bench.options.steps, bench.options.length))
            options = ', map={"observation": "obs_*"}' if kind in ("csv", "jsonl", "parquet") else ""
            for to in bench.options.to:
                compare(bench, f"{kind} to {to}", sources, to, 7 * bench.options.steps * ROW, options)
    if bench.options.rlds != Path():
        with bench.folder() as folder:
            given = bench.options.rlds, bench.options.times
            sources = [repeated(given[0], folder / str(n) / "1.0.0", n * given[1]) for n in (1, 8)]
            compare(bench, f"{given[0].parent.name} to a buffer", sources, "buffer")
    bench.finish()


if __name__ == "__main__":
    main()
