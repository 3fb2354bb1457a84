"""LeRobot datasets of numbers and texts, read a row at a time: every file whole, every row a dict."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np


def read_lerobot(root: Path) -> Iterator[list[dict[str, Any]]]:
    """The rows of each episode, by feature, with the text of their ``task``."""
    import pyarrow.parquet as pq

    info = json.loads((root / "meta/info.json").read_text())
    if info["codebase_version"] == "v3.0":
        episodes = [
            row for path in sorted(root.glob("meta/episodes/*/*.parquet")) for row in pq.read_table(path).to_pylist()
        ]
        tasks = {
            row["task_index"]: row["__index_level_0__"]
            for row in pq.read_table(root / "meta/tasks.parquet").to_pylist()
        }
    else:
        episodes = [json.loads(line) for line in (root / "meta/episodes.jsonl").read_text().splitlines()]
        lines = (root / "meta/tasks.jsonl").read_text().splitlines()
        tasks = {row["task_index"]: row["task"] for row in map(json.loads, lines)}
    for episode in episodes:
        number = episode["episode_index"]
        places = {
            "chunk_index": episode.get("data/chunk_index"),
            "file_index": episode.get("data/file_index"),
            "episode_chunk": number // info["chunks_size"],
            "episode_index": number,
        }
        template = (
            "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
            if info["codebase_version"] == "v3.0"
            else "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
        )
        table = pq.read_table(root / template.format(**places)).to_pylist()
        rows = [row for row in table if row["episode_index"] == number]
        assert len(rows) == episode["length"]
        for row in rows:
            row["task"] = tasks[row["task_index"]]
        yield rows


def ends_of(rows: list[dict[str, Any]]) -> list[bool]:
    """``is_terminal`` of each row by ``next.done`` and ``next.truncated``."""
    out = [False] * len(rows)
    for t, row in enumerate(rows):
        if row.get("next.done", False) and not row.get("next.truncated", False):
            out[min(t + 1, len(rows) - 1)] = True
    return out


def column(rows: list[dict[str, Any]], name: str, dtype: Any) -> np.ndarray:
    """A feature of all rows."""
    return np.array([row[name] for row in rows], dtype)
