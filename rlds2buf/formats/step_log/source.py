"""Logs of one's own program: tables of steps, one row a step."""

from __future__ import annotations

import abc
import functools
import json
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.row_flags import OPEN_TAIL, PLACEHOLDER_FINAL_ROW
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import EpisodeError, SourceFormatError
from rlds2buf.files.fingerprint import fingerprint_files
from rlds2buf.formats.step_log.column_map import ColumnMap, Gather
from rlds2buf.formats.step_log.episode_cuts import EpisodeCuts, find_cuts
from rlds2buf.formats.step_log.table import Reader, Table
from rlds2buf.io.source import Source

__all__ = ["StepLogSource"]

_BLOCK_BYTES = 2_000_000
_ROW_BYTES = 8
_MOST_FILES = 20


class StepLogSource(Source):
    """Episodes of a table that holds a row for each step.

    Columns become fields by their names or as `columns` says, see
    :class:`~rlds2buf.formats.step_log.column_map.ColumnMap`.  Where episodes end is told by the first of these
    that there is; the border between two files (and, in JSON, two lines that are episodes) always cuts:

    1. ``episode``, an id: where it changes.  Flags then only say how an episode ended.
    2. End flags: behind each flagged row.
    3. ``is_first``: before each flagged row.
    4. Nothing, but several files: each is an episode.

    A row is one of two things (`final_rows`):

    ===================  ===========================================  ====================================
    .                    False: a step, as Gymnasium gives it         True: an RLDS row
    ===================  ===========================================  ====================================
    taken for that       unless there is ``is_last``                  if there is ``is_last``
    flags say            how the row's action ended the episode:      that this row is the last one, whose
                         ``terminated`` (or ``is_terminal``),         action is padding (``is_last``), and
                         ``truncated``, ``done`` (terminated where    whether its observation is terminal
                         it is not truncated); ``is_last`` is one     (``is_terminal``, or ``terminated``)
                         of the two
    the final row        added: ``next_observation`` of the last      in the log
                         row; without that column zeros if it
                         terminated (marked
                         ``placeholder_final_row``), else none: the
                         last action starts no transition
    both flags in a row  terminated                                   terminal
    ===================  ===========================================  ====================================

    An episode that ends without an end flag is taken as truncated; its ``metadata["open_tail"]`` is True
    unless an id ended it.  Without a ``discount`` it is 1 (float32), and 0 on the step into a terminal row
    and on that row.  Without a flag that tells terminal rows, ``is_terminal`` is derived, and validation
    says so.  Values keep their dtype; text becomes bytes; added rows are zeros.

    Args:
        path: a file, or a folder of them, read in natural order (``part-2`` before ``part-10``).
        columns: field to column, glob, list of them, or None; the fields are those of RLDS, and
            ``terminated``, ``truncated``, ``done``, ``episode``, ``next_observation``.
        final_rows: as above; None: told by the columns.
        max_episode_steps: cut also after so many rows.
        optional: which of ``observation`` and ``action`` the log may lack.
        budget: what an episode, and the list of rows, may take beyond the size of the files.

    Raises:
        SourceNotFound: nothing is there.
        SourceFormatError: the file is damaged, a column is missing or does not fit, or nothing tells
            where episodes end; with file and line, row or column.
        ValueError, TypeError: an option is malformed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        columns: Mapping[str, Any] | None = None,
        final_rows: bool | None = None,
        max_episode_steps: int | None = None,
        optional: Collection[str] = (),
        budget: Budget = BUDGET,
    ) -> None:
        if max_episode_steps is not None and max_episode_steps < 1:
            raise ValueError(f"max_episode_steps must be at least 1, got {max_episode_steps}")
        if columns is not None and not isinstance(columns, Mapping):
            raise TypeError(f"columns should be a dict of field to column, got {type(columns).__name__}")
        self.path = Path(path)
        self.name = str(path)
        self._given = dict(columns or {})
        self._max_episode_steps = max_episode_steps
        self._optional = [optional] if isinstance(optional, str) else list(optional)
        self._budget = budget
        self._table = self._open()
        # Arrays that are in memory, and in no file, have their room already.
        self._size = sum(file.stat().st_size for file in self._table.files) if self._table.files else sys.maxsize
        # What tells where episodes end is held for all rows together.
        budget.check_bytes(_ROW_BYTES * self._table.count - self._size, f"{self.name}: the list of rows")
        self._map = self._map_columns(final_rows)

    @abc.abstractmethod
    def _open(self) -> Table:
        """The log as a table."""

    @property
    def spec(self) -> StepSpec:
        return self._spec

    @functools.cached_property
    def _spec(self) -> StepSpec:
        fields = nest.map_structure(lambda gather: None if gather is None else gather.spec, self._map.fields)
        if self._map.fields["discount"] is None:
            fields["discount"] = FieldSpec((), np.dtype(np.float32))
        return StepSpec(**fields)

    @property
    def num_episodes(self) -> int:
        return len(self._episodes.cuts)

    @property
    def num_steps(self) -> int:
        return int(self._episodes.cuts.lengths.sum())

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Episode | EpisodeError]:
        for columns, first, lowers, uppers in self._blocks(start, stop, _BLOCK_BYTES // max(1, self.spec.row_bytes)):
            for i, (low, high) in enumerate(zip(lowers.tolist(), uppers.tolist(), strict=True)):
                yield self._episode(columns, first + i, slice(low, high))

    def read_batches(
        self, start: int = 0, stop: int | None = None, *, rows: int = 1 << 14, bytes: int = 64 << 20
    ) -> Iterator[EpisodeBatch | EpisodeError]:
        if any(self._table.notes) or self._flags_are_partial():
            yield from super().read_batches(start, stop, rows=rows, bytes=bytes)
            return
        found = self._episodes
        for columns, first, lowers, _ in self._blocks(start, stop, min(rows, bytes // max(1, self.spec.row_bytes))):
            behind = first + len(lowers)
            flagged = found.flagged[first:behind]
            metadata = None
            if found.by in ("flags", "files") and not flagged.all():
                metadata = [{} if flag else {OPEN_TAIL: True} for flag in flagged]
            placeholder = None if self._map.following is not None else found.cuts.added[first:behind] > 0
            joined = Episode(**columns, source=self.name, index=first)
            yield EpisodeBatch(joined, lowers, placeholder, metadata=metadata)

    def _blocks(
        self, start: int, stop: int | None, block_rows: int
    ) -> Iterator[tuple[dict[str, Any], int, np.ndarray, np.ndarray]]:
        """Whole episodes in blocks: columns, the first one's number, and where each begins and ends."""
        cuts = self._episodes.cuts
        stop = len(cuts) if stop is None else min(stop, len(cuts))
        ends = cuts.first + cuts.rows
        row_bytes = max(1, self.spec.row_bytes)
        block_rows = min(block_rows, self._budget.max_bytes // row_bytes)
        reader = Reader(self._table, self._map.names)
        try:
            while start < stop:
                upto = int(np.searchsorted(ends, cuts.first[start] + max(1, block_rows), "right"))
                upto = min(max(upto, start + 1), stop)
                rows = int(cuts.rows[start:upto].sum())
                self._budget.check_bytes(rows * row_bytes - self._size, f"{self.name}: {rows} rows of an episode")
                yield self._block(reader, start, upto)
                start = upto
        finally:
            reader.close()

    def details(self) -> dict[str, Any]:
        found = self._episodes
        terminated = int(found.terminated.sum())
        files = [str(file) for file in self._table.files]
        return {
            "rows": self._table.count,
            "files": files[:_MOST_FILES]
            + ([f"and {len(files) - _MOST_FILES} more"] if len(files) > _MOST_FILES else []),
            "fields": {nest.path_name(path): list(gather.names) for path, gather in self._gathered()},
            "episodes_by": found.by,
            "final_rows": self._map.final_rows,
            "terminated": terminated,
            "truncated": len(found.cuts) - terminated,
            "ignored": {name: self._table.unfit.get(name, "its name is taken") for name in self._map.ignored},
            "warnings": self._warnings(),
        }

    def fingerprint(self) -> str:
        options = json.dumps([self._given, self._map.final_rows, self._max_episode_steps], sort_keys=True, default=str)
        return f"{self.format}:{fingerprint_files(self._table.files)}:{options}"

    def _map_columns(self, final_rows: bool | None) -> ColumnMap:
        table = self._table
        found = ColumnMap(
            table.columns,
            self._given,
            name=self.name,
            unfit=table.unfit,
            notes=table.oddities,
            final_rows=final_rows,
            needed=[field for field in ("observation", "action") if field not in self._optional],
        )
        observation = found.fields["observation"]
        if found.following is None and observation is not None and table.following and not found.final_rows:
            gathers = [gather for _, gather in nest.flatten(observation)]
            if all(name in table.following for gather in gathers for name in gather.names):
                found.following = nest.map_structure(
                    lambda gather: Gather(
                        tuple(table.following[name] for name in gather.names), gather.joined, gather.spec
                    ),
                    observation,
                )
        return found

    def _gathered(self) -> Iterator[tuple[nest.Path, Gather]]:
        """Every field that there is."""
        everything = {**self._map.fields, "next_observation": self._map.following, "flags": self._map.flags}
        for path, gather in nest.flatten(everything):
            if gather is not None:
                yield (path[1:] if path[0] == "flags" else path), gather

    @functools.cached_property
    def _episodes(self) -> EpisodeCuts:
        found = find_cuts(self._table, self._map, self._max_episode_steps)
        moved = set(self._table.following.values())
        if moved & set(self._map.names) and len(found.cuts) != len(self._table.borders):
            raise SourceFormatError(
                f"{self.name}: the observation has a row more than there are steps, as a single episode has, "
                f"but flags cut {len(self._table.borders)} of them into {len(found.cuts)}"
            )
        return found

    def _warnings(self) -> list[str]:
        found, columns = self._episodes, self._map
        warnings = []
        unflagged = int((~found.flagged).sum())
        if unflagged == len(found.flagged) and found.by != "flags":
            warnings.append("no end flags: every episode is taken as truncated")
        elif unflagged:
            warnings.append(f"{unflagged} episodes end without an end flag; they are taken as truncated")
        if columns.final_rows or columns.following is not None:
            return warnings
        terminated = int(found.cuts.terminated.sum())
        if terminated:
            warnings.append(f"no next observations: the {terminated} terminal observations are zeros")
        if terminated < len(found.cuts):
            cut = len(found.cuts) - terminated
            warnings.append(
                f"no next observations: the last action of the {cut} truncated episodes starts no transition"
            )
        return warnings

    def _flags_are_partial(self) -> bool:
        """Whether some flag is left for each episode to derive."""
        flags = self._map.flags
        if self._map.final_rows:
            return not {"is_first", "is_last"} <= flags.keys() or not {"is_terminal", "terminated"} & flags.keys()
        return not {"terminated", "is_terminal", "done"} & flags.keys()

    def _block(self, reader: Reader, start: int, stop: int) -> tuple[dict[str, Any], int, np.ndarray, np.ndarray]:
        """Read episodes ``start`` up to (not with) ``stop`` in one go."""
        cuts = self._episodes.cuts
        low, rows, added = int(cuts.first[start]), cuts.rows[start:stop], cuts.added[start:stop]
        log = reader.read(low, low + int(rows.sum()))
        uppers = np.cumsum(rows + added)
        lowers = uppers - rows - added
        # Where the log's rows go: each moves on by the rows added to the episodes before.
        places = np.arange(rows.sum()) + np.repeat(np.cumsum(added) - added, rows)
        block = _Block(log, int(uppers[-1]), places, uppers[added > 0] - 1)
        columns: dict[str, Any] = nest.map_structure(
            lambda gather: None if gather is None else block.column(gather), self._map.fields
        )
        if self._map.following is not None:
            last = np.cumsum(rows)[added > 0] - 1
            nest.map_structure(
                lambda column, gather: column.__setitem__(block.final, gather.take(log)[last]),
                columns["observation"],
                self._map.following,
            )
        columns.update(self._flags(block, lowers, uppers))
        if columns["discount"] is None:
            columns["discount"] = _discount(columns["is_terminal"], lowers, block.total)
        return columns, start, lowers, uppers

    def _flags(self, block: _Block, lowers: np.ndarray, uppers: np.ndarray) -> dict[str, np.ndarray | None]:
        """RLDS's flags; None for what the log does not tell."""
        flags: dict[str, np.ndarray | None] = {"is_first": None, "is_last": None, "is_terminal": None}
        given = {name: block.flag(gather) for name, gather in self._map.flags.items() if name != "episode"}
        if self._map.final_rows:
            flags.update({name: given[name] for name in flags if name in given})
            if flags["is_terminal"] is None:
                flags["is_terminal"] = given.get("terminated")
            return flags
        places = np.arange(block.total)
        flags["is_first"] = given.get("is_first", np.isin(places, lowers))
        flags["is_last"] = np.isin(places, uppers - 1)
        terminated = given.get("terminated", given.get("is_terminal"))
        if terminated is None and "done" in given:
            terminated = given["done"] & ~given.get("truncated", np.zeros(block.total, np.bool_))
        if terminated is not None:
            # A step's flag is about the row behind it, which every flagged last row has, but for one at a limit.
            behind = np.flatnonzero(terminated) + 1
            flags["is_terminal"] = np.isin(places, np.setdiff1d(behind, lowers))
        return flags

    def _episode(self, columns: nest.Nest, index: int, own: slice) -> Episode:
        found = self._episodes
        cuts = found.cuts
        border = int(np.searchsorted(self._table.borders, cuts.first[index], "right")) - 1
        metadata = dict(self._table.notes[border]) if self._table.notes else {}
        if cuts.added[index] and self._map.following is None:
            metadata[PLACEHOLDER_FINAL_ROW] = True
        if found.by in ("flags", "files") and not found.flagged[index]:
            metadata[OPEN_TAIL] = True
        fields: dict[str, Any] = nest.map_structure(lambda c: None if c is None else c[own], columns)
        return Episode(**fields, metadata=metadata, source=self.name, index=index)


class _Block:
    """Rows of several episodes, with room for the rows that are added."""

    def __init__(self, log: dict[str, np.ndarray], total: int, places: np.ndarray, final: np.ndarray) -> None:
        self.log = log
        self.total = total
        self.final = final
        self._places = places

    def column(self, gather: Gather) -> np.ndarray:
        """A field's column ``[total, ...]``; added rows are zeros."""
        values = gather.take(self.log)
        out = np.empty((self.total, *values.shape[1:]), values.dtype)
        if len(self.final):
            out[self._places] = values
            out[self.final] = b"" if out.dtype == object else 0
        else:
            out[...] = values
        return out

    def flag(self, gather: Gather) -> np.ndarray:
        """A flag's column ``[total] bool``."""
        return self.column(gather) != 0


def _discount(is_terminal: np.ndarray | None, lowers: np.ndarray, total: int) -> np.ndarray:
    discount = np.ones(total, np.float32)
    if is_terminal is not None:
        discount[is_terminal] = 0
        before = np.flatnonzero(is_terminal) - 1
        discount[before[~np.isin(before + 1, lowers)]] = 0
    return discount
