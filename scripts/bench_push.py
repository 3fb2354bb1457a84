#!/usr/bin/env python3
"""rlds2buf.push beside what else fills a Reverb table, on one local server, with episodes of 20 and of 1000 steps.

HalfCheetah-shaped data, in memory; items are TF-Agents' two-step trajectories.  The server is a process of its own.
A rate counts from the start until the table holds every item.  Slow peers get fewer steps, since a rate is what is
compared.

push            rlds2buf.push, validation included
prebuilt        the same bytes, made before the clock starts: the server's own limit
TF-Agents       push_rlds_to_reverb with a ReverbAddTrajectoryObserver
TrajectoryWriter, StructuredWriter   dm-reverb's own, as its documentation uses them

Then: sampling the tables that push and TF-Agents filled, through TrajectoryDataset; a checkpoint,
written and loaded by a server; and the memory that a push of 1x and of 8x the data needs.
Needs ``pip install "rlds2buf[tf-agents,reverb]"``.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from bench import Bench, ByLength, Pass, columns, peak, turns

import rlds2buf
from rlds2buf import EpisodeBatch
from rlds2buf.io.source import Source


class Episodes(Source):
    """Made as they are read, so that they take no memory."""

    format: ClassVar[str] = "synthetic"
    name = "synthetic"

    def __init__(self, count: int, length: int) -> None:
        self.count, self.length = count, length
        # As many as a block has; every block has the same rows but for one number.
        some = max(4, (1 << 14) // length)
        self._made = columns(some * length, length)

    @property
    def spec(self) -> Any:
        return rlds2buf.spec_of(rlds2buf.Episode(**self._made))

    @property
    def num_episodes(self) -> int:
        return self.count

    @property
    def num_steps(self) -> int:
        return self.count * self.length

    def read_batches(self, start: int = 0, stop: int | None = None, **sizes: int) -> Iterator[Any]:
        stop = self.count if stop is None else min(stop, self.count)
        some = len(self._made["reward"]) // self.length
        for first in range(start, stop, some):
            index = np.arange(first, min(first + some, stop))
            made = {name: column[: len(index) * self.length] for name, column in self._made.items()}
            made["observation"] = made["observation"].copy()  # as a reader would have to
            made["observation"][:, 0] += first  # or the blocks would be equal
            rows = rlds2buf.Episode(**made, source=self.name)
            yield EpisodeBatch(rows, np.arange(len(index)) * self.length, index=index)

    def fingerprint(self) -> str:
        return f"synthetic {self.count} x {self.length}"


def table_server(port: int, folder: str | None) -> None:
    """A server process: prints its port and how long it took to start, and serves."""
    import reverb

    def table(name: str) -> Any:
        limiter = reverb.rate_limiters.MinSize(1)
        return reverb.Table(name, reverb.selectors.Uniform(), reverb.selectors.Fifo(), 10**7, limiter)

    names = ["replay"] if folder else ["ours", "theirs", "replay"]
    keeper = reverb.platform.checkpointers_lib.DefaultCheckpointer(folder) if folder else None
    start = time.perf_counter()
    server = reverb.Server([table(name) for name in names], port=port or None, checkpointer=keeper)
    print(json.dumps([server.port, time.perf_counter() - start]), flush=True)
    time.sleep(3600)


@contextlib.contextmanager
def server(folder: str | None = None) -> Iterator[tuple[str, float]]:
    """Address and start-up seconds of a server in a process of its own."""
    command = [sys.executable, __file__, "--serve", folder or ""]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            port, seconds = json.loads(process.stdout.readline())
            yield f"localhost:{port}", seconds
        finally:
            process.kill()


class Runs:
    """The runs, by name; each fills the table "replay" and returns how many items it holds then."""

    def __init__(self, address: str, length: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import reverb
            import tensorflow as tf
            from tf_agents.replay_buffers import reverb_utils, rlds_to_reverb
        self.reverb, self.tf, self.observers, self.util = reverb, tf, reverb_utils, rlds_to_reverb
        self.address, self.length = address, length
        self.client = reverb.Client(address)

    def size(self, table: str) -> int:
        return int(self.client.server_info()[table].current_size)

    def filled(self, table: str, items: int) -> int:
        while self.size(table) < items:
            time.sleep(0.0005)
        return items

    def push(self, episodes: int, table: str = "replay") -> Callable[[], int]:
        source = Episodes(episodes, self.length)
        return lambda: rlds2buf.push(source, self.address, table).items

    def prebuilt(self, episodes: int) -> Callable[[], int]:
        from rlds2buf.formats.reverb.item_keys import ContentKeys
        from rlds2buf.formats.reverb.patterns.trajectories import TrajectoryPattern
        from rlds2buf.formats.reverb.protocol.insert_stream import InsertStream
        from rlds2buf.formats.reverb.protocol.item_encoder import ItemEncoder
        from rlds2buf.formats.reverb.request_builder import RequestBuilder

        source, pattern = Episodes(episodes, self.length), TrajectoryPattern()
        requests: list[Any] = []
        encoder = ItemEncoder("replay", pattern.columns(source.spec), max_chunk_length=16)
        builder = RequestBuilder(encoder, 16, send=requests.append, mark=lambda marks: None)
        maker = ContentKeys({"source": "prebuilt"}, "replay", pattern.text, 16)
        for batch in source.batches():
            laid = pattern.lay(batch)
            keys = maker.episodes(batch.index, laid.tensors, laid.edges)
            builder.add(laid, keys, np.ones(len(laid.numbers)), [None] * len(batch))
        builder.flush()
        # Joined now, so that nothing but sending is left.
        for number, request in enumerate(requests):
            messages = list(request.encode(fresh=number == 0))
            request.encode = lambda messages=messages, **fresh: iter(messages)
        items = sum(len(request.keys) for request in requests)

        def run() -> int:
            stream = InsertStream(self.address, "replay", timeout=60, on_acknowledged=lambda marks: None)
            stream.connect()
            for request in requests:
                stream.send(request)
            stream.drain()
            stream.close()
            return items

        return run

    def tf_agents(self, episodes: int, table: str = "replay") -> Callable[[], int]:
        steps = [
            {name: getattr(one, name) for name in self.util.get_rlds_step_features()}
            for one in Episodes(episodes, self.length)
        ]
        data = self.tf.data.Dataset.from_tensor_slices(
            {"steps": [self.tf.data.Dataset.from_tensor_slices(episode) for episode in steps]}
        )
        # The table has no signature, which their util would compare first; the work is the same.
        observer = self.observers.ReverbAddTrajectoryObserver(self.client, table, sequence_length=2)

        def run() -> int:
            for frame in self.util.convert_rlds_to_trajectories(data):
                observer(frame)
            observer.flush()
            return self.filled(table, episodes * (self.length - 1))

        return run

    def frames(self, episodes: int) -> list[list[dict[str, Any]]]:
        """Per episode, its frames as a writer is given them, one at a time."""
        out = []
        for one in Episodes(episodes, self.length):
            pairs = rlds2buf.step_pairs(one)._asdict()
            pairs.pop("policy_info")
            out.append([{name: column[t] for name, column in pairs.items()} for t in range(self.length)])
        return out

    def trajectory_writer(self, episodes: int) -> Callable[[], int]:
        frames = self.frames(episodes)

        def run() -> int:
            with self.client.trajectory_writer(num_keep_alive_refs=3) as writer:
                for episode in frames:
                    for t, frame in enumerate(episode):
                        writer.append(frame)
                        if t:
                            item = {name: column[-2:] for name, column in writer.history.items()}
                            writer.create_item("replay", priority=1.0, trajectory=item)
                    writer.end_episode()
            return self.filled("replay", episodes * (self.length - 1))

        return run

    def structured_writer(self, episodes: int) -> Callable[[], int]:
        frames = self.frames(episodes)
        writing = self.reverb.structured_writer
        pattern = writing.pattern_from_transform(frames[0][0], lambda step: {k: v[-2:] for k, v in step.items()})
        config = writing.create_config(pattern, table="replay", conditions=[])

        def run() -> int:
            writer = self.client.structured_writer([config])
            for episode in frames:
                for frame in episode:
                    writer.append(frame)
                writer.end_episode()
            writer.flush()
            return self.filled("replay", episodes * (self.length - 1))

        return run

    def sample(self, table: str, samples: int) -> Callable[[], int]:
        sample = next(iter(self.client.sample(table, emit_timesteps=False))).data
        dtypes = tuple(self.tf.as_dtype(column.dtype) for column in sample)
        shapes = tuple(self.tf.TensorShape(column.shape) for column in sample)

        def run() -> int:
            dataset = self.reverb.TrajectoryDataset(
                self.address, table, dtypes, shapes, max_in_flight_samples_per_worker=1000, num_workers_per_iterator=1
            )
            for _ in dataset.batch(256).take(samples // 256):
                pass
            return samples // 256 * 256

        return run


def filling(bench: Bench, address: str, steps: int) -> None:
    """Everybody fills the table, emptied before each."""

    def make(length: int) -> dict[str, Pass]:
        runs, episodes = Runs(address, length), max(1, steps // length)
        return {
            "push": runs.push(episodes),
            "prebuilt": runs.prebuilt(episodes),
            "TF-Agents": runs.tf_agents(max(1, episodes // 50)),
            "TrajectoryWriter": runs.trajectory_writer(max(1, episodes // 10)),
            "StructuredWriter": runs.structured_writer(max(1, episodes // 5)),
        }

    client = Runs(address, 1).client
    found = ByLength(bench, "items into a table", make, "items/s", clear=lambda name: client.reset("replay"))
    work = "two-step items into a Reverb server"
    found.against(work, "push", "TF-Agents", 50, 50)
    found.against(work, "push", "TrajectoryWriter", 8, 8)
    found.against(work, "push", "StructuredWriter", 3, 3)
    found.against(f"{work} (the server's own limit)", "push", "prebuilt", 0.8, 0.7)
    found.short_against_long(work, "push", 0.6)


def sampling(bench: Bench, address: str, steps: int) -> None:
    """Out of two tables that hold the same items."""
    runs, length = Runs(address, 1000), 1000
    for fill in (
        runs.push(max(1, steps // 10 // length), "ours"),
        runs.tf_agents(max(1, steps // 10 // length), "theirs"),
    ):
        fill()
    rates = turns({"push": runs.sample("ours", steps), "TF-Agents": runs.sample("theirs", steps)}, bench.rounds)
    bench.show("items out of it, through TrajectoryDataset", rates, "items/s")
    bench.ratio("sampling that table", rates, "push", "TF-Agents", least=1, name="a table filled by TF-Agents")
    for table in ("ours", "theirs", "replay"):
        runs.client.reset(table)


def checkpoint(bench: Bench, steps: int) -> None:
    """Written, and loaded by a server."""

    def make(length: int) -> dict[str, Pass]:
        def run() -> int:
            with bench.folder() as folder:
                path = str(folder / "seed")
                items = rlds2buf.write_checkpoint(Episodes(steps // length, length), path, "replay").items
                with server(path):
                    return int(items)

        return {"a checkpoint, written and loaded": run}

    found = ByLength(bench, "a checkpoint", make, "items/s")
    found.short_against_long("a Reverb checkpoint, written and loaded", "a checkpoint, written and loaded")


def memory(bench: Bench, address: str, steps: int) -> None:
    """Peak memory of a process that pushes 1x and 8x the steps."""
    here = str(Path(__file__).parent)
    for length in (20, 1000):
        one, eight = (
            peak(
                f"import sys; sys.path.insert(0, {here!r}); import bench_push, rlds2buf; "
                f"rlds2buf.push(bench_push.Episodes({times * steps // length}, {length}), {address!r}, 'replay')"
            )
            for times in (1, 8)
        )
        bench.figure(
            f"peak memory of a push, {length}-step episodes, 8x the data", "1x the data", eight / one, most=1.2
        )


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["--serve"]:
        return table_server(0, sys.argv[2] or None)
    bench = Bench(__doc__, rounds=3, steps=100_000)
    steps = bench.options.steps
    with server() as (address, _):
        filling(bench, address, steps)
        sampling(bench, address, steps)
        memory(bench, address, steps)
    checkpoint(bench, steps)
    bench.finish()


if __name__ == "__main__":
    main()
