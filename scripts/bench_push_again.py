#!/usr/bin/env python3
"""Pushing a log again after it has grown by 5%, with the journal of the first push; and what hashing costs of a push.

HalfCheetah-shaped data, in memory and as an RLDS folder and a D4RL file; episodes of 20 and of 1000 steps; one local
server, a process of its own.  A figure is a share of the first push's time.  Needs ``pip install "rlds2buf[server]"``.

hashing   the time in which a push makes hashes of episodes
grown     the second push: reading, checking and hashing everything, and sending the 5% that are new
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench import LENGTHS, Bench, columns, cut
from bench_push import Episodes, server

import rlds2buf
from rlds2buf.formats.reverb import item_keys

GROWTH = 1.05


class Clock:
    """Counts the seconds that calls of a function take."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.seconds = function, 0.0

    def __call__(self, *arguments: Any) -> Any:
        start = time.perf_counter()
        try:
            return self.function(*arguments)
        finally:
            self.seconds += time.perf_counter() - start


def logs(folder: Path, steps: int, length: int) -> Iterator[tuple[str, Any, Any]]:
    """A log before it grew and afterwards, by where it is kept."""
    sizes = [round(steps / length) * length, round(steps * GROWTH / length) * length]
    yield "in memory", *(Episodes(size // length, length) for size in sizes)
    episodes = [rlds2buf.Episode(**part) for part in cut(columns(sizes[1], length), length)]
    for form, name in (("d4rl", "{}.hdf5"), ("rlds", "rlds{}")):
        paths = [folder / name.format(size) for size in sizes]
        for path, size in zip(paths, sizes, strict=True):
            rlds2buf.convert(episodes[: size // length], path, to=form)
        yield form.upper(), *map(str, paths)


def main() -> None:
    """Measure and print."""
    bench = Bench(__doc__, rounds=3, steps=400_000)
    import reverb

    clock = Clock(item_keys.content_hashes)
    item_keys.content_hashes = clock  # type: ignore[assignment]
    with server() as (address, _):
        client = reverb.Client(address)
        for length in LENGTHS:
            with bench.folder() as folder:
                for where, log, grown in logs(folder, bench.options.steps, length):
                    shares: dict[str, list[float]] = {"hashing": [], "grown": []}
                    for turn in range(bench.rounds + 1):
                        client.reset("replay")
                        client.server_info()  # answers once everything is gone
                        journal = folder / f"{where}{turn}"
                        clock.seconds = 0
                        start = time.perf_counter()
                        first = rlds2buf.push(log, address, "replay", resume=journal)
                        middle = time.perf_counter()
                        hashing = clock.seconds
                        second = rlds2buf.push(grown, address, "replay", resume=journal)
                        end = time.perf_counter()
                        assert second.resumed == first.items and second.acknowledged == second.items - first.items > 0
                        if turn:  # the first one warms up
                            shares["hashing"].append(hashing / (middle - start))
                            shares["grown"].append((end - middle) / (middle - start))
                    about = f"{length}-step episodes, {where}"
                    rate = f"first push, items/s: {first.items / first.conversion.seconds:,.0f}"
                    print(f"{about}: {rate}")
                    for name, most in (("hashing", 0.10), ("grown", 0.15)):
                        work = {"hashing": "hashing in a push", "grown": "a push of a log that grew by 5%"}[name]
                        value = statistics.median(shares[name])
                        low, high = min(shares[name]), max(shares[name])
                        bench.figure(f"{work}, {about}", "the first push", value, most=most, low=low, high=high)
    bench.finish()


if __name__ == "__main__":
    main()
