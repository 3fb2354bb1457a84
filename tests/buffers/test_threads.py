"""One writer and several samplers on one buffer: no torn row, no error, no deadlock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import NotEnoughItems, Trajectory, Transition, UnknownKey
from tests.buffers.numbered import SPEC, episode, transitions

SECONDS = 2.0
LOOSE = 200_000
"""Loose transitions are numbered from here, rows of episodes below."""


def check_row(batch: Any, real: Any = ...) -> np.ndarray:
    """Every column of every row belongs to one number; returns the numbers."""
    number = batch.observation["count"][real]
    place = batch.observation["place"][real]
    assert (place[..., 0] == number).all() and (place[..., 1] == -number).all()
    assert (batch.action[real] == number * 10).all()
    assert (batch.extras["note"][real] == number % 251).all()
    after = batch.next_observation["count"][real]
    assert (after == np.where(number < LOOSE, number + 1, number + 500_000)).all()
    assert (batch.next_observation["place"][real][..., 0] == after).all()
    return number


def check_transitions(batch: Transition) -> None:
    number = check_row(batch)
    assert (batch.reward == number * 0.5).all()
    assert np.isin(batch.is_done, (0, 1)).all()
    assert (batch.discount == np.where(batch.is_done == 1, 0, np.float32(0.9))).all()


def check_sequences(batch: Trajectory) -> None:
    number = check_row(batch, batch.mask)
    assert (batch.reward[batch.mask] == number * 0.5).all()
    both = batch.mask[:, :-1] & batch.mask[:, 1:]
    step = np.diff(batch.observation["count"], axis=1)
    assert (step[both] == 1).all()
    assert (batch.observation["count"][~batch.mask] == 0).all()


def check_n_step(batch: Transition, gamma: float) -> None:
    number = batch.observation["count"]
    last = number + batch.steps - 1
    after = np.where(number < LOOSE, last + 1, last + 500_000)
    assert (batch.next_observation["count"] == after).all()
    steps = np.arange(8)
    live = steps < batch.steps[:, None]
    powers = (gamma * np.float64(np.float32(0.9))) ** steps
    expected = ((number[:, None] + steps) * 0.5 * powers * live).sum(1)
    np.testing.assert_allclose(batch.reward, expected, rtol=1e-9)


class Crew:
    """Threads that work until the time is up; the first exception of any is raised at the end."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.errors: list[BaseException] = []
        self.rounds: dict[str, int] = {}
        self.threads: list[threading.Thread] = []

    def hire(self, name: str, work: Callable[[int], None]) -> None:
        def loop() -> None:
            try:
                while not self.stop.is_set():
                    work(self.rounds.get(name, 0))
                    self.rounds[name] = self.rounds.get(name, 0) + 1
            except BaseException as error:
                self.errors.append(error)
                self.stop.set()

        self.threads.append(threading.Thread(target=loop, name=name, daemon=True))

    def work(self, seconds: float) -> None:
        for thread in self.threads:
            thread.start()
        self.stop.wait(seconds)
        self.stop.set()
        for thread in self.threads:
            thread.join(timeout=30)
            assert not thread.is_alive(), f"{thread.name} hangs"
        if self.errors:
            raise self.errors[0]
        assert set(self.rounds) == {thread.name for thread in self.threads}


