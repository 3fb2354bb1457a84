"""Kills conversions to RLDS folders at seeded moments, goes on, and compares every byte.

Run as ``python -m tests.formats.rlds.interrupted SOURCE FOLDER SEED COUNT``: prints one JSON object.
Each conversion is a fork that sends itself SIGKILL before its k-th operation on the file system.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import rlds2buf
import rlds2buf.pipeline.conversion
from rlds2buf import SnapshotExists
from tests.buffers.disk.interrupted import EVENTS, trial

OPTIONS: dict[str, Any] = {"num_shards": 3, "val_fraction": 0.2, "name": "data"}


def convert(source: str, target: Path, resume: bool = True) -> Any:
    conversion: Any = sys.modules["rlds2buf.pipeline.conversion"]
    conversion.CHECKPOINT_SECONDS, conversion.BLOCK_ROWS = 0.0, 50
    return rlds2buf.convert(source, target, to="rlds", resume=resume, on_invalid="skip", sink_options=OPTIONS)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*"))}


def count_events(source: str, target: Path) -> int:
    """How many operations a whole conversion takes."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        found = [0]

        def count(event: str, _: Any) -> None:
            found[0] += event in EVENTS

        try:
            sys.addaudithook(count)
            convert(source, target)
            os.write(writer, str(found[0]).encode())
        finally:
            os._exit(0)
    os.close(writer)  # else reading would wait for ever where the child wrote nothing
    with open(reader, "rb") as told:
        events = int(told.read())
    os.waitpid(child, 0)
    return events


def main(source: str, folder: Path, seed: int, moments: int) -> dict[str, Any]:
    convert(source, folder / "first")  # here, so that no fork has to import anything
    whole = folder / "whole"
    events = count_events(source, whole)
    expected = contents(whole)
    rng = random.Random(seed)
    went_on = kills = 0
    for number in range(moments):
        target = folder / f"killed-{number}" / "out"
        target.parent.mkdir()
        at = rng.randrange(1, events)
        while not trial(lambda target=target: convert(source, target), kill_at=at):  # type: ignore[misc]
            kills += 1
            assert not target.exists() or contents(target) == expected
            if target.exists():  # killed behind the last rename: the next run removes what is left
                with contextlib.suppress(SnapshotExists):
                    convert(source, target)
                break
            # Every second one is killed again, further on.
            at = at + rng.randrange(1, events) if number % 2 else 10 * events
            journal = target.parent / ".out.partial" / "journal.json"
            went_on += journal.exists() and json.loads(journal.read_text())["state"] is not None
        assert contents(target) == expected, f"killed before operation {at} of {events}"
        assert [path.name for path in target.parent.iterdir()] == ["out"]
        shutil.rmtree(target.parent)
    return {"events": events, "kills": kills, "went_on": went_on, "files": sorted(expected)}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))))
