"""What is known of each episode and has no place in LeRobot: as cells of JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.codecs.arrow.writing import cells, write_table
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.row_flags import PLACEHOLDER_FINAL_ROW, REAL_FINAL_ACTION
from rlds2buf.formats.lerobot.own_file import EPISODES, json_line

__all__ = ["final_cells", "metadata_cells", "write_episode_notes"]

_MARKS = frozenset((PLACEHOLDER_FINAL_ROW, REAL_FINAL_ACTION))
"""Columns of their own say these."""


def metadata_cells(batch: EpisodeBatch, lose: Callable[[str, str], None]) -> np.ndarray:
    """``[E] object``: each episode's metadata as JSON, empty where there are none.

    Args:
        batch: the episodes.
        lose: hears of what has no form there, and why.
    """
    found = np.full(len(batch), b"", object)
    if batch.fact_names <= _MARKS:
        return found
    for i, facts in enumerate(batch.facts()):
        kept = {name: value for name, value in facts.items() if name not in _MARKS}
        found[i] = _cell(kept, lose)
    return found


def _cell(facts: Mapping[Any, Any], lose: Callable[[str, str], None]) -> bytes:
    try:
        return json_line(facts).encode("utf-8", "surrogatepass") if facts else b""
    except TypeError:
        kept = {}
    for name, value in facts.items():
        try:
            json_line({name: value})
            kept[name] = value
        except TypeError as why:
            lose(f"metadata/{name}", f"its value is {why}")
    return json_line(kept).encode("utf-8", "surrogatepass") if kept else b""


def final_cells(final: Mapping[str, tuple[np.ndarray, np.ndarray]], count: int) -> np.ndarray:
    """``[E] object``: values of last rows as JSON, as :func:`json_line` has a dict's; empty where there are none.

    Args:
        final: field to episodes ``[n]``, ascending, and their values ``[n, ...]`` numbers.
        count: E.
    """
    found = np.full(count, b"", object)
    parts: dict[int, list[str]] = {}
    for name, (which, values) in final.items():
        told: dict[str, Any] = {"dtype": values.dtype.str, "data": "@"}
        whole = {"scalar": told} if values.ndim == 1 else {"array": {**told, "shape": list(values.shape[1:])}}
        head, tail = json.dumps({name: whole}, separators=(",", ":"))[1:-1].rsplit("@", 1)
        raw, size = values.tobytes(), values[:1].nbytes
        for i, episode in enumerate(which.tolist()):
            data = base64.b64encode(raw[i * size : (i + 1) * size]).decode()
            parts.setdefault(episode, []).append(f"{head}{data}{tail}")
    for episode, told_of in parts.items():
        found[episode] = f'{{"dict":{{{",".join(told_of)}}}}}'.encode()
    return found


def write_episode_notes(
    folder: Path, metadata: np.ndarray, final: np.ndarray, last_row: np.ndarray, placeholder: np.ndarray
) -> None:
    """The table of :data:`~rlds2buf.formats.lerobot.own_file.EPISODES`.

    Args:
        folder: of the dataset.
        metadata, final: ``[E] object`` cells of JSON; an empty one is null.
        last_row: ``[E] uint8``.
        placeholder: ``[E] bool``.
    """
    columns = {"metadata": cells(metadata), "final": cells(final), "last_row": last_row, "placeholder": placeholder}
    write_table(folder / EPISODES, columns)
