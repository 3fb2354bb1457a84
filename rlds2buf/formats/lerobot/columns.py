"""Rows of a LeRobot dataset's data files as columns, read as they are needed."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final

import numpy as np

from rlds2buf.codecs.arrow.parquet import Unfit, column_of, leaf_of, spec_of_leaf
from rlds2buf.codecs.arrow.tables import arrow_errors, rows_at_once
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import SourceFormatError
from rlds2buf.formats.lerobot.files import opened
from rlds2buf.formats.lerobot.index import Index
from rlds2buf.formats.lerobot.info import Feature

__all__ = ["Rows", "RowsReader", "Unreadable", "runs_of"]

_ROWS: Final = 1 << 14
_BYTES: Final = 1 << 25
_SKIP: Final = 4
"""So many batches of rows that nobody wants are read over, rather than looked for where they end."""


class Unreadable(Exception):
    """Rows that can't be had.

    Attributes:
        why: what is wrong, with the file.
        row: of the rows asked for, where it is; None: all of them.
        feature: the column; None: all of them.
    """

    def __init__(self, why: str, row: int | None = None, feature: str | None = None) -> None:
        super().__init__(why)
        self.why, self.row, self.feature = why, row, feature


@dataclasses.dataclass(frozen=True)
class Rows:
    """A run of rows of one file: from `low` up to (not with) `high`."""

    file: Path
    low: int
    high: int


def runs_of(index: Index, chosen: np.ndarray) -> Iterator[Rows]:
    """The rows of the data files that some episodes have: as few runs as that can be."""
    file, low = index.file[chosen], index.first[chosen]
    high = low + index.lengths[chosen]
    begins = np.flatnonzero(np.append(True, (np.diff(file) != 0) | (low[1:] != high[:-1])))
    for first, upto in zip(begins.tolist(), [*begins[1:].tolist(), len(chosen)], strict=True):
        yield Rows(index.files[int(file[first])], int(low[first]), int(high[upto - 1]))


class RowsReader:
    """Reads runs of rows, most often each behind the one before; a context manager.

    Args:
        features: whose columns are read, by name.
        budget: what one row may take.
        footers: of files that have none, what they are read with.
    """

    def __init__(
        self,
        features: Mapping[str, Feature],
        budget: Budget = BUDGET,
        footers: Mapping[Path, bytes] = MappingProxyType({}),
    ) -> None:
        self._features = features
        self._budget = budget
        self._footers = footers
        self._open: _OpenFile | None = None

    def read(self, runs: Sequence[Rows]) -> dict[str, np.ndarray]:
        """The rows of all runs, one behind the other: by feature ``[M, ...]``, pictures as the files they are.

        Raises:
            SourceNotFound, SourceFormatError: a file is not there, or damaged.
            Unreadable: it has not those rows, lacks a column, or a column has other values than info.json says.
            LimitExceeded: a row that is a few bytes in the file takes more memory than is allowed.
        """
        for name, feature in self._features.items():
            if not feature.is_known:
                raise Unreadable(f"info.json says that `{name}` holds {feature.dtype}, which is no column", None, name)
        count = sum(run.high - run.low for run in runs)
        self._check_size(runs, count)
        out = {name: _room(feature, count) for name, feature in self._features.items()}
        place = 0
        for run in runs:
            for batch, low in self._batches(run, place):
                for name, feature in self._features.items():
                    with arrow_errors(run.file):
                        _fill(out[name][low : low + batch.num_rows], batch, feature, run.file, low)
            place += run.high - run.low
        return out

    def _batches(self, run: Rows, place: int) -> Iterator[tuple[Any, int]]:
        """The parts of a run, each with where its first row goes."""
        for batch in self._at(run).read(run.low, run.high):
            yield batch, place
            place += batch.num_rows

    def _at(self, run: Rows) -> _OpenFile:
        if self._open is None or self._open.path != run.file:
            self.close()
            self._open = _OpenFile(run.file, self._features, self._budget, self._footers.get(run.file))
        return self._open

    def _check_size(self, runs: Sequence[Rows], count: int) -> None:
        """Refuse rows for which there is little in the files, and which would take much memory."""
        wanted = count * sum(feature.spec.row_bytes for feature in self._features.values() if not feature.is_picture)
        if wanted <= self._budget.max_bytes:
            return
        for run in runs:  # where there are fewer rows than the metadata say, that is what is wrong
            self._at(run).check(run.low, run.high)
        stored = sum(file.stat().st_size for file in {run.file for run in runs})
        self._budget.check_bytes(wanted - stored, f"{runs[0].file}: {count:,} rows")

    def close(self) -> None:
        """Close the file; idempotent."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def __enter__(self) -> RowsReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _OpenFile:
    """A data file, and where reading it stands."""

    def __init__(self, path: Path, features: Mapping[str, Feature], budget: Budget, footer: bytes | None) -> None:
        self.path = path
        self._closing = contextlib.ExitStack()
        self._parquet = self._closing.enter_context(opened(path, footer))
        try:
            held = self._parquet.schema_arrow.names
            for name in features:
                if name not in held:
                    raise Unreadable(f"{path}: no column `{name}`, which info.json lists", feature=name)
            groups = [self._parquet.metadata.row_group(i).num_rows for i in range(self._parquet.num_row_groups)]
            if min([0, *groups]) < 0 or sum(groups) != self._parquet.metadata.num_rows:
                raise SourceFormatError(f"{path}: its row groups have not the rows that it says")
            self._edges = np.cumsum([0, *groups])
            self._names = list(features)
            has_files = any(feature.is_text or feature.is_picture for feature in features.values())
            self._rows = _ROWS
            if has_files:
                self._rows = rows_at_once(self._parquet, path, _ROWS, budget)
                row = max(1, (_decoded(self._parquet) // max(1, int(self._edges[-1]))))
                self._rows = min(self._rows, max(1, _BYTES // row))
        except BaseException:
            self._closing.close()
            raise
        self._batches: Iterator[Any] = iter(())
        self._held: Any = None
        self._next = -1  # of the first row that `_held` or the next batch has

    def close(self) -> None:
        self._batches, self._held = iter(()), None
        self._closing.close()

    def check(self, low: int, high: int) -> None:
        """Raise unless there are those rows."""
        total = int(self._edges[-1])
        if high > total:
            why = f"{self.path}: has {total} rows, and the metadata say {high} at least"
            raise Unreadable(why, max(0, total - low))

    def read(self, low: int, high: int) -> Iterator[Any]:
        """Record batches of rows `low` up to (not with) `high`."""
        self.check(low, high)
        total = int(self._edges[-1])
        if self._next < 0 or not 0 <= low - self._next <= _SKIP * self._rows:
            self._start(low)
        while low < high:
            batch = self._held if self._held is not None else next(self._batches, None)
            if batch is None:
                raise SourceFormatError(f"{self.path}: {self._next} rows, where its footer says {total}")
            self._held = None
            first, stop = self._next, self._next + batch.num_rows
            if stop > high:
                self._held, self._next = batch.slice(high - first), high
            else:
                self._next = stop
            if stop > low:
                yield batch.slice(low - first, min(stop, high) - low)
                low = min(stop, high)

    def _start(self, row: int) -> None:
        """Go to the row group that a row is in."""
        group = int(np.searchsorted(self._edges, row, "right")) - 1
        groups = range(group, self._parquet.num_row_groups)
        self._held = None
        self._next = int(self._edges[group])
        self._batches = self._checked(groups)

    def _checked(self, groups: Sequence[int]) -> Iterator[Any]:
        names = self._names
        with arrow_errors(self.path):
            for batch in self._parquet.iter_batches(self._rows, row_groups=groups, columns=names, use_threads=False):
                batch.validate(full=True)  # offsets that point outside of their buffers would be followed else
                yield batch


def _decoded(parquet: Any) -> int:
    return sum(int(parquet.metadata.row_group(i).total_byte_size) for i in range(parquet.num_row_groups))


def _room(feature: Feature, count: int) -> np.ndarray:
    if feature.is_picture or feature.is_text:
        return np.empty(count, object)
    return np.empty((count, *_shape(feature)), feature.spec.dtype)


def _shape(feature: Feature) -> tuple[int, ...]:
    return tuple(n or 0 for n in feature.spec.shape)


def _fill(out: np.ndarray, batch: Any, feature: Feature, file: Path, row: int) -> None:
    """One feature's rows of a batch."""
    path: tuple[str, ...] = (feature.name,)
    try:
        array = leaf_of(batch, path)
        if feature.is_picture:
            out[:] = _files(batch, feature, array)
            return
        values = column_of(array, _spec(array, feature))
        if feature.is_text != (values.dtype == object) or not np.can_cast(values.dtype, out.dtype, "same_kind"):
            raise Unfit(f"holds {array.type}, where info.json says {feature.dtype}")
        if values.shape != out.shape:
            values = values.reshape(out.shape)
        out[...] = values
    except Unfit as cause:
        place = None if cause.row is None else row + cause.row
        raise Unreadable(f"{file}: column `{feature.name}` {cause.why}", place, feature.name) from cause


def _spec(array: Any, feature: Feature) -> FieldSpec:
    """What the column should hold: one number where it is so, or a list of one."""
    told = feature.spec
    found = spec_of_leaf(array.type, array.slice(0, 1))
    if found.shape != told.shape and not (told.shape == () and found.shape == (1,)):
        raise Unfit(f"holds rows of shape {list(found.shape)}, where info.json says {list(feature.shape)}", 0)
    return found


def _files(batch: Any, feature: Feature, array: Any) -> np.ndarray:
    """``[N] object``: the files of a column of pictures."""
    kind = array.type
    names = [kind.field(i).name for i in range(kind.num_fields)]
    data = leaf_of(batch, (feature.name, "bytes")) if "bytes" in names else array
    spec = spec_of_leaf(data.type, data)
    if not spec.is_string or spec.shape:
        raise Unfit(f"holds {array.type}, where files of pictures should be")
    if data.null_count:
        at = int(np.argmax(np.asarray(data.is_null())))
        raise Unfit("holds a picture's path and not the picture", at)
    return column_of(data, spec)
