#!/usr/bin/env python3
"""rlds2buf.push beside what else fills a Reverb table, on one local server, in turn.

HalfCheetah-shaped data (observation 17, action 6, float32, episodes of 1000 steps), in memory; items
are TF-Agents' two-step trajectories.  The server is a process of its own.  A rate counts from the
start until the table holds every item.  Slow peers get fewer steps, since a rate is what is compared.

push            rlds2buf.push, validation included
prebuilt        the same bytes, made before the clock starts: the server's own limit
push short, prebuilt short           the same for episodes of 20 steps
TF-Agents       push_rlds_to_reverb with a ReverbAddTrajectoryObserver
TrajectoryWriter, StructuredWriter   dm-reverb's own, as its documentation uses them

Then: sampling the tables that push and TF-Agents filled, through TrajectoryDataset; a checkpoint,
written and loaded by a server; and the memory that a push of 1x and of 8x the data needs.
Needs ``pip install "rlds2buf[tf-agents,reverb]"``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import rlds2buf
from rlds2buf.io.source import Source

ROWS, SHORT = 1000, 20
BLOCK = 16  # episodes of ROWS in a block
BARS = {"TF-Agents": 50.0, "TrajectoryWriter": 8.0, "StructuredWriter": 3.0}


class Episodes(Source):
    """Made as they are read, so that they take no memory.

    Args:
        steps: about how many, of whole blocks.
        rows: steps of an episode.
    """

    format: ClassVar[str] = "synthetic"
    name = "synthetic"

    def __init__(self, steps: int, rows: int = ROWS) -> None:
        self.rows = rows
        self.count = max(1, steps // rows)
        rng = np.random.default_rng(0)
        size = BLOCK * ROWS // rows
        edge = np.arange(size * rows) % rows
        self._starts = np.arange(size) * rows
        self._block = rlds2buf.Episode(
            observation=rng.standard_normal((len(edge), 17), np.float32),
            action=rng.standard_normal((len(edge), 6), np.float32),
            reward=rng.standard_normal(len(edge), np.float32),
            discount=np.ones(len(edge), np.float32),
            is_first=edge == 0,
            is_last=edge == rows - 1,
            is_terminal=np.zeros(len(edge), np.bool_),
            source=self.name,
        )

    @property
    def spec(self) -> Any:
        return rlds2buf.spec_of(self._block)

    @property
    def num_episodes(self) -> int:
        return self.count

    @property
    def num_steps(self) -> int:
        return self.count * self.rows

    def read_batches(self, start: int = 0, stop: int | None = None, **size: int) -> Iterator[Any]:
        stop = self.count if stop is None else min(stop, self.count)
        for index in range(start, stop, len(self._starts)):
            # Copied, as a reader would have to.
            rows = self._block.replace(observation=self._block.observation.copy(), index=index)
            batch = rlds2buf.EpisodeBatch(rows, self._starts)
            yield batch.take(slice(0, stop - index))

    def fingerprint(self) -> str:
        return f"synthetic {self.count} of {self.rows}"


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


class Bench:
    """The runs, by name; each fills the table "replay" and returns how many items it holds then."""

    def __init__(self, address: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import reverb
            import tensorflow as tf
            from tf_agents.replay_buffers import reverb_utils, rlds_to_reverb
        self.reverb, self.tf, self.observers, self.util = reverb, tf, reverb_utils, rlds_to_reverb
        self.address = address
        self.client = reverb.Client(address)

    def size(self, table: str) -> int:
        return int(self.client.server_info()[table].current_size)

    def filled(self, table: str, items: int) -> int:
        while self.size(table) < items:
            time.sleep(0.0005)
        return items

    def push(self, steps: int, table: str = "replay", rows: int = ROWS) -> Callable[[], int]:
        source = Episodes(steps, rows)
        return lambda: rlds2buf.push(source, self.address, table).items

    def prebuilt(self, steps: int, rows: int = ROWS) -> Callable[[], int]:
        from rlds2buf.formats.reverb.item_keys import KeyMaker
        from rlds2buf.formats.reverb.patterns.trajectories import TrajectoryPattern
        from rlds2buf.formats.reverb.protocol.insert_stream import InsertStream
        from rlds2buf.formats.reverb.protocol.item_encoder import ItemEncoder
        from rlds2buf.formats.reverb.request_builder import RequestBuilder

        source, pattern = Episodes(steps, rows), TrajectoryPattern()
        requests: list[Any] = []
        encoder = ItemEncoder("replay", pattern.columns(source.spec), max_chunk_length=16)
        builder = RequestBuilder(encoder, 16, send=requests.append, mark=lambda marks: None)
        maker = KeyMaker({"fingerprint": "prebuilt", "options": {}}, "replay", pattern.text, 16)
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
            for one in Episodes(episodes * ROWS)
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
            return self.filled(table, episodes * (ROWS - 1))

        return run

    def frames(self, episodes: int) -> list[list[dict[str, Any]]]:
        """Per episode, its frames as a writer is given them, one at a time."""
        out = []
        for one in Episodes(episodes * ROWS):
            pairs = rlds2buf.step_pairs(one)._asdict()
            pairs.pop("policy_info")
            out.append([{name: column[t] for name, column in pairs.items()} for t in range(ROWS)])
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
            return self.filled("replay", episodes * (ROWS - 1))

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
            return self.filled("replay", episodes * (ROWS - 1))

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


def rate(run: Callable[[], int]) -> float:
    start = time.perf_counter()
    done = run()
    return done / (time.perf_counter() - start)


def bench_filling(bench: Bench, steps: int, rounds: int) -> dict[str, float]:
    episodes = steps // ROWS
    runs = {
        "push": bench.push(steps),
        "prebuilt": bench.prebuilt(steps),
        "push short": bench.push(steps, rows=SHORT),
        "prebuilt short": bench.prebuilt(steps, rows=SHORT),
        "TF-Agents": bench.tf_agents(max(1, episodes // 50)),
        "TrajectoryWriter": bench.trajectory_writer(max(1, episodes // 10)),
        "StructuredWriter": bench.structured_writer(max(1, episodes // 5)),
    }
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            bench.client.reset("replay")
            rates[name].append(rate(run))
    return {name: statistics.median(found) for name, found in rates.items()}


def bench_sampling(bench: Bench, steps: int, rounds: int) -> dict[str, float]:
    """Both tables hold the same items."""
    episodes = max(1, steps // 10 // ROWS)
    for fill in (bench.push(episodes * ROWS, "ours"), bench.tf_agents(episodes, "theirs")):
        fill()
    runs = {"push": bench.sample("ours", steps), "TF-Agents": bench.sample("theirs", steps)}
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            rates[name].append(rate(run))
    return {name: statistics.median(found) for name, found in rates.items()}


def bench_checkpoint(steps: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "seed")
        start = time.perf_counter()
        items = rlds2buf.write_checkpoint(Episodes(steps), path, "replay").items
        written = time.perf_counter() - start
        with server(path) as (_, loaded):
            pass
        shutil.rmtree(path)
    return {"written": items / written, "loaded": items / loaded, "end to end": items / (written + loaded)}


def bench_memory(address: str, steps: int) -> dict[str, float]:
    """Peak memory in MiB of a process that pushes 1x and 8x the steps."""

    def peak(factor: int) -> float:
        command = [sys.executable, __file__, "--measure", address, "--steps", str(steps * factor)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return float(done.stdout)

    return {"1x": peak(1), "8x": peak(8)}


def measure(address: str, steps: int) -> None:
    rlds2buf.push(Episodes(steps), address, "replay")
    with open("/proc/self/status") as status:  # getrusage's peak is inherited from the parent
        print(next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM:")))


def show(title: str, rates: dict[str, float], unit: str) -> None:
    print(title)
    for name, value in rates.items():
        print(f"  {name:18}{value:12,.0f} {unit}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000, help="steps to push (default: 100000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds in which all take turns (default: 3)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        return table_server(0, arguments.serve or None)
    if arguments.measure is not None:
        return measure(arguments.measure, arguments.steps)
    with server() as (address, _):
        bench = Bench(address)
        filling = bench_filling(bench, arguments.steps, arguments.rounds)
        sampling = bench_sampling(bench, arguments.steps, arguments.rounds)
        for table in ("ours", "theirs", "replay"):
            bench.client.reset(table)
        memory = bench_memory(address, arguments.steps)
    checkpoint = bench_checkpoint(arguments.steps)
    times = {f"x {name}": filling["push"] / filling[name] for name in BARS}
    ratios = {
        **times,
        "share of the server's limit": filling["push"] / filling["prebuilt"],
        "the same, short episodes": filling["push short"] / filling["prebuilt short"],
        "short episodes against long": filling["push short"] / filling["push"],
        "sampling against TF-Agents": sampling["push"] / sampling["TF-Agents"],
        "memory at 8x against 1x": memory["8x"] / memory["1x"],
    }
    bars = {
        **{f"x {name}": f"at least {least:g}" for name, least in BARS.items()},
        "share of the server's limit": "at least 0.7",
        "the same, short episodes": "at least 0.8",
        "short episodes against long": "at least 0.6",
        "sampling against TF-Agents": "at least 1",
        "memory at 8x against 1x": "at most 1.2",
    }
    if arguments.json:
        print(
            json.dumps(
                {"filling": filling, "sampling": sampling, "checkpoint": checkpoint, "memory": memory, "ratios": ratios}
            )
        )
        return None
    show("items into a table", filling, "items/s")
    show("items out of it, through TrajectoryDataset", sampling, "items/s")
    show("a checkpoint", checkpoint, "items/s")
    show("peak memory of a push", memory, "MiB")
    print("ratios")
    for name, value in ratios.items():
        print(f"  {name:30}{value:8.2f}   ({bars[name]})")
    return None


if __name__ == "__main__":
    main()
