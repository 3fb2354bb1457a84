"""Peak memory of converting to a buffer on disk, for 1x and 8x the data; it should not grow.

python scripts/bench_memory.py                          D4RL files made up here
python scripts/bench_memory.py --rlds DATASET_FOLDER    and the records of an RLDS folder, repeated
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np

EPISODE = 1000
BAR = 1.2


def d4rl_file(path: Path, rows: int) -> Path:
    """HalfCheetah-shaped: 17 + 6 floats, reward and flags, episodes of 1000 rows."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for name, width in (("observations", 17), ("actions", 6), ("next_observations", 17)):
            column = file.create_dataset(name, (rows, width), np.float32)
            for start in range(0, rows, EPISODE):
                column[start : start + EPISODE] = rng.standard_normal((EPISODE, width), np.float32)
        file["rewards"] = rng.standard_normal(rows, np.float32)
        file["terminals"] = np.zeros(rows, bool)
        file["timeouts"] = np.arange(rows) % EPISODE == EPISODE - 1
    return path


def rlds_folder(source: Path, target: Path, times: int) -> Path:
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


def peak(source: Path, target: Path) -> tuple[int, float, int]:
    """Peak resident bytes of a process that converts, its seconds, and the steps it wrote."""
    code = f"""
import json, resource, rlds2buf
report = rlds2buf.convert({str(source)!r}, {str(target)!r})
print(json.dumps([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, report.seconds, report.steps]))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    shutil.rmtree(target)
    blocks, seconds, steps = json.loads(done.stdout)
    return blocks * (1 if sys.platform == "darwin" else 1024), seconds, steps


def compare(name: str, small: Path, large: Path, target: Path) -> float:
    """Print one line, and return how much more memory the large one took."""
    (one, seconds, steps), (eight, more_seconds, more_steps) = peak(small, target), peak(large, target)
    print(
        f"{name:5} {steps:>10,} steps {one / 2**20:6.0f} MiB {seconds:6.2f} s   "
        f"{more_steps:>10,} steps {eight / 2**20:6.0f} MiB {more_seconds:6.2f} s   ratio {eight / one:.2f}"
    )
    return eight / one


def main() -> None:
    """The command line; exits with 1 if memory grows by more than a fifth."""
    parser = argparse.ArgumentParser(description="Peak memory of convert for 1x and 8x the data.")
    parser.add_argument("--rows", type=int, default=500_000, help="of the small D4RL file, a multiple of 1000")
    parser.add_argument("--rlds", type=Path, help="a version folder with one shard, whose records are repeated")
    parser.add_argument("--times", type=int, default=60, help="how often, for the small one")
    chosen = parser.parse_args()
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small, large = d4rl_file(folder / "1.hdf5", chosen.rows), d4rl_file(folder / "8.hdf5", 8 * chosen.rows)
        ratios.append(compare("D4RL", small, large, folder / "out"))
        if chosen.rlds is not None:
            small = rlds_folder(chosen.rlds, folder / "1" / "1.0.0", chosen.times)
            large = rlds_folder(chosen.rlds, folder / "8" / "1.0.0", 8 * chosen.times)
            ratios.append(compare("RLDS", small, large, folder / "out"))
    sys.exit(int(max(ratios) > BAR))


if __name__ == "__main__":
    main()
