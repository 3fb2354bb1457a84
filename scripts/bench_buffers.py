#!/usr/bin/env python3
"""Adding to and sampling from replay buffers, against cpprb, Stable-Baselines3 and torchrl.

Everyone holds 1M transitions (17 + 6 float32) and draws batches of 256, 50 in turn; fills of new buffers take turns
too.  What is not installed, or does not load (torchrl's extension needs the PyTorch it was built for), is left out
and named.  `--parts` are what to measure, all of it in about five minutes; `--top` the rows at the top of the curve,
kept in files in `--directory`; `--seconds` those of four threads that sample beside one that writes.

Peers: ``pip install cpprb stable-baselines3``.
"""

from __future__ import annotations

import gc
import shutil
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from bench import LENGTHS, Bench, Pass, Rates, turns
from peers import OBSERVATION, available, columns

import rlds2buf
from rlds2buf import EpisodeBatch, FieldSpec, StepSpec

PARTS = ["prioritized", "bulk", "episodes", "steps", "curve", "threads"]


def compare(bench: Bench, work: str, rates: Rates, bars: dict[str, float], unit: str = "us") -> None:
    """Print everybody, and ours against each peer."""
    bench.show(work, rates, unit)
    for name in rates:
        if name != "rlds2buf":
            bench.ratio(work, rates, "rlds2buf", name, least=bars.get(name))


def sample_and_update(bench: Bench, data: dict[str, np.ndarray], batch: int) -> None:
    """A prioritized batch and its new priorities."""
    errors = np.random.default_rng(1).random(batch)
    actions = {}
    for name, make in available(True).items():
        peer = make(len(data["rew"]), True)
        peer.add(data)
        for _ in range(20):  # priorities that differ
            peer.learn(4096, np.random.default_rng(2).random(4096))
        actions[name] = lambda peer=peer: peer.learn(batch, errors)
    rates = turns(actions, 8 * bench.rounds, calls=50)
    compare(bench, f"prioritized sample + update, {batch} of {len(data['rew']):,}", rates, {"cpprb": 2.5, "torchrl": 5})


def bulk(bench: Bench, data: dict[str, np.ndarray], prioritized: bool) -> None:
    """All of the columns by one call: into a new buffer, and once more, in the place of the first ones."""
    makers = {name: make for name, make in available(prioritized).items() if name != "SB3"}  # has no such call
    count, held = len(data["rew"]), {}

    def add(name: str) -> int:
        held[name].add(data)
        return count

    for full in (False, True):

        def clear(name: str, full: bool = full) -> None:
            held.clear()
            gc.collect()
            held[name] = makers[name](count, prioritized)
            if full:
                held[name].add(data)

        rates = turns({name: lambda name=name: add(name) for name in makers}, 2 * bench.rounds, clear)
        work = f"{'prioritized' if prioritized else 'uniform'} bulk add of {count:,}" + " to a full buffer" * full
        compare(bench, work, rates, {} if full else {"cpprb": 1.4 if prioritized else 1.25}, "rows/s")


