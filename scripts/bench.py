"""What the benches share: their data, taking turns, ratios with their bars, and one form of results.

Contenders take turns, so that a change of the machine's speed meets all of them; medians count, and a ratio is the
median of those of each turn's pair.  A ratio says how many times as fast ours is, or, of memory, how much it grows.
Peers that are not installed are left out and named.  `--json` writes what was printed, for bench_all.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from rlds2buf import Episode, FieldSpec, Source, StepSpec
from rlds2buf.core.spec import spec_of

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

OBSERVATION, ACTION = 17, 6
_WARM = 3.0
"""Seconds: until then numpy's twins of the kernels have done enough for these to be compiled."""
LENGTHS = 20, 1000
"""Steps of an episode: CartPole, goals to reach and demonstrations; HalfCheetah."""
Pass = Callable[[], Any]
"""Some work; what it returns is how much it did, steps for example."""
Rates = dict[str, list[float]]
"""By contender, the work done per second in each turn."""


# Data


def columns(steps: int, length: int) -> dict[str, np.ndarray]:
    """HalfCheetah-shaped rows in whole episodes of `length`, by the names of Episode: about 103 bytes each."""
    rng = np.random.default_rng(0)
    row = np.arange(steps // length * length) % length
    return {
        "observation": rng.standard_normal((len(row), OBSERVATION), np.float32),
        "action": rng.standard_normal((len(row), ACTION), np.float32),
        "reward": rng.standard_normal(len(row), np.float32),
        "discount": np.ones(len(row), np.float32),
        "is_first": row == 0,
        "is_last": row == length - 1,
        "is_terminal": np.zeros(len(row), np.bool_),
    }


def cut(table: dict[str, np.ndarray], length: int) -> list[dict[str, np.ndarray]]:
    """The rows of each episode."""
    starts = range(0, len(table["reward"]), length)
    return [{name: column[start : start + length] for name, column in table.items()} for start in starts]


def write_d4rl(path: Path, steps: int, length: int) -> Path:
    """An uncompressed file as D4RL's version 2 files are, every episode cut off by its time limit."""
    import h5py

    table = columns(steps, length)
    with h5py.File(path, "w") as file:
        file["observations"] = table["observation"]
        file["next_observations"] = np.roll(table["observation"], -1, axis=0)
        file["actions"] = table["action"]
        file["rewards"] = table["reward"]
        file["terminals"] = table["is_terminal"]
        file["timeouts"] = table["is_last"]
    return path


def write_log(path: Path, steps: int, length: int) -> Path:
    """A log of steps as .csv, .jsonl or .parquet: 8 numbers, an action, a reward, two flags."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    rng = np.random.default_rng(0)
    number = np.arange(steps // length * length)
    table = pa.table(
        {
            "episode_id": number // length,
            **{f"obs_{i}": rng.normal(size=len(number)).round(5) for i in range(8)},
            "action": rng.integers(0, 4, len(number)),
            "reward": rng.normal(size=len(number)).round(5),
            "terminated": number % length == length - 1,
            "truncated": np.zeros(len(number), np.bool_),
        }
    )
    if path.suffix == ".csv":
        pyarrow.csv.write_csv(table, path)
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        with open(path, "w", encoding="utf-8") as file:
            for batch in table.to_batches(max_chunksize=1 << 14):
                file.writelines(json.dumps(row) + "\n" for row in batch.to_pylist())
    return path


def minari_buffers(steps: int, length: int) -> list[Any]:
    """The same episodes as Minari's collector hands them over."""
    from minari.data_collector import EpisodeBuffer

    out = []
    for i, part in enumerate(cut(columns(steps, length), length)):
        rows = {
            "observations": np.concatenate([part["observation"], part["observation"][-1:]]),
            "actions": part["action"],
            "rewards": part["reward"].astype(np.float64),
            "terminations": part["is_terminal"].tolist(),
            "truncations": part["is_last"].tolist(),
        }
        out.append(EpisodeBuffer(id=i, **rows, infos={}))
    return out


def write_minari(folder: Path, name: str, buffers: list[Any]) -> Any:
    """Minari's own writing of `folder`/made/`name`-v0; returns its dataset."""
    import gymnasium
    import minari

    os.environ["MINARI_DATASETS_PATH"] = str(folder)
    spaces = {"observation_space": OBSERVATION, "action_space": ACTION}
    return minari.create_dataset_from_buffers(
        f"made/{name}-v0",
        buffers,
        **{name: gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32) for name, size in spaces.items()},
        author="nobody",
        author_email="nobody@example.com",
        code_permalink="https://example.com",
        algorithm_name="none",
    )


