"""The script of docs/offline_result.md from end to end, with so few steps that its figures say nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.data import ROOT


def test_logs_learns_and_tells(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "scripts/repro_offline.py", "--tasks", "Pendulum-v1", "--out", "out"]
    small = ["--seeds", "2", "--steps", "12", "--episodes", "1", "--share", "0.02", "--batch-size", "16"]
    command[3] = str(ROOT / command[3])
    for _ in range(2):  # a second run does nothing again
        done = subprocess.run([*command, *small], cwd=tmp_path, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr[-3000:]
    assert "Pendulum-v1 random" not in done.stdout.split("| task |")[0]
    assert len(done.stdout.splitlines()) == 5
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert list(found) == [f"Pendulum-v1/{level}" for level in ("random", "medium", "replay")]
    for result in found.values():
        assert result["logged"] < 0
        assert [len(result[way]) for way in ("td3+bc", "d3rlpy", "cloning")] == [2, 2, 2]
