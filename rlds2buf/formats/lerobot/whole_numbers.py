"""The numbers of a whole dataset that is written, as ``stats.json`` has them: exact, however the rows came."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.codecs.arrow.parquet import column_of, leaf_of, open_parquet
from rlds2buf.core.spec import FieldSpec
from rlds2buf.numbers.accumulators import Columns, Spool
from rlds2buf.numbers.quantiles import LEVEL_NAMES

__all__ = ["WholeNumbers"]

_MEMORY = 1 << 24
"""Values that are held; more wait in a file, so that many episodes take no more memory than some."""
_ROWS = 1 << 14


class WholeNumbers:
    """Counts the rows of every feature of numbers.

    Args:
        features: name to the shape and dtype of one row.
        folder: for what does not fit into memory.
        complete: whether all rows will be added; of an interrupted run those that are written already are not, and
            everything is counted from the files.
    """

    def __init__(self, features: Mapping[str, FieldSpec], folder: Path, *, complete: bool) -> None:
        self._features = dict(features)
        self._complete = complete
        self._spool = Spool(_MEMORY, str(folder))
        self._columns: dict[str, Columns] = {}
        for name, field in features.items():
            shape = tuple(n or 0 for n in field.shape)
            self._columns[name] = self._spool.columns(shape, field.dtype)

    def add(self, rows: Mapping[str, np.ndarray]) -> None:
        """Count ``[M, ...]`` rows of every feature."""
        if self._complete:
            self._add(rows)

    def summary(self, files: Iterable[Path]) -> dict[str, dict[str, Any]]:
        """As plain JSON values, by feature; `files` are those of the data, for where rows were written before."""
        if not self._complete:
            for file in files:
                self._add_file(file)
        return {name: self._numbers(name) for name in self._features}

    def close(self) -> None:
        """Let go of everything; idempotent."""
        self._spool.close()

    def _add(self, rows: Mapping[str, np.ndarray]) -> None:
        for name, columns in self._columns.items():
            columns.add(rows[name])

    def _add_file(self, file: Path) -> None:
        with open_parquet(file) as parquet:
            for batch in parquet.iter_batches(_ROWS, columns=list(self._features), use_threads=False):
                self._add({name: column_of(leaf_of(batch, (name,)), field) for name, field in self._features.items()})

    def _numbers(self, name: str) -> dict[str, Any]:
        columns = self._columns[name]
        found = columns.numbers()
        shape = columns.shape or (1,)
        values = {"min": found.min, "max": found.max, "mean": found.mean, "std": found.std}
        told: dict[str, Any] = {key: value.astype(np.float64).reshape(shape).tolist() for key, value in values.items()}
        told["count"] = [columns.rows]
        for key, level in zip(LEVEL_NAMES, found.quantiles, strict=True):
            told[key] = level.reshape(shape).tolist()
        return told
