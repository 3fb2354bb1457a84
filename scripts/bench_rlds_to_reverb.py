#!/usr/bin/env python3
"""rlds2buf.rlds_to_reverb beside TF-Agents' own util, on the same tf.data datasets, in turn.

HalfCheetah-shaped data (observation 17, action 6, float32, episodes of 1000 steps), held by tf.data.
``convert`` is iterated in batches of 1024 and one by one; ``push`` goes through TF-Agents' observers to a local
server until that has all items: pairs of steps, windows of 8 across episodes, whole episodes, and pairs by a class
derived from theirs, which has to be called step by step.  "episodes" is ours given the same data as rlds2buf episodes
instead of tf.data; "from TFDS" is a folder (``--rlds``), read by TFDS ten times.  Rates are medians over rounds, in
which all take turns.  TF-Agents gets a tenth or less of the steps, since a rate is what is compared.
Needs ``pip install "rlds2buf[tf-agents]"``.
"""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from bench import Bench, turns

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import reverb
    import tensorflow as tf
    import tensorflow_datasets as tfds
    from tf_agents.replay_buffers import reverb_utils
    from tf_agents.replay_buffers import rlds_to_reverb as theirs
    from tf_agents.specs import tensor_spec

import rlds2buf
from rlds2buf import rlds_to_reverb as ours

ROWS = 1000


def columns(episodes: int, rows: int = ROWS) -> list[dict[str, np.ndarray]]:
    """`episodes` episodes of so many steps as columns."""
    rng = np.random.default_rng(0)
    edge = np.arange(rows)
    return [
        {
            "observation": rng.standard_normal((rows, 17), np.float32),
            "action": rng.standard_normal((rows, 6), np.float32),
            "reward": rng.standard_normal(rows, np.float32),
            "discount": np.ones(rows, np.float32),
            "is_first": edge == 0,
            "is_last": edge == rows - 1,
            "is_terminal": np.zeros(rows, np.bool_),
        }
        for _ in range(episodes)
    ]


def dataset(episodes: int, rows: int = ROWS) -> Any:
    """The same as a dataset of datasets of steps."""
    if rows != ROWS:  # thousands of datasets take long to make one by one
        (table,) = columns(1, episodes * rows)
        table["is_first"], table["is_last"] = (np.arange(episodes * rows) % rows == at for at in (0, rows - 1))
        whole = tf.data.Dataset.from_tensor_slices(table).batch(rows)
        return whole.map(lambda episode: {"steps": tf.data.Dataset.from_tensor_slices(episode)})
    steps = [tf.data.Dataset.from_tensor_slices(episode) for episode in columns(episodes, rows)]
    return tf.data.Dataset.from_tensor_slices({"steps": steps})


class Derived(reverb_utils.ReverbAddTrajectoryObserver):  # type: ignore[misc]
    """An observer of somebody's own: it has to see every step."""


def pairs(client: Any) -> Any:
    """An observer that makes pairs of steps."""
    return reverb_utils.ReverbAddTrajectoryObserver(client, "replay", 2)


PUSHES: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "push through the observer": (ROWS, pairs),
    "push through the observer, 20-step episodes": (20, pairs),
    "push through the observer, windows of 8 across episodes": (
        ROWS,
        lambda client: reverb_utils.ReverbTrajectorySequenceObserver(client, "replay", 8),
    ),
    "push through the observer, whole episodes of 20 steps": (
        20,
        lambda client: reverb_utils.ReverbAddEpisodeObserver(client, "replay", ROWS),
    ),
    "push through a derived observer": (ROWS, lambda client: Derived(client, "replay", 2)),
}
"""Steps per episode, and what makes an observer."""


def policy_info(current: dict[str, Any], following: dict[str, Any]) -> Any:
    """A little of what a policy would log."""
    return {"value": current["reward"] + following["reward"]}


