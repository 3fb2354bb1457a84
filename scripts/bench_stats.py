#!/usr/bin/env python3
"""Statistics of a dataset: a million rows of 32 numbers, against reading the same columns.

What is counted are min, max, mean, std and five exact quantiles of every dimension of every numeric field; what is read
are the columns of observation [26], action [6], reward and discount, as arrays.

rlds      RLDS records; reading is our own, in blocks
lerobot   a LeRobot v3.0 dataset; reading is pyarrow's, of all columns, and our own
pictures  RLDS with a camera, whose pictures nobody decodes; reading is our own, without the camera

That the figures are numpy's is asserted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bench import Bench, Camera, Pass, jpegs, turns

import rlds2buf
from rlds2buf import Episode

PARTS = ["rlds", "lerobot", "pictures"]
OBSERVATION, ACTION, LENGTH, SIDE = 26, 6, 200, 64
STATS = "rlds2buf, statistics"
MOST = 5.0
"""How many times as long as reading it may take."""


def table(steps: int) -> dict[str, np.ndarray]:
    """Rows by the names of Episode."""
    rng = np.random.default_rng(0)
    row = np.arange(steps) % LENGTH
    return {
        "observation": rng.standard_normal((steps, OBSERVATION), np.float32),
        "action": rng.standard_normal((steps, ACTION), np.float32),
        "reward": rng.standard_normal(steps, np.float32),
        "discount": np.ones(steps, np.float32),
        "is_first": row == 0,
        "is_last": row == LENGTH - 1,
        "is_terminal": row == LENGTH - 1,
    }


def episodes(rows: dict[str, np.ndarray], pictures: bool = False) -> list[Episode]:
    """The rows as episodes, perhaps with a camera."""
    made = []
    noise = jpegs(np.random.default_rng(0).integers(0, 256, (LENGTH, SIDE, SIDE, 3), np.uint8))
    for start in range(0, len(rows["reward"]), LENGTH):
        part: dict[str, Any] = {name: column[start : start + LENGTH] for name, column in rows.items()}
        if pictures:
            part["observation"] = {"state": part["observation"], "image": noise}
        made.append(Episode(**part))
    return made


def written(path: Path, made: Any, to: str, **options: Any) -> Path:
    rlds2buf.convert(made, path, to=to, sink_options=options)
    return path


def statistics(path: Path, steps: int) -> Pass:
    """All of them, of numbers."""

    def run() -> int:
        rlds2buf.statistics(path, picture_sample=0)
        return steps

    return run


def read(path: Path, steps: int, without: Sequence[str] = ()) -> Pass:
    """Every column of every block."""

    def run() -> int:
        with rlds2buf.open_source(path) as source:
            for block in source.without(without).read_batches() if without else source.read_batches():
                for _, column in block.rows.flatten():
                    np.asarray(column)
        return steps

    return run


def compare(bench: Bench, title: str, path: Path, steps: int, readers: dict[str, Pass]) -> None:
    """Statistics and each way to read, in turns."""
    rates = turns({STATS: statistics(path, steps), **readers}, bench.rounds)
    bench.show(title, rates, "rows/s")
    for name in readers:
        ratios = sorted(theirs / ours for ours, theirs in zip(rates[STATS], rates[name], strict=True))
        middle = float(np.median(ratios))
        bench.figure(f"{title}: time of statistics", name, middle, most=MOST, low=ratios[0], high=ratios[-1])


def assert_right(path: Path, rows: dict[str, np.ndarray]) -> None:
    """numpy finds the same; the last row's action is padding, where it is not LeRobot's."""
    with rlds2buf.open_source(path) as source:
        found = rlds2buf.statistics(source)
    state = rows["observation"]
    told = found["observation" if "observation" in found else "observation/state"]
    assert np.array_equal(told.min, state.min(axis=0)) and np.array_equal(told.max, state.max(axis=0))
    assert np.allclose(told.mean, state.mean(axis=0, dtype=np.float64), rtol=1e-12, atol=1e-15)
    assert np.allclose(told.q01, np.quantile(state.astype(np.float64), 0.01, axis=0), rtol=1e-12)


def rlds(bench: Bench, folder: Path, steps: int) -> None:
    """RLDS records."""
    rows = table(steps)
    path = written(folder / "rlds", episodes(rows), "rlds")
    compare(bench, "RLDS", path, steps, {"reading the blocks": read(path, steps)})
    assert_right(path, rows)


def lerobot(bench: Bench, folder: Path, steps: int) -> None:
    """LeRobot."""
    import pyarrow.parquet as pq

    rows = table(steps)
    path = written(folder / "lerobot", episodes(rows), "lerobot", fps=10, task_text="do it")

    def parquet() -> int:
        for file in path.glob("data/*/*.parquet"):
            for column in pq.ParquetFile(file).read().columns:
                flat = column.combine_chunks()
                np.asarray(flat.flatten() if hasattr(flat, "flatten") and flat.type.num_fields else flat)
        return steps

    readers: dict[str, Callable[[], int]] = {"pyarrow, columns": parquet, "reading the blocks": read(path, steps)}
    compare(bench, "LeRobot v3.0", path, steps, readers)
    assert_right(path, rows)


def pictures(bench: Bench, folder: Path, steps: int) -> None:
    """A camera beside the numbers."""
    steps = max(LENGTH, steps // 50 // LENGTH * LENGTH)
    path = written(folder / "rlds", Camera(episodes(table(steps), pictures=True), SIDE), "rlds")
    without = read(path, steps, ["observation/image"])
    compare(bench, "RLDS with JPEGs", path, steps, {"reading the blocks without them": without})


def main() -> None:
    """Measure and print."""
    bench = Bench(__doc__, rounds=3, parts=PARTS, steps=1_000_000)
    for part in bench.options.parts:
        with bench.folder() as folder:
            globals()[part](bench, folder, max(LENGTH, bench.options.steps // LENGTH * LENGTH))
    bench.finish()


if __name__ == "__main__":
    main()
