"""What goes wrong: the exit code, one sentence or one JSON object, and nothing that looks whole."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import h5py
import numpy as np
import pytest

import rlds2buf
from rlds2buf import errors
from rlds2buf.cli import failures
from rlds2buf.pipeline import opening
from tests.cli.damage import DAMAGES
from tests.cli.run import run, start, wait_for
from tests.data import ROOT
from tests.made import MADE

HOPPER = MADE / "d4rl/hopper_medium-v2.hdf5"
BRIDGE = MADE / "rlds/bridge_dataset"
Capture = pytest.CaptureFixture[str]


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


class TestBadSources:
    @pytest.mark.parametrize("command", ["inspect", "validate", "convert"])
    @pytest.mark.parametrize(("damage", "kind", "names"), DAMAGES, ids=[make.__name__ for make, _, _ in DAMAGES])
    def test_named_with_exit_code_3_and_no_output(
        self,
        damage: Callable[[Path], Path],
        kind: str,
        names: list[str],
        command: str,
        tmp_path: Path,
        capsys: Capture,
    ) -> None:
        path = damage(tmp_path)
        before = files(tmp_path)
        target = [tmp_path / "out"] if command == "convert" else []
        result = run(capsys, command, path, *target, "--json")
        found = result.json
        assert result.code == found["exit_code"] == 3 and found["class"] == kind
        for name in names:
            assert name in found["error"]
        assert str(path) in (found["source"] or "") + found["error"]
        assert result.err == f"rlds2buf: {found['error']}\n"
        assert files(tmp_path) == before
        plain = run(capsys, command, path, *target)
        assert plain.code == 3 and plain.out == "" and plain.err == result.err
        assert files(tmp_path) == before

    def test_skip_does_not_hide_damage(self, tmp_path: Path, capsys: Capture) -> None:
        from tests.cli.damage import flipped_byte

        path = flipped_byte(tmp_path)
        assert run(capsys, "convert", path, tmp_path / "out", "--on-invalid", "skip").code == 3
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize("split", ["nonsense", "train[", "train[5:2]x", "val"])
    def test_unknown_split(self, split: str, tmp_path: Path, capsys: Capture) -> None:
        result = run(capsys, "convert", BRIDGE, tmp_path / "out", "--split", split, "--json")
        assert result.code in (2, 3) and result.json["error"] and files(tmp_path) == set()
        if split == "nonsense":
            assert "there are: train, val" in result.json["error"]


class TestInvalidData:
    def test_exit_code_1_and_the_place(self, tmp_path: Path, capsys: Capture) -> None:
        result = run(capsys, "convert", BRIDGE, tmp_path / "out", "--json")
        found = result.json
        assert result.code == 1
        assert (found["class"], found["episode"], found["step"], found["path"], found["rule"]) == (
            "BoundaryError",
            0,
            9,
            "is_last",
            "last-missing",
        )
        assert "bridge_dataset-train.tfrecord" in found["source"]
        assert found["report"]["read"] == found["report"]["written"] == 0
        assert files(tmp_path) == set()


class TestBadTargets:
    def test_a_target_that_exists(self, tmp_path: Path, capsys: Capture) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "mine").write_text("keep")
        for more in ([], ["--overwrite"], ["--resume"]):
            result = run(capsys, "convert", HOPPER, tmp_path / "out", "--json", *more)
            assert result.code == 5 and result.json["class"] == "SnapshotExists"
        assert files(tmp_path) == {"out", "out/mine"}
        plain = run(capsys, "convert", HOPPER, tmp_path / "out")
        assert "overwrite it (--overwrite)" in plain.err

    def test_a_name_that_is_too_long(self, tmp_path: Path, capsys: Capture) -> None:
        result = run(capsys, "convert", HOPPER, tmp_path / ("a" * 300), "--json")
        assert result.code == 4 and result.json["class"] == "SinkError" and "too long" in result.json["error"]
        assert files(tmp_path) == set()

    def test_a_target_below_a_file(self, tmp_path: Path, capsys: Capture) -> None:
        (tmp_path / "file").write_text("")
        result = run(capsys, "convert", HOPPER, tmp_path / "file" / "out", "--json")
        assert result.code == 4 and result.json["class"] == "SinkError" and "file" in result.json["error"]

    @pytest.mark.parametrize("limit", [3_000, 1_500_000], ids=["at the end", "in the middle"])
    def test_no_room(self, limit: int, long_file: Path, tmp_path: Path) -> None:
        # A limit on the size of files fails write(2) as a full disk does.
        code = """
