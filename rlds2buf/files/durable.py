"""Small things that must be on the disk before the next step is taken."""

from __future__ import annotations

import os
from pathlib import Path

from rlds2buf.errors import SinkError

__all__ = ["replace_text", "sync_file", "sync_folder"]


def replace_text(path: Path, text: str) -> None:
    """Write a small file at once, synced to the disk: a reader sees the old one or the new one.

    Raises:
        SinkError: it can't be written.
    """
    fresh = path.with_name(path.name + ".new")
    try:
        fresh.unlink(missing_ok=True)  # of a killed run, or a link, which is not to be written through
        with open(fresh, "x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
        sync_folder(path.parent)
    except OSError as cause:
        raise SinkError(f"{path}: {cause.strerror or cause}") from cause


def sync_file(path: Path) -> None:
    """Force a file's bytes to the disk, whoever wrote them."""
    _sync(path)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
