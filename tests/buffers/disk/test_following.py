"""Readers that follow a buffer in a folder: what was saved last, exactly, whatever its writer does meanwhile."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf.errors import ReplayError, SnapshotError, SourceNotFound
from tests.buffers.compare import assert_same_nest
from tests.buffers.disk.killed_live import change, make
from tests.buffers.disk.test_durability import KINDS
from tests.buffers.numbered import SPEC, episode
from tests.data import ROOT


def rows(buffer: Any) -> Any:
    """All that is held, and what follows it."""
    found = [buffer.all(decode=False)._asdict(), {"keys": buffer.keys()}]
    if buffer.engine.store.items is None:
        found.append(buffer.get(buffer.keys(), n_step=3, decode=False)._asdict())
    return found


def assert_same(mine: Any, theirs: Any) -> None:
    for one, other in zip(mine, theirs, strict=True):
        assert_same_nest(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_saved_last(kind: str, tmp_path: Path) -> None:
    writer = make(kind, tmp_path / "live")
    change(writer, kind, range(4))
    writer.save()
    expected = rows(writer)
    early = rlds2buf.load_buffer(tmp_path / "live", follow=True, seed=1)
    number = 4
    for _ in range(4):
        late = rlds2buf.load_buffer(tmp_path / "live", follow=True, seed=1)
        for _ in range(3):
            change(writer, kind, range(number, number + 2))
            number += 2
            opened = rlds2buf.load_buffer(tmp_path / "live", follow=True, seed=1)  # in the midst of changes
            for reader in (early, late, opened):
                assert_same(rows(reader), expected)
                assert len(reader.sample(5).info.key) == 5 and set(reader.sample(9).info.key) <= set(reader.keys())
        writer.save()
        expected = rows(writer)
        for reader in (early, late):
            assert_same(rows(reader), expected)
            reader.check_valid()


WRITER = """
import sys, time
buffer = rlds2buf.make_circular(SPEC, 3000, seed=0, directory=sys.argv[1])
start = 0
for number in range(int(sys.argv[2])):
    for i in range(25):
        rows = 2 + (7 * i + number) % 60
        buffer.add(episode(start, rows))
        start += rows
    buffer.save()
    print(start, flush=True)
"""


def test_beside_a_writer_that_never_rests(tmp_path: Path) -> None:
    """Rows say their keys, so that one that was overwritten, half or whole, would tell."""
    lines = "import rlds2buf\nfrom tests.buffers.numbered import *\n" + WRITER
    command = [sys.executable, "-c", lines, str(tmp_path / "live"), "150"]
    until = time.monotonic() + 120
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None and int(writer.stdout.readline())
        reader = rlds2buf.load_buffer(tmp_path / "live", follow=True)
        states, batches = set(), 0
        while (running := writer.poll() is None) or not batches:
            batch = reader.sample(64)
            store, keys = reader.engine.store, batch.info.key.astype(np.int64)
            states.add(store.newest)
            assert (keys >= store.oldest).all() and (keys < store.newest).all() and store.newest - store.oldest <= 3000
            count = batch.data.observation["count"]
            assert np.array_equal(count, keys)
            assert np.array_equal(batch.data.observation["place"], np.stack([count, -count], 1).astype(np.float32))
            assert np.array_equal(batch.data.next_observation["count"], count + 1)
            assert np.array_equal(batch.data.action, count * 10)
            batches += 1
            if running and time.monotonic() > until:
                writer.kill()
                pytest.fail("the writer takes too long")
        assert writer.returncode == 0 and batches > 3 and len(states) > 1
    assert np.array_equal(reader.all().observation["count"], reader.keys().astype(np.int64))


KILLED = """
import os, signal, sys
buffer = rlds2buf.load_buffer(sys.argv[1], writable=True)
for i in range(9):
    buffer.add(episode(1000 * i, 20))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_writer_that_is_killed_and_another_one(tmp_path: Path) -> None:
    writer: Any = rlds2buf.make_circular(SPEC, 60, seed=0, directory=tmp_path / "live")
    writer.add(episode(0, 50))
    writer.save()
    expected = rows(writer)
    del writer
    reader = rlds2buf.load_buffer(tmp_path / "live", follow=True)
    lines = "import rlds2buf\nfrom tests.buffers.numbered import *\n" + KILLED
    done = subprocess.run([sys.executable, "-c", lines, str(tmp_path / "live")], cwd=ROOT, timeout=100, check=False)
    assert done.returncode == -signal.SIGKILL
    assert_same(rows(reader), expected)
    late = rlds2buf.load_buffer(tmp_path / "live", follow=True)  # which puts the files back
    assert_same(rows(late), expected)
    assert_same(rows(reader), expected)
    writer = rlds2buf.load_buffer(tmp_path / "live", writable=True)
    writer.add(episode(5000, 30))
    assert_same(rows(reader), expected)
    writer.save()
    for other in (reader, late):
        assert_same(rows(other), rows(writer))


def test_a_folder_that_is_replaced(tmp_path: Path) -> None:
    for number in range(3):
        buffer = rlds2buf.make_circular(SPEC, 100)
        buffer.add(episode(100 * number, 10 + number))
        buffer.save(tmp_path / "saved", overwrite=True)
        if number == 0:
            reader = rlds2buf.load_buffer(tmp_path / "saved", follow=True)
        assert_same(rows(reader), rows(buffer))


