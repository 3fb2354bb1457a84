#!/usr/bin/env python3
"""Stacks of frames sampled from a buffer that holds each frame once, against cpprb with ``stack_compress``.

The 4 newest of 84 x 84 frames, before and after a step, batches of 32; cpprb is given the stacks, with ``next_of`` and
``stack_compress``.  And the memory of both.  That stacks are right is asserted of both.

Run it with ``pip install cpprb`` beside rlds2buf.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from bench import Bench, Pass, peak, turns

import rlds2buf
from rlds2buf import Episode

FRAME, STACK, BATCH = 84, 4, 32
OURS, CPPRB = "rlds2buf", "cpprb, stack_compress"


def frames_of(count: int) -> np.ndarray:
    """``[N, 84, 84] uint8``: frames that differ."""
    out = np.empty((count, FRAME, FRAME), np.uint8)
    out[:] = (np.arange(count) % 251).astype(np.uint8)[:, None, None]
    out[:, 0, :4] = np.arange(count, dtype="<u4")[:, None].view(np.uint8)
    return out


def ours(count: int, length: int = 1000) -> Any:
    """A buffer of episodes, whose frames are there once."""
    buffer = None
    frames = frames_of(count)
    for start in range(0, count, length):
        part = frames[start : start + length]
        rows = np.arange(len(part))
        ep = Episode(
            observation=part,
            action=rows.astype(np.int32),
            reward=rows.astype(np.float32),
            discount=np.ones(len(part), np.float32),
            is_terminal=rows == len(part) - 1,
        )
        if buffer is None:
            buffer = rlds2buf.make_circular(rlds2buf.spec_of(ep), count, seed=0, view={"stack": STACK})
        buffer.add(ep)
    return buffer


def cpprbs(count: int, length: int = 1000) -> Any:
    """cpprb's, which is given the stacks and keeps each frame once."""
    import cpprb

    shape = (FRAME, FRAME, STACK)
    fields = {
        "obs": {"shape": shape, "dtype": np.uint8},
        "act": {"dtype": np.int32},
        "rew": {"dtype": np.float32},
        "done": {"dtype": np.uint8},
    }
    buffer = cpprb.ReplayBuffer(count, fields, next_of="obs", stack_compress="obs")
    frames = frames_of(count)
    for start in range(0, count, length):
        part = frames[start : start + length]
        for t in range(len(part) - 1):
            before, after = (
                np.stack([part[max(0, at - STACK + 1 + k)] for k in range(STACK)], -1) for at in (t, t + 1)
            )
            done = t == len(part) - 2
            buffer.add(obs=before, act=t, rew=t, next_obs=after, done=done)
            if done:
                buffer.on_episode_end()
    return buffer


def stacks(bench: Bench, scale: float) -> None:
    """Frame stacks and their memory."""
    if not bench.has("cpprb"):
        return
    count = max(2000, int(20_000 * scale))
    mine, theirs = ours(count), cpprbs(count)
    got, expected = mine.sample(200).data, theirs.sample(200)
    for seen, number in ((got.observation, got.action), (np.moveaxis(expected["obs"], -1, 1), expected["act"][:, 0])):
        newest = np.ascontiguousarray(seen[:, -1, 0, :4]).view("<u4")[:, 0]
        assert np.array_equal(newest % 1000, number)
        oldest = np.ascontiguousarray(seen[:, 0, 0, :4]).view("<u4")[:, 0]
        assert np.array_equal(np.minimum(number, STACK - 1), newest - oldest)

    def calls(sample: Any) -> Pass:
        def run() -> int:
            for _ in range(50):
                sample(BATCH)
            return 50

        return run

    rates = turns({OURS: calls(mine.sample), CPPRB: calls(theirs.sample)}, bench.rounds, calls=5)
    bench.show(f"stacks of {STACK} frames of {FRAME} x {FRAME}, before and after, batches of {BATCH}", rates, "us")
    bench.ratio(f"stack of 4 frames of {FRAME} x {FRAME}, batch {BATCH}", rates, OURS, CPPRB, least=1)
    here = Path(__file__).resolve().parent
    lead = f"import sys; sys.path.insert(0, {str(here)!r}); import bench_stacks as b; b.frames_of({count}); "
    sizes = {name: peak(f"{lead} buffer = b.{name}({count})") for name in ("ours", "cpprbs")}
    work = f"memory of {count:,} frames of {FRAME} x {FRAME} to be stacked"
    bench.figure(work, CPPRB, sizes["ours"] / sizes["cpprbs"], most=1.05)


def main() -> None:
    """Measure and print."""
    bench = Bench(__doc__, rounds=5, scale=1.0)
    stacks(bench, bench.options.scale)
    bench.finish()


if __name__ == "__main__":
    main()
