"""Logs in Parquet, read by pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from rlds2buf.codecs.arrow.parquet import Unfit, column_of, leaf_of, leaves_of, open_parquet, spec_of_leaf
from rlds2buf.codecs.arrow.tables import rows_at_once
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import SourceFormatError
from rlds2buf.formats.step_log.source import StepLogSource
from rlds2buf.formats.step_log.table import Block, Table, log_files

__all__ = ["ParquetTable", "StepLogParquetSource"]

SUFFIXES: Final = (".parquet", ".pq", ".parq")
_ROWS: Final = 1 << 14
_SAMPLE: Final = 64


class StepLogParquetSource(StepLogSource):
    """Steps in a Parquet file, or in a folder of part files, which are one table in natural order.

    An episode may go over from one part to the next.  Numbers, flags and text are columns; lists of
    one length are ``[N, k]`` (lists of lists ``[N, k, l]``); fields of structs are ``outer/inner``.  A null
    is NaN in a column of floats and empty in one of text, and refused elsewhere.  Times become
    int64.  See :class:`~rlds2buf.formats.step_log.source.StepLogSource` for what columns become.

    Args:
        path: a file, or a folder of them.

    Raises:
        SourceNotFound, SourceFormatError: as there.
        MissingDependency: pyarrow is not installed.
    """

    format: ClassVar[str] = "parquet"

    def _open(self) -> Table:
        return ParquetTable(self.path, self._budget)


class ParquetTable(Table):
    """The columns of Parquet files.

    Args:
        path: a file, or a folder of them.
        budget: what one row may take.
    """

    def __init__(self, path: Path, budget: Budget = BUDGET) -> None:
        self.name = str(path)
        self._budget = budget
        self.files = log_files(path, SUFFIXES if path.is_dir() else ())
        self.columns, self.unfit, self.oddities, self.following, self.notes = {}, {}, {}, {}, []
        self._starts: list[int] = []
        self.count = 0
        schema: Any = None
        for file in self.files:
            with open_parquet(file) as parquet:
                self._starts.append(self.count)
                self.count += _rows_of(parquet, file)
                if schema is None:
                    schema = parquet.schema_arrow
                    self._find_columns(parquet, file)
                elif not parquet.schema_arrow.equals(schema):
                    raise SourceFormatError(f"{file}: its columns differ from those of {self.files[0].name}")
        self.borders = np.zeros(1, np.int64)

    def blocks(self, names: Sequence[str], start: int = 0) -> Iterator[Block]:
        tops = list(dict.fromkeys(self._paths[name][0] for name in names))
        for number, file in enumerate(self.files):
            end = self._starts[number + 1] if number + 1 < len(self.files) else self.count
            if end <= start:
                continue
            with open_parquet(file) as parquet:
                row, groups = self._groups(parquet, start - self._starts[number])
                row += self._starts[number]
                most = rows_at_once(parquet, file, _ROWS, self._budget)
                for batch in parquet.iter_batches(most, row_groups=groups, columns=tops, use_threads=False):
                    batch.validate(full=True)  # offsets that point outside of their buffers would be followed else
                    if not batch.num_rows:
                        continue
                    if row + batch.num_rows > start:
                        yield row, {name: self._column(batch, name, file, row) for name in names}
                    row += batch.num_rows
            if row != end:
                raise SourceFormatError(f"{file}: {row - self._starts[number]} rows, where its end says otherwise")

    def _groups(self, parquet: Any, start: int) -> tuple[int, list[int]]:
        """The row groups from the one that holds row `start` on, and the first one's first row."""
        row = 0
        for number in range(parquet.num_row_groups):
            rows = parquet.metadata.row_group(number).num_rows
            if row + rows > start:
                return row, list(range(number, parquet.num_row_groups))
            row += rows
        return row, []

    def _find_columns(self, parquet: Any, file: Path) -> None:
        """What each leaf of the schema holds; the length of lists is that of the first rows."""
        most = rows_at_once(parquet, file, _SAMPLE, self._budget)
        first = next(parquet.iter_batches(most, use_threads=False), None) if self.count else None
        self._paths: dict[str, tuple[str, ...]] = {}
        for field in parquet.schema_arrow:
            for path, kind in leaves_of(field):
                name = "/".join(path)
                try:
                    spec = spec_of_leaf(kind, None if first is None else leaf_of(first, path))
                except Unfit as cause:
                    self.unfit[name] = cause.why
                    continue
                self._paths[name] = path
                self.columns[name] = spec

    def _column(self, batch: Any, name: str, file: Path, row: int) -> np.ndarray:
        spec: FieldSpec = self.columns[name]
        try:
            return column_of(leaf_of(batch, self._paths[name]), spec)
        except Unfit as cause:
            where = f"{file}, row {row + (cause.row or 0)}"
            raise SourceFormatError(f"{where}: column `{name}` {cause.why}") from cause


def _rows_of(parquet: Any, file: Path) -> int:
    """How many rows a file says it has, which must be the sum of its parts."""
    told: int = parquet.metadata.num_rows
    groups = [parquet.metadata.row_group(number).num_rows for number in range(parquet.num_row_groups)]
    if min([0, *groups]) < 0 or sum(groups) != told:
        raise SourceFormatError(f"{file}: says it has {told} rows, its row groups have {groups[:5]}")
    return told
