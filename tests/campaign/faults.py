"""Disks that are full, fail or can't be written, sources that shrink: an error in a sentence, and nothing half."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np

import rlds2buf
from rlds2buf import convert, spec_of
from tests.campaign.cases import rng_of, wait
from tests.campaign.kills import KINDS, OPTIONS, OUTPUT, episodes
from tests.data import ROOT

__all__ = ["Faults"]

CODES = (0, 4, 5)
"""Done, the output can't be written, a buffer can't be."""
CALLS = ("write", "pwrite", "fsync", "rename", "ftruncate")
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/types.h>
/* From its call FAULT_AT on, FAULT_CALL on files below FAULT_PATH fails with FAULT_ERRNO; 0: half is written. */
static long seen = 0;
static int ours(int fd) {
    const char *path = getenv("FAULT_PATH");
    char link[64], name[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, name, sizeof name - 1);
    if (n < 0 || !path) return 0;
    name[n] = 0;
    return strncmp(name, path, strlen(path)) == 0;
}
static int due(const char *call) {
    const char *wanted = getenv("FAULT_CALL"), *at = getenv("FAULT_AT");
    return wanted && at && !strcmp(wanted, call) && ++seen >= atol(at);
}
static int code(void) { const char *text = getenv("FAULT_ERRNO"); return text ? atoi(text) : EIO; }
#define REAL(name) ((__typeof__(&name)) dlsym(RTLD_NEXT, #name))
ssize_t write(int fd, const void *data, size_t size) {
    if (ours(fd) && due("write")) { if (code()) { errno = code(); return -1; } size = (size + 1) / 2; }
    return REAL(write)(fd, data, size);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    if (ours(fd) && due("pwrite")) { if (code()) { errno = code(); return -1; } size = (size + 1) / 2; }
    return REAL(pwrite)(fd, data, size, at);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) { return pwrite(fd, data, size, at); }
int fsync(int fd) { if (ours(fd) && due("fsync") && code()) { errno = code(); return -1; } return REAL(fsync)(fd); }
int ftruncate(int fd, off_t size) {
    if (ours(fd) && due("ftruncate") && code()) { errno = code(); return -1; }
    return REAL(ftruncate)(fd, size);
}
int ftruncate64(int fd, off_t size) { return ftruncate(fd, size); }
int rename(const char *from, const char *to) {
    const char *path = getenv("FAULT_PATH");
    if (path && !strncmp(to, path, strlen(path)) && due("rename") && code()) { errno = code(); return -1; }
    return REAL(rename)(from, to);
}
"""


