"""The rows of a block of episodes as LeRobot has them: what a last row holds, and when a step is done.

A row of RLDS holds an observation, and what was done there; the last one only the observation, its action and reward
are padding.  LeRobot has no such rows: every one has an action, and every one is trained on.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.episode_batch import EpisodeBatch, FactColumns
from rlds2buf.core.row_flags import REAL_FINAL_ACTION
from rlds2buf.formats.lerobot.own_file import AS_WRITTEN, PADDING, REAL

__all__ = ["CHOICES", "LaidOutRows", "laid_out"]

CHOICES: Final = ("keep", "drop")


@dataclasses.dataclass
class LaidOutRows:
    """M rows of E episodes.

    Attributes:
        columns: ``[M, ...]`` of each field, by its path.
        edges: ``[E + 1] int64``, each episode's first row, and M.
        done, truncated: ``[M] bool``: whether the step from the row on ends the episode, and how.
        last_row: ``[E] uint8``: PADDING, AS_WRITTEN or REAL of :mod:`~rlds2buf.formats.lerobot.own_file`.
        final: what last rows hold that is written otherwise: field to episodes ``[n]`` and their values ``[n, ...]``.
    """

    columns: dict[nest.Path, np.ndarray]
    edges: np.ndarray
    done: np.ndarray
    truncated: np.ndarray
    last_row: np.ndarray
    final: dict[str, tuple[np.ndarray, np.ndarray]]

    @property
    def lengths(self) -> np.ndarray:
        """``[E] int64``."""
        return np.diff(self.edges)


def laid_out(batch: EpisodeBatch, final_row: str) -> LaidOutRows:
    """The rows that are written.

    Args:
        batch: the episodes, each of two rows or more if rows are dropped.
        final_row: ``"keep"``, all rows: a last action that is zeros repeats the one before, and a last reward is 0;
            ``"drop"``, without the last ones, where these are padding.
    """
    rows, ends = batch.rows, batch.ends
    is_real = _marked(batch, REAL_FINAL_ACTION)
    if batch.placeholder is not None:
        is_real &= ~batch.placeholder
    columns = dict(rows.flatten())
    ended = rows.is_last & ~rows.is_terminal
    done, truncated = (_by_step(flag, ends, np.repeat(is_real, batch.lengths)) for flag in (rows.is_terminal, ended))
    if final_row == "drop":
        kept = np.ones(batch.num_steps, np.bool_)
        kept[ends[~is_real]] = False
        for name in ("is_last", "is_terminal"):
            flag = columns[(name,)].copy()
            flag[ends[~is_real] - 1] = flag[ends[~is_real]]
            columns[(name,)] = flag
        lengths = batch.lengths - ~is_real
        return LaidOutRows(
            {path: column[kept] for path, column in columns.items()},
            np.append(0, np.cumsum(lengths)),
            done[kept],
            truncated[kept],
            np.full(len(batch), REAL, np.uint8),
            {},
        )
    edges = np.append(batch.starts, batch.num_steps)
    last_row = np.where(is_real, REAL, AS_WRITTEN).astype(np.uint8)
    _repeat_actions(columns, edges, last_row)
    return LaidOutRows(columns, edges, done, truncated, last_row, _without_last_rewards(columns, edges, last_row))


def _by_step(flag: np.ndarray, ends: np.ndarray, is_own: np.ndarray) -> np.ndarray:
    """What is flagged on the row that a step leads to, on the row that it starts from; of a last row its own.

    Args:
        flag: ``[M] bool``.
        ends: ``[E]``, last rows.
        is_own: ``[M] bool``, of rows whose episode has a real last action: what ended it is that, so they keep theirs.
    """
    shifted = np.append(flag[1:], False)
    shifted[ends] = flag[ends]
    return np.where(is_own, flag, shifted)


def _repeat_actions(columns: dict[nest.Path, np.ndarray], edges: np.ndarray, last_row: np.ndarray) -> None:
    """Last actions that are zeros become those before; `last_row` is told of them."""
    actions = [path for path, column in columns.items() if path[0] == "action" and column.dtype.kind in "biufc"]
    last = edges[1:] - 1
    may = (last_row == AS_WRITTEN) & (np.diff(edges) > 1)
    for path in actions:
        may &= ~columns[path][last].reshape(len(last), -1).astype(np.bool_).any(1)
    if not actions or not may.any():
        return
    last_row[may] = PADDING
    for path in actions:
        column = columns[path].copy()
        column[last[may]] = column[last[may] - 1]
        columns[path] = column


def _without_last_rewards(
    columns: dict[nest.Path, np.ndarray], edges: np.ndarray, last_row: np.ndarray
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Last rewards become 0; whose they were, and what."""
    final: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    last = edges[1:] - 1
    for path in [path for path, column in columns.items() if path[0] == "reward" and column.dtype.kind in "biuf"]:
        column = columns[path]
        other = (last_row != REAL) & column[last].reshape(len(last), -1).astype(np.bool_).any(1)
        if not other.any():
            continue
        columns[path] = column.copy()
        columns[path][last[other]] = 0
        final[nest.path_name(path)] = np.flatnonzero(other), column[last[other]]
    return final


def _marked(batch: EpisodeBatch, mark: str) -> np.ndarray:
    """``[E] bool``: whose metadata have a mark."""
    if batch.rows.metadata.get(mark):
        return np.ones(len(batch), np.bool_)
    facts: Any = batch.metadata
    if isinstance(facts, FactColumns):
        column = facts.columns.get(mark)
        return np.zeros(len(batch), np.bool_) if column is None else np.array([bool(value) for value in column])
    return np.array([bool(own.get(mark)) for own in facts or [{}] * len(batch)])
