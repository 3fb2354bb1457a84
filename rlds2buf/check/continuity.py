"""Rules on how observations follow each other: inside an episode, and from one episode to the next.

They find what logging lost and no flag tells.  All are heuristics on the float observations (up to
1024 numbers a row: images say little here), and all are warnings.

Scale: a step's *change* is the mean over dimensions of ``|o[t+1] - o[t]|`` in units of that
dimension's mean in the episode.  Ordinary steps lie around 1.

A step is a **jump** where the change is at least 5, at least 30% of the dimensions (and two) move by
more than three times their own 95% quantile, and the row it leads to is nearer to the episode's first
row than to the row before: a reset leads back to where episodes start, a crash or a contact sensor
does not.  Measured on 6,600 simulated episodes of 16 Gymnasium tasks and on D4RL, Minari and RLDS
episodes: no false alarm.  Of resets hidden by joining two episodes into one record, it finds all in
D4RL's hopper, pen and antmaze, nearly all in Pusher, Reacher and LunarLander, three quarters in
CartPole, Hopper, Walker2d and Humanoid, and none in HalfCheetah, Ant and Acrobot, whose resets change
no more than their ordinary steps do.

An episode starts with **no-reset** where the previous one was truncated and the change across the
border is at most 1, or goes on as the previous step went (second difference at most 0.5).  The same
data: no false alarm on 700 true time limits, and about half of the cuts made inside episodes found.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from rlds2buf.check.rules import Fault
from rlds2buf.core import nest
from rlds2buf.core.episode import Episode
from rlds2buf.core.row_flags import PLACEHOLDER_FINAL_ROW

__all__ = ["ContinuityCheck", "jump_rows", "observation_matrix"]

MAX_ROW = 1024
MIN_STEPS = 20
"""Shorter episodes have no scale to speak of."""
LOOK = 5.0
FACTOR = 3.0
QUANTILE = 0.95
SHARE = 0.3
NEARER = 0.9
SAME_COURSE = 0.5


@dataclasses.dataclass(frozen=True)
class _End:
    """What is kept of an episode to compare the next one with."""

    index: int | None
    rows: np.ndarray  # [<=2, D], its last rows
    weight: np.ndarray | None  # [D], what a change is multiplied with; None if there is no scale
    cut: bool  # ended without is_terminal


class ContinuityCheck:
    """Looks at episodes in the dataset's order; remembers the end of the one before.

    >>> walk = np.cumsum(np.ones((40, 3)), axis=0)
    >>> rewound = Episode(observation=np.concatenate([walk, walk]))
    >>> [(fault.rule, fault.step) for fault in ContinuityCheck().faults(rewound)]
    [('jump', 40)]
    """

    def __init__(self) -> None:
        self._previous: _End | None = None

    def faults(self, episode: Episode) -> list[Fault]:
        """The next episode's ``same-final-observation``, ``zero-final-observation``, ``jump`` and ``no-reset``.

        A final row marked ``placeholder_final_row`` in the metadata is no observation and left out.
        """
        previous, self._previous = self._previous, None
        rows = observation_matrix(episode)
        if rows is None:
            return []
        placeholder = bool(episode.metadata.get(PLACEHOLDER_FINAL_ROW, False))
        if placeholder:
            rows = rows[:-1]
        if not len(rows):
            return []
        with np.errstate(over="ignore", invalid="ignore"):
            change, weight, jumps = _changes(rows)
            faults = []
            if previous is not None and _adjacent(previous, episode, rows):
                faults += _no_reset(previous, rows[0])
            last = len(rows) - 1
            if not placeholder and last > 0:
                end = _zero_end(previous, rows, bool(len(change)) and bool(change[-1] >= LOOK))
                end = end or _same_end(previous, rows)
                faults += end
                if end:  # which explains a jump to the last row
                    jumps = jumps[jumps != last]
        if len(jumps):
            more = f" ({len(jumps)} such steps)" if len(jumps) > 1 else ""
            step = int(jumps[0])
            message = (
                f"the observation changes {change[step - 1]:.0f} times as much as on an ordinary step, "
                f"in most dimensions: a reset without a flag?{more}"
            )
            faults.append(Fault("jump", message, step, "observation", len(jumps)))
        # A placeholder is no row to start from, and the row before it is terminal.
        self._previous = _End(
            episode.index, rows[-2:].copy(), weight, not placeholder and not bool(episode.is_terminal[-1])
        )
        return faults


def observation_matrix(episode: Episode) -> np.ndarray | None:
    """The float observations as one matrix ``[N, D]``, or None where there are none.

    >>> observation_matrix(Episode(observation={"a": np.zeros((5, 2)), "b": np.zeros(5, int)})).shape
    (5, 2)
    """
    leaves = []
    for _, column in nest.flatten(episode.observation):
        if column is None or column.dtype.kind != "f":
            continue
        width = column.size // len(column)
        if 0 < width <= MAX_ROW:
            leaves.append(column.reshape(len(column), width))
    if not leaves:
        return None
    matrix = leaves[0] if len(leaves) == 1 else np.concatenate(leaves, axis=1)
    return matrix.astype(np.float32) if matrix.dtype.itemsize < 4 else matrix


def jump_rows(rows: np.ndarray) -> np.ndarray:
    """Rows ``[K]`` of a matrix ``[N, D]`` of observations whose step from the row before is a jump."""
    with np.errstate(over="ignore", invalid="ignore"):
        return _changes(rows)[2]


_NONE = np.zeros(0, np.int64)


def _changes(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """``change [N-1]``, what it weighs dimensions with ``[D]`` (None: no scale), the rows ``[K]`` behind jumps."""
    steps = len(rows) - 1
    if steps < MIN_STEPS - 1:
        return _NONE, None, _NONE
    moved = rows[1:] - rows[:-1]
    np.abs(moved, out=moved)
    # einsum takes 6 us for [999, 17], sum(axis=0) takes 19; a BLAS product 3, but of this size it
    # starts threads, and on a busy machine their waiting costs a hundred times that.
    total = np.einsum("ij->j", moved)
    count = np.count_nonzero(total)
    if count < 2 or np.count_nonzero(np.isfinite(total)) != len(total):
        return _NONE, None, _NONE
    weight = np.zeros_like(total)
    np.divide(steps / count, total, out=weight, where=total > 0)
    change = np.einsum("ij,j->i", moved, weight)
    candidates = np.flatnonzero(change >= LOOK)
    if not len(candidates):
        return change, weight, _NONE
    # The quantile as a row that was met, not between two: a flag that rarely flips has 0.
    middle = int(QUANTILE * (steps - 1))
    usual = np.partition(moved, middle, axis=0)[middle]
    far = np.count_nonzero(moved[candidates] > FACTOR * usual, axis=1)
    home = np.abs(rows[candidates + 1] - rows[0]) @ weight
    return change, weight, candidates[(far >= max(2, SHARE * count)) & (home <= NEARER * change[candidates])] + 1


def _adjacent(previous: _End, episode: Episode, rows: np.ndarray) -> bool:
    if previous.rows.shape[1] != rows.shape[1]:
        return False
    return previous.index is None or episode.index is None or episode.index == previous.index + 1


def _no_reset(previous: _End, first: np.ndarray) -> list[Fault]:
    if not previous.cut or previous.weight is None:
        return []
    before, last = previous.rows
    gap = np.abs(first - last)
    if not gap @ previous.weight <= 1.0 and not np.abs(first - 2 * last + before) @ previous.weight <= SAME_COURSE:
        return []
    # Dimensions that stood still for a whole episode must stand still across the border too.
    if np.count_nonzero(gap[previous.weight == 0]):
        return []
    message = (
        "goes on within an ordinary step of where the previous, truncated episode ended: "
        "was one episode cut in two, with no reset between?"
    )
    return [Fault("no-reset", message, 0, "observation")]


def _zero_end(previous: _End | None, rows: np.ndarray, jumped: bool) -> list[Fault]:
    if rows[-1].any() or not rows[-2].any():
        return []
    again = previous is not None and len(previous.rows) > 1 and not previous.rows[-1].any()
    if not (again or jumped):
        return []
    message = (
        "the last observation is all zeros, as TFDS writes it for D4RL files without next_observations: "
        "no observation to bootstrap from"
    )
    return [Fault("zero-final-observation", message, len(rows) - 1, "observation")]


def _same_end(previous: _End | None, rows: np.ndarray) -> list[Fault]:
    if previous is None or len(previous.rows) < 2 or previous.rows.shape[1] != rows.shape[1]:
        return []
    # Episodes that are alike up to the end (a deterministic start and policy) are not meant.
    if not np.array_equal(previous.rows[-1], rows[-1]) or np.array_equal(previous.rows[-2], rows[-2]):
        return []
    message = (
        "ends in exactly the observation in which the previous episode ended, as TFDS writes it for "
        "D4RL files with next_observations (the last one of the whole file)"
    )
    return [Fault("same-final-observation", message, len(rows) - 1, "observation")]