def test_epochs_go_on_as_long_as_nothing_leaves(tmp_path: Path) -> None:
    writer = rlds2buf.make_circular(SPEC, 10_000, directory=tmp_path / "live")
    writer.add(episode(0, 9001))
    writer.save()
    reader = rlds2buf.load_buffer(tmp_path / "live", follow=True)
    epoch = reader.epoch(1000)
    seen = [key for _ in range(3) for key in next(epoch).info.key.tolist()]
    writer.add(episode(10_000, 901))
    writer.save()
    assert sorted(seen + [key for batch in epoch for key in batch.info.key.tolist()]) == list(range(9000))
    writer.add(episode(20_000, 51))
    writer.save()
    epoch = reader.epoch(1000)  # of what was saved last
    assert sum(len(batch.info.key) for batch in reader.epoch(1000)) == 9950
    next(epoch)
    writer.add(episode(30_000, 2000))
    writer.save()
    with pytest.raises(ReplayError, match="have left"):
        list(epoch)


def test_goals_of_a_buffer_that_is_overwritten(tmp_path: Path) -> None:
    def met(observation: Any, action: Any, after: Any) -> Any:
        return after["place"][:, 0] == after["place"][:, 1]

    goals: dict[str, Any] = {"reward_fn": met, "done_fn": met}
    maps = [rlds2buf.GoalMap(("place", [0]), ("place", [1]))]
    writer = rlds2buf.make_hindsight(SPEC, 60, goals=maps, directory=tmp_path / "live", **goals)
    writer.add(episode(0, 50))
    writer.save()
    expected = writer.generate_hindsight(20)
    reader = rlds2buf.load_buffer(tmp_path / "live", follow=True, **goals)
    for start in (1000, 2000):
        writer.add(episode(start, 55))
        assert_same_nest(reader.generate_hindsight(20)._asdict(), expected._asdict())
    assert len(reader.sample(30).info.key) == 30


def test_readers_draw_each_for_themselves(tmp_path: Path) -> None:
    writer = rlds2buf.make_circular(SPEC, 300, seed=0, directory=tmp_path / "live")
    writer.add(episode(0, 250))
    writer.save()
    drawn = [rlds2buf.load_buffer(tmp_path / "live", follow=True).sample(20).info.key.tolist() for _ in range(2)]
    assert drawn[0] != drawn[1]
    drawn = [rlds2buf.load_buffer(tmp_path / "live", follow=True, seed=4).sample(20).info.key.tolist() for _ in "ab"]
    assert drawn[0] == drawn[1]
    reader = rlds2buf.load_buffer(tmp_path / "live", follow=True, seed=4)
    first = [batch.info.key.tolist() for batch in reader.batches(8, steps=3)]
    writer.save()
    assert [batch.info.key.tolist() for batch in reader.batches(8, steps=3, to="numpy")] != first


def _sum(reader: Any, queue: Any) -> None:
    queue.put((os.getpid(), [int(reader.all().observation["count"].sum()) for _ in range(3)]))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_in_other_processes(method: str, tmp_path: Path) -> None:
    writer = rlds2buf.make_circular(SPEC, 60, directory=tmp_path / "live")
    writer.add(episode(0, 50))
    writer.save()
    expected = int(writer.all().observation["count"].sum())
    reader = rlds2buf.load_buffer(tmp_path / "live", follow=True)
    writer.add(episode(500, 40))  # over rows of the saved state
    if method == "spawn":
        reader = pickle.loads(pickle.dumps(reader))
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=_sum, args=(reader, queue))
    child.start()
    number, sums = queue.get(timeout=100)
    child.join(60)
    assert number != os.getpid() and sums == [expected] * 3
    assert int(reader.all().observation["count"].sum()) == expected


def test_what_a_reader_does_not_do(tmp_path: Path) -> None:
    writer = rlds2buf.make_prioritized(SPEC, 60, directory=tmp_path / "live")
    writer.add(episode(0, 50))
    writer.save()
    reader = rlds2buf.load_buffer(tmp_path / "live", follow=True)
    before = rows(writer)
    for act in (
        lambda: reader.add(episode(0, 5)),
        lambda: reader.clear(),
        lambda: reader.resize(9),
        lambda: reader.update_priorities(reader.keys(), np.ones(49)),
        lambda: reader.save(tmp_path / "copy"),
        lambda: reader.load_state_dict(writer.state_dict()),
    ):
        with pytest.raises(ReplayError, match=r"follows the one that is written there.*load_buffer\(path\)"):
            act()
    assert not (tmp_path / "copy").exists()
    assert_same(rows(reader), before)
    other = rlds2buf.make_prioritized(SPEC, 60)
    other.load_state_dict(reader.state_dict())
    assert_same(rows(other), before)


def test_what_can_not_be_followed(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound):
        rlds2buf.load_buffer(tmp_path / "nothing", follow=True)
    writer = rlds2buf.make_circular(SPEC, 60, directory=tmp_path / "live", durability="none")
    writer.add(episode(0, 50))
    writer.save()
    reader = rlds2buf.load_buffer(tmp_path / "live", follow=True)  # nothing has changed yet
    with pytest.raises(ValueError, match="one of follow and writable"):
        rlds2buf.load_buffer(tmp_path / "live", follow=True, writable=True)
    writer.add(episode(50, 5))
    for read in (reader.keys, lambda: rlds2buf.load_buffer(tmp_path / "live", follow=True)):
        with pytest.raises(SnapshotError, match="durability='save'"):
            read()
    agents = rlds2buf.make_multi_agent({"a": (SPEC, {"capacity": 10})})
    agents.add({"a": episode(0, 5)})
    agents.save(tmp_path / "agents")
    with pytest.raises(SnapshotError, match="MultiAgentBuffer"):
        rlds2buf.load_buffer(tmp_path / "agents", follow=True)
