"""Files of an RLDS folder that are not there, and files that nothing names."""

from __future__ import annotations

import pytest

from rlds2buf import convert, open_source, validate
from tests.formats.rlds.folder import episode, write_folder


@pytest.fixture
def folder(tmp_path):
    shards = {"train": [[episode(0, 3)], [episode(1, 4)]], "test": [[episode(2, 2)], [episode(3, 3)]]}
    return write_folder(tmp_path / "toy/1.0.0", shards)


def found(folder, **options):
    with open_source(folder, **options) as source:
        return [(issue.rule, issue.message) for issue in source.findings()]


def test_a_whole_folder_has_none(folder):
    assert found(folder) == []


def test_files_of_a_split_that_is_not_read(folder):
    (folder / "toy-test.tfrecord-00001-of-00002").unlink()
    message = "1 of the 2 files of the split 'test' are not there: toy-test.tfrecord-00001-of-00002"
    assert found(folder) == [("absent-files", message)]
    report = validate(folder)
    assert report.counts["absent-files"] == 1 and report.ok
    assert f"{folder}: {message}" in convert(folder, []).warnings


def test_records_that_no_split_names(folder):
    shard = folder / "toy-train.tfrecord-00000-of-00002"
    (folder / "toy-train.tfrecord-00000-of-00001").write_bytes(shard.read_bytes())
    (folder / "notes.txt").write_text("mine")
    ((rule, message),) = found(folder, split="test")
    assert rule == "unused-files" and message.endswith(", 1 of them: toy-train.tfrecord-00000-of-00001")
