"""The manifest of a saved buffer: written last, checked first."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import crc32c

from rlds2buf.core.entries import Entries
from rlds2buf.core.json_text import parse_json
from rlds2buf.errors import SnapshotCorrupt, SnapshotTooNew, SourceNotFound
from rlds2buf.files.durable import replace_text

__all__ = ["FORMAT", "STATES", "VERSION", "inside", "is_buffer", "manifest_mark", "read_manifest", "write_manifest"]

FORMAT = "rlds2buf-buffer"
VERSION = 3
"""Of format 2 are buffers with byte strings in files of their own, of format 3 those of :data:`STATES`; others are
still written as format 1."""
STATES = ("cost_replay", "on_policy")
"""Kinds of buffers that are saved as their state: plain values and arrays."""
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


def manifest_mark(folder: Path) -> tuple[int, ...]:
    """What is another one once somebody has written the manifest anew; quick to ask.

    Raises:
        SnapshotCorrupt: there is none.
    """
    try:
        status = os.stat(folder / _NAME)
    except OSError as cause:
        raise SnapshotCorrupt(f"{folder}: no {_NAME} any more: {cause.strerror or cause}") from cause
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


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
        body = parse_json((folder / _NAME).read_text(encoding="utf-8"))
    except FileNotFoundError as cause:
        raise SnapshotCorrupt(f"{folder}: no {_NAME}; not a saved buffer, or an unfinished one") from cause
    except (OSError, ValueError) as cause:
        raise SnapshotCorrupt(f"{folder / _NAME}: {cause}") from cause
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise SnapshotCorrupt(f"{folder / _NAME}: not the manifest of a saved buffer")
    version = body.get("version")
    if not isinstance(version, int):
        raise SnapshotCorrupt(f"{folder / _NAME}: version should be an integer, got {version!r}")
    if version > VERSION:
        raise SnapshotTooNew(f"{folder}: format version {version}, this rlds2buf reads up to {VERSION}; upgrade it")
    if body.pop("checksum", None) != _checksum(body):
        raise SnapshotCorrupt(f"{folder / _NAME}: its checksum does not match, it was changed or damaged")
    try:
        _check_types(Entries(body))
    except ValueError as cause:
        raise SnapshotCorrupt(f"{folder / _NAME}: {cause}") from cause
    return body


def _check_types(told: Entries) -> None:
    """Raise ValueError unless every entry is of the type that readers count on."""
    told.text("data")
    told.flag("clean", True)
    told.inside("provenance", {})
    told.inside("rng", None)
    for column in told.each("columns"):
        column.text("name")
        column.text("file")
        column.lengths("shape")
        column.dtype("dtype")
        column.integer("crc32c", None)
    kind = told.text("kind")
    if kind == "multi_agent":
        _check_agents(told)
    elif kind in STATES:
        told.inside("made")
        told.inside("state")
    else:
        _check_rows(told)


def _check_rows(told: Entries) -> None:
    """Of a buffer of one agent."""
    for name in ("spec", "options", "sampler"):
        told.inside(name)
    told.inside("contents", None)
    told.text("capacity_unit")
    for name in ("capacity", "base", "oldest", "newest"):
        told.integer(name)
    told.lengths("episode_rows")
    opened, counts, strings = told.inside("open"), told.inside("counts"), told.inside("strings")
    for source in opened.values:
        opened.integer(source)
    for name in ("added", "evicted", "sampled"):
        counts.integer(name)
    for name in strings.values:
        strings.texts(name)
    segments = told.inside("segments", None)
    for name in segments.values:
        segments.items(name)


def _check_agents(told: Entries) -> None:
    """Of a buffer of several agents, whose own rows are in buffers of theirs."""
    policies, fresh = told.inside("policies"), told.inside("fresh")
    for name in policies.values:
        policies.text(name)
        fresh.lengths(name, least=-(1 << 62))
    told.inside("settings")
    told.items("agents")
    told.integer("env_steps")
    told.integer("next_slot")
    told.inside("lockstep", None)


def inside(folder: Path, *names: Any) -> Path:
    """The file or folder that a manifest names, which must lie in the buffer's own folder.

    A manifest comes with data from anywhere, and what it names is read, and written where the buffer goes
    on in place; so names lead neither up nor elsewhere, links in the file system included.

    Args:
        folder: of the buffer.
        names: as the manifest has them, to be joined.

    Raises:
        SnapshotCorrupt: it is no name, leads out of the folder, or is neither a file nor a folder.

    >>> str(inside(Path("buffer"), "data-1f3a", "000-action.npy"))
    'buffer/data-1f3a/000-action.npy'
    """
    if not all(isinstance(name, str) and "\0" not in name for name in names):
        raise SnapshotCorrupt(f"{folder / _NAME}: no name of a file: {names!r:.200}")
    path = folder.joinpath(*names)
    own = os.path.realpath(folder)
    away = any(os.path.isabs(name) or ".." in Path(name).parts for name in names)
    if away or os.path.commonpath([own, os.path.realpath(path)]) != own:
        raise SnapshotCorrupt(
            f"{folder / _NAME}: it names {os.path.join(*names)}, which leads out of the buffer's folder; "
            "a saved buffer has all of its files inside"
        )
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise SnapshotCorrupt(f"{path}: neither a file nor a folder")
    return path


def is_buffer(folder: Path) -> bool:
    """Whether a folder holds a saved buffer, whole or not."""
    try:
        return bool(parse_json((folder / _NAME).read_text(encoding="utf-8")).get("format") == FORMAT)
    except (OSError, ValueError, AttributeError):
        return False


def _checksum(body: dict[str, Any]) -> int:
    return crc32c.crc32c(json.dumps(body, sort_keys=True).encode())
