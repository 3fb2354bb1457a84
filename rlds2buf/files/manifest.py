"""The manifest of a saved buffer: written last, checked first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import crc32c

from rlds2buf.errors import SnapshotCorrupt, SnapshotTooNew, SourceNotFound
from rlds2buf.files.durable import replace_text

__all__ = ["FORMAT", "VERSION", "is_buffer", "read_manifest", "write_manifest"]

FORMAT = "rlds2buf-buffer"
VERSION = 2
"""Of format 2 are buffers with byte strings in files of their own; others are still written as format 1."""
_NAME = "manifest.json"


def write_manifest(folder: Path, body: dict[str, Any]) -> None:
    """Put `body` into the folder's manifest, at once: a reader sees the old one or the new one.

    Args:
        folder: of the buffer.
        body: plain JSON values; its ``"version"``, if it has none, is 1.

    Raises:
        SinkError: it can't be written.
    """
    body = {"format": FORMAT, "version": 1, **body}
    body["checksum"] = _checksum(body)
    replace_text(folder / _NAME, json.dumps(body, indent=1))


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a saved buffer.

    Raises:
        SourceNotFound: there is no such folder.
        SnapshotCorrupt: it is a file, has no manifest (an unfinished conversion), or a damaged one.
        SnapshotTooNew: a newer rlds2buf wrote it.
    """
    if folder.is_file():
        raise SnapshotCorrupt(
            f"{folder}: a file, and a saved buffer is a folder; a dataset becomes one by rlds2buf.convert(path, folder)"
        )
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


def _checksum(body: dict[str, Any]) -> int:
    return crc32c.crc32c(json.dumps(body, sort_keys=True).encode())
