"""Columns of several episodes at once, of any dtypes: what a hash of many is compared on."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

LENGTHS = st.lists(st.integers(1, 50), min_size=1, max_size=12)
DTYPES = st.lists(st.sampled_from(["f4", "f8", "i1", "?", "f2", object]), min_size=1, max_size=4)
WIDTHS = st.sampled_from([0, 1, 3, 900])


def several(
    rows: Sequence[int], dtypes: Sequence[Any], width: int
) -> tuple[list[np.ndarray], np.ndarray, list[list[np.ndarray]]]:
    """Columns, the edges of the episodes in them, and the columns of each episode."""
    rng = np.random.default_rng(sum(rows))
    edges = np.append(0, np.cumsum(rows))
    columns = []
    for dtype in dtypes:
        if dtype is object:
            column = np.empty(edges[-1], object)
            column[:] = [b"x" * int(n) for n in rng.integers(0, 4, edges[-1])]
        else:
            column = (rng.normal(size=(edges[-1], width)) * 9).astype(dtype)
        columns.append(column)
    return columns, edges, [[column[start:stop] for column in columns] for start, stop in itertools.pairwise(edges)]
