#!/usr/bin/env python3
"""An epoch of a buffer, every item once, against shuffling an index and taking rows of plain arrays by it.

Both hold the same 1M transitions (17 + 6 float32, 1000-step episodes) and give all of them in batches of 256:
observation, action, reward, next observation and end flag.  numpy shuffles 1M integers (np.random.permutation) and
takes five columns by each 256 of them (np.take), of which one is the next observations, stored beside; the buffer
computes its order place by place, and gives what else a sample has: discounts, keys and probabilities.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from bench import Bench, turns
from bench_sample import columns, filled


def ours(buffer: Any, batch: int) -> Callable[[], int]:
    """An epoch, with another seed each time."""
    seeds = iter(range(1 << 20))

    def run() -> int:
        return sum(len(sample.data.reward) for sample in buffer.epoch(batch, seed=next(seeds)))

    return run


def take(data: dict[str, np.ndarray], batch: int) -> Callable[[], int]:
    """The same by hand."""
    rng = np.random.default_rng(0)
    own = {name: column.copy() for name, column in data.items()}

    def run() -> int:
        order = rng.permutation(len(own["rew"]))
        done = 0
        for start in range(0, len(order), batch):
            index = order[start : start + batch]
            done += len({name: np.take(column, index, axis=0) for name, column in own.items()}["rew"])
        return done

    return run


def main() -> None:
    """Measure and print."""
    bench = Bench(__doc__, rounds=9, transitions=1_000_000, batch=256)
    data = columns(bench.options.transitions)
    buffer, size = filled(data), bench.options.batch
    contenders = {"rlds2buf": ours(buffer, size), "np.random.permutation and np.take": take(data, size)}
    work = f"an epoch of {bench.options.transitions:,} transitions in batches of {size}"
    rates = turns(contenders, bench.rounds)
    bench.show(work, rates, "transitions/s")
    bench.ratio(work, rates, *contenders, least=1 / 1.1)
    bench.finish()


if __name__ == "__main__":
    main()