def in_batches(data: Any, convert: Callable[..., Any], *args: Any) -> Callable[[], int]:
    """Iterate all trajectories in batches of 1024; returns how many there were."""
    batches = convert(data, *args).batch(1024)
    return lambda: sum(int(batch.reward.shape[0]) for batch in batches)


def one_by_one(data: Any, convert: Callable[..., Any]) -> Callable[[], int]:
    """Iterate all trajectories as they come; returns how many there were."""
    frames = convert(data)
    return lambda: sum(1 for _ in frames)


def pushing(data: Any, push: Callable[..., int], client: Any, make: Callable[[Any], Any]) -> Callable[[], int]:
    """Push all trajectories and wait until the server has their items; returns how many there were."""

    def run() -> int:
        observer = make(client)
        count = push(data, observer)
        observer.flush()
        observer.close()
        return count

    return run


def server_for(data: Any) -> Any:
    """A local server with one table for pairs of steps."""
    signature = tensor_spec.add_outer_dim(ours.create_trajectory_data_spec(data))
    uniform, fifo = reverb.selectors.Uniform(), reverb.selectors.Fifo()
    limiter = reverb.rate_limiters.MinSize(1)
    return reverb.Server([reverb.Table("replay", uniform, fifo, 1_000_000, limiter, signature=signature)])


def contenders(steps: int, folder: str | None, client: Any) -> dict[str, dict[str, Callable[[], int]]]:
    """For each kind of work, who does it."""
    much, some, few = (dataset(max(1, steps // ROWS // part)) for part in (1, 10, 20))
    convert = theirs.convert_rlds_to_trajectories, ours.convert_rlds_to_trajectories
    work = {
        "convert, batches of 1024": {
            "TF-Agents": in_batches(some, convert[0]),
            "rlds2buf": in_batches(much, convert[1]),
            "rlds2buf, episodes": in_batches([rlds2buf.Episode(**e) for e in columns(steps // ROWS)], convert[1]),
        },
        "convert with policy_info_fn, batches of 1024": {
            "TF-Agents": in_batches(some, convert[0], policy_info),
            "rlds2buf": in_batches(some, convert[1], policy_info),
        },
        "convert, one by one": {"TF-Agents": one_by_one(few, convert[0]), "rlds2buf": one_by_one(few, convert[1])},
    }
    for name, (rows, make) in PUSHES.items():
        part = 20 if make is PUSHES["push through a derived observer"][1] else 1
        little, all_of_it = (dataset(max(1, steps // rows // portion), rows) for portion in (20, part))
        work[name] = {
            "TF-Agents": pushing(little, theirs.push_rlds_to_reverb, client, make),
            "rlds2buf": pushing(all_of_it, ours.push_rlds_to_reverb, client, make),
        }
    if folder:
        read = tfds.builder_from_directory(folder).as_dataset(split="train").repeat(10)
        work["convert from TFDS, batches of 1024"] = {
            "TF-Agents": in_batches(read, convert[0]),
            "rlds2buf": in_batches(read, convert[1]),
        }
    return work


def emptied(client: Any) -> None:
    """Every pass begins with an empty table: one that is full has to let go of an item for each new one."""
    client.reset("replay")
    while client.server_info()["replay"].current_size:
        time.sleep(0.1)
    time.sleep(1)  # for the server to free what they held


def main() -> None:
    """Measure and print."""
    logging.disable(logging.WARNING)
    bench = Bench(__doc__, steps=100_000, rlds="")
    server = server_for(dataset(1))
    client = server.localhost_client()
    work = contenders(bench.options.steps, bench.options.rlds, client)
    for name, runs in work.items():
        rates = turns(runs, bench.rounds, clear=lambda _: emptied(client))
        bench.show(name, rates)
        for who in runs:
            if who != "TF-Agents":
                least = 25 if name in PUSHES and "derived" not in name else None
                bench.ratio(f"rlds_to_reverb, {name}{who[8:]}", rates, who, "TF-Agents", least)
    server.stop()
    bench.finish()


if __name__ == "__main__":
    main()
