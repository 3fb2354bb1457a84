"""Numbers of a whole dataset while it is written."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np

from rlds2buf.core.spec import FieldSpec
from rlds2buf.formats.lerobot.whole_numbers import WholeNumbers


def test_many_rows_take_no_more_memory_than_some(tmp_path: Path) -> None:
    """96 MiB of numbers pass through; what is held stays below 64, and what is told is exact."""
    block = np.arange(1 << 17, dtype=np.float64).reshape(-1, 32)
    numbers = WholeNumbers({"state": FieldSpec((32,), np.dtype(np.float64))}, tmp_path, complete=True)
    tracemalloc.start()
    try:
        for i in range(96):
            numbers.add({"state": block + i})
        peak = tracemalloc.get_traced_memory()[1]
        told = numbers.summary([])["state"]
    finally:
        tracemalloc.stop()
        numbers.close()
    assert peak < 64 << 20
    rows = np.concatenate([block + i for i in range(96)])
    assert told["count"] == [len(rows)]
    assert told["q50"] == np.quantile(rows, 0.5, axis=0).tolist()
    assert told["max"] == rows.max(axis=0).tolist()
