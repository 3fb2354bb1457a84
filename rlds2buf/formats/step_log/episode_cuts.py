"""Where a log falls into episodes."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import numpy as np

from rlds2buf.errors import SourceFormatError
from rlds2buf.formats.step_log.column_map import ColumnMap
from rlds2buf.formats.step_log.table import Table
from rlds2buf.io.cuts import Cuts, cut

__all__ = ["EpisodeCuts", "find_cuts"]

_END_FLAGS: Final = ("terminated", "is_terminal", "truncated", "done", "is_last")


@dataclasses.dataclass(frozen=True)
class EpisodeCuts:
    """The episodes of a log.

    Attributes:
        cuts: where they are.
        by: what cuts them: ``"episode"``, ``"flags"``, ``"is_first"`` or ``"files"``.
        flagged: ``[E] bool``, whether an end flag is set on the episode's last row.
        terminated: ``[E] bool``, whether that flag says that the environment ended it.
    """

    cuts: Cuts
    by: str
    flagged: np.ndarray
    terminated: np.ndarray


def find_cuts(table: Table, columns: ColumnMap, max_episode_steps: int | None = None) -> EpisodeCuts:
    """Cut a log, reading its flags once from front to back.

    Raises:
        SourceFormatError: nothing tells where episodes end; a flag is neither 0 nor 1; or rows of
            several episodes are interleaved.
    """
    scan = _Scan(table, columns)
    ends = scan.ends(columns.final_rows)
    terminals = scan.terminals(columns.final_rows)
    others, by = _other_ends(scan, columns, ends, terminals, max_episode_steps)
    # With an id, or where rows are RLDS's, terminal rows do not cut by themselves.
    cutting = terminals if by == "flags" and not columns.final_rows else np.intersect1d(terminals, others)
    found = cut(
        table.count,
        cutting.astype(np.int64),
        others.astype(np.int64),
        max_episode_steps=max_episode_steps,
        has_next=columns.following is not None,
    )
    if columns.final_rows:
        found = dataclasses.replace(found, added=np.zeros(len(found), np.int64))
    last = found.first + found.rows - 1
    return EpisodeCuts(found, by, np.isin(last, np.union1d(ends, terminals)), np.isin(last, terminals))


def _other_ends(
    scan: _Scan, columns: ColumnMap, ends: np.ndarray, terminals: np.ndarray, limit: int | None
) -> tuple[np.ndarray, str]:
    """The rows behind which the log is cut, beside the terminal ones, and by what."""
    table = scan.table
    borders = table.borders[1:] - 1
    last = np.array([table.count - 1] if table.count else [], np.int64)
    if "episode" in columns.flags:
        rows = np.union1d(np.union1d(scan.changes - 1, borders), last)
        scan.check_interleaved(rows, np.union1d(ends, terminals))
        return rows, "episode"
    if any(flag in columns.flags for flag in _END_FLAGS):
        rows = np.union1d(ends, borders)
        if columns.final_rows:
            rows = np.union1d(rows, terminals if "is_last" not in columns.flags else scan.before_firsts())
        return rows, "flags"
    if "is_first" in columns.flags:
        return np.union1d(np.union1d(scan.before_firsts(), borders), last), "is_first"
    if len(table.borders) > 1 or table.by_borders or limit is not None or not table.count:
        return np.union1d(borders, last), "files"
    raise SourceFormatError(
        f"{table.name}: nothing tells where episodes end: no column is called terminated, truncated, is_last, is_first "
        f"or episode_id; columns={{'episode': 'run'}} (for example) names one; the columns are: "
        f"{', '.join(list(table.columns)[:12])}"
    )


class _Scan:
    """One pass over the flags and the ids."""

    def __init__(self, table: Table, columns: ColumnMap) -> None:
        self.table = table
        self._columns = columns
        self.rows: dict[str, np.ndarray] = {}
        self.changes = _none()
        self._id_rows: list[np.ndarray] = []
        self._ids: list[np.ndarray] = []
        flags = {name: gather for name, gather in columns.flags.items() if name != "episode"}
        names = [gather.names[0] for gather in columns.flags.values()]
        if not names or not table.count:
            self.rows = {name: _none() for name in flags}
            return
        found: dict[str, list[np.ndarray]] = {name: [] for name in flags}
        changes: list[np.ndarray] = []
        before: Any = None
        for start, block in table.blocks(list(dict.fromkeys(names))):
            for name, gather in flags.items():
                found[name].append(self._flagged(name, gather.take(block), start) + start)
            if "episode" in columns.flags:
                ids = columns.flags["episode"].take(block)
                changes.append(self._changed(ids, before, start))
                before = ids[-1]
        self.rows = {name: np.concatenate(parts) for name, parts in found.items()}
        self.changes = np.concatenate(changes) if changes else _none()

    def ends(self, final_rows: bool) -> np.ndarray:
        """Rows flagged as an episode's last, terminal or not."""
        names = ("is_last", "truncated") if final_rows else ("is_last", "truncated", "done")
        parts = [self.rows[name] for name in names if name in self.rows]
        return np.unique(np.concatenate(parts)) if parts else _none()

    def terminals(self, final_rows: bool) -> np.ndarray:
        """Rows flagged as terminal; a done is one where it is not truncated."""
        if "terminated" in self.rows and not final_rows:
            return self.rows["terminated"]
        for name in ("is_terminal", "terminated"):
            if name in self.rows:
                return self.rows[name]
        if "done" in self.rows:
            return np.setdiff1d(self.rows["done"], self.rows.get("truncated", _none()))
        return _none()

    def before_firsts(self) -> np.ndarray:
        """The rows before those flagged as an episode's first."""
        firsts = self.rows.get("is_first", _none())
        return firsts[firsts > 0] - 1

    def check_interleaved(self, last_rows: np.ndarray, flagged: np.ndarray) -> None:
        """An id may come back only where what had it before is over: flagged, or in another file."""
        if not len(last_rows):
            return
        firsts = np.concatenate([[0], last_rows[:-1] + 1]).astype(np.int64)
        ids = np.concatenate(self._ids)[np.searchsorted(np.concatenate(self._id_rows), firsts, "right") - 1].tolist()
        if len(set(ids)) == len(ids):
            return
        seen: dict[Any, int] = {}
        over = np.isin(last_rows, flagged)
        borders = np.searchsorted(self.table.borders, firsts, "right")
        for i, (first, current) in enumerate(zip(firsts.tolist(), ids, strict=True)):
            before = seen.get(current)
            if before is not None and not over[before] and borders[before] == borders[i]:
                shown = current.decode("utf-8", "replace") if isinstance(current, bytes) else current
                raise SourceFormatError(
                    f"{self.table.name}, {self.table.place(first)}: episode {shown} again, which ended at "
                    f"{self.table.place(int(last_rows[before]))}; rows of several episodes are interleaved: "
                    "sort them by episode, or give each its own id"
                )
            seen[current] = i

    def _changed(self, ids: np.ndarray, before: Any, start: int) -> np.ndarray:
        if ids.dtype.kind == "f" and np.isnan(ids).any():
            row = start + int(np.argmax(np.isnan(ids)))
            raise SourceFormatError(f"{self.table.name}, {self.table.place(row)}: a blank episode id")
        if ids.dtype.kind == "f":
            unclear = np.abs(ids) > 2.0 ** (np.finfo(ids.dtype).nmant + 1)
            if unclear.any():
                row = start + int(np.argmax(unclear))
                where = f"{self.table.name}, {self.table.place(row)}"
                raise SourceFormatError(
                    f"{where}: the episode id is read as {ids[row - start]:.6g}, too large a float to be told from its "
                    "neighbours; write ids as text, or as whole numbers below 2**63"
                )
        changed = np.ones(len(ids), np.bool_)
        changed[1:] = ids[1:] != ids[:-1]
        changed[0] = start == 0 or bool(ids[0] != before)
        rows = np.flatnonzero(changed)
        self._id_rows.append(rows + start)
        self._ids.append(ids[rows])
        return rows[rows + start > 0] + start

    def _flagged(self, name: str, values: np.ndarray, start: int) -> np.ndarray:
        if values.dtype != np.bool_:
            wrong = (values != 0) & (values != 1)
            if wrong.any():
                row = int(np.argmax(wrong))
                column = self._columns.flags[name].names[0]
                where = f"{self.table.name}, {self.table.place(start + row)}"
                raise SourceFormatError(f"{where}: `{column}` is a flag, so 0 or 1, got {values[row]}")
        return np.flatnonzero(values)


def _none() -> np.ndarray:
    return np.empty(0, np.int64)
