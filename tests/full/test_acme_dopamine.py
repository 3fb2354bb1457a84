"""Acme's steps and Dopamine's elements in real tables, read back by Reverb's own client."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rlds2buf import push
from rlds2buf.formats.reverb.patterns.dopamine import dopamine_table
from rlds2buf.formats.reverb.patterns.make import make_pattern
from rlds2buf.reverb.tf_tables import make_table
from tests.full.pushed import episodes
from tests.full.quiet import reverb, tf

STEP = ("observation", "action", "reward", "discount", "start_of_episode", "extras")
"""The fields of Acme's ``Step``, in its order."""

GIVEN = episodes(9, 4, 1, 30, 2, terminal=True)


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    fifo = reverb.selectors.Fifo
    names = [f"{side}-{kind}" for side in ("theirs", "ours") for kind in ("zero_pad", "truncate", "write", "episode")]
    server = reverb.Server(
        [reverb.Table(name, fifo(), fifo(), 1000, reverb.rate_limiters.MinSize(1), 1) for name in names]
    )
    yield server
    server.stop()


def items(client: Any, table: str) -> list[list[np.ndarray]]:
    """The flat columns of all items, in order; the table is emptied."""
    count = client.server_info()[table].current_size
    return [sample.data for sample in client.sample(table, count, emit_timesteps=False)]


class Adder:
    """What Acme's adders do with a Reverb writer (acme/adders/reverb/base.py, sequence.py, episode.py)."""

    def __init__(self, client: Any, table: str, end: str, length: int, period: int) -> None:
        self.client, self.table, self.end, self.length, self.period = client, table, end, length, period

    def add_all(self, episode: Any) -> None:
        if episode.num_steps == 1:
            return  # add() is never called
        self.writer = self.client.trajectory_writer(num_keep_alive_refs=episode.num_steps + self.length)
        self.writer.append({"observation": episode.observation[0], "start_of_episode": True}, partial_step=True)
        for t in range(episode.num_steps - 1):
            self.add(episode, t)
        self.writer.append(tf.nest.map_structure(np.zeros_like, self.step))
        self.write_last()
        self.writer.end_episode()
        self.writer.close()

    def add(self, episode: Any, t: int) -> None:
        self.step = {
            "action": episode.action[t],
            "reward": episode.reward[t],
            "discount": np.float32(0 if episode.is_terminal[t + 1] else episode.discount[t]),
            "extras": {"weight": episode.extras["weight"][t]},
        }
        self.writer.append(self.step)
        following = {"observation": episode.observation[t + 1], "start_of_episode": False}
        self.writer.append(following, partial_step=True)
        if self.end != "episode":
            self.maybe_create(self.length)

    def write_last(self) -> None:
        if self.end == "episode":
            self.create(slice(None))
            return
        delta = self.length - self.writer.episode_steps
        if delta < 0:
            delta = (self.period + delta) % self.period
        if self.end == "truncate":
            self.maybe_create(self.length - delta, force=True, at_end=True)
            return
        if self.end == "zero_pad":
            zeros = tf.nest.map_structure(lambda column: np.zeros_like(column[-2].numpy()), self.writer.history)
            for _ in range(delta):
                self.writer.append(zeros)
        if self.writer.episode_steps >= self.length:
            self.maybe_create(self.length, force=True, at_end=True)

    def maybe_create(self, steps: int, *, force: bool = False, at_end: bool = False) -> None:
        written = self.writer.episode_steps
        reached = written > self.length and (written - self.length) % self.period == 0
        if written == steps or reached or force:
            self.create(slice(-steps, None) if at_end else slice(-steps - 1, -1))

    def create(self, rows: slice) -> None:
        history = self.writer.history
        fields = [tf.nest.map_structure(operator.itemgetter(rows), history[name]) for name in STEP]
        self.writer.create_item(self.table, 1.0, tuple(fields))
        self.writer.flush()


@pytest.mark.parametrize("end", ["zero_pad", "truncate", "write", "episode"])
def test_items_are_those_that_acmes_adders_write(server: Any, end: str) -> None:
    client = server.localhost_client()
    adder = Adder(client, f"theirs-{end}", end, 5, 3)
    for episode in GIVEN:
        adder.add_all(episode)
    options: dict[str, Any] = {"pattern": "acme-episode"}
    if end != "episode":
        options = {"pattern": "acme-sequence", "sequence_length": 5, "stride": 3, "end_of_episode": end}
    report = push(GIVEN, f"localhost:{server.port}", f"ours-{end}", extras=["weight"], **options)
    ours, theirs = items(client, f"ours-{end}"), items(client, f"theirs-{end}")
    assert report.items == len(ours) == len(theirs) > 3
    for one, other in zip(ours, theirs, strict=True):
        assert [(c.dtype, c.tolist()) for c in one] == [(c.dtype, c.tolist()) for c in other]


@pytest.mark.parametrize("kind", ["acme-sequence", "acme-episode", "dopamine"])
def test_a_table_made_for_them_takes_them_and_names_their_fields(kind: str) -> None:
    given = episodes(9, 4, nested=True)
    pattern = make_pattern(kind, sequence_length=5)
    server = reverb.Server([make_table(given, "replay", pattern)])
    push(given, f"localhost:{server.port}", "replay", pattern=kind, sequence_length=5)
    sample = next(
        iter(server.localhost_client().sample("replay", emit_timesteps=False, unpack_as_table_signature=True))
    )
    fields = (
        STEP if kind.startswith("acme") else tuple("state action reward next_state is_terminal episode_end".split())
    )
    assert sample.data._fields == fields
    server.stop()


def test_acmes_dataset_of_steps_reads_sequences() -> None:
    """As acme.datasets.make_reverb_dataset does: whole items as nests of the table's signature."""
    pattern = make_pattern("acme-sequence", sequence_length=5)
    server = reverb.Server([make_table(GIVEN, "replay", pattern)])
    push(GIVEN, f"localhost:{server.port}", "replay", pattern="acme-sequence", sequence_length=5)
    data = reverb.TrajectoryDataset.from_table_signature(
        f"localhost:{server.port}", "replay", max_in_flight_samples_per_worker=4
    )
    for sample in data.batch(4).take(3):
        assert sample.data.observation.shape == (4, 5, 3)
        starts = sample.data.start_of_episode.numpy()
        assert not starts[:, 1:].any()
    server.stop()


@pytest.mark.parametrize("prioritized", [False, True])
def test_a_table_shaped_as_dopamines(prioritized: bool) -> None:
    pattern = make_pattern("dopamine", stack=4, n_step=3, gamma=0.9)
    settings = dopamine_table(prioritized=prioritized)
    server = reverb.Server([make_table(GIVEN, settings, pattern)])
    report = push(
        GIVEN,
        f"localhost:{server.port}",
        "replay",
        pattern="dopamine",
        stack=4,
        n_step=3,
        gamma=0.9,
        priority=lambda item: 1.0 + item.is_terminal,
    )
    assert report.items == 8 + 3 + 29 + 1
    client = server.localhost_client()
    info = client.server_info()["replay"]
    assert bool(info.sampler_options.prioritized.priority_exponent) == prioritized
    for sample in client.sample("replay", 20, emit_timesteps=False, unpack_as_table_signature=True):
        item = sample.data
        assert item.state.shape == item.next_state.shape == (4, 3)
        expected = (2 if item.is_terminal else 1) / 51 if prioritized else 1 / 41
        assert sample.info.probability == pytest.approx(expected)
    server.stop()