class Work:
    """What the threads do to one buffer: sources 1 (episodes) and 2 (loose transitions)."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self.rng = np.random.default_rng(2)
        self.episode_number, self.loose_number = 100, LOOSE

    def write(self, _: int) -> None:
        if self.rng.random() < 0.5:
            rows = int(self.rng.integers(2, 40))
            self.buffer.add(episode(self.episode_number, rows), source_id=1)
            self.episode_number = (self.episode_number + rows) % (LOOSE - 100)
        else:
            count = int(self.rng.integers(1, 12))
            self.buffer.add(transitions(self.loose_number, count), source_id=2)
            self.loose_number += count

    def sample(self, _: int) -> None:
        check_transitions(self.buffer.sample(64).data)

    def sample_long(self, _: int) -> None:
        check_n_step(self.buffer.sample(64, n_step=8, gamma=0.5).data, 0.5)
        check_sequences(self.buffer.sample(32, sequence_length=6).data)

    def sample_each_once(self, _: int) -> None:
        batch = self.buffer.sample(16, replace=False)
        check_transitions(batch.data)
        assert len(np.unique(batch.info.key)) == 16

    def look(self, _: int) -> None:
        check_transitions(self.buffer.all())
        keys = self.buffer.keys()
        assert (np.diff(keys.astype(np.int64)) > 0).all()
        try:
            check_transitions(self.buffer.get(keys))
        except UnknownKey:  # some have left since
            assert not np.isin(keys[:1], self.buffer.keys()).any()
        assert self.buffer.stats()["num_rows"] <= self.buffer.capacity
        try:
            assert (self.buffer.sample(4, source_id=2).data.observation["count"] >= LOOSE).all()
        except NotEnoughItems:  # long episodes have driven them all out
            pass


@pytest.mark.parametrize("kind", ["memory", "files", "loaded"])
def test_one_writer_and_several_samplers(kind: str, tmp_path: Path) -> None:
    directory = tmp_path / "columns" if kind == "files" else None
    buffer = rlds2buf.make_circular(SPEC, 300, seed=1, directory=directory)
    buffer.add(episode(0, 100))
    if kind == "loaded":
        buffer.save(tmp_path / "saved")
        buffer = rlds2buf.load_buffer(tmp_path / "saved")
    work, crew = Work(buffer), Crew()
    crew.hire("writer", work.write)
    for name in ("one", "two"):
        crew.hire(name, work.sample)
    crew.hire("three", work.sample_long)
    crew.hire("four", work.sample_each_once)
    crew.hire("observer", work.look)
    crew.work(SECONDS)
    buffer.check_valid()
    assert buffer.stats()["evicted"] > 300  # it went round
    assert all(rounds > 5 for rounds in crew.rounds.values()), crew.rounds


def test_resize_clear_and_save_beside_a_writer_and_samplers(tmp_path: Path) -> None:
    buffer = rlds2buf.make_circular(SPEC, 300, seed=1)

    def write(i: int) -> None:
        buffer.add(episode(30 * (i % 5000), 25), source_id=i % 3)

    def sample(_: int) -> None:
        try:
            check_transitions(buffer.sample(64).data)
            check_sequences(buffer.sample(16, sequence_length=4).data)
        except NotEnoughItems:
            time.sleep(0.001)

    def disturb(i: int) -> None:
        buffer.resize([300, 50, 64, 301][i % 4])
        if i % 7 == 0:
            buffer.clear()

    def save(i: int) -> None:
        buffer.save(tmp_path / "saved", overwrite=True)
        loaded = rlds2buf.load_buffer(tmp_path / "saved")
        loaded.check_valid()
        check_transitions(loaded.all())
        if i % 3 == 0:
            other = rlds2buf.make_circular(SPEC, 1)
            state = buffer.state_dict()
            other.resize(state["capacity"])
            other.load_state_dict(state)
            other.check_valid()
            check_transitions(other.all())

    crew = Crew()
    for name, work in (("writer", write), ("one", sample), ("two", sample), ("resizer", disturb), ("saver", save)):
        crew.hire(name, work)
    crew.work(SECONDS)
    buffer.check_valid()


def test_two_writers_lose_nothing() -> None:
    buffer = rlds2buf.make_circular(SPEC, 100_000)
    keys: dict[str, list[np.ndarray]] = {"one": [], "two": []}

    def writer(name: str, source: int) -> Callable[[int], None]:
        def write(i: int) -> None:
            if i < 200:
                keys[name].append(buffer.add(transitions(LOOSE + 1000 * source + 5 * i, 5), source_id=source))
            else:
                time.sleep(0.01)

        return write

    crew = Crew()
    crew.hire("one", writer("one", 1))
    crew.hire("two", writer("two", 2))
    crew.work(SECONDS / 2)
    every = np.concatenate(keys["one"] + keys["two"])
    assert len(np.unique(every)) == len(every) == len(buffer) == 5 * sum(len(part) for part in keys.values())
    for source, name in ((1, "one"), (2, "two")):
        mine = np.concatenate(keys[name])
        assert buffer.get(mine).observation["count"].tolist() == [LOOSE + 1000 * source + i for i in range(len(mine))]
        check_sequences(buffer.get(mine, sequence_length=9))
