"""Every example of a library trains, and what it learns is better than what it began with."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import pytest

from tests.data import ROOT

SMALL = {
    "cleanrl_dqn": ("torch", 3000),
    "d3rlpy_cql": ("d3rlpy", 1500),
    "flashbax_dqn": ("flashbax", 6000),
    "grain_bc": ("grain", 2),
    "imitation_bc": ("imitation", 2),
    "rllib_bc": ("ray", 1),
    "tianshou_cql": ("tianshou", 1500),
    "torch_bc": ("torch", 2),
    "torchrl_dqn": ("torchrl", 1500),
}
"""By example: what it needs, and for how long it trains here."""


@pytest.mark.parametrize("name", [name for name, (library, _) in SMALL.items() if importlib.util.find_spec(library)])
def test_gets_better(name: str) -> None:
    command = [sys.executable, "-W", "ignore", f"examples/{name}.py", str(SMALL[name][1])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stderr[-3000:]
    found = re.search(r"mean return (\d+) before, (\d+) after", done.stdout)
    assert found, done.stdout
    before, after = map(int, found.groups())
    assert after > 3 * before, done.stdout


def test_pendulum_swings_up() -> None:
    command = [sys.executable, "-W", "ignore", "examples/sb3_sac.py", "3000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    found = re.search(r"mean return (-\d+) before, (-\d+) after", done.stdout)
    assert found, done.stdout
    before, after = map(int, found.groups())
    assert before < -800 and after > before + 400, done.stdout
