"""Whole commands killed at random moments: what is there afterwards is whole, and the next run brings it to its end."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import rlds2buf
from rlds2buf import Episode, convert, spec_of
from rlds2buf.cli.main import main
from tests.campaign.cases import rng_of, wait

__all__ = ["Kills"]

KINDS = ("buffer", "rlds", "minari", "d4rl", "reverb-checkpoint")
RESUMABLE = KINDS[:4]
OPTIONS: dict[str, dict[str, str]] = {
    kind: {"pattern": "episode"} if kind == "reverb-checkpoint" else {} for kind in KINDS
}
"""What makes an output of each kind hold episodes."""
OUTPUT = "out-v0"
CHECKPOINT_SECONDS = 0.02
BLOCK_ROWS = 300
SECONDS = 60.0
TABLES = 64
Tree = dict[str, bytes]


def episodes(count: int, seed: int, rows: int = 20) -> list[Episode]:
    """Short episodes with an extra; half of them terminate."""
    rng = np.random.default_rng(seed)
    made = []
    for index in range(count):
        size = int(rng.integers(2, 2 * rows))
        made.append(
            Episode(
                observation=rng.normal(size=(size, 6)).astype(np.float32),
                action=rng.integers(0, 4, size),
                reward=rng.normal(size=size).astype(np.float32),
                discount=np.ones(size, np.float32),
                is_terminal=(np.arange(size) == size - 1) & (index % 2 == 0),
            )
        )
    return made


def tree(path: Path) -> Tree | None:
    """Every file at a path, or None where nothing is; of a Reverb checkpoint, which has times in it, the episodes."""
    if not os.path.lexists(path):
        return None
    if any(path.glob("*/items.tfrecord")):
        with rlds2buf.open_source(path) as source:
            return {str(n): b"".join(leaf.tobytes() for _, leaf in one.flatten()) for n, one in enumerate(source)}
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return {str(file.relative_to(path)): file.read_bytes() for file in files if file.name != "lock"}


class Kills:
    """A case is one scenario with its kills; ``kills`` and what they came to stand in how it ended.

    Args:
        folder: an empty one.
        seed: of the cases.
    """

    CHUNK = 10

    def __init__(self, folder: Path, seed: int) -> None:
        self._seed = seed
        self._folder = folder
        self._source, self._other = folder / "one.hdf5", folder / "other.hdf5"
        convert(episodes(150, 0), self._source, to="d4rl")
        convert(episodes(120, 1), self._other, to="d4rl")
        conversion: Any = importlib.import_module(convert.__module__)
        conversion.CHECKPOINT_SECONDS, conversion.BLOCK_ROWS = CHECKPOINT_SECONDS, BLOCK_ROWS
        self._whole: dict[str, dict[str, Tree]] = {}
        self._seconds: dict[str, float] = {}
        for kind in KINDS:
            self._whole[kind] = {}
            for name, source in (("one", self._source), ("other", self._other)):
                target = folder / "whole" / kind / name / OUTPUT  # its name may stand in the output
                target.parent.mkdir(parents=True)
                started = time.monotonic()
                assert self._command(self._convert(source, target, kind)) == 0
                self._seconds[kind] = time.monotonic() - started
                found = tree(target)
                assert found
                self._whole[kind][name] = found
        buffer = rlds2buf.load_buffer(folder / "whole" / "buffer" / "one" / OUTPUT, seed=0)
        buffer.sample(4)  # compiled once, not in every fork
        self._scenarios: list[Callable[[random.Random, Path], str]] = [
            self._fresh, self._overwritten, self._resumed, self._saved, self._live,
        ]  # fmt: skip
        self._server: Any = None
        if importlib.util.find_spec("reverb") is None:
            print("pushes are left out: dm-reverb is not installed here")
            return
        from tests.full.servers import ServerProcess

        self._server = ServerProcess([{"name": f"table{n}", "max_size": 10_000_000} for n in range(TABLES)])
        self._scenarios.append(self._pushed)

    def one(self, case: int) -> str:
        """Run a case; says which scenario it was and what the kill met.  What is raised is a fault."""
        rng = rng_of("kills", self._seed, case)
        self._case = case
        scenario = self._scenarios[case % len(self._scenarios)]
        with tempfile.TemporaryDirectory(dir=self._folder) as place:
            return scenario(rng, Path(place))

    def _convert(self, source: Path, target: Path, kind: str, *more: str) -> list[str]:
        options = [word for name, value in OPTIONS[kind].items() for word in ("-T", f"{name}={value}")]
        return ["convert", str(source), str(target), "--to", kind, *options, "--json", *more]

    def _command(self, arguments: list[str]) -> int:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            return main(arguments)

    def _killed(self, work: Callable[[], int], after: float) -> int | None:
        """Run `work` in a fork; None if it was killed, else its exit code."""
        child = os.fork()
        if child == 0:
            signal.alarm(0)
            code = 70
            try:
                code = work()
            finally:
                os._exit(code)
        status = wait(child, after)
        if status is None:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL, f"died of signal {os.WTERMSIG(status)}"
            with open(self._folder / "kills", "ab") as file:
                file.write(b".")
            return None
        return os.WEXITSTATUS(status)

    def _moment(self, rng: random.Random, kind: str) -> float:
        return rng.uniform(0, 1.3) * self._seconds[kind]

    def _fresh(self, rng: random.Random, place: Path) -> str:
        """Killed, and run again as it was: the target was not there or whole, and is whole in the end."""
        kind = rng.choice(KINDS)
        command = self._convert(self._source, place / OUTPUT, kind)
        code = self._killed(lambda: self._command(command), self._moment(rng, kind))
        whole = self._whole[kind]["one"]
        found = tree(place / OUTPUT)
        assert found in (None, whole), f"{kind}: half an output looks whole"
        assert code in (0, None), f"{kind}: exit code {code}"
        if found is None:
            assert self._command(command) == 0, f"{kind}: the next run fails"
        else:
            assert self._command(command) == 5, f"{kind}: the next run does not see that it is there"
            self._command([*command, "--overwrite"])  # which clears up what the killed run left
        assert tree(place / OUTPUT) == whole
        self._nothing_left(place, {OUTPUT})
        return f"{kind} fresh, " + ("done before" if code == 0 else "killed, published" if found else "killed")

    def _overwritten(self, rng: random.Random, place: Path) -> str:
        """Killed while it replaces another output: that or the new one is there, whole, at any moment."""
        kind = rng.choice(KINDS)
        assert self._command(self._convert(self._other, place / OUTPUT, kind)) == 0
        command = self._convert(self._source, place / OUTPUT, kind, "--overwrite")
        code = self._killed(lambda: self._command(command), self._moment(rng, kind))
        old, new = self._whole[kind]["other"], self._whole[kind]["one"]
        with rlds2buf.open_source(place / OUTPUT) as source:
            count = sum(1 for _ in source)
        assert count == (150 if code == 0 else count) and count in (120, 150), f"{kind}: {count} episodes"
        assert code in (0, None), f"{kind}: exit code {code}"
        found = tree(place / OUTPUT)
        assert found is not None
        if kind != "buffer":  # (of a buffer both data folders may be there, with one manifest)
            assert found in (old, new), f"{kind}: neither the old nor the new one"
        assert self._command(command) == 0, f"{kind}: the next run fails"
        assert tree(place / OUTPUT) == new
        self._nothing_left(place, {OUTPUT})
        return f"{kind} overwrite, " + ("done before" if code == 0 else "killed, " + ("new" if count == 150 else "old"))

    def _resumed(self, rng: random.Random, place: Path) -> str:
        """Killed up to five times, with --resume each time: the same bytes as an uninterrupted run's."""
        kind = rng.choice(RESUMABLE)
        command = self._convert(self._source, place / OUTPUT, kind, "--resume")
        kills = 0
        for _ in range(rng.randrange(1, 6)):
            code = self._killed(lambda: self._command(command), rng.uniform(0.2, 1.0) * self._seconds[kind])
            assert code in (0, None), f"{kind}: exit code {code}"
            kills += code is None
            if os.path.lexists(place / OUTPUT):
                break
        found = tree(place / OUTPUT)
        whole = self._whole[kind]["one"]
        assert found in (None, whole), f"{kind}: half an output looks whole"
        if found is None:
            assert self._command(command) == 0, f"{kind}: it can't be resumed"
        else:
            self._command([*command[:-1], "--overwrite"])
        assert tree(place / OUTPUT) == whole, f"{kind}: resumed, it comes out different"
        self._nothing_left(place, {OUTPUT})
        return f"{kind} resumed after {kills} kills"

    def _saved(self, rng: random.Random, place: Path) -> str:
        """Killed in ``save(overwrite=True)``: the buffer saved before, or the new one."""
        old, new = (self._buffer(count) for count in (40, 70))
        old.save(place / "saved")
        started = time.monotonic()
        new.save(place / "timed")
        seconds = time.monotonic() - started

        def save() -> int:
            new.save(place / "saved", overwrite=True)
            return 0

        code = self._killed(save, rng.uniform(0, 1.3) * seconds)
        loaded = rlds2buf.load_buffer(place / "saved")
        assert len(loaded) in (len(old), len(new)), f"{len(loaded)} items"
        assert code in (0, None), f"exit code {code}"
        expected = old if len(loaded) == len(old) else new
        np.testing.assert_array_equal(loaded.all().reward, expected.all().reward)
        new.save(place / "saved", overwrite=True)
        assert tree(place / "saved") == tree(place / "timed")
        self._nothing_left(place, {"saved", "timed"})
        return "save, " + ("done before" if code == 0 else "killed")

    def _live(self, rng: random.Random, place: Path) -> str:
        """A buffer in a folder, killed while episodes are added and it is saved: the last saved state, or the next."""
        folder, data = place / "live", episodes(400, 3, rows=10)
        spec = spec_of(data[0])
        saves = place / "saves"
        per_save = rng.randrange(1, 4)
        capacity = rng.choice([150, 2000])

        def work() -> int:
            if folder.exists():
                buffer = rlds2buf.load_buffer(folder, writable=True)
            else:
                buffer = rlds2buf.make_circular(spec, capacity, directory=folder, seed=0)
            reached = len(saves.read_bytes()) if saves.exists() else 0
            for number in range(reached, len(data) // per_save):
                for episode in data[number * per_save : (number + 1) * per_save]:
                    buffer.add(episode)
                buffer.save()
                with open(saves, "ab") as file:
                    file.write(b".")
            return 0

        outcome, held = [], 0
        for _ in range(rng.randrange(1, 4)):
            code = self._killed(work, rng.uniform(0.01, 0.4))
            assert code in (0, None), f"exit code {code}"
            told = len(saves.read_bytes()) if saves.exists() else 0
            if not told:  # nothing was ever saved, so nothing is promised
                shutil.rmtree(folder, ignore_errors=True)
                outcome.append("never saved")
                continue
            loaded = rlds2buf.load_buffer(folder)
            held = next((n for n in (told, told + 1) if self._same(loaded, data[: n * per_save], capacity)), -1)
            assert held >= 0, f"neither the state after save {told} nor the next one; {len(loaded)} items"
            saves.write_bytes(b"." * held)
            outcome.append("as saved" if held == told else "next")
            del loaded
        return "live buffer, " + ", ".join(sorted(set(outcome)))

    def _pushed(self, rng: random.Random, place: Path) -> str:
        """A push killed up to four times, with its journal: in the end every item is in the table, once."""
        source, table = place / "source.hdf5", f"table{self._case % TABLES}"
        convert(episodes(150, self._case), source, to="d4rl")
        address, journal = self._server.address, str(place / "push.journal")
        command = ["push", str(source), "--server", address, "--table", table, "--resume", journal, "--json"]
        before, kills = self._size(table, place), 0
        for _ in range(rng.randrange(1, 5)):
            code = self._killed(lambda: self._command(command), rng.uniform(0.05, 1.2))
            assert code in (0, None), f"push: exit code {code}"
            kills += code is None
        assert self._killed(lambda: self._command(command), SECONDS) == 0, "the push can't be resumed"
        with rlds2buf.open_source(source) as opened:
            items = sum(episode.num_transitions for episode in opened)
        held = self._size(table, place) - before
        assert held == items, f"{held} items in the table, where {items} were pushed"
        with open(self._folder / "pushed", "a") as file:
            file.write(f"{items}\n")
        return f"push resumed after {kills} kills"

    def _size(self, table: str, place: Path) -> int:
        """Items in a table, asked by a process of its own: gRPC does not go through forks."""

        def ask() -> int:
            from rlds2buf.formats.reverb.protocol.connection import ReverbConnection

            with ReverbConnection(self._server.address) as connection:
                _, state = connection.table(table, SECONDS)
            (place / "size").write_text(str(state.size))
            return 0

        assert self._killed(ask, SECONDS) == 0
        return int((place / "size").read_text())

    def close(self) -> None:
        """Say how many kills there were; ask Reverb's own client how much all tables hold, and end the server."""
        kills = self._folder / "kills"
        print(f"{kills.stat().st_size if kills.exists() else 0:,} kills")
        if self._server is None:
            return
        from tests.full.quiet import reverb

        held = sum(table.current_size for table in reverb.Client(self._server.address).server_info().values())
        pushed = self._folder / "pushed"
        items = sum(map(int, pushed.read_text().split())) if pushed.exists() else 0
        print(f"pushes: {items:,} items, {held:,} in the tables by Reverb's own count")
        self._server.kill()

    def _same(self, loaded: Any, data: list[Episode], capacity: int) -> bool:
        expected = rlds2buf.make_circular(spec_of(data[0]), capacity, seed=0)
        for episode in data:
            expected.add(episode)
        same = len(loaded) == len(expected) and np.array_equal(loaded.keys(), expected.keys())
        return bool(same and np.array_equal(loaded.all().reward, expected.all().reward))

    def _buffer(self, count: int) -> Any:
        data = episodes(count, 2)
        buffer = rlds2buf.make_circular(spec_of(data[0]), 5000, seed=0)
        for episode in data:
            buffer.add(episode)
        return buffer

    def _nothing_left(self, place: Path, expected: set[str]) -> None:
        left = {path.name for path in place.iterdir()} - expected
        assert not left, f"left behind: {sorted(left)}"
