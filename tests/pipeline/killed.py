"""Kills a conversion at seeded moments and goes on with it, until that many kills were made.

Run as ``python -m tests.pipeline.killed KIND FOLDER SEED``: prints one JSON object.  Each run is a fork that
counts its own function calls and sends itself SIGKILL at a given one: so the moments are spread over
all of it, opening and publishing too, and the same seed gives the same ones.  What the last run
leaves is compared with what an uninterrupted one made, byte for byte.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from rlds2buf import Episode, SnapshotError, SnapshotExists, convert

KILLS = 20
CHECKPOINT_SECONDS = 0.03
BLOCK_ROWS = 20
OUTPUT = "out-v0"


def episodes(count: int, seed: int, *, pictures: bool = False) -> list[Episode]:
    """Of different lengths, with text, odd discounts, metadata of their own, and NaN in some, which are left out."""
    rng = np.random.default_rng(seed)
    made = []
    for index in range(count):
        rows = int(rng.integers(2, 12))
        words = np.empty(rows, object)
        words[:] = [b"go %d" % n for n in rng.integers(0, 5, rows)]
        last = np.arange(rows) == rows - 1
        reward = rng.normal(size=rows)
        reward[:1] = np.nan if index % 7 == 3 else 0
        seen = {"top": np.full((rows, 64, 64, 3), index, np.uint8)} if pictures else {}
        made.append(
            Episode(
                observation=rng.normal(size=(rows, 6)).astype(np.float32),
                action=rng.integers(0, 4, rows),
                reward=reward,
                is_first=np.arange(rows) == 0,
                is_last=last,
                is_terminal=last & (index % 2 == 0),
                extras={**seen, "infos": {"words": words, "cost": rng.normal(size=(rows, 2))}},
                metadata={"seed": index, "policy": "expert"},
            )
        )
    return made


def tree(folder: Path) -> dict[str, bytes]:
    """Every file in a folder, or a file itself, by its path; its lock left out."""
    files = [folder] if folder.is_file() else [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(files) if path.name != "lock"}


class Trials:
    """One kind of output, killed and gone on with."""

    def __init__(self, kind: str, folder: Path, seed: int) -> None:
        self.kind = kind
        self.folder = folder
        self.rng = random.Random(seed)
        self.source, self.other = str(folder / "source-v0"), str(folder / "other-v0")
        for count, path in ((25, self.source), (26, self.other)):
            convert(episodes(count, seed, pictures=kind == "lerobot"), path, to="minari", allow_nonfinite=True)
        self.outcomes = {"kills": 0, "resumed": 0, "published": 0, "refused": 0, "from the start": 0}

    def work(self, folder: Path, **changes: Any) -> None:
        """The conversion; its report goes beside it."""
        options = {"on_invalid": "skip", "to": self.kind, "resume": True, **changes}
        options |= {"sink_options": {"fps": 10, "codec": "h264"}} if self.kind == "lerobot" else {}
        report = convert(options.pop("source", self.source), str(folder / OUTPUT), **options).to_json()
        for name in ("seconds", "sink", "issues", "notes"):  # the findings are those of the last run
            del report[name]
        (folder / "report.json").write_text(json.dumps(report, sort_keys=True))

    def run(self) -> dict[str, int]:
        whole = self.folder / "whole"
        whole.mkdir()
        self.work(whole, resume=False)  # not in a fork: whatever is compiled or imported late is so for all of them
        self.expected, self.report = tree(whole / OUTPUT), json.loads((whole / "report.json").read_text())
        calls, opened, committing = self.count()
        while self.outcomes["kills"] < KILLS:
            # Now and then a run that gets far, so that the end of it is met too.
            self.chain(committing if self.outcomes["kills"] % 3 == 2 else opened, calls)
        return self.outcomes

    def count(self) -> tuple[int, int, int]:
        """Function calls of a whole run, and those before the first episode and before the end of it."""
        folder = self.folder / "counted"
        folder.mkdir()
        marks: dict[str, int] = {}

        def mark(calls: int, name: str) -> None:
            if name in ("write", "commit"):
                marks.setdefault(name, calls)
            marks["all"] = calls

        def counted() -> None:
            count_calls(mark)
            self.work(folder)
            sys.setprofile(None)
            (folder / "marks.json").write_text(json.dumps(marks))

        assert self.fork(counted)
        assert tree(folder / OUTPUT) == self.expected, "with checkpoints it comes out different"
        found = json.loads((folder / "marks.json").read_text())
        return found["all"], found["write"], found["commit"]

    def chain(self, low: int, high: int) -> None:
        """Start, kill, go on, kill, go on, until it is done; kills come after `low` to `high` calls of each run."""
        folder = self.folder / "killed"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for attempt in range(4):
            is_last = attempt == 3 or self.outcomes["kills"] == KILLS
            kill_at = None if is_last else self.rng.randrange(low, high)
            if self.fork(lambda: self.work(folder), kill_at):
                break
            self.outcomes["kills"] += 1
            if (folder / OUTPUT).exists():  # killed between the last rename and the end
                assert tree(folder / OUTPUT) == self.expected
                with contextlib.suppress(SnapshotExists):
                    self.work(folder)
                    raise AssertionError("it is there already")
                assert tree(folder / OUTPUT) == self.expected
                assert not (folder / f".{OUTPUT}.partial").exists()
                self.outcomes["published"] += 1
                return
            if self.outcomes["kills"] % 4 == 1:
                self.refuse(folder)
        found = json.loads((folder / "report.json").read_text())
        resumed = found.pop("resumed")
        self.outcomes["resumed" if resumed else "from the start"] += 1
        assert resumed <= found["read"]
        assert found == {name: value for name, value in self.report.items() if name != "resumed"}, found
        assert tree(folder / OUTPUT) == self.expected, "it comes out different"
        assert {path.name for path in folder.iterdir()} == {OUTPUT, "report.json"}

    def refuse(self, folder: Path) -> None:
        """Another source or other options don't go on from it, and leave it as it is."""
        part = folder / f".{OUTPUT}.partial"
        if not (part / "journal.json").exists():
            return
        before = tree(part)
        for change in ({"source": self.other}, {"allow_nonfinite": True}):
            try:
                self.work(folder, **change)
            except SnapshotError:
                self.outcomes["refused"] += 1
            else:
                raise AssertionError(f"{change} went on from another conversion")
            assert tree(part) == before

    def fork(self, work: Callable[[], None], kill_at: int | None = None) -> bool:
        """Run `work` in a fork; whether it got to its end."""
        child = os.fork()
        if child == 0:
            status = 1
            try:
                if kill_at is not None:
                    count_calls(lambda calls, name: os.kill(os.getpid(), signal.SIGKILL) if calls >= kill_at else None)
                work()
                status = 0
            except BaseException:
                sys.setprofile(None)
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL, f"the fork died of signal {os.WTERMSIG(status)}"
            return False
        assert os.WEXITSTATUS(status) == 0, "the fork raised"
        return True


def count_calls(told: Callable[[int, str], None]) -> None:
    """From here on `told` hears of every call of a function in Python, with its number."""
    calls = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        if event == "call":
            calls += 1
            told(calls, frame.f_code.co_name)

    sys.setprofile(profile)


if __name__ == "__main__":
    kind, folder, seed = sys.argv[1:]
    # (The package has a function of the module's name.)
    conversion: Any = importlib.import_module("rlds2buf.pipeline.conversion")
    conversion.CHECKPOINT_SECONDS, conversion.BLOCK_ROWS = CHECKPOINT_SECONDS, BLOCK_ROWS
    print(json.dumps(Trials(kind, Path(folder), int(seed)).run()))
