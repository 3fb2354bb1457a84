"""Ranges of files, copied by the system or by hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlds2buf.files.copy_range import copy_range


@pytest.mark.parametrize(("start", "length"), [(0, 10), (3, 4), (9, 1), (10, 0)])
def test_into_a_file_behind_what_is_there(tmp_path: Path, start: int, length: int) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    with open(tmp_path / "a", "rb") as source, open(tmp_path / "b", "wb", buffering=0) as target:
        target.write(b"-")
        copy_range(source.fileno(), target.fileno(), start, length)
        copy_range(source.fileno(), target.fileno(), 0, 1)
    assert (tmp_path / "b").read_bytes() == b"-" + b"0123456789"[start : start + length] + b"0"


def test_into_something_that_the_system_does_not_copy_into(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    reader, writer = os.pipe()
    with open(tmp_path / "a", "rb") as source:
        copy_range(source.fileno(), writer, 2, 5)
    os.close(writer)
    assert os.read(reader, 100) == b"23456"
    os.close(reader)


def test_a_source_that_is_too_short(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    with (
        open(tmp_path / "a", "rb") as source,
        open(tmp_path / "b", "wb") as target,
        pytest.raises(EOFError, match="ends at byte 10, 12 are needed"),
    ):
        copy_range(source.fileno(), target.fileno(), 5, 7)
