"""A buffer in a folder: who writes it, what a kill leaves, and what a full disk does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rlds2buf
from rlds2buf.errors import ReplayError, SinkError, SnapshotCorrupt, SnapshotExists
from tests.buffers.disk.killed_live import contents
from tests.buffers.numbered import SPEC, episode, transition
from tests.data import ROOT

KINDS = ("circular", "reservoir", "growing", "prioritized", "sequences", "pictures", "picked pictures")


def saved(folder: Path, **options: Any) -> Any:
    buffer = rlds2buf.make_circular(SPEC, 60, seed=0, directory=folder, **options)
    buffer.add(episode(0, 50))
    buffer.save()
    return buffer


def in_another_process(code: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    lines = "import os, signal, sys, rlds2buf\nfrom tests.buffers.numbered import *\n" + code
    return subprocess.run(
        [sys.executable, "-c", lines, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


KILLED = """
buffer = rlds2buf.load_buffer(sys.argv[1], writable=True)
buffer.add(episode(1000, 40))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_last_save_survives_a_kill_at_any_call(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.buffers.disk.killed_live", str(tmp_path), "12", "1", *KINDS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert {kind: sum(outcomes) for kind, outcomes in json.loads(done.stdout).items()} == dict.fromkeys(KINDS, 12)


class TestOneWriter:
    def test_a_second_process_is_told_who_has_it(self, tmp_path: Path) -> None:
        buffer = saved(tmp_path / "b")
        second = "rlds2buf.load_buffer(sys.argv[1], writable=True)"
        done = in_another_process(second, tmp_path / "b")
        assert f"SnapshotExists: {tmp_path / 'b'}: process {os.getpid()} on" in done.stderr
        overwrite = "rlds2buf.make_circular(SPEC, 5).save(sys.argv[1], overwrite=True)"
        done = in_another_process(overwrite, tmp_path / "b")
        assert f"SnapshotExists: {tmp_path / 'b'}: process {os.getpid()} on" in done.stderr
        reads = "print(len(rlds2buf.load_buffer(sys.argv[1])))"
        assert in_another_process(reads, tmp_path / "b").stdout == "49\n"
        buffer.add(episode(100, 20))
        done = in_another_process(reads, tmp_path / "b")
        assert "SnapshotCorrupt" in done.stderr and f"by process {os.getpid()} on" in done.stderr
        buffer.save()
        assert len(rlds2buf.load_buffer(tmp_path / "b")) == len(buffer)

    def test_a_killed_one_leaves_no_lock(self, tmp_path: Path) -> None:
        del_me = saved(tmp_path / "b")
        del del_me
        assert in_another_process(KILLED, tmp_path / "b").returncode == -9
        buffer = rlds2buf.load_buffer(tmp_path / "b", writable=True)
        buffer.add(episode(100, 5))
        buffer.save()

    def test_one_of_the_same_process_gives_up_what_is_saved(self, tmp_path: Path) -> None:
        first = saved(tmp_path / "b")
        second = rlds2buf.load_buffer(tmp_path / "b", writable=True)
        for change in (lambda: first.add(episode(0, 5)), first.save, first.clear):
            with pytest.raises(ReplayError, match="another buffer of this process"):
                change()
        assert len(first.sample(5).info.key) == 5
        second.add(episode(0, 5))
        with pytest.raises(SnapshotExists, match=r"save\(\) that one first"):
            rlds2buf.load_buffer(tmp_path / "b", writable=True)
        second.save()
        assert rlds2buf.load_buffer(tmp_path / "b").num_rows == second.num_rows

    def test_a_fork_does_not_write(self, tmp_path: Path) -> None:
        code = """
buffer = rlds2buf.load_buffer(sys.argv[1], writable=True)
if os.fork() == 0:
    for change in (lambda: buffer.add(episode(0, 5)), buffer.save):
        try:
            change()
        except rlds2buf.ReplayError as error:
            assert "was forked from" in str(error)
        else:
            os._exit(1)
    os._exit(0)
assert os.wait()[1] == 0
buffer.add(episode(0, 5))
buffer.save()
"""
        del_me = saved(tmp_path / "b")
        del del_me
        done = in_another_process(code, tmp_path / "b")
        assert done.returncode == 0, done.stderr
        assert rlds2buf.load_buffer(tmp_path / "b").num_rows == 55

    def test_a_lock_file_of_somebody_else_stays_as_it_is(self, tmp_path: Path) -> None:
        rlds2buf.make_circular(SPEC, 5).save(tmp_path / "b")
        (tmp_path / "victim").write_text("thesis")
        (tmp_path / "b" / "writer.lock").symlink_to(tmp_path / "victim")
        with pytest.raises(SinkError):
            rlds2buf.load_buffer(tmp_path / "b", writable=True)
        assert (tmp_path / "victim").read_text() == "thesis"


class TestTheWayBack:
    def test_without_durability_nothing_is_kept(self, tmp_path: Path) -> None:
        buffer = saved(tmp_path / "b", durability="none")
        del buffer
        assert in_another_process(KILLED, tmp_path / "b").returncode == -9
        assert not list((tmp_path / "b").glob("undo-*"))
        for writable in (False, True):
            with pytest.raises(SnapshotCorrupt, match="durability='none'"):
                rlds2buf.load_buffer(tmp_path / "b", writable=writable)

    def test_unknown_durability(self, tmp_path: Path) -> None:
        for directory in (None, tmp_path / "b"):
            with pytest.raises(ValueError, match="durability must be 'save' or 'none', got 'disk'"):
                rlds2buf.make_circular(SPEC, 5, directory=directory, durability="disk")
        assert not (tmp_path / "b").exists()

    def test_a_reader_puts_it_back_too_and_a_source(self, tmp_path: Path) -> None:
        expected = contents(saved(tmp_path / "b"))
        for opened in (lambda: contents(rlds2buf.load_buffer(tmp_path / "b")), None):
            assert in_another_process(KILLED, tmp_path / "b").returncode == -9
            assert list((tmp_path / "b").glob("undo-*"))
            if opened is not None:
                assert opened() == expected
            else:
                (read,) = rlds2buf.open_source(tmp_path / "b")
                assert read.observation["count"].tolist() == list(range(50))
            assert not list((tmp_path / "b").glob("undo-*"))

    def test_after_the_machine_was_started_anew_it_is_refused(self, tmp_path: Path, monkeypatch: Any) -> None:
        saved(tmp_path / "b")
        assert in_another_process(KILLED, tmp_path / "b").returncode == -9
        monkeypatch.setattr("rlds2buf.buffers.disk.undo._boot", lambda: "another")
        with pytest.raises(SnapshotCorrupt, match="started anew"):
            rlds2buf.load_buffer(tmp_path / "b")

    def test_it_leads_nowhere_else(self, tmp_path: Path) -> None:
        saved(tmp_path / "b")
        assert in_another_process(KILLED, tmp_path / "b").returncode == -9
        from rlds2buf.buffers.disk.manifest import read_manifest, write_manifest

        (tmp_path / "victim").write_bytes(bytes(5000))
        manifest = read_manifest(tmp_path / "b")
        for undo in ({**manifest["undo"], "file": "../victim"}, 5, {}, {**manifest["undo"], "columns": ["no"]}):
            write_manifest(tmp_path / "b", {**manifest, "undo": undo})
            with pytest.raises(SnapshotCorrupt, match="changed after"):
                rlds2buf.load_buffer(tmp_path / "b")
        assert (tmp_path / "victim").read_bytes() == bytes(5000)

    def test_links_of_reservoirs_are_loaded(self, tmp_path: Path) -> None:
        """Sources that take turns leave links where a chain breaks off; version 0.1.0 could not load those."""
        buffer = rlds2buf.make_reservoir(SPEC, 50, seed=3)
        for i in range(20):
            buffer.add(episode(100 * i, 2 + i % 12))
            for source in (1, 2):
                buffer.add(transition(100 * i + 50 + source), source_id=source)
            buffer.save(tmp_path / "b", overwrite=True)
            loaded = rlds2buf.load_buffer(tmp_path / "b")
            assert contents(loaded)[0] == contents(buffer)[0]


@pytest.mark.parametrize("kind", ["circular", "reservoir", "prioritized"])
@pytest.mark.parametrize("was_saved", [False, True])
def test_a_full_disk_is_an_error_and_changes_nothing(kind: str, was_saved: bool, tmp_path: Path) -> None:
    """A limit on what is reserved stands for the disk; what was not reserved is a SIGBUS there."""
    code = """
from rlds2buf.buffers.disk import live_folder as live
live._ROOM_BYTES = 4000
full = [1 << 40]
real = os.posix_fallocate
def limited(file, offset, size):
    if offset + size > full[0]:
        raise OSError(28, "No space left on device")
    real(file, offset, size)
os.posix_fallocate = limited
buffer = getattr(rlds2buf, "make_" + sys.argv[2])(SPEC, 5000, seed=0, directory=sys.argv[1])
if sys.argv[3] == "True":
    buffer.add(transitions(0, 20))
    buffer.save()
full[0] = 30_000
for i in range(1000):
    before = buffer.keys().tolist(), buffer.num_rows
    try:
        buffer.add(episode(100 * i, 9))
    except rlds2buf.SinkError as error:
        assert "No space left" in str(error), error
        assert (buffer.keys().tolist(), buffer.num_rows) == before
        buffer.check_valid()
        break
else:
    sys.exit("never full")
full[0] = 1 << 40
buffer.add(episode(5000, 9))
buffer.check_valid()
"""
    done = in_another_process(code, tmp_path / "b", kind, was_saved)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("writable", [False, True])
@pytest.mark.parametrize("read", ["sample(200)", "sample_many(2, 200)", "all()", "get(buffer.keys())", "keys()"])
def test_a_file_cut_short_is_an_error(read: str, writable: bool, tmp_path: Path) -> None:
    buffer = rlds2buf.make_circular(SPEC, 5000)
    buffer.add(episode(0, 5000))
    buffer.save(tmp_path / "b")
    code = f"""
import glob
buffer = rlds2buf.load_buffer(sys.argv[1], writable={writable})
for file in glob.glob(sys.argv[1] + "/data-*/*.npy"):
    os.truncate(file, 4096)
buffer.{read}
"""
    done = in_another_process(code, tmp_path / "b")
    assert done.returncode == 1 and "SnapshotCorrupt" in done.stderr and "has become shorter" in done.stderr
