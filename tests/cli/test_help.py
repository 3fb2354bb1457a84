"""Help pages, completion and the demonstration dataset."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlds2buf.cli.command import Command
from rlds2buf.cli.main import cli
from tests.cli.run import run

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_every_help_ends_with_two_examples_of_the_command_whose_options_exist(name: str, capsys: Capture) -> None:
    command = cli.commands[name]
    assert isinstance(command, Command) and len(command.examples) == 2
    offered = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    lines = run(capsys, name, "--help").out.rstrip().splitlines()
    assert lines[-5] == "Examples:"
    for line, example in zip(lines[-3::2], command.examples, strict=True):
        assert line.strip() == example and example.startswith(f"rlds2buf {name}")
        for word in example.partition(" && ")[0].split()[2:]:
            assert not word.startswith("-") or word in offered


@pytest.mark.parametrize("name", ["inspect", "stats", "validate", "convert", "push", "serve"])
def test_what_all_commands_share_stands_behind_the_commands_own_options(name: str, capsys: Capture) -> None:
    out = run(capsys, name, "--help").out
    assert out.index("\nOptions:") < out.index("  --json") < out.index("\nReading SRC:") < out.index("\nFields of SRC:")
    assert out.index("\nReading SRC:") < out.index("  --split")


def test_the_bare_command_prints_the_help(capsys: Capture) -> None:
    bare, asked = run(capsys), run(capsys, "-h")
    assert (bare.code, bare.out, bare.err) == (asked.code, asked.out, asked.err) == (0, run(capsys, "--help").out, "")


def complete(shell: str, *words: str, cwd: Path) -> str:
    """What a shell would be offered for the last of these words."""
    asked = {
        "_RLDS2BUF_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": f"{len(words) - 1}",
    }
    environment = {**os.environ, **asked}
    done = subprocess.run(
        [sys.executable, "-m", "rlds2buf"], env=environment, cwd=cwd, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and not done.stderr
    return done.stdout


class TestCompletion:
    def test_commands_options_choices_and_files(self, tmp_path: Path) -> None:
        assert complete("bash", "rlds2buf", "conv", cwd=tmp_path) == "plain,convert\n"
        assert "plain,--on-invalid\n" in complete("bash", "rlds2buf", "convert", "--on", cwd=tmp_path)
        assert complete("bash", "rlds2buf", "convert", "a", "b", "--on-invalid", "re", cwd=tmp_path) == "plain,repair\n"
        for command in ("inspect", "convert", "sample"):
            assert complete("bash", "rlds2buf", command, "hop", cwd=tmp_path) == "file,hop\n"

    @pytest.mark.parametrize("shell", ["zsh", "fish"])
    def test_the_script_for_other_shells(self, shell: str, tmp_path: Path) -> None:
        environment = {**os.environ, "_RLDS2BUF_COMPLETE": f"{shell}_source"}
        done = subprocess.run(
            [sys.executable, "-m", "rlds2buf"], env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0 and "_RLDS2BUF_COMPLETE" in done.stdout


class TestDemo:
    def test_the_file_is_a_dataset_and_nothing_is_overwritten(self, tmp_path: Path, capsys: Capture) -> None:
        path = tmp_path / "cartpole.hdf5"
        assert run(capsys, "demo", tmp_path, "--json").json == {"path": str(path), "episodes": 100, "steps": 16607}
        assert run(capsys, "inspect", path, "--json").json["ends"] == {"terminated": 46, "truncated": 54, "open": 0}
        before = path.read_bytes()
        again = run(capsys, "demo", tmp_path)
        assert again.code == 5 and "already exists" in again.err and path.read_bytes() == before

    def test_a_folder_that_is_not_there_is_made(self, tmp_path: Path, capsys: Capture) -> None:
        assert run(capsys, "demo", tmp_path / "new").code == 0 and (tmp_path / "new" / "cartpole.hdf5").is_file()
        (tmp_path / "file").touch()
        assert run(capsys, "demo", tmp_path / "file").code == 4

    def test_it_needs_neither_gymnasium_nor_the_d4rl_reader(self, tmp_path: Path) -> None:
        code = (
            "import sys, json; from rlds2buf.cli.main import main; code = main(['demo', '.'])\n"
            "print(json.dumps([code, 'gymnasium' in sys.modules]))"
        )
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert json.loads(done.stdout.splitlines()[-1]) == [0, False]
