"""The reproduction of bit flipping, at a size that takes seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.data import ROOT


def test_both_ways_learn() -> None:
    command = [
        sys.executable,
        "scripts/repro_her_bit_flipping.py",
        "--bits",
        "6",
        "--epochs",
        "3",
        "--adding",
        "--json",
    ]
    # Its matrices are small: threads would only wait for each other.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)["6"]
    assert set(found) == {"sampling", "adding", "without"}
    assert found["sampling"][-1] >= 0.9 and found["adding"][-1] >= 0.9
