"""Statistics of columns, one value after the other or by numpy's own functions on all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlds2buf import Episode
from rlds2buf.core.nest import path_name

__all__ = ["by_episode", "of_episodes", "of_values", "rows_that_count"]

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


def rows_that_count(episode: Episode, name: str, *, final_is_real: bool = False) -> slice:
    """Which rows of a field a learner uses."""
    is_placeholder = bool(episode.metadata.get("placeholder_final_row"))
    is_real = final_is_real or bool(episode.metadata.get("real_final_action"))
    whole = not is_placeholder if name.startswith("observation") else is_real and not is_placeholder
    return slice(None) if whole else slice(0, episode.num_steps - 1)


def of_episodes(episodes: Sequence[Episode], *, final_is_real: bool = False) -> dict[str, dict[str, np.ndarray]]:
    """:func:`of_values` of every number field that holds no pictures, episode by episode."""
    values: dict[str, list[np.ndarray]] = {}
    for episode in episodes:
        for path, column in episode.flatten():
            name = path_name(path)
            if column.dtype.kind in "biuf" and not name.startswith("is_"):
                rows = rows_that_count(episode, name, final_is_real=final_is_real)
                values.setdefault(name, []).append(column[rows])
    return {name: of_values(np.concatenate(parts)) for name, parts in values.items()}
