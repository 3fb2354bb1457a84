#!/usr/bin/env python3
"""The Blind Cliffwalk of Schaul et al. 2015, https://arxiv.org/abs/1511.05952 (figures 1 and 2, appendix B.1).

A chain of n states, in each of which one action goes on and the other one ends the episode with
nothing; only n right ones in a row are rewarded.  The memory holds what all 2**n sequences of actions
give, 2**(n+1) - 2 transitions in random order, so that the rewarded one is ever rarer.  Tabular
Q-learning from this memory, one transition an update, step size 1/4, discount 1 - 1/n, goes on until
the mean squared error of the table is below 0.001.  How many updates that takes:

- uniform: transitions drawn by ``make_circular``;
- prioritized: by ``make_prioritized``, priorities set to the TD errors by ``update_priorities``;
- oracle: always the transition that most reduces the table's error, which nobody could know.

Medians over seeds are printed; up to n = 16, as in the paper, takes about two minutes.  A new
transition comes in at the largest priority, so each has to be seen once: from some n on prioritized
replay needs little more than one update for each, and uniform replay as many times that as it
takes to see the rewarded one often enough.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np

import rlds2buf

STEP_SIZE, CONVERGED = 0.25, 1e-3
CHUNK = 256


def memory(n: int, make: Callable[..., Any], seed: int) -> Any:
    """A buffer of all that the 2**n sequences of actions give; right is action 1."""
    rng = np.random.default_rng(seed)
    # The number of right actions before the first wrong one: n - 1 - k of them in 2**k sequences, n in one.
    walked = np.repeat(np.arange(n), 2 ** np.arange(n - 1, -1, -1))
    walked = rng.permutation(np.append(walked, n))
    lengths = np.minimum(walked + 1, n)
    starts = np.cumsum(lengths) - lengths
    state = np.arange(lengths.sum()) - np.repeat(starts, lengths)
    last = np.zeros(len(state), np.bool_)
    last[starts + lengths - 1] = True
    action = (state < np.repeat(walked, lengths)).astype(np.int64)
    won = last & (action == 1)
    spec = rlds2buf.StepSpec(
        observation=rlds2buf.FieldSpec((), np.int64),
        action=rlds2buf.FieldSpec((), np.int64, values=(0, 1)),
        reward=rlds2buf.FieldSpec((), np.float64),
        discount=rlds2buf.FieldSpec((), np.float64),
    )
    buffer = make(spec, len(state), seed=seed)
    buffer.add(
        {
            "observation": state,
            "action": action,
            "reward": won.astype(np.float64),
            "next_observation": np.where(last, 0, state + 1),
            "terminated": last,
        }
    )
    return buffer


class Learner:
    """A table of action values ``[n][2]`` and its distance from the true one."""

    def __init__(self, n: int, seed: int) -> None:
        self.gamma = 1.0 - 1.0 / n
        self.truth = [[0.0, self.gamma ** (n - 1 - i)] for i in range(n)]
        self.table = np.random.default_rng(seed + 1000).normal(0.0, 0.1, (n, 2)).tolist()
        self.updates = 0
        self._entries = 2 * n

    @property
    def loss(self) -> float:
        """Mean squared error of the table."""
        pairs = zip(self.table, self.truth, strict=True)
        return sum((q - t) ** 2 for row, true in pairs for q, t in zip(row, true, strict=True)) / self._entries

    def error(self, state: int, action: int, reward: float, discount: float, after: int) -> float:
        """The TD error of a transition."""
        following = self.table[after]
        best = following[1] if following[1] > following[0] else following[0]
        return reward + self.gamma * discount * best - self.table[state][action]

    def learn(self, state: int, action: int, reward: float, discount: float, after: int) -> float:
        """Update by a transition; returns its TD error."""
        error = self.error(state, action, reward, discount, after)
        self.table[state][action] += STEP_SIZE * error
        self.updates += 1
        return error


def steps(data: rlds2buf.Transition) -> Iterator[tuple[int, int, float, float, int]]:
    """Transitions of a batch, one at a time."""
    columns = (data.observation, data.action, data.reward, data.discount, data.next_observation)
    return zip(*(column.tolist() for column in columns), strict=True)


def uniform(n: int, seed: int, alpha: float) -> int:
    """Updates by uniform draws. What is drawn depends on nothing that is learned, so it is drawn in batches."""
    buffer, learner = memory(n, rlds2buf.make_circular, seed), Learner(n, seed)
    loss = learner.loss
    for batch in buffer.batches(CHUNK, together=16):
        for step in steps(batch.data):
            state, action = step[:2]
            before = learner.table[state][action] - learner.truth[state][action]
            learner.learn(*step)
            now = learner.table[state][action] - learner.truth[state][action]
            loss += (now * now - before * before) / (2 * n)
            if loss < CONVERGED and learner.loss < CONVERGED:
                return learner.updates
    raise AssertionError("the batches never end")


def prioritized(n: int, seed: int, alpha: float) -> int:
    """Updates by draws in proportion to the size of the last TD error, to the power of alpha."""

    def make(spec: rlds2buf.StepSpec, capacity: int, seed: int) -> Any:
        return rlds2buf.make_prioritized(spec, capacity, alpha=alpha, eps=1e-4, seed=seed)

    buffer, learner = memory(n, make, seed), Learner(n, seed)
    while learner.loss >= CONVERGED:
        batch = buffer.sample(1)
        (step,) = steps(batch.data)
        error = learner.learn(*step)
        buffer.update_priorities(batch.info.key, [abs(error)])
    return learner.updates


def oracle(n: int, seed: int, alpha: float) -> int:
    """Updates by the transition that most reduces the loss at each moment."""
    buffer, learner = memory(n, rlds2buf.make_circular, seed), Learner(n, seed)
    everything = buffer.all()
    _, first = np.unique(everything.observation * 2 + everything.action, return_index=True)
    kinds = list(steps(buffer.get(buffer.keys()[first])))  # transitions of one state and action are all alike

    def gain(step: tuple[int, int, float, float, int]) -> float:
        state, action = step[:2]
        off = learner.table[state][action] - learner.truth[state][action]
        return off * off - (off + STEP_SIZE * learner.error(*step)) ** 2

    while learner.loss >= CONVERGED:
        learner.learn(*max(kinds, key=gain))
    return learner.updates


def main() -> None:
    """Print the table; fail if prioritized replay does not win, or wins no more for longer chains."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=16, help="the longest chain")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--alpha", type=float, default=1.0, help="exponent of the priorities")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ways = {"oracle": oracle, "prioritized": prioritized, "uniform": uniform}
    rows = []
    start = time.perf_counter()
    if not options.json:
        print(f"median updates until the error is below {CONVERGED}, {options.seeds} seeds, alpha {options.alpha}")
        print(
            f"{'n':>3} {'transitions':>12} {'oracle':>8} {'prioritized':>12} {'uniform':>10}  over prioritized, oracle"
        )
    for n in range(2, options.largest + 1):
        counts = {
            name: median(way(n, seed, options.alpha) for seed in range(options.seeds)) for name, way in ways.items()
        }
        row = {"n": n, "transitions": 2 ** (n + 1) - 2, **counts, "ratio": counts["uniform"] / counts["prioritized"]}
        rows.append(row)
        if not options.json:
            print(
                f"{n:>3} {row['transitions']:>12,} {row['oracle']:>8,.0f} {row['prioritized']:>12,.0f} "
                f"{row['uniform']:>10,.0f}  {row['ratio']:>10.1f} {counts['uniform'] / counts['oracle']:>12.1f}",
                flush=True,
            )
    if options.json:
        print(json.dumps(rows))
    else:
        print(f"{time.perf_counter() - start:.0f} s")
    if rows[-1]["ratio"] <= max(1.0, rows[len(rows) // 2]["ratio"]):
        raise SystemExit("prioritized replay does not win more and more")


if __name__ == "__main__":
    main()
