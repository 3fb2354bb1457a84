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
import itertools

import numpy as np

from rlds2buf.check.batch_columns import BatchColumns
from rlds2buf.check.rules import Fault
from rlds2buf.core import nest
from rlds2buf.core.episode import Episode
from rlds2buf.core.row_flags import PLACEHOLDER_FINAL_ROW

__all__ = ["ContinuityCheck", "changes", "observation_matrix"]

MAX_ROW = 1024
MAX_BYTES = 8 << 20
"""Of the observations of a batch that are looked at together."""
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
        rows = _recorded(episode)
        if rows is None:
            return []
        placeholder = _has_placeholder(episode)
        with np.errstate(over="ignore", invalid="ignore"):
            change, weight, jumps = changes(rows)
            faults = []
            if previous is not None and _adjacent(previous, episode.index, rows):
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
        self._previous = _end(episode, rows, weight)
        return faults

    def pass_over(self, episode: Episode) -> None:
        """Remember the end of the next episode, as :meth:`faults` does, and look for nothing."""
        rows = _recorded(episode)
        self._previous = None
        if rows is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                # Where it was not cut, nobody asks for its scale.
                self._previous = _end(episode, rows, _scale(rows)[1] if _is_cut(episode) else None)

    def suspects(self, block: BatchColumns) -> np.ndarray:
        """``[E] bool``: which of the next episodes might have faults.  Nothing is remembered of them."""
        size = sum(leaf.nbytes for leaf in _float_leaves(block.rows))
        found = block.none()
        if not size:
            return found
        # Sums need several times the memory of what they are of, so a large block is looked at in pieces.
        rows = np.arange(0, block.rows.num_steps, max(1, MAX_BYTES * block.rows.num_steps // size))
        edges = np.unique(np.searchsorted(block.starts, rows))
        for start, stop in itertools.pairwise([*edges[edges < len(found)].tolist(), len(found)]):
            first = max(start - 1, 0)  # with the episode before, whose end the first one is compared with
            piece = block if stop - first == len(found) else BatchColumns(block.batch.take(slice(first, stop)))
            with np.errstate(all="ignore"):
                found[start:stop] = _suspects(piece, self._previous if start == 0 else None)[start - first :]
        return found


def _recorded(episode: Episode) -> np.ndarray | None:
    """The observations ``[N, D]`` but for a placeholder; None if there are none."""
    rows = observation_matrix(episode)
    if rows is not None and _has_placeholder(episode):
        rows = rows[:-1]
    return rows if rows is not None and len(rows) else None


def _has_placeholder(episode: Episode) -> bool:
    return bool(episode.metadata.get(PLACEHOLDER_FINAL_ROW, False))


def _is_cut(episode: Episode) -> bool:
    # A placeholder is no row to start from, and the row before it is terminal.
    return not _has_placeholder(episode) and not bool(episode.is_terminal[-1])


def _end(episode: Episode, rows: np.ndarray, weight: np.ndarray | None) -> _End:
    return _End(episode.index, rows[-2:].copy(), weight, _is_cut(episode))


def observation_matrix(episode: Episode) -> np.ndarray | None:
    """The float observations as one matrix ``[N, D]``, or None where there are none.

    >>> observation_matrix(Episode(observation={"a": np.zeros((5, 2)), "b": np.zeros(5, int)})).shape
    (5, 2)
    """
    leaves = _float_leaves(episode)
    if not leaves:
        return None
    matrix = leaves[0] if len(leaves) == 1 else np.concatenate(leaves, axis=1)
    return matrix.astype(np.float32) if matrix.dtype.itemsize < 4 else matrix


def _float_leaves(episode: Episode) -> list[np.ndarray]:
    """The columns ``[N, width]`` that :func:`observation_matrix` is made of."""
    leaves = []
    for _, column in nest.flatten(episode.observation):
        if column is None or column.dtype.kind != "f":
            continue
        width = column.size // len(column)
        if 0 < width <= MAX_ROW:
            leaves.append(column.reshape(len(column), width))
    return leaves


_NONE = np.zeros(0, np.int64)


def _scale(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """How far each step moves ``[N-1, D]``, and what a change weighs its dimensions with ``[D]``; None: no scale."""
    steps = len(rows) - 1
    if steps < MIN_STEPS - 1:
        return rows[:0], None
    moved = rows[1:] - rows[:-1]
    np.abs(moved, out=moved)
    # einsum takes 6 us for [999, 17], sum(axis=0) takes 19; a BLAS product 3, but of this size it
    # starts threads, and on a busy machine their waiting costs a hundred times that.
    total = np.einsum("ij->j", moved)
    count = np.count_nonzero(total)
    if count < 2 or np.count_nonzero(np.isfinite(total)) != len(total):
        return moved, None
    weight = np.zeros_like(total)
    np.divide(steps / count, total, out=weight, where=total > 0)
    return moved, weight


def changes(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """``change [N-1]``, what it weighs dimensions with ``[D]`` (None: no scale), the rows ``[K]`` behind jumps."""
    moved, weight = _scale(rows)
    if weight is None:
        return _NONE, None, _NONE
    change = np.einsum("ij,j->i", moved, weight)
    candidates = np.flatnonzero(change >= LOOK)
    if not len(candidates):
        return change, weight, _NONE
    # The quantile as a row that was met, not between two: a flag that rarely flips has 0.
    middle = int(QUANTILE * (len(moved) - 1))
    usual = np.partition(moved, middle, axis=0)[middle]
    far = np.count_nonzero(moved[candidates] > FACTOR * usual, axis=1)
    home = np.abs(rows[candidates + 1] - rows[0]) @ weight
    most = max(2, SHARE * np.count_nonzero(weight))
    return change, weight, candidates[(far >= most) & (home <= NEARER * change[candidates])] + 1


def _adjacent(previous: _End, index: int | None, rows: np.ndarray) -> bool:
    if previous.rows.shape[1] != rows.shape[1]:
        return False
    return previous.index is None or index is None or index == previous.index + 1


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


class _Recorded:
    """The observations of a batch, and where each episode's are.

    Sums in another order than those of an episode alone differ in their last digits, so what a screen
    compares with a threshold gets some `slack`: a share of it, several times what rounding can do.

    Attributes:
        rows: ``[M, D]``, those of all episodes.
        starts, last: ``[E] int64``, each episode's first and last recorded row; `last` is the row before
            the first where only a placeholder is there.
        steps: ``[E] int64``, from one to the other; -1 where nothing was recorded.
        weight: ``[E, D]`` as `_End` has it; 0 where there is no scale.
        has_scale: ``[E] bool``.
        odd: ``[E] bool``, where numbers are so large or so small that sums or weights may overflow.
    """

    def __init__(self, rows: np.ndarray, block: BatchColumns) -> None:
        self.rows = rows
        self.starts, self.last = block.starts, block.ends - block.placeholder
        self.steps = self.last - self.starts
        info = np.finfo(rows.dtype)
        self.slack = _slack(rows, block)
        self.weight = np.zeros((len(self.starts), rows.shape[1]), rows.dtype)
        self.has_scale, self.odd = block.none(), block.none()
        long = np.flatnonzero(self.steps >= MIN_STEPS - 1)
        if not len(long):
            self.moved = rows[:0]
            return
        self.moved = rows[1:] - rows[:-1]
        np.abs(self.moved, out=self.moved)
        total = _totals(self.moved, self.starts[long], self.last[long])
        count = np.count_nonzero(total, axis=1)
        per_dimension = (self.steps[long] / np.maximum(count, 1)).astype(rows.dtype)
        weight = np.zeros_like(total)
        np.divide(per_dimension[:, None], total, out=weight, where=total > 0)
        whole = np.einsum("ij->i", total)
        self.has_scale[long] = (count >= 2) & ~np.isnan(whole)
        self.odd[long] = (whole >= info.max / 8) | (np.einsum("ij->i", weight) >= info.max / 8)
        self.weight[long] = weight


def _totals(moved: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """``[E, D]``: the sums of the rows ``starts:stops``, which don't overlap."""
    lengths, strides = stops - starts, np.diff(starts)
    if len(starts) > 1 and (lengths == lengths[0]).all() and (strides == strides[0]).all():
        # Episodes of one length, as time limits make them, take half the time.
        row, item = moved.strides
        shape = (len(starts), int(lengths[0]), moved.shape[1])
        blocks = np.lib.stride_tricks.as_strided(moved[starts[0] :], shape, (int(strides[0]) * row, row, item))
        return np.einsum("etd->ed", blocks)
    edges = np.stack([starts, stops], axis=1).reshape(-1)
    return np.add.reduceat(moved, edges[edges < len(moved)], axis=0)[::2]


def _slack(rows: np.ndarray, block: BatchColumns) -> float:
    """Four times how far two sums over an episode's steps and dimensions may differ, as a share of them."""
    return 4 * float(np.finfo(rows.dtype).eps) * (int(block.lengths.max()) + rows.shape[1])


def _suspects(block: BatchColumns, previous: _End | None) -> np.ndarray:
    rows = observation_matrix(block.rows)
    assert rows is not None
    if len(block.starts) == 1 or _slack(rows, block) > 0.25:
        return ~block.none()
    recorded = _Recorded(rows, block)
    ended = ~block.placeholder & (recorded.steps > 0)
    jumps, jumped_last = _jump_suspects(recorded)
    found = jumps | recorded.odd
    found |= ended & _zero_end_suspects(recorded, previous, jumped_last)
    found |= ended & _same_end_suspects(recorded)
    found |= _no_reset_suspects(recorded, block)
    if previous is not None and recorded.steps[0] >= 0:
        first = rows[: recorded.steps[0] + 1]
        found[0] |= bool(_adjacent(previous, block.index(0), first) and _no_reset(previous, first[0]))
        found[0] |= bool(ended[0] and _same_end(previous, first))
    return found


def _jump_suspects(recorded: _Recorded) -> tuple[np.ndarray, np.ndarray]:
    """``[E] bool`` each: the episodes that might hold a jump; those that might change by `LOOK` in the last step."""
    jumps, jumped_last = np.zeros((2, len(recorded.starts)), np.bool_)
    if not recorded.has_scale.any():
        return jumps, jumped_last
    starts, weight = recorded.starts, recorded.weight
    lengths = np.diff(starts, append=len(recorded.rows))
    weighed = np.repeat(weight, lengths, axis=0)[: len(recorded.moved)]
    change = np.einsum("ij->i", np.multiply(weighed, recorded.moved, out=weighed))
    candidates = np.flatnonzero(change >= LOOK * (1 - recorded.slack))
    of = np.searchsorted(starts, candidates, "right") - 1
    inside = (candidates < recorded.last[of]) & recorded.has_scale[of]
    candidates, of = candidates[inside], of[inside]
    home = np.abs(recorded.rows[candidates + 1] - recorded.rows[starts[of]])
    home = np.einsum("ij,ij->i", home, weight[of])
    jumps[of[home <= NEARER * (1 + recorded.slack) ** 2 * change[candidates]]] = True
    jumped_last[of[candidates == recorded.last[of] - 1]] = True
    return jumps, jumped_last


def _no_reset_suspects(recorded: _Recorded, block: BatchColumns) -> np.ndarray:
    """``[E] bool``: the episodes that might go on where the one before in the batch ended."""
    found = block.none()
    cut = ~block.placeholder & ~block.rows.is_terminal[block.ends]
    after = (cut & recorded.has_scale)[:-1] & (recorded.steps[1:] >= 0)
    if block.batch.index is not None:
        after &= np.diff(block.batch.index) == 1
    before = np.flatnonzero(after)
    rows, weight = recorded.rows, recorded.weight[before]
    first, last, last_but_one = (
        rows[at] for at in (recorded.starts[before + 1], recorded.last[before], recorded.last[before] - 1)
    )
    gap = np.abs(first - last)
    near = np.einsum("ij,ij->i", gap, weight) <= 1 + recorded.slack
    course = np.abs(first - 2 * last + last_but_one)
    near |= np.einsum("ij,ij->i", course, weight) <= SAME_COURSE * (1 + recorded.slack)
    near[near] = ~((weight[near] == 0) & (gap[near] != 0)).any(axis=1)
    found[before + 1] = near | recorded.odd[before]
    return found


def _zero_end_suspects(recorded: _Recorded, previous: _End | None, jumped_last: np.ndarray) -> np.ndarray:
    """``[E] bool``: the episodes that might end in zeros made up for an observation."""
    rows, last = recorded.rows, recorded.last
    zero = (recorded.steps > 0) & (rows[last, 0] == 0)
    zero[zero] = ~rows[last[zero]].any(axis=1)
    again = np.concatenate(
        [[previous is not None and len(previous.rows) > 1 and not previous.rows[-1].any()], zero[:-1]]
    )
    found = zero & (again | jumped_last)
    found[found] = rows[last[found] - 1].any(axis=1)
    return np.asarray(found)


def _same_end_suspects(recorded: _Recorded) -> np.ndarray:
    """``[E] bool``: the episodes that end as the one before in the batch does, and come from elsewhere."""
    rows, last, steps = recorded.rows, recorded.last, recorded.steps
    same = np.zeros(len(last), np.bool_)
    same[1:] = (rows[last[1:], 0] == rows[last[:-1], 0]) & (steps[1:] > 0) & (steps[:-1] > 0)
    at = np.flatnonzero(same)
    one, other = last[at - 1], last[at]
    same[at] = (rows[one] == rows[other]).all(axis=1) & (rows[one - 1] != rows[other - 1]).any(axis=1)
    return same