def episodes(bench: Bench, data: dict[str, np.ndarray], prioritized: bool) -> None:
    """A new buffer, made and filled: by EpisodeBatches of about 16k rows each; by the peer's one bulk add."""
    makers = {name: make for name, make in available(prioritized).items() if name != "SB3"}
    count = len(data["rew"])

    def ours(length: int) -> Pass:
        rows = (length + 1) * (count // length)
        place = np.arange(rows)
        row = np.minimum(place - place // (length + 1), count - 1)  # the last of each: what its last step led to
        columns = {name: data[key][row] for name, key in (("observation", "obs"), ("action", "act"), ("reward", "rew"))}
        place %= length + 1
        columns |= {"is_first": place == 0, "is_last": place == length, "is_terminal": place == length}
        most = (1 << 14) // (length + 1) * (length + 1)

        def run() -> int:
            peer = makers["rlds2buf"](rows, prioritized)
            for at in range(0, rows, most):
                batch = rlds2buf.Episode(**{name: column[at : at + most] for name, column in columns.items()})
                peer.buffer.add(EpisodeBatch(batch, np.arange(0, len(batch), length + 1)))
            return count

        return run

    def theirs(name: str) -> int:
        makers[name](count, prioritized).add(data)
        return count

    passes = {f"rlds2buf, {length} steps": ours(length) for length in LENGTHS}
    passes |= {name: lambda name=name: theirs(name) for name in makers if name != "rlds2buf"}
    rates = turns(passes, 2 * bench.rounds, lambda name: gc.collect())
    kind = "prioritized" if prioritized else "uniform"
    bench.show(f"{count:,} transitions as episodes into a new {kind} buffer", rates, "rows/s")
    for name in passes.keys() & {"cpprb", "torchrl"}:
        for length in LENGTHS:
            least = (2.0 if prioritized else 1 / 0.7) if (name, length) == ("cpprb", 20) else None
            work = f"transitions of {length}-step episodes into a new {kind} buffer"
            bench.ratio(work, rates, f"rlds2buf, {length} steps", name, least=least)


def one_by_one(bench: Bench, data: dict[str, np.ndarray], steps: int) -> None:
    """One step at a time; a full buffer, as it is for nearly all of a run."""
    peers = {name: make(steps // 2, False) for name, make in available(False).items()}
    for peer in peers.values():
        for i in range(steps // 2):
            peer.step(data, i)
    counters = dict.fromkeys(peers, 0)

    def step(name: str) -> None:
        counters[name] += 1
        peers[name].step(data, counters[name] % steps)

    rates = turns({name: lambda name=name: step(name) for name in peers}, 80 * bench.rounds, calls=50)
    compare(bench, "one step at a time", rates, {"cpprb": 1.0})


def curve(top: int, directory: str | None, batch: int) -> list[dict[str, Any]]:
    """Seconds a batch of buffers of 10 bytes a row, from 1e4 rows to `top`, the largest ones in files."""
    spec = StepSpec(
        observation=FieldSpec((), np.float32),
        action=FieldSpec((), np.uint8),
        reward=FieldSpec((), np.float32),
        discount=None,
    )
    found = []
    rows = 10_000
    while rows <= top:
        in_files = rows > 10_000_000
        row: dict[str, Any] = {"rows": rows, "in_files": in_files}
        for kind in ("uniform", "prioritized"):
            make = rlds2buf.make_circular if kind == "uniform" else rlds2buf.make_prioritized
            folder = Path(tempfile.mkdtemp(prefix="rlds2buf-curve-", dir=directory)) if in_files else None
            try:
                buffer = make(spec, rows, seed=0, directory=None if folder is None else folder / "buffer")
                fill(buffer, rows)
                if in_files:
                    buffer.save()  # or the disk would still be at work
                errors = np.random.default_rng(1).random(batch)

                def learn(buffer: Any = buffer, errors: np.ndarray = errors, kind: str = kind) -> None:
                    drawn = buffer.sample(batch)
                    if kind == "prioritized":
                        buffer.update_priorities(drawn.info.key, errors)

                row[kind] = 1 / statistics.median(turns({kind: learn}, 40, calls=50)[kind])
                row[f"{kind}_bytes"] = buffer.stats()["bytes"]
                del buffer, learn
            finally:
                if folder is not None:
                    shutil.rmtree(folder, ignore_errors=True)
            gc.collect()
        found.append(row)
        rows *= 10
    return found


def fill(buffer: Any, rows: int) -> None:
    """Episodes of 1000 rows, up to a thousand at a time."""
    start = 0
    while start < rows:
        count = min(1_000_000, rows - start)
        number = np.arange(start, start + count)
        episodes = rlds2buf.Episode(
            observation=number.astype(np.float32),
            action=(number % 4).astype(np.uint8),
            reward=np.ones(count, np.float32),
            is_first=number % 1000 == 0,
            is_last=number % 1000 == 999,
            is_terminal=number % 1000 == 999,
        )
        buffer.add(EpisodeBatch(episodes, np.arange(0, count, 1000)))
        start += count


def beside_a_writer(seconds: float, batch: int, samplers: int = 4) -> dict[str, Any]:
    """Batches and rows a second of several sampling threads and one that writes; and torn rows, if there are any."""
    spec = StepSpec(
        observation=FieldSpec((OBSERVATION,), np.float64),
        action=FieldSpec((), np.int64),
        reward=FieldSpec((), np.float64),
    )
    buffer = rlds2buf.make_circular(spec, 100_000, seed=0)
    stop = threading.Event()
    batches, torn, rows = [0] * samplers, [0] * samplers, [0]

    def numbered(start: int, count: int) -> rlds2buf.Episode:
        number = np.arange(start, start + count, dtype=np.float64)
        every = np.repeat(number[:, None], OBSERVATION, axis=1)
        return rlds2buf.Episode(
            observation=every, action=number.astype(np.int64), reward=-number, discount=np.ones(count, np.float32)
        )

    buffer.add(numbered(0, 1000))

    def write() -> None:
        start = 1000
        while not stop.is_set():
            buffer.add(numbered(start, 100))
            start += 100
            rows[0] += 100

    def read(i: int) -> None:
        while not stop.is_set():
            data = buffer.sample(batch).data
            number = data.observation[:, :1]
            whole = (data.observation == number).all() and (data.next_observation == number + 1).all()
            whole = whole and (data.action == number[:, 0]).all() and (data.reward == -number[:, 0]).all()
            torn[i] += not whole
            batches[i] += 1

    threads = [threading.Thread(target=write, daemon=True)]
    threads += [threading.Thread(target=read, args=(i,), daemon=True) for i in range(samplers)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join(30)
    took = time.perf_counter() - start
    return {"batches_per_second": sum(batches) / took, "rows_per_second": rows[0] / took, "torn": sum(torn)}


def main() -> None:
    """Measure and print."""
    bench = Bench(__doc__, parts=PARTS, transitions=1_000_000, batch=256, top=100_000_000, directory="", seconds=5.0)
    options = bench.options
    data = columns(options.transitions)
    if "prioritized" in options.parts:
        sample_and_update(bench, data, options.batch)
    for part in (bulk, episodes):
        if part.__name__ in options.parts:
            for prioritized in (True, False):
                part(bench, data, prioritized)
    if "steps" in options.parts:
        one_by_one(bench, {name: column[:100_000] for name, column in data.items()}, min(20_000, options.transitions))
    if "curve" in options.parts:
        print(f"a batch of {options.batch}, by rows held (10 bytes each)")
        for row in curve(options.top, options.directory or None, options.batch):
            where = "in files" if row["in_files"] else "in memory"
            print(
                f"  {row['rows']:>11,} {where:9s} uniform {row['uniform'] * 1e6:6.1f} us   "
                f"prioritized sample + update {row['prioritized'] * 1e6:6.1f} us"
            )
    if "threads" in options.parts:
        found = beside_a_writer(options.seconds, options.batch)
        print(
            f"four samplers beside one writer, {options.seconds:g} s: {found['batches_per_second']:,.0f} batches/s, "
            f"{found['rows_per_second']:,.0f} rows/s in, {found['torn']} torn"
        )
        bench.figure("torn rows, four samplers beside a writer", "none", found["torn"], most=0)
    bench.finish()


if __name__ == "__main__":
    main()
