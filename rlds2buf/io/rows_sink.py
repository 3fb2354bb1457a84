"""What the sinks have in common that write flat arrays of all rows, each episode's last one included."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import SinkError, SpecMismatch
from rlds2buf.io.column_spool import ColumnSpool, TextColumn
from rlds2buf.io.spooled_sink import OPEN_END, SpooledSink

__all__ = ["LENGTHS", "RowsSink", "longest_text"]

LENGTHS = "lengths"
"""The spooled column of how many rows each episode has."""

_NO_END = "the format has no flag for it: every end is read back as a cut"
_MADE_UP = "final rows whose observation is made up are left out"


class RowsSink(SpooledSink):
    """Spools N rows of each episode under the names that they get; a subclass gives the names and writes the output.

    Final rows that are made up are left out, and with ``final_rows=False`` all of them.  Terminal flags, discounts
    and metadata have no place in such formats, which :meth:`lost` says.
    """

    def __init__(self, path: Any, *, overwrite: bool, resume: bool, options: Mapping[str, Any]) -> None:
        super().__init__(path, overwrite=overwrite, resume=resume, options=options)
        self.paths: dict[str, nest.Path] = {}
        self._columns: dict[str, FieldSpec] = {}
        self.left_out = self.padded = 0

    @abc.abstractmethod
    def name_fields(self, spec: StepSpec) -> None:
        """Call :meth:`place` for every field that gets an array, and :meth:`lose` for the others.

        Raises:
            SinkError: the format can't hold such data at all.
        """

    @abc.abstractmethod
    def fault(self, name: str, path: nest.Path, field: FieldSpec) -> str | None:
        """Why the format can't hold a field of fixed shape under a name; None if it can."""

    def plan(self, spec: StepSpec) -> dict[str, FieldSpec]:
        self.paths, self._columns, self.left_out, self.padded = {}, {}, 0, 0
        self.name_fields(spec)
        if not self.paths:
            raise SinkError(f"{self.name}: the data have no field that {self.what} can hold")
        if not self.options.get("final_rows", True):
            self.lose("observation", "final_rows=False: the last row of each episode is left out")
        return {**self._columns, LENGTHS: FieldSpec((), np.dtype(np.int64))}

    def place(self, name: str, path: nest.Path, field: FieldSpec, *, read_back: str | None = None) -> None:
        """Note a field's array, or why it has none.

        Args:
            name: of the array.
            path: of the field.
            field: its spec.
            read_back: where a reader finds it, if that is elsewhere.

        Raises:
            SinkError: it is the action, and can't be held.
        """
        why = "its length varies, and rows of an array have one shape" if None in field.shape else None
        if why is None and not field.is_string and field.dtype.kind not in "biufc":
            why = f"it is {field.dtype}, which {self.what} has no type for"
        if why is None and any(_clash(name, other) for other in self.paths):
            why = f"{name} is another field's"
        why = why or self.fault(name, path, field)
        where = nest.path_name(path)
        if why is not None and path == ("action",):
            raise SinkError(f"{self.name}: action: {why}")
        if why is not None:
            self.lose(where, why)
            return
        self._columns[name], self.paths[name] = field, path
        if read_back is not None:
            self.lose(where, f"it is read back as {read_back}")

    def single(self, value: nest.Nest, name: str) -> FieldSpec:
        """The spec of a field that has to be one array.

        Raises:
            SinkError: it is nested, or absent.
        """
        if isinstance(value, FieldSpec):
            return value
        leaves = [nest.path_name(path) for path, leaf in nest.flatten(value, (name,)) if leaf is not None]
        if not leaves:
            raise SinkError(f"{self.name}: the data have no {name}, which {self.what} needs")
        raise SinkError(
            f"{self.name}: {name} is nested ({', '.join(leaves)}), and {self.what} holds one array of {name}s; "
            f"choose or join its fields, for example map={{'{name}': '{leaves[0]}'}}"
        )

    def misfit(self, batch: EpisodeBatch) -> tuple[int, SpecMismatch] | None:
        found: tuple[int, SpecMismatch] | None = None
        for path in self.paths.values():
            column = _column(batch, path)
            is_text = isinstance(column, np.ndarray) and column.dtype == object
            texts = column.reshape(-1).tolist() if is_text else []
            bad = next((i for i, text in enumerate(texts) if text.endswith(b"\0")), None)
            if bad is None:
                continue
            row = bad // (column.size // len(column))
            place = int(np.searchsorted(batch.starts, row, "right")) - 1
            if found is None or place < found[0]:
                episode = None if batch.index is None else int(batch.index[place])
                step = row - int(batch.starts[place])
                where: dict[str, Any] = {"source": batch.rows.source, "episode": episode, "step": step}
                message = "a text that ends in zero bytes, which texts of one length can't tell from padding"
                found = place, SpecMismatch(message, path=nest.path_name(path), rule="spec", **where)
        return found

    def take(self, batch: EpisodeBatch) -> None:
        self.notice(batch)
        kept = self.kept_rows(batch)
        lengths = np.add.reduceat(kept, batch.starts, dtype=np.int64)
        if not lengths.all():
            self.left_out += int((lengths == 0).sum())
            self._losses["episodes"] = f"{self.left_out} have no row but a final one: left out"
        columns = self.columns_of(batch)
        for name, path in self.paths.items():
            if path == ("action",):
                self.padded += int((kept[batch.ends] & ~_any(columns[name][batch.ends])).sum())
            if path == ("reward",):
                columns[name] = columns[name].reshape(-1)
        whole = bool(kept.all())
        rows = {name: column if whole else column[kept] for name, column in columns.items()}
        self.append({**rows, LENGTHS: lengths[lengths > 0]})

    def kept_rows(self, batch: EpisodeBatch) -> np.ndarray:
        """``[N] bool``: which rows are written."""
        kept = np.ones(batch.num_steps, np.bool_)
        if not self.options.get("final_rows", True):
            kept[batch.ends] = False
        elif batch.placeholder is not None:
            kept[batch.ends[batch.placeholder]] = False
        return kept

    def columns_of(self, batch: EpisodeBatch) -> dict[str, np.ndarray]:
        """The columns of all its rows, by the names of their arrays."""
        return {name: _column(batch, path) for name, path in self.paths.items()}

    def lengths(self, spool: ColumnSpool) -> np.ndarray:
        """``[E] int64``: the rows of each episode that was spooled."""
        found: np.ndarray = spool.columns[LENGTHS].read(0, spool.columns[LENGTHS].rows)
        return found

    def state(self) -> dict[str, Any]:
        return {"left_out": self.left_out, "padded": self.padded}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.left_out, self.padded = int(state["left_out"]), int(state["padded"])

    def notice(self, batch: EpisodeBatch) -> None:
        """Note what the format has no place for."""
        rows, ends = batch.rows, batch.ends
        if rows.discount is not None and not _is_ones(rows.discount):
            self.lose("discount", "the format has none: 1 is read back (float32)")
        if rows.is_terminal.any():
            self.lose("is_terminal", _NO_END)
        if not (rows.is_last[ends] | rows.is_terminal[ends]).all():
            self.lose("is_last", OPEN_END)
        for name in sorted(batch.fact_names):
            self.lose(f"metadata/{name}", "the format has no place for facts about an episode")
        if batch.placeholder is not None and batch.placeholder.any():
            self.lose("metadata/placeholder_final_row", _MADE_UP)


def longest_text(column: TextColumn) -> int:
    """Bytes of the longest text, at least 1."""
    return max((len(text) for block in column.blocks() for text in block.reshape(-1).tolist()), default=0) or 1


def _clash(one: str, other: str) -> bool:
    """Whether two paths can't both be arrays."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def _column(batch: EpisodeBatch, path: nest.Path) -> np.ndarray:
    column: np.ndarray = nest.get(getattr(batch.rows, str(path[0])), path[1:])
    return column


def _any(rows: np.ndarray) -> np.ndarray:
    """``[n] bool``: which rows are more than zeros."""
    return (rows != (b"" if rows.dtype == object else 0)).reshape(len(rows), -1).any(axis=1)


def _is_ones(discount: Any) -> bool:
    is_usual = isinstance(discount, np.ndarray) and discount.dtype == np.float32 and discount.ndim == 1
    return is_usual and bool((discount == 1).all())
