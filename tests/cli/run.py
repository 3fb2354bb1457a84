"""Running the command line, in this process and in one of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlds2buf.cli.main import main
from tests.data import ROOT

__all__ = ["Result", "first_line", "run", "start", "wait_for"]


@dataclasses.dataclass
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be one JSON object and nothing else."""
        found = json.loads(self.out, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))
        assert isinstance(found, dict) and self.out.count("\n") == 1
        return found


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> Result:
    """One command line in this process; there must be no traceback, whatever happens."""
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return Result(code, out, err)


def start(*arguments: object, cwd: Path | None = None, **options: Any) -> subprocess.Popen[str]:
    """One command line in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", "rlds2buf", *map(str, arguments)],
        cwd=cwd or ROOT,
        env=environment,
        text=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
    )


def wait_for(happened: Callable[[], object], process: subprocess.Popen[Any]) -> None:
    """Until it has happened; a minute at most, and only while the process runs."""
    end = time.monotonic() + 60
    while not happened():
        assert process.poll() is None, f"it ended too early, with {process.returncode}"
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.005)


def first_line(process: subprocess.Popen[str], most: float = 120) -> str:
    """What a process says first, within so many seconds; one that says nothing is killed."""
    assert process.stdout is not None
    line = process.stdout.readline() if select.select([process.stdout], [], [], most)[0] else ""
    if not line:
        process.kill()
        pytest.fail(f"it said nothing: {process.communicate(timeout=60)}")
    return line