class Faults:
    """A case is one command under one fault.

    Args:
        folder: an empty one.
        seed: of the cases.
    """

    CHUNK = 5

    def __init__(self, folder: Path, seed: int) -> None:
        self._seed = seed
        self._folder = folder
        self._source = folder / "source.hdf5"
        self._data = episodes(150, 0)
        convert(self._data, self._source, to="d4rl")
        self._columns = np.concatenate([episode.reward[:-1] for episode in self._data])
        self._scenarios = [self._shrinking, self._size_limit, self._threads, self._forks]
        if shutil.which("cc"):
            self._shim = folder / "fault.so"
            (folder / "fault.c").write_text(SHIM)
            subprocess.run(
                ["cc", "-shared", "-fPIC", "-O1", "-o", self._shim, folder / "fault.c", "-ldl"], check=True, timeout=60
            )
            self._scenarios.append(self._failing_call)
        else:
            print("failing calls are left out: there is no C compiler (cc) here")
        self._unshare = ["unshare", "-rm"] if _can_mount() else None
        if self._unshare:
            self._scenarios += [self._full_disk, self._read_only]
        else:
            print("full and read-only disks are left out: nothing can be mounted here (unshare -rm)")

    def one(self, case: int) -> str:
        """Run a case; says how it ended.  What is raised is a fault."""
        rng = rng_of("faults", self._seed, case)
        scenario = self._scenarios[case % len(self._scenarios)]
        with tempfile.TemporaryDirectory(dir=self._folder) as place:
            return scenario(rng, Path(place))

    def close(self) -> None:
        """Nothing is held."""

    def _failing_call(self, rng: random.Random, place: Path) -> str:
        """A system call on the output's files fails, with EIO or ENOSPC or by writing half of it."""
        kind, call = rng.choice(KINDS), rng.choice(CALLS)
        fault = rng.choice([5, 28, 0]) if call in ("write", "pwrite") else rng.choice([5, 28])
        environment = {
            "LD_PRELOAD": str(self._shim), "FAULT_CALL": call, "FAULT_AT": str(rng.randrange(1, 30)),
            "FAULT_ERRNO": str(fault), "FAULT_PATH": str(place / "shared"),
        }  # fmt: skip
        (place / "shared").mkdir()
        code = self._converted(kind, place / "shared", environment)
        how = {5: "EIO", 28: "ENOSPC", 0: "half"}[fault]
        return f"{call} {how}, exit {code}"

    def _full_disk(self, rng: random.Random, place: Path) -> str:
        """The disk is full after so many kilobytes."""
        kind, room = rng.choice(KINDS), rng.choice([16, 64, 128, 256, 4096])
        mount = ["sh", "-c", f'mount -t tmpfs -o size={room}k none "{place}" && exec "$@"', "sh"]
        code = self._converted(kind, place, {}, mount)
        return f"full disk, exit {code}"

    def _read_only(self, rng: random.Random, place: Path) -> str:
        """The disk can't be written."""
        kind = rng.choice(KINDS)
        mount = ["sh", "-c", f'mount -t tmpfs -o ro none "{place}" && exec "$@"', "sh"]
        code = self._converted(kind, place, {}, mount)
        assert code != 0, "something was written to a read-only disk"
        return f"read-only disk, exit {code}"

    def _size_limit(self, rng: random.Random, place: Path) -> str:
        """No file may grow beyond so many bytes (ulimit -f)."""
        kind = rng.choice(KINDS)
        limit = rng.choice([512, 4096, 20_000, 100_000, 10**7])
        code = self._converted(kind, place, {}, ["prlimit", f"--fsize={limit}", "--"])
        return f"limit of a file's size, exit {code}"

    def _converted(self, kind: str, place: Path, environment: dict[str, str], wrapped: Any = ()) -> int:
        """A conversion in a process of its own; checks what it says and what it leaves."""
        out = place / OUTPUT
        script = (
            "import json, os, sys\n"
            "sys.dont_write_bytecode = True\n"  # a full disk would cut it short
            "from rlds2buf.cli.main import main\n"
            "code = main(sys.argv[1:])\n"
            f"print(json.dumps(sorted(os.listdir({str(place)!r}))), file=sys.stderr)\n"
            f"os.path.exists({str(out)!r}) and main(['inspect', {str(out)!r}, '--json'])\n"
            "sys.exit(code)\n"
        )
        python = [sys.executable, "-c", script, "convert", str(self._source), str(out), "--to", kind, "--json"]
        python += [word for name, value in OPTIONS[kind].items() for word in ("-T", f"{name}={value}")]
        command = [*(self._unshare or []), *wrapped, *python] if wrapped and wrapped[0] == "sh" else [*wrapped, *python]
        done = subprocess.run(
            command, env={**os.environ, **environment}, cwd=ROOT, capture_output=True, text=True, timeout=120
        )
        said = [json.loads(line) for line in done.stdout.splitlines()]
        assert done.returncode in CODES, f"exit code {done.returncode}: {done.stderr[-500:]}"
        assert "Traceback" not in done.stderr, done.stderr[-500:]
        left = json.loads(next(line for line in reversed(done.stderr.splitlines()) if line.startswith("[")))
        if done.returncode:
            assert said[0]["error"] and "\n" not in said[0]["error"], said
            assert left == [], f"left behind: {left}"
        else:
            assert left == [OUTPUT] and said[1]["episodes"] == 150, (left, said[1:])
        return done.returncode

    def _shrinking(self, rng: random.Random, place: Path) -> str:
        """The source becomes shorter, or is written over, while it is read: an error, or what it held."""
        source = place / "source.hdf5"
        shutil.copyfile(self._source, source)
        size = source.stat().st_size
        at = rng.randrange(40)
        how = rng.choice(["cut", "cut", "zeros"])
        rewards = []
        try:
            with rlds2buf.open_source(source) as opened:
                for number, item in enumerate(opened.read()):
                    if number == at and how == "cut":
                        os.truncate(source, rng.randrange(size))
                    if isinstance(item, rlds2buf.EpisodeError):
                        raise item
                    rewards.append(np.array(item.reward[:-1]))
        except rlds2buf.Rlds2bufError as error:
            outcome = type(error).__name__
        else:
            outcome = "read"
        found = np.concatenate(rewards) if rewards else self._columns[:0]
        np.testing.assert_array_equal(found, self._columns[: len(found)], "other values than the file's")
        return f"shrinking source, {outcome}"

    def _threads(self, rng: random.Random, place: Path) -> str:
        """Threads that add, sample and save: every batch is one of the buffer's own rows."""
        buffer = rlds2buf.make_prioritized(spec_of(self._data[0]), 800, seed=0)
        buffer.add(self._data[0])
        faults: list[BaseException] = []
        stop = threading.Event()

        def guarded(work: Any) -> None:
            try:
                while not stop.is_set():
                    work()
            except BaseException as error:
                faults.append(error)

        def sample() -> None:
            batch = buffer.sample(32)
            known = {tuple(row) for row in batch.data.observation[:, :2]}
            assert known <= self._known(), "a row that nobody added"
            buffer.update_priorities(batch.info.key, np.ones(32))

        works = [lambda: buffer.add(rng.choice(self._data)), sample, sample]
        threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        stop.wait(0.3)
        buffer.save(place / "saved")
        stop.set()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive(), "a thread hangs"
        if faults:
            raise faults[0]
        rlds2buf.load_buffer(place / "saved").check_valid()
        return "threads"

    def _known(self) -> set[tuple[float, ...]]:
        if not hasattr(self, "_rows"):
            self._rows = {tuple(row) for episode in self._data for row in episode.observation[:, :2]}
        return self._rows

    def _forks(self, rng: random.Random, place: Path) -> str:
        """Forks while a thread uses the buffer: no child hangs, and children draw differently."""
        buffer = rlds2buf.make_circular(spec_of(self._data[0]), 2000, seed=case_seed(rng))
        for episode in self._data[:40]:
            buffer.add(episode)
        stop = threading.Event()

        def sample() -> None:
            while not stop.is_set():
                buffer.sample(64)

        thread = threading.Thread(target=sample)
        thread.start()
        drawn = []
        try:
            for number in range(3):
                child = os.fork()
                if child == 0:
                    signal.alarm(0)
                    (place / str(number)).write_text(json.dumps(buffer.sample(16).info.key.tolist()))
                    os._exit(0)
                status = wait(child, 15)
                if status is None:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                    raise AssertionError("a forked child hangs")
                assert status == 0, f"a forked child ended with {status}"
                drawn.append((place / str(number)).read_text())
        finally:
            stop.set()
            thread.join(20)
        assert len(set(drawn)) == 3, "two forked children drew the same batch"
        return "forks"


def case_seed(rng: random.Random) -> int:
    """A seed out of a case's own random numbers."""
    return rng.randrange(1 << 30)


def _can_mount() -> bool:
    with tempfile.TemporaryDirectory() as place:
        line = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", place]
        try:
            return subprocess.run(line, capture_output=True, timeout=20).returncode == 0
        except OSError:
            return False
