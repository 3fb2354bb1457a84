"""The README and the pages of docs/ do what they say: their code runs in order, and what they name is there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rlds2buf
from rlds2buf.cli.main import cli
from tests.data import ROOT

README = ROOT / "README.md"
PAGES = [README, *sorted(path for path in (ROOT / "docs").glob("*.md") if path.name != "add_a_format.md")]
"""That page is a package of its own, which tests/formats/test_plugins.py installs."""
LINK = re.compile(r"\]\((?!https?:)([^)#]+)\)")
OF_FRAMEWORKS = re.compile(r"^(import|from) (torch|jax|stable_baselines3|d3rlpy|lerobot)\b", flags=re.MULTILINE)
"""Blocks that tests/torch runs."""


def of(language: str, page: Path = README) -> Iterator[str]:
    return (code for name, code in blocks(page) if name == language)


def blocks(page: Path) -> list[tuple[str, str]]:
    text = page.read_text(encoding="utf-8")
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with the repository's scripts, and the commands that an installation gives."""
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    (tmp_path / "bin").mkdir()
    for name, arguments in (("rlds2buf", "-m rlds2buf"), ("python", "")):
        command = tmp_path / "bin" / name
        command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments} "$@"\n')
        command.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
class TestPage:
    def test_every_block_is_of_a_kind_that_is_tested(self, page: Path) -> None:
        known = {"sh", "bash", "console", "python"}  # console: tests/full
        assert {name for name, _ in blocks(page)} <= known

    def test_bash_and_python_blocks_run_in_order(self, page: Path, workplace: Path) -> None:
        for name, code in blocks(page):
            if name in ("sh", "console") or OF_FRAMEWORKS.search(code):
                continue
            shell = ["bash", "-euo", "pipefail", "-c", code]
            how = shell if name == "bash" else [sys.executable, "-W", "error", "-c", code]
            done = subprocess.run(how, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, f"{code}\n{done.stdout}{done.stderr}"
        if page == README:
            assert len(rlds2buf.load_buffer(workplace / "cartpole-buffer")) > 1000

    def test_what_it_links_to_is_there(self, page: Path) -> None:
        for target in LINK.findall(page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), target


def test_every_page_is_linked_from_the_readme() -> None:
    linked = {(README.parent / target).resolve() for target in LINK.findall(README.read_text(encoding="utf-8"))}
    assert {*(ROOT / "docs").resolve().glob("*.md")} <= linked


def test_the_set_up_commands_are_there() -> None:
    lines = [line for code in of("sh") for line in code.splitlines() if line]
    assert {line.split()[0] for line in lines} == {"./scripts/demo", "./scripts/test"}
    for line in lines:
        assert os.access(ROOT / line.split()[0], os.X_OK)


def test_continuous_integration_runs_the_documented_test_command() -> None:
    script = ROOT / ".ci" / "run"
    lines = script.read_text().splitlines()
    assert os.access(script, os.X_OK)
    assert [line for line in lines if "scripts/test" in line] == [
        "./scripts/test || status=1",
        "./scripts/test clone || status=1",
        "./scripts/test campaign || status=1",
    ]


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_every_command_is_documented(name: str) -> None:
    assert f"| `rlds2buf {name} " in (ROOT / "docs/command_line.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
class TestNames:
    def test_no_command_is_documented_that_is_not_there(self, page: Path) -> None:
        assert set(re.findall(r"`rlds2buf ([a-z]+)", page.read_text(encoding="utf-8"))) <= set(cli.commands)

    def test_options_that_are_named_exist(self, page: Path) -> None:
        offered = {
            option for command in cli.commands.values() for parameter in command.params for option in parameter.opts
        } | {"--help", "--quick"}  # the latter is scripts/bench_all's
        text = re.sub(r"^python scripts/.*$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert set(re.findall(r"(?<![\w-])(--[a-z][a-z0-9-]+)", text)) <= offered

    def test_scripts_that_are_named_exist(self, page: Path) -> None:
        named = set(re.findall(r"scripts/[\w.]+", page.read_text(encoding="utf-8")))
        assert not [name for name in named if not (ROOT / name.rstrip(".")).is_file()]

    def test_functions_that_are_named_exist(self, page: Path) -> None:
        text = page.read_text(encoding="utf-8").replace("rlds2buf.errors", "")
        assert set(re.findall(r"\brlds2buf\.([a-z_]+)\(", text)) <= set(rlds2buf.__all__)


def test_the_changelog_has_an_entry_for_what_is_to_come() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "\n## Unreleased\n" in text or f"\n## [{rlds2buf.__version__}]" in text


@pytest.mark.parametrize("name", ["bench_all", "check", "demo", "envs", "test"])
def test_shell_scripts_are_well_formed(name: str) -> None:
    subprocess.run(["bash", "-n", str(ROOT / "scripts" / name)], check=True, timeout=60)
