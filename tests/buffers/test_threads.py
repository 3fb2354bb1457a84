"""One writer and several samplers on one buffer: no torn row, no error, no deadlock."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import rlds2buf
from rlds2buf import NotEnoughItems
from tests.buffers.crew import LOOSE, Crew, Work, check_sequences, check_transitions
from tests.buffers.numbered import SPEC, episode, transitions

SECONDS = 2.0


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
