"""Which folders may be replaced by a new dataset: those that hold a LeRobot dataset, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rlds2buf.core.json_text import parse_json
from rlds2buf.files.foreign import replaceable_folder

__all__ = ["replaceable"]

_FOLDERS: Final = ("meta/", "data/", "videos/", "images/")
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
    return replaceable_folder(
        path, lambda name: name.startswith(_FOLDERS) and name.endswith(_SUFFIXES), "a LeRobot dataset"
    )
