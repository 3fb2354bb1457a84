"""What rlds2buf noted of each episode of a dataset that it wrote."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from rlds2buf.codecs.arrow.parquet import Unfit, column_of, leaf_of, spec_of_leaf
from rlds2buf.codecs.arrow.tables import rows_at_once
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.core.json_text import parse_json
from rlds2buf.errors import SourceFormatError
from rlds2buf.formats.lerobot.files import opened
from rlds2buf.formats.lerobot.own_file import EPISODES, PADDING, REAL, value_from_json

__all__ = ["OwnNotes", "read_own_notes"]

_ROWS: Final = 1 << 14
_COLUMNS: Final = {"metadata": "O", "final": "O", "last_row": "iu", "placeholder": "b"}


@dataclasses.dataclass(frozen=True)
class OwnNotes:
    """E episodes.

    Attributes:
        metadata, final: ``[E] object``: cells of JSON, empty where there is nothing.
        last_row: ``[E] int64``.
        placeholder: ``[E] bool``.
    """

    metadata: np.ndarray
    final: np.ndarray
    last_row: np.ndarray
    placeholder: np.ndarray

    def facts(self, chosen: np.ndarray) -> list[dict[str, Any]] | None:
        """The metadata of some episodes; None where there are none.

        Raises:
            ValueError: a cell is not what rlds2buf writes.
        """
        cells = self.metadata[chosen].tolist()
        return [_value(cell) for cell in cells] if any(cells) else None

    def finals(self, chosen: np.ndarray) -> dict[int, Mapping[str, Any]]:
        """Of some episodes, by position among them, what belongs into the last row.

        Raises:
            ValueError: a cell is not what rlds2buf writes.
        """
        return {place: _value(cell) for place, cell in enumerate(self.final[chosen].tolist()) if cell}

    def padded(self, chosen: np.ndarray) -> np.ndarray:
        """``[e] bool``: whose last action was zeros."""
        return np.asarray(self.last_row[chosen] == PADDING)

    def real(self, chosen: np.ndarray) -> np.ndarray:
        """``[e] bool``: whose last action is real."""
        return np.asarray(self.last_row[chosen] == REAL)


def read_own_notes(root: Path, episodes: int, budget: Budget = BUDGET) -> OwnNotes:
    """What is noted of a dataset's episodes.

    Raises:
        SourceNotFound, SourceFormatError: the file is not there, or damaged.
        ValueError: it is not about so many episodes, or not what rlds2buf writes.
    """
    path = root / EPISODES
    found: dict[str, list[np.ndarray]] = {name: [] for name in _COLUMNS}
    with opened(path) as parquet:
        absent = [name for name in _COLUMNS if name not in parquet.schema_arrow.names]
        if absent:
            raise SourceFormatError(f"{path}: no column `{absent[0]}`")
        for batch in parquet.iter_batches(rows_at_once(parquet, path, _ROWS, budget), use_threads=False):
            batch.validate(full=True)  # offsets that point outside of their buffers would be followed else
            for name, kinds in _COLUMNS.items():
                found[name].append(_column(batch, name, kinds, path))
    columns = {name: _joined(parts, _COLUMNS[name]) for name, parts in found.items()}
    if len(columns["last_row"]) != episodes:
        raise ValueError(f"{path}: is about {len(columns['last_row'])} episodes, and there are {episodes}")
    return OwnNotes(**columns)


def _column(batch: Any, name: str, kinds: str, path: Path) -> np.ndarray:
    try:
        array = leaf_of(batch, (name,))
        spec = spec_of_leaf(array.type, array)
        if spec.shape or spec.dtype.kind not in kinds:
            raise Unfit(f"holds {array.type}")
        return column_of(array, spec)
    except Unfit as cause:
        raise SourceFormatError(f"{path}: column `{name}` {cause.why}") from cause


def _joined(parts: Sequence[np.ndarray], kinds: str) -> np.ndarray:
    if parts:
        return np.concatenate(parts)
    return np.empty(0, {"O": np.object_, "iu": np.int64, "b": np.bool_}[kinds])


def _value(cell: bytes) -> dict[str, Any]:
    value = value_from_json(parse_json(cell)) if cell else {}
    if not isinstance(value, dict):
        raise ValueError(f"{repr(value)[:60]} is no object")
    return value
