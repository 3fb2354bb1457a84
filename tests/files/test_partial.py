"""An output in the making: locked, journaled, and moved into place in one step."""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from rlds2buf import SnapshotCorrupt, SnapshotError, SnapshotExists
from rlds2buf.files.partial import PartialFolder
from tests.data import absent


def made(target: Path, text: str, **options: bool) -> PartialFolder:
    part = PartialFolder(target, provenance={"a": 1}, what="a test", **options)
    (part.folder / "out" / "inner").mkdir(parents=True)
    (part.folder / "out" / "inner" / "text").write_text(text)
    (part.folder / "spool").write_text("not part of it")
    return part


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_folder_of_the_part_becomes_the_target(tmp_path: Path) -> None:
    target = tmp_path / "it"
    made(target, "one").publish("out")
    assert (target / "inner" / "text").read_text() == "one"
    assert names(tmp_path) == {"it"} and names(target) == {"inner"}
    with pytest.raises(SnapshotExists):
        PartialFolder(target, what="a test")
    made(target, "two", overwrite=True).publish("out")
    assert (target / "inner" / "text").read_text() == "two"
    assert names(tmp_path) == {"it"}


def test_a_file_of_the_part_becomes_the_target(tmp_path: Path) -> None:
    target = tmp_path / "it"
    for text in ("one", "two"):
        part = PartialFolder(target, overwrite=True, what="a test")
        (part.folder / "file").write_text(text)
        part.publish("file")
        assert target.read_text() == text and names(tmp_path) == {"it"}


@pytest.mark.parametrize("whole", [True, False])
def test_the_whole_part_becomes_the_target(tmp_path: Path, whole: bool) -> None:
    part = made(tmp_path / "it", "one")
    part.write_journal({"reached": 1})
    if whole:
        part.publish()
        assert names(tmp_path / "it") == {"out", "spool"}
    else:
        part.close()
        assert names(tmp_path) == set()


def test_what_0_1_0_had_set_aside_is_neither_taken_nor_removed(tmp_path: Path) -> None:
    made(tmp_path / "it", "old").publish("out")
    (tmp_path / "it").rename(tmp_path / ".it.replaced")
    for overwrite in (False, True):
        with pytest.raises(SnapshotExists, match="move it back or elsewhere, or remove it"):
            PartialFolder(tmp_path / "it", overwrite=overwrite, what="a test")
    assert names(tmp_path) == {".it.replaced"}
    (tmp_path / "it").mkdir()
    part = made(tmp_path / "it", "new", overwrite=True)
    assert "left as it is" in part.notes[0]
    part.publish("out")
    assert (tmp_path / ".it.replaced" / "inner" / "text").read_text() == "old"
    assert (tmp_path / "it" / "inner" / "text").read_text() == "new"


