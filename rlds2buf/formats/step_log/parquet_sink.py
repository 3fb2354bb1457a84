"""Episodes into a plain Parquet file, a row a step."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np

from rlds2buf.codecs.arrow.step_table import SIGNATURE, write_parquet
from rlds2buf.codecs.arrow.tables import import_pyarrow
from rlds2buf.core import nest
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.formats.step_log.column_map import FIELD_NAMES
from rlds2buf.io.column_spool import ColumnSpool, TextColumn
from rlds2buf.io.rows_sink import RowsSink

__all__ = ["ParquetSink"]

_FLAGS = ("is_first", "is_last", "is_terminal")
_EPISODE = "episode"
_OWN = ("observation", "action", "reward", "discount", *_FLAGS, _EPISODE)
_ROWS = 1 << 16
_BYTES = 1 << 25


class ParquetSink(RowsSink):
    """Writes a Parquet file that pandas, polars, Spark and this package's reader of logs take: a row a step.

    =====================  ==================================================================
    of the episode         in the file, N rows of all episodes
    =====================  ==================================================================
    its number             ``episode``, 0 for the first
    observation, action    ``observation``, ``action``; nested ones ``observation/NAME``
    reward, discount       ``reward``, ``discount``
    flags                  ``is_first``, ``is_last``, ``is_terminal``
    extras                 columns of their names, nested ones ``OUTER/INNER``
    =====================  ==================================================================

    Rows are RLDS's: the last one of an episode holds its last observation, and its action and reward are padding.
    Numbers keep their types; arrays are lists of fixed length (of such lists); text is a string where all of a column
    is UTF-8, else binary.  What has no place is listed by :meth:`lost`: metadata, axes that vary, complex numbers.

    Args:
        path: the file to make.
        overwrite: replace a Parquet file that is there.
        resume: continue a killed run, and leave this one's part in place if it is aborted.
    """

    what: ClassVar[str] = "a Parquet file"

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool = False, resume: bool = False) -> None:
        super().__init__(path, overwrite=overwrite, resume=resume, options={})

    def plan(self, spec: StepSpec) -> dict[str, FieldSpec]:
        import_pyarrow(f"{self.name}: Parquet")
        self._lacks = {name for name in ("observation", "action", "reward", "discount") if getattr(spec, name) is None}
        flags = {name: FieldSpec((), np.dtype(np.bool_)) for name in _FLAGS}
        self._fields = {**super().plan(spec), **flags}
        return self._fields

    def name_fields(self, spec: StepSpec) -> None:
        for field in ("observation", "action"):
            for path, leaf in nest.flatten(getattr(spec, field), (field,)):
                if leaf is not None:
                    self.place(nest.path_name(path), path, leaf, read_back=_moved(path))
        if spec.reward is not None:
            self.place("reward", ("reward",), self.reward_field(spec.reward))
        if isinstance(spec.discount, FieldSpec):
            self.place("discount", ("discount",), spec.discount)
        for path, leaf in nest.flatten(spec.extras, ("extras",)):
            if leaf is not None:
                self.place(nest.path_name(path[1:]), path, leaf, read_back=_moved(path))
        if lacks := sorted(self._lacks & {"observation", "action"}):
            self.notes = (f"there is no {' and no '.join(lacks)}; to read it back, drop={lacks} says so",)

    def fault(self, name: str, path: nest.Path, field: FieldSpec) -> str | None:
        if field.dtype.kind == "c" or 0 in field.shape:
            return "it is complex, or has no values, which a column of the file can't be"
        if path[0] in ("reward", "discount") and field.shape not in ((), (1,)):
            return "it is not one number a step"
        parts = [part for part in path[1:] if isinstance(part, str)]
        if not all(parts) or any(set(part) & set("/." if path[0] != "extras" else "/") for part in parts):
            return "its name would be read back as several"
        head = str(path[1]).lower() if path[0] == "extras" else ""
        meant = next((own for own in self._lacks if head in FIELD_NAMES[own]), None)
        if head in _OWN or meant is not None:
            return f"by its name it would be read back as {meant or head}"
        return None

    def misfit(self, batch: EpisodeBatch) -> None:
        return None  # any bytes are a value

    def kept_rows(self, batch: EpisodeBatch) -> np.ndarray:
        return np.ones(batch.num_steps, np.bool_)

    def take(self, batch: EpisodeBatch) -> None:
        super().take(batch)
        self.append({name: getattr(batch.rows, name) for name in _FLAGS})

    def columns_of(self, batch: EpisodeBatch) -> dict[str, np.ndarray]:
        columns = super().columns_of(batch)
        return {
            name: column.reshape(-1) if name in ("reward", "discount") else column for name, column in columns.items()
        }

    def notice(self, batch: EpisodeBatch) -> None:
        for name in sorted(batch.fact_names):
            self.lose(f"metadata/{name}", "a row a step has no place for facts about an episode")
        if batch.placeholder is not None and batch.placeholder.any():
            self.lose("metadata/placeholder_final_row", "made-up final observations are written as if they were real")

    def produce(self, spool: ColumnSpool, target: Path) -> None:
        ends = np.cumsum(self.lengths(spool))
        fields = {_EPISODE: FieldSpec((), np.dtype(np.int64))}
        for name in (*self.paths, *_FLAGS):
            field = self._fields[name]
            fields[name] = FieldSpec((), field.dtype) if name in ("reward", "discount") else field
        texts = {name: spool.columns[name] for name, field in fields.items() if field.is_string}
        utf8 = [name for name, column in texts.items() if isinstance(column, TextColumn) and _is_utf8(column)]
        size = sum(field.dtype.itemsize * math.prod(n or 0 for n in field.shape) for field in fields.values())
        step = max(1, min(_ROWS, _BYTES // size))
        count = int(ends[-1]) if len(ends) else 0

        def blocks() -> Iterator[dict[str, np.ndarray]]:
            for low in range(0, count, step):
                high = min(low + step, count)
                found = {name: spool.columns[name].read(low, high) for name in (*self.paths, *_FLAGS)}
                found[_EPISODE] = np.searchsorted(ends, np.arange(low, high), "right").astype(np.int64)
                yield found

        facts = {"rlds2buf": json.dumps(self.provenance, sort_keys=True)}
        write_parquet(target, fields, blocks(), utf8=utf8, facts=facts)

    def replaceable(self, path: Path) -> bool:
        try:
            with open(path, "rb") as file:
                return file.read(len(SIGNATURE)) == SIGNATURE
        except OSError:
            return False


def _moved(path: nest.Path) -> str | None:
    """Where a part of a tuple is read back: tuples become dicts."""
    return nest.path_name(path) if any(isinstance(part, int) for part in path) else None


def _is_utf8(column: TextColumn) -> bool:
    for block in column.blocks():
        for text in block.reshape(-1).tolist():
            try:
                text.decode()
            except UnicodeDecodeError:
                return False
    return True
