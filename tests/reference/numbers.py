"""Statistics of columns, one value after the other or by numpy's own functions on all of them."""

from __future__ import annotations

import numpy as np

__all__ = ["by_episode", "of_values"]

LEVELS = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}


def of_values(values: np.ndarray) -> dict[str, np.ndarray]:
    """The ten numbers of ``[n, ...]`` values by dimension, NaN where there is one."""
    exact = values.astype(np.float64)
    with np.errstate(invalid="ignore"):
        found = {
            "min": values.min(axis=0),
            "max": values.max(axis=0),
            "mean": exact.mean(axis=0),
            "std": exact.std(axis=0),
            "count": np.int64(len(values)),
        }
        return {**found, **{name: np.quantile(exact, level, axis=0) for name, level in LEVELS.items()}}


def by_episode(column: np.ndarray, starts: np.ndarray) -> list[dict[str, np.ndarray]]:
    """:func:`of_values` of each episode."""
    return [of_values(rows) for rows in np.split(column, starts[1:])]
