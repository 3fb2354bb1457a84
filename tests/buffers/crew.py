"""Threads that add and sample at once, and what every batch must be."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from rlds2buf import NotEnoughItems, Trajectory, Transition, UnknownKey
from tests.buffers.numbered import episode, transitions

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