def child(work: Callable[[], None], kill_at: int = 0) -> int:
    """Run `work` in a fork that is killed at a call of a function, Python's or the system's: whether it ended.

    With `kill_at` 0 it is not killed, and how many calls there are is the fork's exit code, in steps of ten.
    """
    process = os.fork()
    if process == 0:
        calls = 0

        def profile(frame: FrameType, event: str, argument: Any) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")
            if calls == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.setprofile(profile)
            work()
            sys.setprofile(None)
            os._exit(0 if kill_at else min(calls // 10, 255))
        finally:
            sys.setprofile(None)
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if not kill_at:
        return 10 * status
    assert status in (0, -signal.SIGKILL)
    return status == 0


def content(target: Path) -> str | None:
    """What is at the target; None if nothing is."""
    if target.is_dir():
        text = next(target.rglob("text")).read_text()
        assert len([path for path in target.rglob("*") if path.is_file()]) <= 2
        return text
    return target.read_text() if target.exists() else None


def replace(target: Path, kind: str, text: str = "new") -> None:
    part = PartialFolder(target, provenance={"a": 1}, overwrite=True, what="a test")
    if kind == "file":
        (part.folder / "out").write_text(text)
    else:
        (part.folder / "out" / "inner").mkdir(parents=True)
        (part.folder / "out" / "inner" / "text").write_text(text)
        (part.folder / "spool").write_text("more")
    part.write_journal({"reached": 1})
    part.publish(None if kind == "whole" else "out")


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("kind", ["file", "folder", "whole", "folder in two renames"])
def test_killed_anywhere(tmp_path: Path, kind: str, there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is at the target is whole at any moment, and the next run, of whatever kind, leaves nothing else."""
    if kind == "folder in two renames":  # as where the system can't exchange names
        monkeypatch.setattr("rlds2buf.files.partial.exchange", lambda one, other: False)
    found: Counter[str] = Counter()
    target = tmp_path / "counted" / "it"
    calls = child(lambda: replace(target, kind))
    assert 200 < calls < 2550
    for kill_at in sorted({*range(1, calls, 61), *range(calls - 130, calls + 30, 6)}):
        target = tmp_path / f"{kill_at}" / "it"
        folder = target.parent
        folder.mkdir()
        if there:
            replace(target, kind, "old")
        done = child(functools.partial(replace, target, kind), kill_at)
        seen = content(target)
        if done:
            assert seen == "new" and names(folder) == {"it"}
            continue
        put_back = there and kind == "folder in two renames" and seen is None
        assert seen in (("old", "new") if there else (None, "new")) or put_back
        found[f"{seen} {len(names(folder))}"] += 1
        if kill_at % 2:
            if put_back or seen is not None:  # a run that finds something there
                with pytest.raises(SnapshotExists):
                    PartialFolder(target, what="a test")
                assert content(target) == ("old" if put_back else seen)
                if seen == "new":
                    assert names(folder) == {"it"}
        replace(target, kind, "newer")
        assert content(target) == "newer" and names(folder) == {"it"}
    assert found["new 2"], found  # killed between the moment it was there and the end


@pytest.mark.parametrize("overwrite", [False, True])
def test_killed_between_two_renames(tmp_path: Path, overwrite: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the system can't exchange names: what was set aside is put back, and nothing else is."""
    target = tmp_path / "it"
    replace(target, "folder", "old")
    rename, renamed = os.rename, []

    def killed_at_the_second(one: Path, other: Path) -> None:
        renamed.append(one)
        if len(renamed) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        rename(one, other)

    with monkeypatch.context() as patched:
        patched.setattr("rlds2buf.files.partial.exchange", lambda one, other: False)
        patched.setattr(os, "rename", killed_at_the_second)
        assert not child(lambda: replace(target, "folder"), 1 << 30)
    assert names(tmp_path) == {".it.partial"}
    if overwrite:
        part = PartialFolder(target, overwrite=True, what="a test")
        assert "put back" in part.notes[0] and content(target) == "old"
        part.close()
    else:
        with pytest.raises(SnapshotExists, match="is there already"):
            PartialFolder(target, what="a test")
    assert content(target) == "old"
    target.rename(tmp_path / "elsewhere")
    replace(target, "folder", "newer")
    assert content(target) == "newer" and names(tmp_path) == {"it", "elsewhere"}


def test_what_was_set_aside_is_kept_where_something_else_has_come(tmp_path: Path) -> None:
    made(tmp_path / "it", "new").close(keep=True)
    made(tmp_path / "old", "old").publish("out")
    (tmp_path / "old").rename(tmp_path / ".it.partial" / "replaced")
    (tmp_path / "it").write_text("another")
    with pytest.raises(SnapshotExists, match="move it elsewhere, or remove it"):
        PartialFolder(tmp_path / "it", overwrite=True, what="a test")
    assert (tmp_path / ".it.partial" / "replaced" / "inner" / "text").read_text() == "old"


def test_a_link_in_the_parts_place_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (victim / "folder").mkdir(parents=True)
    (victim / "thesis.tex").write_text("years")
    (tmp_path / ".it.partial").symlink_to(victim)
    for options in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(SnapshotExists, match=r"a symbolic link; it is left as it is: move or\s+remove it"):
            PartialFolder(tmp_path / "it", what="a test", **options)
    assert names(victim) == {"folder", "thesis.tex"} and names(tmp_path) == {"victim", ".it.partial"}


@pytest.mark.parametrize("inside", [["thesis.tex"], ["lock", "thesis.tex"], ["journal.json"], ["folder/a"]])
def test_a_folder_without_our_mark_is_left_alone(tmp_path: Path, inside: list[str]) -> None:
    hidden = tmp_path / ".it.partial"
    for name in inside:
        (hidden / name).parent.mkdir(parents=True, exist_ok=True)
        (hidden / name).write_text("years")
    before = sorted(hidden.rglob("*"))
    for options in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(SnapshotExists, match="without the journal"):
            PartialFolder(tmp_path / "it", what="a test", **options)
    assert sorted(hidden.rglob("*")) == before and names(tmp_path) == {".it.partial"}


@pytest.mark.parametrize("name", ["journal.json", "lock"])
def test_a_mark_that_is_a_link_is_none(tmp_path: Path, name: str) -> None:
    made(tmp_path / "it", "one").close(keep=True)
    (tmp_path / "victim").write_text("years")
    (tmp_path / ".it.partial" / name).unlink()
    (tmp_path / ".it.partial" / name).symlink_to(tmp_path / "victim")
    with pytest.raises(SnapshotExists, match="left as it is"):
        PartialFolder(tmp_path / "it", what="a test")
    assert (tmp_path / "victim").read_text() == "years" and "out" in names(tmp_path / ".it.partial")


def test_links_inside_are_neither_written_through_nor_emptied(tmp_path: Path) -> None:
    part = made(tmp_path / "it", "one")
    part.write_journal({"reached": 1})
    part.close(keep=True)
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "thesis.tex").write_text("years")
    for name in ("data", "journal.json.new"):
        (tmp_path / ".it.partial" / name).symlink_to(victim if name == "data" else victim / "thesis.tex")
    with pytest.raises(SnapshotExists, match="left as it is"):
        PartialFolder(tmp_path / "it", provenance={"a": 1}, resume=True, what="a test")
    (tmp_path / ".it.partial" / "journal.json.new").unlink()
    with pytest.raises(SnapshotCorrupt, match="a link or a device"):
        PartialFolder(tmp_path / "it", provenance={"a": 1}, resume=True, what="a test")
    made(tmp_path / "it", "two").publish("out")
    assert (victim / "thesis.tex").read_text() == "years" and names(tmp_path) == {"it", "victim"}


@pytest.mark.parametrize("folder", [True, False])
def test_a_target_that_is_a_link_is_not_replaced(tmp_path: Path, folder: bool) -> None:
    made(tmp_path / "real", "one").publish("out") if folder else (tmp_path / "real").write_text("one")
    (tmp_path / "it").symlink_to("real")
    with pytest.raises(SnapshotExists, match=f"symbolic link, .* name what it leads to, {tmp_path}/real"):
        PartialFolder(tmp_path / "it", overwrite=True, what="a test")
    assert names(tmp_path) == {"it", "real"} and (tmp_path / "it").is_symlink()


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_comes_to_the_target_meanwhile_stays(tmp_path: Path, overwrite: bool) -> None:
    part = PartialFolder(
        tmp_path / "it", overwrite=overwrite, replaceable=lambda path: path.suffix == ".ours", what="a test"
    )
    (part.folder / "out").mkdir()
    (tmp_path / "it").write_text("pictures")
    with part, pytest.raises(SnapshotExists):
        part.publish("out")
    assert (tmp_path / "it").read_text() == "pictures" and names(tmp_path) == {"it"}


def test_a_second_run_does_not_undo_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes between two renames."""
    made(tmp_path / "it", "old").publish("out")
    part = made(tmp_path / "it", "new", overwrite=True)

    def come_between(one: Path, other: Path) -> bool:
        with pytest.raises(SnapshotExists, match="another process is writing it"):
            PartialFolder(tmp_path / "it", overwrite=True, what="a test")
        return False

    monkeypatch.setattr("rlds2buf.files.partial.exchange", come_between)
    rename = os.rename

    def renamed(one: Path, other: Path) -> None:
        rename(one, other)
        if Path(one) == tmp_path / "it":
            come_between(Path(one), Path(other))

    monkeypatch.setattr(os, "rename", renamed)
    part.publish("out")
    assert content(tmp_path / "it") == "new" and names(tmp_path) == {"it"}


def test_what_an_interrupted_run_left_is_said(tmp_path: Path) -> None:
    for attempt in range(2):
        part = made(tmp_path / "it", "one")
        assert [("started over" in note) for note in part.notes] == [True] * attempt
        part.write_journal({"reached": 1})
        part.close(keep=True)
    (tmp_path / "it").write_text("mine")
    with pytest.raises(SnapshotExists, match="is there already"):
        PartialFolder(tmp_path / "it", what="a test")
    assert names(tmp_path) == {"it", ".it.partial"}, "it can still be gone on from"
    with PartialFolder(tmp_path / "it", provenance={"a": 1}, overwrite=True, resume=True, what="a test") as again:
        assert again.journal == {"reached": 1}
        again.forget_journal()
        again.close(keep=True)
    with pytest.raises(SnapshotExists, match="left by an interrupted run, is removed"):
        PartialFolder(tmp_path / "it", what="a test")
    assert names(tmp_path) == {"it"}


@pytest.mark.parametrize("left", [[], ["lock"], ["lock", "journal.json.new"]])
def test_killed_before_it_had_begun(tmp_path: Path, left: list[str]) -> None:
    (tmp_path / ".it.partial").mkdir()
    for name in left:
        (tmp_path / ".it.partial" / name).touch()
    made(tmp_path / "it", "one").publish("out")
    assert names(tmp_path) == {"it"}


def test_another_users_part_is_left_alone(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        absent("root, who alone gives files away")
    part = made(tmp_path / "it", "one")
    part.write_journal({"reached": 1})
    part.close(keep=True)
    os.chown(part.folder, 12345, 12345)
    with pytest.raises(SnapshotExists, match="this user's conversions"):
        PartialFolder(tmp_path / "it", provenance={"a": 1}, resume=True, what="a test")
    assert "spool" in names(part.folder)


def test_goes_on_with_the_journal_of_an_equal_run_only(tmp_path: Path) -> None:
    part = made(tmp_path / "it", "one")
    part.write_journal({"reached": 1})
    part.close(keep=True)
    with pytest.raises(SnapshotError, match="another source or other options"):
        PartialFolder(tmp_path / "it", provenance={"a": 2}, resume=True, what="a test")
    with PartialFolder(tmp_path / "it", provenance={"a": 1}, resume=True, what="a test") as again:
        assert again.journal == {"reached": 1} and (again.folder / "out" / "inner" / "text").exists()
        with pytest.raises(SnapshotExists, match="another process is writing it"):
            PartialFolder(tmp_path / "it", provenance={"a": 1}, resume=True, what="a test")
        again.close(keep=True)
    with PartialFolder(tmp_path / "it", provenance={"a": 1}, what="a test") as anew:
        assert anew.journal is None and names(anew.folder) == {"journal.json", "lock"}


@pytest.mark.parametrize("text", ["", "[]", '{"state": 3}', '{"provenance": 1', "\udcff"])
def test_a_journal_that_can_not_be_read(tmp_path: Path, text: str) -> None:
    part = made(tmp_path / "it", "one")
    part.close(keep=True)
    journal = tmp_path / ".it.partial" / "journal.json"
    assert json.loads(journal.read_text())["state"] is None
    journal.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(SnapshotCorrupt):
        PartialFolder(tmp_path / "it", provenance={"a": 1}, resume=True, what="a test")
    assert (tmp_path / ".it.partial" / "out" / "inner" / "text").read_text() == "one"


def test_only_what_is_of_the_kind_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "it").write_text("pictures")
    with pytest.raises(SnapshotExists, match="is not a test"):
        PartialFolder(tmp_path / "it", overwrite=True, replaceable=lambda path: False, what="a test")
    assert (tmp_path / "it").read_text() == "pictures" and names(tmp_path) == {"it"}
