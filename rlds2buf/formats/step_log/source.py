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
from rlds2buf.core.row_flags import OPEN_TAIL
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import EpisodeError, SourceError, SourceFormatError
from rlds2buf.files.fingerprint import fingerprint_files
from rlds2buf.formats.step_log.column_map import ColumnMap, Gather
from rlds2buf.formats.step_log.episode_cuts import EpisodeCuts, find_cuts
from rlds2buf.formats.step_log.table import Reader, Table
from rlds2buf.io.source import Source

__all__ = ["StepLogSource"]

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

    def read_batches(
        self, start: int = 0, stop: int | None = None, *, rows: int = 1 << 14, bytes: int = 64 << 20
    ) -> Iterator[EpisodeBatch | EpisodeError]:
        cuts = self._episodes.cuts
        stop = len(cuts) if stop is None else min(stop, len(cuts))
        edges = np.append(0, np.cumsum(cuts.lengths))
        row_bytes = max(1, self.spec.row_bytes)
        most = max(1, min(rows, bytes // row_bytes, self._budget.max_bytes // row_bytes))
        reader = Reader(self._table, self._map.names)
        try:
            while start < stop:
                upto = int(np.searchsorted(edges, edges[start] + most, "right")) - 1
                upto = min(max(upto, start + 1), stop)
                count = int(cuts.rows[start:upto].sum())
                self._budget.check_bytes(count * row_bytes - self._size, f"{self.name}: {count} rows of an episode")
                yield from self._batch(reader, start, upto)
                start = upto
        finally:
            reader.close()

    def _batch(self, reader: Reader, start: int, stop: int) -> Iterator[EpisodeBatch]:
        """Episodes ``start`` up to (not with) ``stop`` in one go; before an error, those that are whole."""
        first, rows = self._episodes.cuts.first[start:stop], self._episodes.cuts.rows[start:stop]
        low = int(first[0])
        try:
            parts = reader.read(low, int(first[-1] + rows[-1]))
        except SourceError:
            whole = start + int(np.searchsorted(first + rows, reader.high, "right"))
            if whole > start:
                high = int(first[whole - start - 1] + rows[whole - start - 1])
                yield self._joined(reader.read(low, high), start, whole)
            raise
        yield self._joined(parts, start, stop)

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

    def _joined(self, parts: list[dict[str, np.ndarray]], start: int, stop: int) -> EpisodeBatch:
        """Episodes ``start`` up to (not with) ``stop`` from their rows."""
        found = self._episodes
        block = _Block(parts, found.cuts.rows[start:stop], found.cuts.added[start:stop])
        columns: dict[str, Any] = nest.map_structure(
            lambda gather: None if gather is None else block.column(gather), self._map.fields
        )
        if self._map.following is not None:
            nest.map_structure(
                lambda column, gather: column.__setitem__(block.final, block.before_final(gather)),
                columns["observation"],
                self._map.following,
            )
        flags, derived = self._flags(block)
        columns.update(flags)
        if columns["discount"] is None:
            columns["discount"] = _discount(flags["is_terminal"], block.firsts)
        placeholder = found.cuts.added[start:stop] > 0
        return EpisodeBatch(
            Episode(**columns, source=self.name, index=start),
            block.firsts,
            placeholder if self._map.following is None and placeholder.any() else None,
            metadata=self._metadata(start, stop),
            derived=derived,
        )

    def _flags(self, block: _Block) -> tuple[dict[str, np.ndarray], set[str]]:
        """RLDS's flags; and the names of those that the log does not tell."""
        given = {name: block.column(gather) != 0 for name, gather in self._map.flags.items() if name != "episode"}
        flags = {name: np.zeros(block.total, np.bool_) for name in ("is_first", "is_last", "is_terminal")}
        flags["is_first"][block.firsts] = True
        flags["is_last"][block.lasts] = True
        if self._map.final_rows:
            if "terminated" in given:
                given.setdefault("is_terminal", given["terminated"])
            flags.update({name: given[name] for name in flags if name in given})
            return flags, flags.keys() - given.keys()
        flags["is_first"] = given.get("is_first", flags["is_first"])
        terminated = given.get("terminated", given.get("is_terminal"))
        if terminated is None and "done" in given:
            terminated = given["done"] & ~given.get("truncated", np.zeros(block.total, np.bool_))
        if terminated is None:
            return flags, {"is_terminal"}
        # A step's flag is about the row behind it, which every flagged last row has, but for one at a limit.
        flags["is_terminal"][1:] = terminated[:-1]
        flags["is_terminal"][block.firsts] = False
        return flags, set()

    def _metadata(self, start: int, stop: int) -> list[dict[str, Any]] | None:
        """What the log says of each episode; None if nothing."""
        found, notes = self._episodes, self._table.notes
        is_open = ~found.flagged[start:stop] & (found.by in ("flags", "files"))
        marks: list[dict[str, Any]] = [{OPEN_TAIL: True} if mark else {} for mark in is_open] if is_open.any() else []
        if not any(notes):
            return marks or None
        borders = np.searchsorted(self._table.borders, found.cuts.first[start:stop], "right") - 1
        own = [notes[border] for border in borders.tolist()]
        return [{**note, **mark} for note, mark in zip(own, marks, strict=True)] if marks else own


class _Block:
    """Rows of several episodes, with room for the rows that are added.

    Args:
        parts: the log's rows, part after part.
        rows, added: ``[E]``, how many each episode has of the log's, and of those that are added behind.

    Attributes:
        total: how many there are with the added ones.
        firsts, lasts: ``[E]``, the episodes' first and last rows.
        final: the rows that are added.
    """

    def __init__(self, parts: list[dict[str, np.ndarray]], rows: np.ndarray, added: np.ndarray) -> None:
        self._parts = parts
        self._rows = int(rows.sum())
        edges = np.cumsum(rows + added)
        self.total = int(edges[-1])
        self.firsts, self.lasts = edges - rows - added, edges - 1
        self.final = self.lasts[added > 0]
        self._ends = np.cumsum(rows)[added > 0] - 1
        is_added = np.zeros(self.total, np.int64)
        is_added[self.final] = 1
        self._taken = np.arange(self.total) - np.cumsum(is_added) if len(self.final) else None

    def column(self, gather: Gather) -> np.ndarray:
        """A field's column ``[total, ...]``; added rows are zeros."""
        values = gather.room(self._rows)
        low = 0
        for part in self._parts:
            rows = len(part[gather.names[0]])
            gather.fill(values[low : low + rows], part)
            low += rows
        if self._taken is None:
            return values
        out = values.take(self._taken, axis=0, mode="clip")
        out[self.final] = b"" if out.dtype == object else 0
        return out

    def before_final(self, gather: Gather) -> np.ndarray:
        """A field's values in the last of the log's rows of each episode that has one added."""
        found, low = [], 0
        for part in self._parts:
            rows = len(part[gather.names[0]])
            own = self._ends[(self._ends >= low) & (self._ends < low + rows)] - low
            found.append(gather.take({name: part[name][own] for name in gather.names}))
            low += rows
        return np.concatenate(found)


def _discount(is_terminal: np.ndarray, firsts: np.ndarray) -> np.ndarray:
    """1, and 0 on terminal rows and on the step into one."""
    discount = np.ones(len(is_terminal), np.float32)
    discount[is_terminal] = 0
    into = is_terminal.copy()
    into[firsts] = False
    discount[:-1][into[1:]] = 0
    return discount
