"""SIGKILL at any moment of a conversion, then --resume: the output is that of an uninterrupted run, byte for byte."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data import ROOT
from tests.pipeline.killed import KILLS


@pytest.mark.parametrize("kind", ["buffer", "rlds", "minari", "d4rl", "lerobot"])
def test_killed_at_seeded_moments(kind: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.killed", kind, str(tmp_path), "6"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    assert outcomes["kills"] >= KILLS
    assert outcomes["resumed"] and outcomes["refused"], outcomes
