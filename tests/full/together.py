"""Several pushes and an actor at once into one table, the pushes killed again and again."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf import Episode, convert
from rlds2buf.formats.reverb.item_rows import columns_of
from rlds2buf.formats.reverb.protocol.chunks import decode_tensor
from tests.data import ROOT
from tests.full.actor import ROWS as ACTOR_ROWS

__all__ = ["EACH", "Together", "first_numbers"]

EACH = 10_000_000
"""Rows of pusher n are numbered from n times this on, those of the actor from -1 times this."""
SECONDS = 240.0
_GAP = 1000


def written(number: int, episodes: int, rows: int) -> list[Episode]:
    """What pusher `number` has to push: every row's observation begins with a number that nothing else has."""
    made = []
    for episode in range(episodes):
        count = rows - episode % 7
        numbers = EACH * number + _GAP * episode + np.arange(count)
        made.append(
            Episode(
                observation=np.stack([numbers, numbers % 13], 1).astype(np.float64),
                action=np.zeros((count, 1), np.float32),
                reward=np.ones(count, np.float32),
                discount=np.ones(count, np.float32),
                is_terminal=np.zeros(count, np.bool_),
            )
        )
    return made


def first_numbers(store: Any) -> Counter[int]:
    """How often each row is the first one of an item: of all items of a checkpoint, by the second column."""
    tensors: dict[tuple[int, int], np.ndarray] = {}

    def tensor(key: int, number: int) -> np.ndarray:
        if (key, number) not in tensors:
            chunk = store.chunks[key]
            found = decode_tensor(chunk.data.tensors[number], delta_encoded=chunk.delta_encoded)
            tensors[key, number] = found
        return tensors[key, number]

    counts: Counter[int] = Counter()
    for item in store.items:
        observation = columns_of(item, tensor)[1]
        assert observation.shape == (2, 2) and observation[1, 0] == observation[0, 0] + 1
        counts[int(observation[0, 0])] += 1
    return counts


class Together:
    """Pushers by number, each with its data and its journal in a folder, and an actor.

    The last one pushes what the one before it does, and as much beside that: a log that has grown.

    Args:
        folder: an empty one.
        address, table: where they push.
        pushers, episodes, rows: how many of each.

    Attributes:
        kills: pushes that were killed.
        codes: how those ended that were not.
        reports: the last report of each pusher.
        actor_items: how many items the actor wrote.
    """

    def __init__(
        self, folder: Path, address: str, table: str, *, pushers: int = 5, episodes: int = 40, rows: int = 250
    ) -> None:
        self.kills = 0
        self.codes: list[int] = []
        self.reports: list[dict[str, Any]] = [{} for _ in range(pushers)]
        self.actor_items = 0
        self._folder, self._address, self._table = folder, address, table
        self._running: dict[int, subprocess.Popen[str]] = {}
        self._expected: Counter[int] = Counter()
        for number in range(pushers):
            data = written(number, episodes, rows)
            grown = written(number - 1, episodes, rows) if number == pushers - 1 else []
            convert([*grown, *data], self._data(number), to="buffer")
            self._expected.update(int(n) for one in data for n in one.observation[:-1, 0])

    def run(self, kills: int, rng: random.Random, start: int = -1) -> None:
        """Let all of them work, kill `kills` pushes in the middle of their work, and wait for the end of the last."""
        actor = self._python("tests.full.actor", self._address, self._table, str(start * EACH))
        assert actor.stdin is not None and actor.stdout is not None
        assert actor.stdout.readline() == "ready\n"
        try:
            for number in range(len(self.reports)):
                self._begin(number)
            end = time.monotonic() + SECONDS
            while self.kills < kills or self._running:
                assert time.monotonic() < end, "no end of it"
                self._collect(again=self.kills < kills)
                if self.kills < kills:
                    self._kill(rng)
                time.sleep(0.01)
            actor.stdin.close()
            self.actor_items = int(actor.stdout.readline())
        finally:
            for process in [*self._running.values(), actor]:
                process.kill()
                with process:  # closes its pipes
                    process.wait(60)
        numbers = start * EACH + np.arange(self.actor_items // (ACTOR_ROWS - 1) * ACTOR_ROWS)
        self._expected.update(int(n) for n in numbers[numbers % ACTOR_ROWS != (start * EACH - 1) % ACTOR_ROWS])

    @property
    def expected(self) -> Counter[int]:
        """As :func:`first_numbers` should be."""
        return self._expected

    def _data(self, number: int) -> Path:
        return self._folder / f"data{number}"

    def _journal(self, number: int) -> Path:
        return self._folder / f"journal{number}"

    def _python(self, module: str, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def _begin(self, number: int) -> None:
        where = ["--server", self._address, "--table", self._table, "--resume", str(self._journal(number))]
        self._running[number] = self._python("rlds2buf", "push", str(self._data(number)), *where, "--json")

    def _collect(self, again: bool) -> None:
        """Take the reports of those that are done; one that is, pushes once more while others are to be killed."""
        for number, process in list(self._running.items()):
            if process.poll() is None:
                continue
            said, _ = process.communicate(timeout=60)
            self.codes.append(process.returncode)
            self.reports[number] = json.loads(said) if said.strip() else {}
            del self._running[number]
            if again:
                self._journal(number).unlink(missing_ok=True)  # so that it sends all of it again
                self._begin(number)

    def _kill(self, rng: random.Random) -> None:
        """Kill one that has begun to send, at some moment."""
        number = rng.choice(sorted(self._running))
        journal, process = self._journal(number), self._running[number]
        before = journal.stat().st_size if journal.exists() else 0
        end = time.monotonic() + 20
        while process.poll() is None and time.monotonic() < end:
            if journal.exists() and journal.stat().st_size > before:
                time.sleep(rng.uniform(0, 0.05))
                break
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        if process.wait(60) != -signal.SIGKILL:
            return  # it was done before
        process.communicate(timeout=60)
        self.kills += 1
        self._begin(number)
