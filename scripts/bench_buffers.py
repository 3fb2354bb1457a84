#!/usr/bin/env python3
"""Adding to and sampling from replay buffers, against cpprb, Stable-Baselines3 and torchrl.

Everyone holds 1M transitions (17 + 6 float32) and draws batches of 256, 50 in turn, so that a change
of the machine's speed meets all; fills of new buffers take turns too.  Run it with ``pip install
cpprb stable-baselines3`` beside rlds2buf; what is not installed, or does not load (torchrl's
extension needs the PyTorch it was built for), is left out and named.

    --parts prioritized,bulk,short,steps,curve,threads   what to measure; all of it takes about five minutes
    --top 100000000 --directory DIR                rows at the top of the curve, kept in files there
    --seconds 60                                   of four threads sampling beside one that writes
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from peers import OBSERVATION, available, columns

import rlds2buf
from rlds2buf import EpisodeBatch, FieldSpec, StepSpec

BARS = {
    "prioritized sample + update": {"cpprb": 0.4, "torchrl": 0.2},
    "prioritized bulk add": {"cpprb": 0.7},
    "uniform bulk add": {"cpprb": 0.8},
    "uniform, 20-step episodes into a new buffer": {"cpprb": 0.7},
    "prioritized, 20-step episodes into a new buffer": {"cpprb": 0.5},
    "one step at a time": {"cpprb": 1.0},
}


def in_turn(actions: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median seconds of each, 50 in turn; the first turn is for warming up."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for turn in range(rounds // 50 + 1):
        for name, act in actions.items():
            for _ in range(50):
                start = time.perf_counter()
                act()
                if turn:
                    times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def sample_and_update(data: dict[str, np.ndarray], batch: int, rounds: int) -> dict[str, float]:
    """A prioritized batch and its new priorities."""
    errors = np.random.default_rng(1).random(batch)
    actions = {}
    for name, make in available(True).items():
        peer = make(len(data["rew"]), True)
        peer.add(data)
        for _ in range(20):  # priorities that differ
            peer.learn(4096, np.random.default_rng(2).random(4096))
        actions[name] = lambda peer=peer: peer.learn(batch, errors)
    return in_turn(actions, rounds)


def bulk(data: dict[str, np.ndarray], prioritized: bool, repeats: int = 11) -> list[dict[str, float]]:
    """All of the columns by one call: into a new buffer, and once more, in the place of the first ones."""
    times: list[dict[str, list[float]]] = [{}, {}]
    for turn in range(repeats + 1):
        for name, make in available(prioritized).items():
            peer = make(len(data["rew"]), prioritized)
            for which in times:
                start = time.perf_counter()
                try:
                    peer.add(data)
                except NotImplementedError:
                    continue
                seconds = time.perf_counter() - start
                which.setdefault(name, [])
                if turn:
                    which[name].append(seconds)
            del peer
            gc.collect()
    return [{name: statistics.median(values) for name, values in which.items()} for which in times]


def short_episodes(data: dict[str, np.ndarray], prioritized: bool, repeats: int = 11) -> dict[str, float]:
    """A new buffer, made and filled: by EpisodeBatches of 20 steps an episode, 16k rows each; by one bulk add."""
    count = len(data["rew"])
    rows = 21 * (count // 20)
    place = np.arange(rows)
    row = np.minimum(place - place // 21, count - 1)  # the last one of each is the observation behind its last step
    first, last = place % 21 == 0, place % 21 == 20
    columns = {"observation": data["obs"][row], "action": data["act"][row], "reward": data["rew"][row]}
    flags = {"is_first": first, "is_last": last, "is_terminal": last}
    most = (1 << 14) // 21 * 21
    times: dict[str, list[float]] = {}
    for turn in range(repeats + 1):
        for name, make in available(prioritized).items():
            start = time.perf_counter()
            try:
                if name == "rlds2buf":
                    peer = make(rows, prioritized)
                    for at in range(0, rows, most):
                        some = {key: column[at : at + most] for key, column in {**columns, **flags}.items()}
                        episodes = rlds2buf.Episode(**some)
                        peer.buffer.add(EpisodeBatch(episodes, np.arange(0, len(episodes), 21)))
                else:
                    peer = make(count, prioritized)
                    peer.add(data)
            except NotImplementedError:
                continue
            if turn:
                times.setdefault(name, []).append(time.perf_counter() - start)
            del peer
            gc.collect()
    return {name: statistics.median(values) for name, values in times.items()}


def one_by_one(data: dict[str, np.ndarray], steps: int) -> dict[str, float]:
    """Seconds a step; a full buffer, as it is for nearly all of a run."""
    peers = {name: make(steps // 2, False) for name, make in available(False).items()}
    for peer in peers.values():
        for i in range(steps // 2):
            peer.step(data, i)
    counters = dict.fromkeys(peers, 0)

    def step(name: str) -> None:
        counters[name] += 1
        peers[name].step(data, counters[name] % steps)

    return in_turn({name: lambda name=name: step(name) for name in peers}, steps)


def curve(top: int, directory: str | None, batch: int, rounds: int = 2000) -> list[dict[str, Any]]:
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

                row[kind] = in_turn({kind: learn}, rounds)[kind]
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


def report(what: str, seconds: dict[str, float], unit: tuple[str, float]) -> dict[str, Any]:
    """Print one measurement with its bars."""
    name, scale = unit
    bars = BARS.get(what, {})
    print(what)
    for peer, value in seconds.items():
        ratio = seconds["rlds2buf"] / value
        bar = f", bar {bars[peer]}" if peer in bars else ""
        print(f"  {peer:10s} {value * scale:10.1f} {name}   ours is {ratio:.2f}x its time{bar}", flush=True)
    return {"seconds": seconds, "ratio": {peer: seconds["rlds2buf"] / value for peer, value in seconds.items()}}


def fills(data: dict[str, np.ndarray], parts: list[str], ms: tuple[str, float]) -> dict[str, Any]:
    """Measure and print how fast buffers are filled."""
    results = {}
    for kind in ("prioritized", "uniform"):
        if "bulk" in parts:
            new, again = bulk(data, kind == "prioritized")
            results[f"bulk_{kind}"] = report(f"{kind} bulk add", new, ms)
            results[f"bulk_{kind}_again"] = report(f"{kind} bulk add to a full buffer", again, ms)
        if "short" in parts:
            what = f"{kind}, 20-step episodes into a new buffer"
            results[f"short_{kind}"] = report(what, short_episodes(data, kind == "prioritized"), ms)
    return results


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="prioritized,bulk,short,steps,curve,threads")
    parser.add_argument("--transitions", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--top", type=int, default=100_000_000)
    parser.add_argument("--directory")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--json", help="write the figures there too")
    options = parser.parse_args()
    parts = options.parts.split(",")
    data = columns(options.transitions if {"prioritized", "bulk", "short"} & set(parts) else 100_000)
    results: dict[str, Any] = {}
    us, ms = ("us", 1e6), ("ms", 1e3)
    if "prioritized" in parts:
        found = sample_and_update(data, options.batch, options.rounds)
        results["sample_update"] = report("prioritized sample + update", found, us)
    results.update(fills(data, parts, ms))
    if "steps" in parts:
        small = {name: column[:100_000] for name, column in data.items()}
        results["steps"] = report("one step at a time", one_by_one(small, 20_000), us)
    if "curve" in parts:
        results["curve"] = curve(options.top, options.directory, options.batch)
        print(f"a batch of {options.batch}, by rows held (10 bytes each)")
        for row in results["curve"]:
            where = "in files" if row["in_files"] else "in memory"
            print(
                f"  {row['rows']:>11,} {where:9s} uniform {row['uniform'] * 1e6:6.1f} us   "
                f"prioritized sample + update {row['prioritized'] * 1e6:6.1f} us"
            )
    if "threads" in parts:
        results["threads"] = found = beside_a_writer(options.seconds, options.batch)
        print(
            f"four samplers beside one writer, {options.seconds:g} s: {found['batches_per_second']:,.0f} batches/s, "
            f"{found['rows_per_second']:,.0f} rows/s in, {found['torn']} torn"
        )
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
