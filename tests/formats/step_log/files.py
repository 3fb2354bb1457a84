"""The same log in every format that logs are read from."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FORMATS = ("npz", "jsonl", "csv", "parquet")

Columns = dict[str, Any]


def write(path: Path, columns: Columns) -> Path:
    """Columns ``[N, ...]`` as a file; its suffix says in which format."""
    columns = {name: np.asarray(column) for name, column in columns.items()}
    {".npz": _npz, ".jsonl": _jsonl, ".csv": _csv, ".parquet": _parquet}[path.suffix](path, columns)
    return path


def _npz(path: Path, columns: Columns) -> None:
    np.savez(path, **columns)


def _jsonl(path: Path, columns: Columns) -> None:
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    path.write_text("".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows))


def _csv(path: Path, columns: Columns) -> None:
    """A column ``[N, k]`` as k columns that are numbered."""
    flat = {}
    for name, column in columns.items():
        if column.ndim == 1:
            flat[name] = column
        else:
            flat.update({f"{name}_{i}": part for i, part in enumerate(column.reshape(len(column), -1).T)})
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(flat)
        writer.writerows(zip(*(column.tolist() for column in flat.values()), strict=True))


def _parquet(path: Path, columns: Columns) -> None:
    pq.write_table(pa.table({name: _arrow(column) for name, column in columns.items()}), path, row_group_size=7)


def _arrow(column: np.ndarray) -> Any:
    return pa.array(column.tolist() if column.ndim > 1 else column)
