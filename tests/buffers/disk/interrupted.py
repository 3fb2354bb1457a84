"""Kills a process in the middle of its work, at every step it takes on the file system.

Run as ``python -m tests.buffers.disk.interrupted WORK FOLDER SEED``: prints one JSON object.  Each trial
is a fork that counts the audit events of its own file operations (PEP 578) and sends itself SIGKILL
before the k-th, for k = 1, 2, ... until the work gets to its end; then further ones that the parent
kills after a random time.  After every kill the parent looks at what is there.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rlds2buf
from rlds2buf.buffers.disk.snapshot import SnapshotWriter
from tests.buffers.numbered import SPEC, episode, transition

EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree", "fcntl.flock")
STEPS = 400


def trial(work: Callable[[], None], kill_at: int | None = None, kill_after: float | None = None) -> bool:
    """Run `work` in a fork; whether it got to its end."""
    child = os.fork()
    if child == 0:
        if kill_at is not None:
            left = [kill_at]

            def count(event: str, arguments: Any) -> None:
                if event in EVENTS:
                    left[0] -= 1
                    if left[0] == 0:
                        os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(count)
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL, f"the fork died of signal {os.WTERMSIG(status)}"
        return False
    assert os.WEXITSTATUS(status) == 0, "the fork raised"
    return True


def filled(first: int, rows: int) -> Any:
    buffer = rlds2buf.make_circular(SPEC, 3000, seed=first)
    buffer.add(episode(first, rows), source_id=2)
    buffer.add([transition(first + rows + i) for i in range(3)])
    return buffer


def numbers(path: Path) -> list[int]:
    loaded = rlds2buf.load_buffer(path, verify=True)
    loaded.check_valid()
    return loaded.all().observation["count"].tolist()


class Trials:
    """Runs one kind of work at every step and at random times; `outcomes` counts what was found afterwards."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.rng = random.Random(seed)
        self.outcomes: dict[str, int] = {}

    def run(self, prepare: Callable[[Path], None], work: Callable[[Path], None], look: Callable[[Path], str]) -> None:
        for step in range(1, STEPS):
            if self._one(prepare, work, look, kill_at=step):
                break
        else:
            raise AssertionError(f"the work did not end within {STEPS} steps")
        self.outcomes["steps"] = step
        for _ in range(10):
            self._one(prepare, work, look, kill_after=self.rng.random() * 0.02)

    def _one(
        self,
        prepare: Callable[[Path], None],
        work: Callable[[Path], None],
        look: Callable[[Path], str],
        **when: Any,
    ) -> bool:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        path = self.folder / "saved"
        prepare(path)
        ended = trial(lambda: work(path), **when)
        outcome = look(path)
        assert not ended or outcome == "new", outcome
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        return ended


def save_new(trials: Trials) -> None:
    """A first save: nothing, or all of it; saving again works in any case."""
    new = filled(1000, 900)
    expected = new.all().observation["count"].tolist()

    def look(path: Path) -> str:
        found = "nothing"
        if path.exists():
            assert numbers(path) == expected
            found = "new"
        new.save(path, overwrite=True)
        assert numbers(path) == expected
        assert [child.name for child in path.parent.iterdir()] == ["saved"]
        return found

    trials.run(lambda path: None, lambda path: new.save(path), look)


def save_over(trials: Trials) -> None:
    """A save over another: the old one whole, or the new one whole; saving again works and leaves no litter."""
    old, new = filled(0, 700), filled(1000, 900)
    contents = {"old": old.all().observation["count"].tolist(), "new": new.all().observation["count"].tolist()}

    def look(path: Path) -> str:
        found = next(name for name, expected in contents.items() if numbers(path) == expected)
        old.save(path, overwrite=True)
        assert numbers(path) == contents["old"]
        assert [child.name for child in path.parent.iterdir()] == ["saved"]
        assert len([child for child in path.iterdir() if child.is_dir()]) == 1
        return found

    trials.run(lambda path: old.save(path), lambda path: new.save(path, overwrite=True), look)


def write_and_resume(trials: Trials) -> None:
    """A writer of episodes: nothing to open until it is whole; going on ends with each episode once."""
    episodes = [episode(100 * i, 3 + i) for i in range(8)]
    expected = [number for i, ep in enumerate(episodes) for number in range(100 * i, 100 * i + len(ep) - 1)]

    def work(path: Path) -> None:
        writer = SnapshotWriter(path, SPEC, provenance={"seed": 1}, resume=True)
        for i in range(writer.episodes, len(episodes)):
            writer.write(episodes[i])
            if i % 2:
                writer.checkpoint()
        writer.commit()

    def look(path: Path) -> str:
        if path.exists():
            assert numbers(path) == expected
            return "new"
        work(path)
        assert numbers(path) == expected
        assert [child.name for child in path.parent.iterdir()] == ["saved"]
        return "resumed"

    trials.run(lambda path: None, work, look)


def live(trials: Trials) -> None:
    """A buffer whose columns are files: as last saved, whatever came after."""
    contents: dict[str, list[int]] = {}

    def prepare(path: Path) -> None:
        buffer = rlds2buf.make_circular(SPEC, 60, seed=0, directory=path)
        buffer.add(episode(0, 50))
        contents["old"] = buffer.all().observation["count"].tolist()
        buffer.save()

    def work(path: Path) -> None:
        buffer = rlds2buf.load_buffer(path, writable=True)
        buffer.add(episode(1000, 30))
        buffer.resize(80)
        buffer.add([transition(2000 + i) for i in range(9)])
        buffer.save()

    whole = rlds2buf.make_circular(SPEC, 60)
    whole.add(episode(0, 50))
    whole.add(episode(1000, 30))
    whole.resize(80)
    whole.add([transition(2000 + i) for i in range(9)])
    contents["new"] = whole.all().observation["count"].tolist()

    def look(path: Path) -> str:
        found = numbers(path)
        return next(name for name, expected in contents.items() if found == expected)

    trials.run(prepare, work, look)


WORKS = {"save_new": save_new, "save_over": save_over, "write_and_resume": write_and_resume, "live": live}

if __name__ == "__main__":
    name, folder, seed = sys.argv[1:]
    filled(0, 5).sample(2)  # whatever is compiled or imported late is so before the forks
    trials = Trials(Path(folder), int(seed))
    WORKS[name](trials)
    print(json.dumps(trials.outcomes))
