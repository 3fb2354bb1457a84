"""A file written by another thread: the same bytes in the same order, and errors that are told."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from rlds2buf import SinkError
from rlds2buf.files.background_file import BackgroundFile


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("rlds2buf-write")]


@pytest.mark.parametrize("seed", range(4))
def test_everything_in_order(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    parts = [rng.randbytes(rng.choice([0, 10, 5000, 1 << 20, 3 << 20])) for _ in range(40)]
    file = BackgroundFile(tmp_path / "a", "wb")
    for i, part in enumerate(parts):
        file.write(part)
        if i % 13 == 5:
            file.sync()
            assert (tmp_path / "a").read_bytes() == b"".join(parts[: i + 1])
    file.close()
    assert (tmp_path / "a").read_bytes() == b"".join(parts) and threads() == []
    more = BackgroundFile(tmp_path / "a", "ab")
    more.write(b"more")
    more.close()
    assert (tmp_path / "a").read_bytes() == b"".join([*parts, b"more"])


def test_a_place_that_can_not_be_written(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="a: Is a directory"):
        (tmp_path / "a").mkdir()
        BackgroundFile(tmp_path / "a", "wb")


@pytest.mark.parametrize("size", [10, 1 << 22])
def test_a_full_disk(size: int) -> None:
    file = BackgroundFile(Path("/dev/full"), "wb")
    with pytest.raises(SinkError, match="/dev/full: No space left"):
        for _ in range(10):
            file.write(b"x" * size)
        file.sync()
    file.abandon()
    file.abandon()
    assert threads() == []
