"""Which folders may be replaced by a new dataset: those that hold a LeRobot dataset, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rlds2buf.core.json_text import parse_json

__all__ = ["replaceable"]

_FOLDERS: Final = ("meta", "data", "videos", "images")
_SUFFIXES: Final = (".json", ".jsonl", ".parquet", ".mp4", ".png", ".jpg", ".jpeg")


def replaceable(path: Path) -> bool | str:
    """Whether a folder is a LeRobot dataset; of one with other files in it, which one would be lost.

    A ``meta/info.json`` alone tells nothing: other programs write files of that name, too.
    """
    try:
        info = parse_json((path / "meta/info.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if not isinstance(info, dict) or "codebase_version" not in info:
        return False
    other = next(_others(path), None)
    return True if other is None else f"holds {other}, which is not of a LeRobot dataset, so it is not overwritten"


def _others(path: Path) -> Iterator[str]:
    """What LeRobot does not write."""
    yield from sorted(name for name in os.listdir(path) if name not in _FOLDERS)
    for folder, folders, files in os.walk(path):
        for name in (*(name for name in folders if os.path.islink(os.path.join(folder, name))), *files):
            place = os.path.join(folder, name)
            if os.path.islink(place) or not name.endswith(_SUFFIXES):
                yield os.path.relpath(place, path)
