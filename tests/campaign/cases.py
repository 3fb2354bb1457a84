"""Numbered cases in forks under limits: one that crashes, hangs or eats memory is reported, and the others go on."""

from __future__ import annotations

import dataclasses
import json
import mmap
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["Findings", "Slow", "rng_of", "run_cases", "run_here", "wait"]

CASE_SECONDS = 20
"""A case that takes longer is a finding; a busy machine takes a second or two for one."""
MEMORY = 3 << 30
"""Address space that a case may take beyond what the process has: the budget of 1 GiB thrice."""
_CHUNK = 250


class Slow(BaseException):
    """A case ran out of its time."""


@dataclasses.dataclass
class Findings:
    """What a run of cases came to.

    Attributes:
        cases: how many were run.
        outcomes: how many ended how.
        faults: what should not have been, with the case's number.
    """

    cases: int = 0
    outcomes: Counter[str] = dataclasses.field(default_factory=Counter)
    faults: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"cases": self.cases, "outcomes": dict(self.outcomes.most_common()), "faults": self.faults}


def rng_of(kind: str, seed: int, case: int) -> random.Random:
    """The random numbers of a case: the same for the same number, whichever process runs it."""
    return random.Random(f"{kind} {seed} {case}")


def run_cases(
    one: Callable[[int], str], first: int, until: Callable[[Findings], bool], *, jobs: int = 1, chunk: int = _CHUNK
) -> Findings:
    """Run cases from number `first` on until `until` says so, each chunk of them in a fork.

    Args:
        one: runs a case and says how it ended; what it raises is a fault.
        first: number of the first case.
        until: asked after every chunk.
        jobs: forks side by side.
        chunk: cases per fork.
    """
    findings = Findings()
    waiting: dict[int, _Worker] = {}
    following = first
    while True:
        done = until(findings)
        if done and not waiting:
            return findings
        while not done and len(waiting) < jobs:
            worker = _Worker(one, following, following + chunk)
            waiting[worker.pid] = worker
            following += chunk
        for pid, worker in list(waiting.items()):
            if (resumed := worker.poll(findings)) is None:
                continue
            del waiting[pid]
            if resumed < worker.stop:  # the case before it ended the process
                again = _Worker(one, resumed, worker.stop)
                waiting[again.pid] = again
        time.sleep(0.01)


def run_here(one: Callable[[int], str], first: int, until: Callable[[Findings], bool]) -> Findings:
    """Run cases in this very process, until `until` says so or one of them raises."""
    findings = Findings()
    while not until(findings) and not findings.faults:
        case = first + findings.cases
        said = _said(one, case)
        findings.cases += 1
        findings.outcomes[said["outcome"]] += 1
        if "fault" in said:
            findings.faults.append(said)
    return findings


class _Worker:
    """A fork that runs cases ``start`` to ``stop``, and what it says."""

    def __init__(self, one: Callable[[int], str], start: int, stop: int) -> None:
        self.stop = stop
        self._start = start
        self._said = tempfile.TemporaryFile()
        self._at = mmap.mmap(-1, 8)
        self._at[:8] = struct.pack("<q", start)
        self._seen, self._since = start, time.monotonic()
        sys.stdout.flush()
        self._parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._work(one)
            finally:
                os._exit(0)

    def poll(self, findings: Findings) -> int | None:
        """None while it runs; then the case to go on with, `stop` if all are done."""
        at = struct.unpack("<q", self._at[:8])[0]
        if at != self._seen:
            self._seen, self._since = at, time.monotonic()
        hangs = time.monotonic() - self._since > 3 * CASE_SECONDS
        if hangs:
            os.kill(self.pid, signal.SIGKILL)
        pid, status = os.waitpid(self.pid, 0 if hangs else os.WNOHANG)
        if pid == 0:
            return None
        at = struct.unpack("<q", self._at[:8])[0]
        self._collect(findings)
        findings.cases += min(at + 1, self.stop) - self._start
        if at >= self.stop:
            return self.stop
        how = "hangs" if hangs else f"died of signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "exited"
        findings.faults.append({"case": at, "fault": how})
        findings.outcomes[how] += 1
        return at + 1

    def _collect(self, findings: Findings) -> None:
        self._said.seek(0)
        for line in self._said:
            said = json.loads(line)
            findings.outcomes[said["outcome"]] += 1
            if "fault" in said:
                findings.faults.append(said)
        self._said.close()

    def _work(self, one: Callable[[int], str]) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        for case in range(self._start, self.stop):
            self._at[:8] = struct.pack("<q", case)
            if os.getppid() != self._parent:
                return
            said = _said(one, case)
            self._said.write(json.dumps(said).encode() + b"\n")
            self._said.flush()
        self._at[:8] = struct.pack("<q", self.stop)


def _said(one: Callable[[int], str], case: int) -> dict[str, Any]:
    """How a case ended, or what was wrong."""
    signal.signal(signal.SIGALRM, _too_slow)
    signal.alarm(CASE_SECONDS)
    try:
        return {"outcome": one(case)}
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{where.filename.rpartition('rlds2buf/')[2]}:{where.lineno}"
        said = f"{type(error).__name__}: {str(error)[:300]} ({place})"
        return {"outcome": f"fault {type(error).__name__}", "case": case, "fault": said}
    finally:
        signal.alarm(0)


def _too_slow(number: int, frame: Any) -> None:
    raise Slow(f"no end after {CASE_SECONDS} s")


def wait(pid: int, seconds: float) -> int | None:
    """The status of a child that ends within so many seconds, else None."""
    end = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        if time.monotonic() > end:
            return None
        time.sleep(0.001)
