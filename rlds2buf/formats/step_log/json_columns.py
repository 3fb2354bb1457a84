"""Columns of JSON Lines by pyarrow, with the values that Python's json module leads to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds2buf.codecs.arrow.parquet import Unfit, column_of, leaf_of, leaves_of
from rlds2buf.codecs.arrow.text import json_schema, json_table
from rlds2buf.core.spec import FieldSpec

__all__ = ["LineReader"]


class LineReader:
    """Reads lines that are steps, each with the keys of the first one and values of the types that are told.

    Args:
        first: the first line's object.
        specs: of each column by ``outer/inner``, one row's shape and dtype.
    """

    def __init__(self, first: Mapping[str, Any], specs: Mapping[str, FieldSpec]) -> None:
        self.specs = dict(specs)
        self._first = first
        self._schema = json_schema(first, {name: spec.dtype for name, spec in specs.items()})
        leaves = [path for field in self._schema or () for path, _ in leaves_of(field)]
        self._paths = {"/".join(path): path for path in leaves}
        if len(self._paths) != len(leaves) or self._paths.keys() != self.specs.keys():
            self._schema = None

    def widened(self, specs: Mapping[str, FieldSpec]) -> LineReader:
        """One that reads other types."""
        return LineReader(self._first, specs)

    def read(self, data: bytes) -> dict[str, np.ndarray] | None:
        """The columns ``[N, ...]`` of whole lines; None where only Python's json module can say what they are."""
        table = None if self._schema is None else json_table(data, self._schema)
        if table is None:
            return None
        try:
            return {name: column_of(leaf_of(table, path), self.specs[name]) for name, path in self._paths.items()}
        except Unfit:
            return None
