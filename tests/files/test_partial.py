"""An output in the making: locked, journaled, and moved into place in one step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlds2buf import SnapshotCorrupt, SnapshotError, SnapshotExists
from rlds2buf.files.partial import PartialFolder


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


def test_killed_between_the_two_renames_of_a_replacement(tmp_path: Path) -> None:
    """What was set aside is put back."""
    made(tmp_path / "it", "old").publish("out")
    (tmp_path / "it").rename(tmp_path / ".it.replaced")
    with pytest.raises(SnapshotExists):
        PartialFolder(tmp_path / "it", what="a test")
    assert (tmp_path / "it" / "inner" / "text").read_text() == "old" and names(tmp_path) == {"it"}


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