class Camera(Source):
    """Episodes in memory, of which ``observation/image`` are JPEG files."""

    format = "memory"

    def __init__(self, made: list[Episode], side: int) -> None:
        self.name, self._made = "made up", made
        pixels = FieldSpec((side, side, 3), np.dtype(np.uint8))
        picture = FieldSpec((), np.dtype(object), image=pixels)
        told = spec_of(made[0])
        self._spec = dataclasses.replace(told, observation={**told.observation, "image": picture})

    @property
    def spec(self) -> StepSpec:
        return self._spec

    @property
    def num_episodes(self) -> int:
        return len(self._made)

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Episode]:
        yield from self._made[start:stop]


def jpegs(pictures: np.ndarray) -> np.ndarray:
    """The JPEG file of each of ``[T, H, W, 3]``, as a camera's driver writes it."""
    out = np.empty(len(pictures), object)
    for t, picture in enumerate(pictures):
        file = io.BytesIO()
        Image.fromarray(picture).save(file, "JPEG", quality=90)
        out[t] = file.getvalue()
    return out


# Measuring


def turns(
    contenders: dict[str, Pass], rounds: int, clear: Callable[[str], Any] = lambda name: None, calls: int = 1
) -> Rates:
    """The rate of each in every turn, after one that warms up: for seconds, since kernels are compiled on the way.

    Args:
        clear: called before every pass with the contender's name, outside of its time.
        calls: passes of a turn, of which the median counts.
    """
    rates: Rates = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, run in contenders.items():
            found: list[float] = []
            seconds = 0.0
            while len(found) < calls or (not turn and seconds < _WARM):
                clear(name)
                start = time.perf_counter()
                done = run()
                took = time.perf_counter() - start
                seconds += took
                found.append((done if isinstance(done, int) else 1) / took)
            if turn:
                rates[name].append(statistics.median(found))
    return rates


