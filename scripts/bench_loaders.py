#!/usr/bin/env python3
"""A PyTorch DataLoader over a buffer, against one over a list of tensors, d3rlpy's sampling and torchrl's.

Everybody holds the same transitions (17 + 6 float32, 1000-step episodes) and gives shuffled batches of 256 of
observation, action, reward, next observation and end. DataLoaders have two workers that stay between passes, and
a turn is a whole pass, without what starting the workers takes. Run it in the environment of scripts/test's torch part:

    .venv/torch/bin/python scripts/bench_loaders.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from bench import ACTION, OBSERVATION, Bench, Pass, columns, cut, turns

import rlds2buf


def episodes(steps: int) -> list[dict[str, np.ndarray]]:
    """Rows of whole episodes of 1000 steps."""
    return cut(columns(steps, 1000), 1000)


def buffer_of(parts: list[dict[str, np.ndarray]]) -> rlds2buf.Buffer:
    """A circular buffer of them."""
    made = [rlds2buf.Episode(**part) for part in parts]
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(made[0]), sum(len(one) for one in made), seed=0)
    buffer.add(rlds2buf.EpisodeBatch.of(made))
    return buffer


def passes(loader: Any) -> Pass:
    """A pass over a DataLoader, timed from its second batch on, when its workers are there."""

    def one_pass() -> int:
        return sum(1 for _ in loader)

    return one_pass


def ours(buffer: rlds2buf.Buffer, size: int, ordered: bool) -> Any:
    """By item numbers, or by batches."""
    from torch.utils.data import DataLoader

    from rlds2buf.adapters.torch import IterableDataset, MapDataset

    common: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
    if ordered:
        return DataLoader(IterableDataset(buffer, size, drop_last=True), batch_size=None, **common)
    return DataLoader(MapDataset(buffer), batch_size=size, shuffle=True, drop_last=True, **common)


def of_list(buffer: rlds2buf.Buffer, size: int) -> Any:
    """The usual way: a list of transitions, each a tuple of tensors."""
    import torch
    from torch.utils.data import DataLoader

    data = buffer.all()
    fields = [data.observation, data.action, data.reward, data.next_observation, data.is_done == 1]
    rows = list(zip(*[torch.from_numpy(np.ascontiguousarray(field)) for field in fields], strict=True))
    return DataLoader(rows, batch_size=size, shuffle=True, drop_last=True, num_workers=2, persistent_workers=True)  # type: ignore[arg-type]


def d3rlpy_sampling(parts: list[dict[str, np.ndarray]], size: int, count: int) -> Pass:
    """Its ReplayBuffer of the same episodes."""
    import d3rlpy

    made = [
        d3rlpy.dataset.Episode(part["observation"], part["action"], part["reward"][:, None], terminated=False)
        for part in parts
    ]
    held = d3rlpy.dataset.ReplayBuffer(d3rlpy.dataset.InfiniteBuffer(), episodes=made)
    return _drawn(lambda: held.sample_transition_batch(size), count)


def torchrl_sampling(buffer: rlds2buf.Buffer, size: int, count: int) -> Pass:
    """Its ReplayBuffer with a LazyTensorStorage, drawing without replacement."""
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer

    data = buffer.all()
    held = TensorDictReplayBuffer(
        storage=LazyTensorStorage(len(buffer)), sampler=SamplerWithoutReplacement(), batch_size=size
    )
    fields = {
        "observation": data.observation,
        "action": data.action,
        ("next", "reward"): data.reward[:, None],
        ("next", "observation"): data.next_observation,
        ("next", "terminated"): (data.is_done == 1)[:, None],
    }
    tensors = {name: torch.from_numpy(np.ascontiguousarray(field)) for name, field in fields.items()}
    held.extend(TensorDict(tensors, batch_size=[len(buffer)]))
    return _drawn(held.sample, count)


def _drawn(draw: Callable[[], Any], count: int) -> Pass:
    def batches() -> int:
        for _ in range(count):
            draw()
        return count

    return batches


def threads(buffer: rlds2buf.Buffer, size: int, count: int) -> Pass:
    """``buffer.batches``: no DataLoader at all."""

    def batches() -> int:
        drawn: Iterator[Any] = iter(buffer.batches(size, to="torch", steps=count, together=8))
        return sum(1 for _ in drawn)

    return batches


def main() -> None:
    """Measure and print."""
    bench = Bench(__doc__, rounds=7, transitions=500_000, batch=256)
    if not bench.has("torch"):
        bench.finish()
    size = bench.options.batch
    parts = episodes(bench.options.transitions)
    buffer = buffer_of(parts)
    count = len(buffer) // size
    contenders: dict[str, Pass] = {
        "DataLoader over MapDataset": passes(ours(buffer, size, False)),
        "DataLoader over IterableDataset": passes(ours(buffer, size, True)),
        "buffer.batches(to='torch')": threads(buffer, size, count),
        "DataLoader over a list of tensors": passes(of_list(buffer, size)),
    }
    few = max(1, count // 20)
    if bench.has("d3rlpy"):
        contenders["d3rlpy's sampling"] = d3rlpy_sampling(parts, size, few)
    if bench.has("torchrl"):
        contenders["torchrl's sampling"] = torchrl_sampling(buffer, size, count)
    work = f"shuffled batches of {size} of {len(buffer):,} states of {OBSERVATION} + {ACTION} numbers"
    rates = turns(contenders, bench.rounds)
    bench.show(work, rates, "batches/s")
    bars = {"DataLoader over a list of tensors": 10.0, "d3rlpy's sampling": 10.0, "torchrl's sampling": 5.0}
    for ours_name in list(contenders)[:3]:
        for theirs, least in bars.items():
            bench.ratio(
                f"{ours_name}, batches of {size}", rates, ours_name, theirs, least if "Iter" in ours_name else None
            )
    bench.finish()


if __name__ == "__main__":
    main()
