"""Every test runs in a part of scripts/test: none is lost between them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data import ROOT
from tests.parts import ENVIRONMENTS, PARTS, files, left_out, runs

SCRIPT = ROOT / "scripts" / "test"


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def with_doctests() -> list[Path]:
    return [path for path in (ROOT / "rlds2buf").rglob("*.py") if ">>> " in path.read_text(encoding="utf-8")]


ENVIRONMENT_OF = {"adapters": "torch", "full": "full", "jax": "torch", "torch": "torch", "lerobot": "lerobot"}
"""Folders of tests that need an environment of their own."""

TESTS = sorted((ROOT / "tests").rglob("test_*.py"))


def test_every_file_runs_in_an_environment() -> None:
    examples = with_doctests()
    assert len(TESTS) > 100 and examples
    lost = [named(path) for path in [*TESTS, *examples] if not any(runs(part, named(path)) for part in ENVIRONMENTS)]
    assert lost == []


def test_what_needs_an_environment_runs_in_that_one_alone() -> None:
    for path in TESTS:
        folder = path.relative_to(ROOT / "tests").parts[0]
        environment = ENVIRONMENT_OF.get(folder)
        if environment is not None:
            assert [part for part in PARTS if runs(part, named(path))] == [environment]
        else:
            assert runs("core", named(path)), path


def test_examples_run_once() -> None:
    for path in with_doctests():
        adapter = path.parent.name == "adapters"  # which import what they adapt
        assert [part for part in PARTS if runs(part, named(path))] == ["torch" if adapter else "core"], path


def test_no_test_has_a_name_that_is_not_collected() -> None:
    shared = ROOT / "tests" / "contracts"
    others = [path for path in (ROOT / "tests").rglob("*.py") if path not in TESTS and path.parent != shared]
    assert not [
        named(path) for path in others if re.search(r"^(def test_|class Test)", path.read_text(encoding="utf-8"), re.M)
    ]


@pytest.mark.parametrize("part", PARTS)
def test_a_part_names_what_is_there(part: str) -> None:
    for name in [*files(part), *left_out(part)]:
        assert (ROOT / name).exists(), name


def test_the_script_asks_for_each_part() -> None:
    script = SCRIPT.read_text(encoding="utf-8")
    assert set(re.findall(r"run_pytest (\w+) ", script)) == set(PARTS)
    whole = script.partition('"")')[2].partition(";;")[0]
    assert {f"run_{part}" for part in ENVIRONMENTS} <= set(whole.split())


def test_a_part_is_told_as_arguments_of_pytest() -> None:
    told = subprocess.run(
        [sys.executable, ROOT / "tests" / "parts.py", "core"], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    left = ["rlds2buf/adapters", "tests/adapters", *(f"tests/{name}" for name in ("full", "jax", "lerobot", "torch"))]
    assert told == ["rlds2buf", "tests", *(f"--ignore={name}" for name in left)]


def test_the_page_for_contributors_names_every_room_and_part() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rooms = {path.name for path in (ROOT / "rlds2buf").iterdir() if (path / "__init__.py").exists()}
    named = " ".join(re.findall(r"^\| (.*?) \|", page, re.M))
    assert set(re.findall(r"`(\w+)/(?:NAME/)?`", named)) == rooms
    assert {f"./scripts/test {part}" for part in PARTS} <= set(re.findall(r"\./scripts/test \w+", page))
