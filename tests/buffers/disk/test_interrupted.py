"""SIGKILL at any moment of a save leaves the buffer that was there, or the new one, whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data import ROOT


@pytest.mark.parametrize(
    ("work", "possible"),
    [
        ("save_new", {"nothing", "new"}),
        ("save_over", {"old", "new"}),
        ("write_and_resume", {"resumed", "new"}),
        ("live", {"old", "new"}),
    ],
)
def test_killed_at_every_step(work: str, possible: set[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.buffers.disk.interrupted", work, str(tmp_path / "work"), "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    steps = outcomes.pop("steps")
    assert set(outcomes) == possible, outcomes
    assert steps > 10 and sum(outcomes.values()) == steps + 10
