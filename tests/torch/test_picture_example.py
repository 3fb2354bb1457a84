"""The example that clones behaviour from pictures trains: its loss falls."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from tests.data import DATA, ROOT


def test_loss_falls() -> None:
    path = DATA / "rlds/bridge_dataset/1.0.0"
    command = [sys.executable, "-W", "ignore", "examples/picture_chunks.py", str(path), "60"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    found = re.search(r"mean loss ([0-9.]+) at first, ([0-9.]+) after 60 batches", done.stdout)
    assert found, done.stdout
    first, last = map(float, found.groups())
    assert last < 0.9 * first, done.stdout
