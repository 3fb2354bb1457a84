"""Sources read one episode at a time, as slowly and plainly as can be."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf import Episode, EpisodeError

__all__ = ["in_memory", "saved"]


def in_memory(episodes: Sequence[Episode], source: str = "memory", index: int = 0) -> list[Episode | EpisodeError]:
    """Each made anew, so that what was changed in it shows, with its place, which is `index` for the first."""
    found: list[Episode | EpisodeError] = []
    for number, episode in enumerate(episodes, index):
        try:
            found.append(episode.replace(source=source, index=number))
        except EpisodeError as error:
            found.append(error)
    return found


def saved(folder: Path) -> list[Episode]:
    """A saved buffer of plain columns and a few texts, row by row."""
    manifest = json.loads((folder / "manifest.json").read_text())
    columns = {
        entry["name"]: np.load(folder / manifest["data"] / entry["file"])
        for entry in manifest["columns"]
        if not entry["name"].startswith("sampler/") and 0 not in entry["shape"]
    }
    for name, texts in manifest["strings"].items():
        columns[name] = np.array([*(text.encode("latin-1") for text in texts), None], object)[columns[name]]
    slots = len(columns["flags"])
    found: list[Episode] = []
    rows: list[int] = []
    for key in range(manifest["oldest"], manifest["newest"]):
        rows.append((key - manifest["base"]) % slots)
        if columns["flags"][rows[-1]] & 3 == 3 or key == manifest["newest"] - 1:
            found.append(_episode(columns, rows, len(found)))
            rows = []
    return found


def _episode(columns: dict[str, np.ndarray], rows: list[int], index: int) -> Episode:
    def nested(prefix: str) -> Any:
        if prefix in columns:
            return np.array([columns[prefix][row] for row in rows], columns[prefix].dtype)
        names = {name[len(prefix) + 1 :].split("/")[0] for name in columns if name.startswith(prefix + "/")}
        plain = {name: name.replace("~1", "/").replace("~0", "~") for name in sorted(names)}
        return {plain[name]: nested(f"{prefix}/{name}") for name in plain} or None

    flags = [int(columns["flags"][row]) for row in rows]
    metadata: dict[str, Any] = {"source_id": int(columns["source"][rows[0]])} if "source" in columns else {}
    if flags[-1] & 3 == 3 and flags[-1] & 64:
        metadata["placeholder_final_row"] = True
    return Episode(
        **{name: nested(name) for name in ("observation", "action", "reward", "discount")},
        extras=nested("extras"),
        is_first=[bool(flag & 4) for flag in flags],
        is_last=[bool(flag & 8) for flag in flags],
        is_terminal=[bool(flag & 16) for flag in flags],
        metadata=metadata,
        index=index,
    )
