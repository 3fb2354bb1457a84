"""Whose items a Reverb checkpoint holds: a note inside it, beside Reverb's own files.

A checkpointer keeps its latest checkpoint and removes whatever else is in its folder (tfrecord_checkpointer.cc in
https://github.com/google-deepmind/reverb), so the note lies in the checkpoint and goes where that goes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any, Final

import numpy as np

from rlds2buf.errors import SinkError, SourceNotFound
from rlds2buf.files.durable import replace_text
from rlds2buf.formats.reverb.item_keys import BY_CONTENT
from rlds2buf.formats.reverb.protocol.checkpoint_files import latest_checkpoint, read_messages

__all__ = ["Origin", "item_keys", "latest_in", "require_checkpoints_only"]

_FILE: Final = "rlds2buf.json"
_VERSION: Final = 1
_MOST_BYTES: Final = 1 << 20
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
"""Reverb names a checkpoint by its time; one that it could not finish may be empty."""


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where a checkpoint's items come from.

    Attributes:
        source: the dataset's name: beginning with the whole path, where it is read from one.
        fingerprint: its own, when it was read.
        table: that holds the items.
        pattern: what the items are, in one line.
        items: how many they were.
        distinct_by: what their keys are made of, as :func:`rlds2buf.push` has it.
    """

    source: str
    fingerprint: str
    table: str
    pattern: str
    items: int
    distinct_by: str = BY_CONTENT

    @classmethod
    def of(cls, source: str, fingerprint: str, table: str, pattern: str, items: int = 0) -> Origin:
        """As the attributes say; `source` may be a relative path."""
        path, bracket, split = source.partition(" [")  # PATH [train]
        whole = f"{os.path.abspath(path)}{bracket}{split}" if os.path.exists(path) else source
        return cls(whole, fingerprint, table, pattern, items)

    @classmethod
    def read(cls, checkpoint: Path) -> Origin | None:
        """What a checkpoint's note says; None where there is none that can be read."""
        try:
            with open(checkpoint / _FILE, encoding="utf-8") as file:
                found = json.loads(file.read(_MOST_BYTES))
            if found.pop("rlds2buf_checkpoint") != _VERSION:
                return None
            origin = cls(**found)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        kinds = {field.name: int if field.name == "items" else str for field in dataclasses.fields(cls)}
        return origin if all(type(getattr(origin, name)) is kind for name, kind in kinds.items()) else None

    def write(self, checkpoint: Path) -> None:
        """Put the note into a checkpoint.

        Raises:
            SinkError: it can't be written.
        """
        note: dict[str, Any] = {"rlds2buf_checkpoint": _VERSION, **dataclasses.asdict(self)}
        replace_text(checkpoint / _FILE, json.dumps(note, indent=1) + "\n")

    def differs(self, other: Origin) -> list[str]:
        """What keeps the items of `other` from being a later state of these; empty where nothing does.

        A log that has grown has another fingerprint, and a copy of it another name.

        >>> hopper = Origin("hopper.hdf5", "1", "replay", "trajectory length=2", 10)
        >>> hopper.differs(Origin("copy.hdf5", "1", "replay", "trajectory length=5", 10))
        ['pattern']
        """
        grown = self.source == other.source and os.path.isabs(self.source)
        same = grown or self.fingerprint == other.fingerprint
        return [*([] if same else ["data"]), *([] if self.pattern == other.pattern else ["pattern"])]

    def __str__(self) -> str:
        return f"{self.items:,} items of {self.source} ({self.pattern}) in table {self.table!r}"


def latest_in(folder: str | os.PathLike[str]) -> Path | None:
    """The checkpoint that a server would load; None where there is none."""
    try:
        return latest_checkpoint(Path(folder)) if os.path.isdir(folder) else None
    except SourceNotFound:
        return None


def item_keys(checkpoint: Path, table: str) -> np.ndarray:
    """``[I] uint64``: the keys of the items of one table of a checkpoint.

    Raises:
        SourceError: its files can't be read.
    """
    items = read_messages(checkpoint / "items.tfrecord", "PrioritizedItem")
    return np.fromiter((item.key for item in items if item.table == table), np.uint64)


def require_checkpoints_only(folder: str | os.PathLike[str]) -> None:
    """Refuse a checkpointer's folder that holds anything else: Reverb would remove it when it writes a checkpoint.

    Raises:
        SinkError: something else lies there, or it is no folder, or can't be read.
    """
    path = Path(folder)
    try:
        others = sorted(child.name for child in path.iterdir() if not _is_ours(child)) if os.path.lexists(path) else []
    except OSError as cause:
        raise SinkError(f"{path}: no folder for checkpoints: {cause.strerror}") from cause
    if (path / "tables.tfrecord").exists():
        raise SinkError(f"{path}: this is a checkpoint itself; name the folder that holds it, {path.parent}")
    if others:
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        raise SinkError(
            f"{path}: there is something else than Reverb checkpoints, named by their times ({', '.join(others[:3])}"
            f"{more}), and Reverb would remove that or the next checkpoint; name an empty folder"
        )


def _is_ours(child: Path) -> bool:
    # Reverb takes the last name for the latest checkpoint, so one that was renamed would outlive all new ones.
    return not child.is_symlink() and child.is_dir() and _TIME.match(child.name) is not None
