"""Whether a folder that is about to be replaced holds something of somebody else's."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["replaceable_folder"]


def replaceable_folder(path: Path, belongs: Callable[[str], bool], what: str) -> bool | str:
    """True, or a sentence on the first file in a dataset's folder that would be lost with it; links are such files.

    Args:
        path: the folder of a dataset.
        belongs: whether a file is the dataset's own, by its path in the folder, with ``/``.
        what: "a LeRobot dataset".

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "notes.txt").write_text("mine")
    >>> replaceable_folder(folder, lambda name: name.endswith(".json"), "a tally")
    'holds notes.txt, which is not of a tally, so it is not overwritten'
    """
    for folder, folders, files in os.walk(path):
        folders.sort()
        for name in sorted([*files, *(name for name in folders if os.path.islink(os.path.join(folder, name)))]):
            place = os.path.join(folder, name)
            inside = Path(os.path.relpath(place, path)).as_posix()
            if os.path.islink(place) or not belongs(inside):
                return f"holds {inside}, which is not of {what}, so it is not overwritten"
    return True
