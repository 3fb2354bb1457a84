"""What is known of each episode and has no place in LeRobot: as cells of JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.codecs.arrow.writing import cells, write_table
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.row_flags import PLACEHOLDER_FINAL_ROW, REAL_FINAL_ACTION
from rlds2buf.formats.lerobot.own_file import EPISODES, json_line

__all__ = ["metadata_cells", "write_episode_notes"]

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
