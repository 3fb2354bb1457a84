"""Kills a process while it changes a buffer in a folder, at random calls of functions.

Run as ``python -m tests.buffers.disk.killed_live FOLDER KILLS SEED KIND...``: prints for each kind how many kills left
the state of the first save, and of the second.  Every child counts its calls (``sys.setprofile``) and sends itself
SIGKILL at one of them; then the parent opens the folder, which must be as one of the two was saved, draws included.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

import rlds2buf
from rlds2buf.buffers.disk import live_folder as live
from rlds2buf.buffers.disk import undo
from rlds2buf.buffers.rows import blob_segments as live_blobs
from tests.buffers import numbered, numbered_blobs


def make(kind: str, path: Path | None) -> Any:
    where: dict[str, Any] = {"seed": 3, "directory": path}
    if kind == "pictures":
        return rlds2buf.make_circular(numbered_blobs.SPEC, 40, view={"decode": False}, **where)
    if kind == "picked pictures":
        return rlds2buf.make_reservoir(numbered_blobs.SPEC, 30, view={"decode": False}, **where)
    if kind == "prioritized":
        return rlds2buf.make_prioritized(numbered.SPEC, 60, **where)
    if kind == "reservoir":
        return rlds2buf.make_reservoir(numbered.SPEC, 50, **where)
    if kind == "growing":
        return rlds2buf.make_circular(numbered.SPEC, 1500, capacity_unit="transitions", **where)
    if kind == "sequences":
        return rlds2buf.make_circular(numbered.SPEC, 60, storage_unit="sequences", item_length=4, **where)
    return rlds2buf.make_circular(numbered.SPEC, 60, **where)


def change(buffer: Any, kind: str, rounds: range) -> None:
    """The same changes whenever it is called."""
    rng = np.random.default_rng(rounds.start)
    few: Any = numbered_blobs if "pictures" in kind else numbered
    for i in rounds:
        buffer.add(few.episode(100 * i, 2 + int(rng.integers(12))))
        for source in (1, 2):
            buffer.add(few.transition(100 * i + 50 + source), source_id=source)
        if kind == "growing":
            buffer.add([numbered.episode(10_000 * i, 300)])
        if kind == "prioritized":
            keys = buffer.keys()[:5]
            buffer.update_priorities(keys, rng.random(5))
        if i % 7 == 6 and kind == "circular":
            buffer.resize(50 + i)


def contents(buffer: Any) -> list[Any]:
    buffer.check_valid()
    rows = buffer.get(buffer.keys(), n_step=2) if buffer.engine.store.items is None else buffer.all(decode=False)
    columns = [rows.observation["count"], rows.next_observation["count"], rows.reward, rows.steps]
    return [[np.asarray(column).tolist() for column in columns], buffer.sample(6).info.key.tolist()]


def child(path: Path, kind: str, kill_at: int) -> int:
    """Change the buffer, save it, change it again; returns how many calls that took."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"
        if calls == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    buffer = rlds2buf.load_buffer(path, writable=True)
    sys.setprofile(count)
    change(buffer, kind, range(10, 22))
    buffer.save()
    change(buffer, kind, range(22, 34))
    sys.setprofile(None)
    return calls


def main(kind: str, folder: Path, kills: int, seed: int) -> list[int]:
    folder.mkdir()
    live._CHUNK_BYTES = undo._CHUNK_BYTES = 200  # a few rows each
    live_blobs.SEGMENT_BYTES = 1000
    rng = random.Random(seed)
    buffer = make(kind, folder / "first")
    change(buffer, kind, range(10))
    buffer.save()
    del buffer
    states = [contents(rlds2buf.load_buffer(folder / "first"))]
    for _ in range(2):  # what is found out once is found out in the first round
        shutil.copytree(folder / "first", folder / "whole")
        calls = child(folder / "whole", kind, 0)
        shutil.rmtree(folder / "whole")
    saved = make(kind, None)
    for rounds in (range(10), range(10, 22)):
        change(saved, kind, rounds)
    states.append(contents(saved))
    outcomes = [0, 0]
    for _ in range(kills):
        path, kill_at = folder / "killed", rng.randrange(1, calls)
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(folder / "first", path)
        process = os.fork()
        if process == 0:
            try:
                child(path, kind, kill_at)
            finally:
                os._exit(7)
        _, status = os.waitpid(process, 0)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status
        found = contents(rlds2buf.load_buffer(path))
        outcomes[states.index(found)] += 1
        going_on = rlds2buf.load_buffer(path, writable=True)
        change(going_on, kind, range(40, 43))
        going_on.save()
        expected = contents(going_on)[0]
        del going_on
        assert contents(rlds2buf.load_buffer(path))[0] == expected
        assert not list(path.glob("undo-*"))
    return outcomes


if __name__ == "__main__":
    folder, kills, seed, *kinds = sys.argv[1:]
    print(json.dumps({kind: main(kind, Path(folder, kind), int(kills), int(seed)) for kind in kinds}))
