"""What conftest.py does with tests that are left out: counted where a named thing is absent, and else failed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data import ROOT

SUITE = """
import pytest
from tests.data import DATA, absent

def test_reads():
    DATA / "d4rl/none.hdf5"

@pytest.mark.parametrize("number", range(2))
def test_needs(number):
    absent("fish")

def test_has_a_time_limit(request, pytestconfig):
    limit = request.node.get_closest_marker("timeout")
    assert (limit is not None) == pytestconfig.pluginmanager.hasplugin("timeout")
"""
OTHERS = """
import pytest

@pytest.mark.skip(reason="later")
def test_other():
    pass

def test_by_hand():
    pytest.skip("not today")

@pytest.mark.parametrize("number", [])
def test_no_cases(number):
    pass
"""


def run(folder: Path, code: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """pytest on one file beside our conftest.py, where no data lie."""
    (folder / "tests").mkdir()
    for name in ("__init__.py", "conftest.py", "data.py"):
        shutil.copy(ROOT / "tests" / name, folder / "tests")
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "tests/test_it.py").write_text(code)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "RLDS2BUF_"))}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "tests", *options],
        cwd=folder,
        env={**inherited, **environment, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("options", [["-n", "0"], ["-n", "2"]], ids=" ".join)
def test_what_is_absent_is_counted_in_a_line(options: list[str], tmp_path: Path) -> None:
    done = run(tmp_path, SUITE, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines.count("1 test skipped: it reads real datasets; set RLDS2BUF_TEST_DATA=DIR to run it") == 1
    assert lines.count("2 tests skipped: absent here: fish") == 1
    assert lines[-1].startswith("1 passed, 3 skipped")


def test_a_skip_for_another_reason_fails(tmp_path: Path) -> None:
    code, empty = OTHERS.rsplit("\n@pytest.mark.parametrize", 1)
    done = run(tmp_path, code)
    assert done.returncode == 1 and "1 failed, 1 error" in done.stdout
    assert "skipped: 'later'; a test is left out for what it names in tests.data only" in done.stdout
    (tmp_path / "more").mkdir()
    done = run(tmp_path / "more", "import pytest\n@pytest.mark.parametrize" + empty)
    assert done.returncode != 0 and "test_no_cases" in done.stdout + done.stderr


def test_data_are_not_looked_for_while_tests_are_collected(tmp_path: Path) -> None:
    done = run(tmp_path, 'from tests.data import DATA\nPATH = DATA / "d4rl"\ndef test_it():\n    pass\n')
    assert done.returncode == 2 and "outside of a test" in done.stdout


def test_a_folder_of_data_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    done = run(tmp_path, SUITE, RLDS2BUF_TEST_DATA=str(tmp_path / "none"))
    assert done.returncode != 0 and "no such folder" in done.stdout + done.stderr