import resource, sys
sys.dont_write_bytecode = True  # it would be cut short
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
from rlds2buf.cli.main import main
sys.exit(main(["convert", *sys.argv[2:], "--json"]))
"""
        path = HOPPER if limit < 10_000 else long_file
        for more in ([], ["--resume"]):
            done = subprocess.run(
                [sys.executable, "-c", code, str(limit), str(path), str(tmp_path / "out"), *more],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert done.returncode == 4 and '"class": "SinkError"' in done.stdout
            assert "Traceback" not in done.stderr and done.stderr.startswith("rlds2buf: ")
            assert not (tmp_path / "out").exists()
            if not more:
                assert files(tmp_path) == set()


class TestBadBuffers:
    @pytest.mark.parametrize("command", [["-n", 3], ["--sequence-length", 4]])
    def test_not_a_buffer(self, command: list[object], tmp_path: Path, capsys: Capture) -> None:
        result = run(capsys, "sample", tmp_path, "--json", *command)
        assert result.code == 5 and result.json["class"] == "SnapshotCorrupt"

    @pytest.mark.parametrize(("path", "format"), [(HOPPER, "d4rl"), (BRIDGE, "rlds")])
    def test_a_dataset(self, path: Path, format: str, capsys: Capture) -> None:
        result = run(capsys, "sample", path, "--json")
        assert result.code == 5 and result.json["class"] == "SnapshotError"
        assert f"a dataset ({format}), not a saved buffer; `rlds2buf convert {path} BUFFER`" in result.json["error"]

    def test_a_file(self, tmp_path: Path, capsys: Capture) -> None:
        (tmp_path / "notes.txt").write_text("hello")
        result = run(capsys, "sample", tmp_path / "notes.txt")
        assert result.code == 5 and "notes.txt: a file, not the folder of a saved buffer" in result.err

    def test_no_such_folder(self, tmp_path: Path, capsys: Capture) -> None:
        assert run(capsys, "sample", tmp_path / "none", "--json").code == 3

    def test_a_damaged_one(self, tmp_path: Path, capsys: Capture) -> None:
        assert run(capsys, "convert", HOPPER, tmp_path / "out").code == 0
        column = max((tmp_path / "out").rglob("*.npy"), key=lambda path: path.stat().st_size)
        data = bytearray(column.read_bytes())
        data[-1] ^= 255
        column.write_bytes(data)
        result = run(capsys, "sample", tmp_path / "out", "--json")
        assert result.code == 5 and result.json["class"] == "SnapshotCorrupt" and column.name in result.json["error"]

    def test_an_empty_one(self, tmp_path: Path, capsys: Capture) -> None:
        rlds2buf.make_circular(rlds2buf.StepSpec(), 10).save(tmp_path / "out")
        result = run(capsys, "sample", tmp_path / "out", "--json")
        assert result.code == 5 and result.json["class"] == "NotEnoughItems"


class TestUsage:
    @pytest.mark.parametrize(
        "arguments",
        [
            ["nonsense"],
            ["inspect"],
            ["inspect", HOPPER, "--nonsense"],
            ["convert", HOPPER],
            ["convert", HOPPER, "out", "--on-invalid", "ignore"],
            ["convert", HOPPER, "out", "--to", "csv"],
            ["convert", HOPPER, "out", "-O", "nonsense"],
            ["convert", HOPPER, "out", "-O", "nonsense=1"],
            ["convert", HOPPER, "out", "-O", "split=1"],
            ["convert", HOPPER, "out", "--format", "nonsense"],
            ["convert", HOPPER, "out", "--split", "train"],
            ["sample", "out", "-n", "0"],
            ["sample", "out", "--gamma", "2"],
        ],
        ids=lambda arguments: " ".join(str(a).rsplit("/", 1)[-1] for a in arguments),
    )
    def test_exit_code_2(
        self, arguments: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        monkeypatch.chdir(tmp_path)
        result = run(capsys, *arguments)
        assert result.code == 2 and files(tmp_path) == set()
        assert result.out == "" and "rlds2buf: " in result.err
        assert run(capsys, *arguments, "--json").json["exit_code"] == 2

    def test_no_command_at_all_shows_the_help_once(self, capsys: Capture) -> None:
        result = run(capsys)
        assert result.code == 0 and result.err == ""
        assert result.out.count("Usage:") == 1 and "Commands:" in result.out and "rlds2buf: " not in result.out

    def test_an_unknown_command_says_where_the_help_is(self, capsys: Capture) -> None:
        assert "Try 'rlds2buf --help'" in run(capsys, "help").err
        assert "Try 'rlds2buf convert --help'" in run(capsys, "convert").err

    def test_n_step_and_sequences_exclude_each_other(self, tmp_path: Path, capsys: Capture) -> None:
        run(capsys, "convert", HOPPER, tmp_path / "out")
        result = run(capsys, "sample", tmp_path / "out", "--n-step", 2, "--sequence-length", 2, "--json")
        assert result.code == 2 and "together" in result.json["error"]


@pytest.fixture(scope="module")
def long_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A D4RL file of 300,000 short episodes: a second or two of converting."""
    path = tmp_path_factory.mktemp("long") / "long.hdf5"
    rows = 3_000_000
    with h5py.File(path, "w") as file:
        file["observations"] = np.zeros((rows, 8), np.float32) + np.arange(rows, dtype=np.float32)[:, None] % 7
        file["actions"] = np.zeros((rows, 1), np.float32)
        file["rewards"] = np.ones(rows, np.float32)
        file["terminals"] = np.arange(rows) % 10 == 9
        file["timeouts"] = np.zeros(rows, bool)
    return path


