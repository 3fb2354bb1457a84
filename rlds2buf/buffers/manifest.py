"""The manifest of a saved buffer: written last, checked first."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import crc32c

from rlds2buf.errors import SinkError, SnapshotCorrupt, SnapshotTooNew, SourceNotFound

__all__ = ["FORMAT", "VERSION", "is_buffer", "read_manifest", "sync_folder", "write_manifest"]

FORMAT = "rlds2buf-buffer"
VERSION = 1
_NAME = "manifest.json"


def write_manifest(folder: Path, body: dict[str, Any]) -> None:
    """Put `body` into the folder's manifest, at once: a reader sees the old one or the new one.

    Raises:
        SinkError: it can't be written.
    """
    body = {"format": FORMAT, "version": VERSION, **body}
    body["checksum"] = _checksum(body)
    replace_text(folder / _NAME, json.dumps(body, indent=1))


def replace_text(path: Path, text: str) -> None:
    """Write a small file at once, synced to the disk.

    Raises:
        SinkError: it can't be written.
    """
    fresh = path.with_name(path.name + ".new")
    try:
        with open(fresh, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
        sync_folder(path.parent)
    except OSError as cause:
        raise SinkError(f"{path}: {cause.strerror or cause}") from cause


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a saved buffer.

    Raises:
        SourceNotFound: there is no such folder.
        SnapshotCorrupt: it has no manifest (an unfinished conversion), or a damaged one.
        SnapshotTooNew: a newer rlds2buf wrote it.
    """
    if not folder.is_dir():
        raise SourceNotFound(f"{folder}: there is no such folder")
    try:
        body = json.loads((folder / _NAME).read_text(encoding="utf-8"))
    except FileNotFoundError as cause:
        raise SnapshotCorrupt(f"{folder}: no {_NAME}; not a saved buffer, or an unfinished one") from cause
    except (OSError, ValueError, RecursionError) as cause:
        raise SnapshotCorrupt(f"{folder / _NAME}: {cause}") from cause
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise SnapshotCorrupt(f"{folder / _NAME}: not the manifest of a saved buffer")
    if not isinstance(body.get("version"), int) or body["version"] > VERSION:
        raise SnapshotTooNew(
            f"{folder}: format version {body.get('version')}, this rlds2buf reads up to {VERSION}; upgrade it"
        )
    if body.pop("checksum", None) != _checksum(body):
        raise SnapshotCorrupt(f"{folder / _NAME}: its checksum does not match, it was changed or damaged")
    return body


def is_buffer(folder: Path) -> bool:
    """Whether a folder holds a saved buffer, whole or not."""
    try:
        return bool(json.loads((folder / _NAME).read_text(encoding="utf-8")).get("format") == FORMAT)
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _checksum(body: dict[str, Any]) -> int:
    return crc32c.crc32c(json.dumps(body, sort_keys=True).encode())