def peak(code: str) -> int:
    """Peak resident bytes of a process that runs this Python code."""
    # Linux's ru_maxrss starts at what the parent had, which TensorFlow may have made large; VmHWM does not.
    code += """
import pathlib, re, resource, sys
status = pathlib.Path("/proc/self/status")
if status.exists():
    peak = int(re.search(r"VmHWM:\\s*(\\d+) kB", status.read_text())[1]) * 1024
else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(peak)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    return int(done.stdout.split()[-1])


def shown(ratio: float) -> str:
    """A ratio as it is printed."""
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"


class Bench:
    """One script's command line and results.

    Args:
        description: the script's docstring.
        options: further ones, by name, with their defaults; a list becomes words separated by commas.
    """

    def __init__(self, description: str | None, rounds: int = 5, **options: Any) -> None:
        parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--rounds", type=int, default=rounds, help=f"turns of everybody (default: {rounds})")
        parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
        for name, default in options.items():
            words = {"type": lambda text: text.split(",")} if isinstance(default, list) else {"type": type(default)}
            shown = ",".join(default) if isinstance(default, list) else default
            parser.add_argument(f"--{name.replace('_', '-')}", default=default, help=f"default: {shown}", **words)
        self.options = parser.parse_args()
        self.rounds: int = self.options.rounds
        self.rows: list[dict[str, Any]] = []

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """A folder for one part's data."""
        with tempfile.TemporaryDirectory(prefix="rlds2buf-bench-") as name:
            yield Path(name)

    def has(self, package: str) -> bool:
        """Whether a peer can be measured; one that is missing is named, once."""
        there = importlib.util.find_spec(package) is not None
        if there:
            warnings.simplefilter("ignore")
        else:
            print(f"({package} is not installed, left out)", file=sys.stderr)
        return there

    def show(self, title: str, rates: Rates, unit: str = "steps/s") -> None:
        """Print the median rate of each; of fast calls, their time."""
        print(title)
        for name, values in rates.items():
            rate = statistics.median(values)
            print(f"  {name:56s} " + (f"{1e6 / rate:12,.1f} us" if unit == "us" else f"{rate:14,.0f} {unit}"))

    def ratio(
        self, work: str, rates: Rates, ours: str, theirs: str, least: float | None = None, name: str = ""
    ) -> None:
        """How many times as fast `ours` is; nothing where one of them is left out.

        Args:
            name: of `theirs`, where it is another one there.
        """
        if ours in rates and theirs in rates:
            ratios = sorted(a / b for a, b in zip(rates[ours], rates[theirs], strict=True))
            medians = {who: statistics.median(rates[who]) for who in (ours, theirs)}
            self.figure(
                work,
                name or theirs,
                statistics.median(ratios),
                least=least,
                low=ratios[0],
                high=ratios[-1],
                rates=medians,
            )

    def figure(
        self,
        work: str,
        against: str,
        value: float,
        least: float | None = None,
        most: float | None = None,
        **more: Any,
    ) -> None:
        """Print and keep one result and its bar."""
        ok = (least is None or value >= least) and (most is None or value <= most)
        bar = f"at least {least:g}" if least is not None else f"at most {most:g}" if most is not None else ""
        self.rows.append({"work": work, "against": against, "ratio": value, "bar": bar, "ok": ok, **more})
        between = f" ({shown(more['low'])} to {shown(more['high'])})" if "low" in more else ""
        print(
            f"{'    ' if ok else 'MISS'} {work}, against {against}: {shown(value)}x{between}{bar and f', {bar}'}",
            flush=True,
        )

    def finish(self) -> None:
        """Write the results; exits with 1 if a bar is missed."""
        if self.options.json:
            script = Path(sys.argv[0]).name
            self.options.json.write_text(
                json.dumps([{"script": script, **row} for row in self.rows], indent=1), encoding="utf-8"
            )
        sys.exit(int(not all(row["ok"] for row in self.rows)))


class ByLength:
    """Contenders measured with episodes of 20 and of 1000 steps, all in the same turns.

    Args:
        make: contenders, given the steps of an episode.
    """

    def __init__(
        self,
        bench: Bench,
        title: str,
        make: Callable[[int], dict[str, Pass]],
        unit: str = "steps/s",
        clear: Callable[[str], Any] = lambda name: None,
    ) -> None:
        passes = {f"{name}, {length} steps": run for length in LENGTHS for name, run in make(length).items()}
        self.bench, self.title, self.rates = bench, title, turns(passes, bench.rounds, clear)
        bench.show(title, self.rates, unit)

    def against(self, work: str, ours: str, theirs: str, short: float | None = None, long: float | None = None) -> None:
        """The ratio of two contenders at either length, with a bar for each."""
        for length, least in zip(LENGTHS, (short, long), strict=True):
            names = f"{ours}, {length} steps", f"{theirs}, {length} steps"
            self.bench.ratio(f"{work}, {length}-step episodes", self.rates, *names, least=least, name=theirs)

    def short_against_long(self, work: str, ours: str, least: float | None = None) -> None:
        """The speed at 20 steps as a multiple of that at 1000."""
        names = (f"{ours}, {length} steps" for length in LENGTHS)
        self.bench.ratio(f"{work}, 20-step episodes", self.rates, *names, least=least, name="1000-step episodes")


def gather(folder: Path) -> None:
    """All results in `folder`, by script, as results.json and as a table in results.md."""
    files = sorted(file for file in folder.glob("bench_*.json"))
    rows = [row for file in files for row in json.loads(file.read_text(encoding="utf-8"))]
    lines = ["| work | against | ours is | bar | script |", "|---|---|---|---|---|"]
    for row in rows:
        between = f" ({shown(row['low'])} to {shown(row['high'])})" if "low" in row else ""
        bar = row["bar"] + ("" if row["ok"] else ": missed")
        lines.append(
            f"| {row['work']} | {row['against']} | {shown(row['ratio'])}x{between} | {bar} | `{row['script']}` |"
        )
    (folder / "results.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    (folder / "results.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    gather(Path(sys.argv[1]))
