"""Episodes into .npz files as Dreamer saves them, one each."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

import numpy as np

from rlds2buf.codecs.npz import write_npz
from rlds2buf.core import nest
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.formats.dreamer.format import episode_names
from rlds2buf.formats.dreamer.rows import lowered
from rlds2buf.io.column_spool import ColumnSpool
from rlds2buf.io.rows_sink import LENGTHS, RowsSink
from rlds2buf.io.spooled_sink import OPEN_END

__all__ = ["DreamerSink"]

_DISCOUNT, _TERMINAL = "discount", "is_terminal"
_TAKEN = ("action", "reward", _DISCOUNT, _TERMINAL, "is_first", "is_last")


class DreamerSink(RowsSink):
    """Writes a folder of ``TIMESTAMP-ID-LENGTH.npz`` as DreamerV2's replay does (``common/replay.py``).

    ===================  =====================================================================
    of the episode       in its file, N rows
    ===================  =====================================================================
    observation          arrays by their names; a picture alone is ``image``, another array
                         alone ``observation``
    action, reward,      ``action``, ``reward``, ``discount``, each on the row that it led to:
    discount             zeros (the discount 1) on row 0, and what is on the last row is lost
    flags                ``is_first``, ``is_last``, ``is_terminal``
    extras               ``log_NAME``
    ===================  =====================================================================

    The timestamp in the names is made up, the same each time.  What the format has no place for is listed by
    :meth:`lost`: metadata, values of last rows, text, nested fields.

    Args:
        path: the folder to make.
        compressed: as Dreamer's own are.
        overwrite: replace such a folder that is there.
        resume: continue a killed run, and leave this one's part in place if it is aborted.
    """

    what: ClassVar[str] = "a folder of Dreamer's episodes"

    def __init__(
        self, path: str | os.PathLike[str], *, compressed: bool = True, overwrite: bool = False, resume: bool = False
    ) -> None:
        super().__init__(path, overwrite=overwrite, resume=resume, options={"compressed": compressed})

    def plan(self, spec: StepSpec) -> dict[str, FieldSpec]:
        columns = super().plan(spec)
        logged = spec.discount
        is_number = isinstance(logged, FieldSpec) and logged.shape == () and logged.dtype.kind in "biuf"
        columns[_DISCOUNT] = (
            logged if isinstance(logged, FieldSpec) and is_number else FieldSpec((), np.dtype(np.float32))
        )
        columns[_TERMINAL] = FieldSpec((), np.dtype(np.bool_))
        return columns

    def name_fields(self, spec: StepSpec) -> None:
        self.place("action", ("action",), self.single(spec.action, "action"))
        reward = self.reward_field(spec.reward)
        self.place("reward", ("reward",), reward)
        for path, field in nest.flatten(spec.observation, ("observation",)):
            if field is not None:
                alone = "image" if len(field.shape) == 3 and field.dtype == np.uint8 else "observation"
                name = nest.path_name(path[1:]) or alone
                self.place(name, path, field, read_back=f"observation/{name}" if len(path) == 1 else None)
        for path, field in nest.flatten(spec.extras, ("extras",)):
            if field is not None:
                name = nest.path_name(path[1:])
                own = name if name.startswith("log_") else f"log_{name}"
                self.place(own, path, field, read_back=f"extras/{own}" if own != name else None)

    def fault(self, name: str, path: nest.Path, field: FieldSpec) -> str | None:
        if field.is_string:
            return "it is text, and the format holds numbers"
        if len(path) > 2 or any(part in name for part in "/\\\0"):
            return "its name can't be that of an array in the file"
        if path[0] == "observation" and (name in _TAKEN or name.startswith("log_")):
            return f"{name} is another field's"
        return None

    def take(self, batch: EpisodeBatch) -> None:
        rows = batch.rows
        columns = self.columns_of(batch)
        if rows.reward is None:
            columns["reward"] = np.zeros(batch.num_steps, np.float32)
        for name in ("action", "reward"):
            self.notice_final(batch, (name,), columns[name])
        columns["reward"] = columns["reward"].reshape(-1)
        columns[_DISCOUNT] = self._discounts(batch)
        columns[_TERMINAL] = rows.is_terminal
        self.notice(batch)
        self.append({**columns, LENGTHS: batch.lengths})

    def notice(self, batch: EpisodeBatch) -> None:
        rows, ends = batch.rows, batch.ends
        inside = rows.is_terminal.copy()
        inside[ends] = False
        if inside.any():
            self.lose("is_terminal", "only an episode's last row is read back as terminal")
        if not (rows.is_last[ends] | rows.is_terminal[ends]).all():
            self.lose("is_last", OPEN_END)
        for name in sorted(batch.fact_names):
            self.lose(f"metadata/{name}", "the format has no place for facts about an episode")
        if batch.placeholder is not None and batch.placeholder.any():
            self.lose("metadata/placeholder_final_row", "made-up final observations are written as if they were real")

    def produce(self, spool: ColumnSpool, target: Path) -> None:
        target.mkdir()
        low = 0
        for number, rows in enumerate(self.lengths(spool).tolist()):
            found = {name: spool.columns[name].read(low, low + rows) for name in (*self.paths, _DISCOUNT, _TERMINAL)}
            for name in ("action", "reward", _DISCOUNT):
                found[name] = lowered(found[name])
            found[_DISCOUNT][:1] = 1
            found["is_first"], found["is_last"] = np.arange(rows) == 0, np.arange(rows) == rows - 1
            arrays: dict[str, tuple[tuple[int, ...], np.dtype, Iterable[np.ndarray]]] = {
                name: (column.shape, column.dtype, [column]) for name, column in found.items()
            }
            name = f"00010101T000000-{number:012d}-{rows}.npz"
            write_npz(target / name, arrays, compressed=self.options["compressed"])
            low += rows

    def replaceable(self, path: Path) -> bool:
        names = os.listdir(path) if path.is_dir() else []
        return bool(names) and len(episode_names(names)) == len(names)

    def _discounts(self, batch: EpisodeBatch) -> np.ndarray:
        """``[N]``: those that were logged, or 1, and 0 on the step into a terminal row."""
        logged, ends = batch.rows.discount, batch.ends
        if isinstance(logged, np.ndarray) and logged.ndim == 1 and logged.dtype.kind in "biuf":
            before = np.maximum(ends - 1, batch.starts)
            if (logged[ends] != logged[before]).any():
                self.lose("discount", "the last row's is read back as that of the row before it")
            return logged
        if logged is not None:
            self.lose("discount", "the format has one number a row: 1 is read back, and 0 at a terminal (float32)")
        found = np.ones(batch.num_steps, np.float32)
        terminal = ends[batch.rows.is_terminal[ends] & (batch.lengths > 1)]
        found[terminal] = found[terminal - 1] = 0
        return found
