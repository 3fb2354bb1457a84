"""The blocks of the README and of docs/ that use another library's classes, run behind the commands before them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_readme import OF_FRAMEWORKS, PAGES, blocks, workplace

__all__ = ["workplace"]

MAKES_BUFFER = ("rlds2buf demo", "rlds2buf convert cartpole.hdf5 cartpole-buffer")
WITH_FRAMEWORKS = [page for page in PAGES if any(OF_FRAMEWORKS.search(code) for _, code in blocks(page))]


def test_there_are_some() -> None:
    assert WITH_FRAMEWORKS


@pytest.mark.parametrize("page", WITH_FRAMEWORKS, ids=lambda page: page.stem)
def test_blocks_run(page: Path, workplace: Path) -> None:
    for command in MAKES_BUFFER:
        subprocess.run(command, shell=True, check=True, timeout=120, capture_output=True)
    for name, code in blocks(page):
        if name == "python" and OF_FRAMEWORKS.search(code):
            how = [sys.executable, "-c", code]
            done = subprocess.run(how, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, f"{code}\n{done.stdout}{done.stderr}"