class TestInterruption:
    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_leaves_nothing(self, number: signal.Signals, code: int, long_file: Path, tmp_path: Path) -> None:
        process = start("convert", long_file, tmp_path / "out")
        wait_for(lambda: list(tmp_path.rglob("*.npy")), process)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert process.returncode == code, err
        what = "interrupted" if code == 130 else "terminated"
        advice = "nothing is kept (with --resume from the start, a later run goes on)"
        assert out == "" and err == f"rlds2buf: {what}; {advice}\n"
        assert files(tmp_path) == set()

    def test_resume_keeps_the_part_whatever_the_signal(self, long_file: Path, tmp_path: Path, capsys: Capture) -> None:
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            began = time.time_ns()
            process = start("convert", long_file, tmp_path / "out", "--resume", "--json")
            wait_for(lambda b=began: [p for p in tmp_path.rglob("*.npy") if p.stat().st_mtime_ns > b], process)
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
            assert process.returncode == json.loads(out)["exit_code"] == code and "Traceback" not in err
            assert "; the same command goes on from here" in err
            assert not (tmp_path / "out").exists() and list(tmp_path.rglob("*.npy"))
            wrong = run(capsys, "convert", long_file, tmp_path / "out", "--resume", "--on-invalid", "skip")
            assert wrong.code == 5 and "start over without --resume" in wrong.err
        assert run(capsys, "convert", long_file, tmp_path / "out", "--resume", "--json").json["written"] == 300_000
        assert [path.name for path in tmp_path.iterdir()] == ["out"]

    def test_resume_goes_on_after_a_kill(self, long_file: Path, tmp_path: Path, capsys: Capture) -> None:
        code = """
import sys, rlds2buf.pipeline.conversion
sys.modules["rlds2buf.pipeline.conversion"].CHECKPOINT_SECONDS = 0.05
from rlds2buf.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
        process = subprocess.Popen(
            [sys.executable, "-c", code, "convert", str(long_file), str(tmp_path / "out")], cwd=ROOT
        )
        wait_for(lambda: any('"state": {' in path.read_text() for path in tmp_path.rglob("journal.json")), process)
        process.kill()
        process.wait(timeout=60)
        assert not (tmp_path / "out").exists()
        wrong = run(capsys, "convert", long_file, tmp_path / "out", "--resume", "--on-invalid", "skip", "--json")
        assert wrong.code == 5 and wrong.json["class"] == "SnapshotError"
        found = run(capsys, "convert", long_file, tmp_path / "out", "--resume", "--json").json
        assert 0 < found["resumed"] < 300_000 and found["read"] == found["written"] == 300_000
        buffer = rlds2buf.load_buffer(tmp_path / "out")
        assert len(buffer) == 3_000_000 and [path.name for path in tmp_path.iterdir()] == ["out"]
        observed = buffer.all().observation[:, 0]
        np.testing.assert_array_equal(observed, (np.arange(3_000_000) % 7).astype(np.float32))

    @pytest.mark.parametrize(
        "arguments",
        [["inspect", HOPPER], ["validate", BRIDGE], ["inspect", "none", "--json"], ["--help"]],
        ids=lambda arguments: str(arguments[0]),
    )
    def test_a_reader_that_goes_away(self, arguments: list[object]) -> None:
        process = start(*arguments)
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
        process.stderr.close()
        assert process.wait(timeout=60) == 141 and "Traceback" not in err and "Exception" not in err


class TestOutputThatCannotBeWritten:
    @pytest.mark.parametrize(
        "arguments", [["inspect", HOPPER], ["inspect", HOPPER, "--json"], ["inspect", "none", "--json"], ["--help"]]
    )
    def test_a_full_disk_behind_standard_output(self, arguments: list[object]) -> None:
        with open("/dev/full", "w") as full:
            process = start(*arguments, stdout=full)
            _, err = process.communicate(timeout=60)
        assert process.returncode == 4
        assert err == "rlds2buf: standard output can't be written: No space left on device\n"

    @pytest.mark.parametrize(("path", "code"), [(HOPPER, 0), ("none", 3)])
    def test_a_full_disk_behind_standard_error(self, path: object, code: int) -> None:
        with open("/dev/full", "w") as full:
            process = start("inspect", path, stderr=full)
            out, _ = process.communicate(timeout=60)
        assert process.returncode == code and ("counts" in out) == (code == 0)

    @pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
    @pytest.mark.parametrize(("path", "code"), [(HOPPER, 0), ("none", 3)])
    def test_streams_closed_by_the_caller(self, closed: str, path: object, code: int) -> None:
        done = subprocess.run(
            ["bash", "-c", f'exec "$0" -m rlds2buf inspect "$1" {closed}', sys.executable, str(path)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == code and "Traceback" not in done.stderr


class TestProgress:
    def test_on_a_terminal_only_and_never_in_the_output(self, long_file: Path, tmp_path: Path) -> None:
        main_end, child_end = pty.openpty()
        process = start("convert", long_file, tmp_path / "out", "--json", stderr=child_end)
        os.close(child_end)
        shown = b""
        while select.select([main_end], [], [], 60)[0]:
            try:
                block = os.read(main_end, 4096)
            except OSError:  # the child has closed its end
                break
            if not block:
                break
            shown += block
        os.close(main_end)
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert b"steps/s" in shown and b"/300,000" in shown
        assert out.startswith("{") and out.count("\n") == 1 and "steps/s" not in out

    def test_none_when_piped(self, long_file: Path, tmp_path: Path) -> None:
        process = start("convert", long_file, tmp_path / "out")
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0 and err == "" and "300,000" in out


class TestErrors:
    @pytest.mark.parametrize("name", errors.__all__)
    def test_every_error_has_a_documented_exit_code(self, name: str) -> None:
        kind = getattr(errors, name)
        # The base class is never raised itself; what is too large is what was asked for.
        documented = (failures.USAGE,) if kind is errors.TooLarge else (1, 3, 4, 5)
        assert failures.exit_code(kind("what happened")) in documented or kind is errors.Rlds2bufError
        assert "what happened" in failures.as_json(kind("what happened"))["error"]

    def test_the_unforeseen_is_one_sentence(
        self, monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path
    ) -> None:
        def broken(*_: object, **__: object) -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(opening, "open_source", broken)
        result = run(capsys, "inspect", HOPPER, "--json")
        assert result.code == failures.BUG and result.json["class"] == "RuntimeError" and "a bug" in result.err

    def test_debugging_shows_where(self, monkeypatch: pytest.MonkeyPatch) -> None:
        environment = {**os.environ, "RLDS2BUF_DEBUG": "1"}
        done = subprocess.run(
            [sys.executable, "-m", "rlds2buf", "inspect", "none"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 3 and "Traceback" in done.stderr

    def test_click_errors(self) -> None:
        assert failures.exit_code(click.UsageError("x")) == 2
        assert failures.exit_code(click.Abort()) == 130
        assert failures.as_json(click.Abort())["class"] == "KeyboardInterrupt"

    def test_the_codes_are_those_of_the_help(self) -> None:
        codes = {failures.exit_code(kind("x")) for kind in map(vars(errors).get, errors.__all__)}
        codes |= {failures.exit_code(click.UsageError("x")), failures.exit_code(SystemExit(143)), 0}
        codes |= {failures.exit_code(KeyboardInterrupt())}
        assert codes == set(failures.MEANINGS)

    def test_a_missing_package(self, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
        monkeypatch.setitem(sys.modules, "reverb", None)
        result = run(capsys, "serve", HOPPER, "--json")
        assert result.code == 3 and result.json["class"] == "MissingDependency"
        assert "pip install 'rlds2buf[server]'" in result.json["error"]
