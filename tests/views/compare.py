"""Columns of a view against the rows of its naive twin."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.episode import Episode


def assert_rows(columns: nest.Nest, rows: list[Any], **tolerance: float) -> None:
    """Every leaf of `columns` has one entry per row, equal to the row's leaf; with `tolerance`, nearly."""
    leaves = dict(nest.flatten(columns))
    for t, row in enumerate(rows):
        expected = dict(nest.flatten(row))
        assert list(expected) == list(leaves)
        for path, value in expected.items():
            if tolerance:
                np.testing.assert_allclose(leaves[path][t], value, err_msg=nest.path_name(path), **tolerance)
            else:
                np.testing.assert_array_equal(leaves[path][t], value, err_msg=nest.path_name(path))
    for path, column in leaves.items():
        assert len(column) == len(rows), nest.path_name(path)


def frozen(episode: Episode) -> Episode:
    """The same episode over columns that can't be written to: a view must not."""
    for _, column in episode.flatten():
        column.flags.writeable = False
    return episode
