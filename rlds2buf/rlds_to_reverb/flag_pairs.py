"""What the flags of two rows in a row say: the grammar of :mod:`rlds2buf.rlds_to_reverb` as tables."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlds2buf.core.fields import STEP_FIRST, STEP_LAST, STEP_MID

__all__ = ["FAULTS", "PairTables", "pair_tables"]

FAULTS = (
    "",
    "",
    "The first step of the data must be the first step of an episode.",
    # These three are TF-Agents' own sentences, which callers may match.
    "Terminal step must be the last step of an episode.",
    "Mid step should not be followed by a first step.",
    "Last step of an episode must be followed by a first step.",
    "First step should not be followed by a first step, unless it is also the last step of its episode.",
)
"""What is wrong with a pair of rows, by number: nothing; nothing, but of an edge no frame is made; faults."""

EDGE, STARTS_INSIDE, TERMINAL_INSIDE, MID_FIRST, LAST_MID, FIRST_FIRST = range(1, 7)

FIRST_BIT, LAST_BIT, TERMINAL_BIT, EDGE_KIND = 1, 2, 4, 8
KINDS = 9
"""A row's kind: its three flags as bits, or 8 for the artificial rows before and behind the data."""


class PairTables(NamedTuple):
    """For every pair of kinds ``[81]``, at index ``9 * kind of row t + kind of row t+1``.

    Attributes:
        fault: int32, into `FAULTS`.
        step_type, next_step_type: int32, as in TF-Agents.
        zero_boundary, zero_transition: bool, where the discount is set to 0.
    """

    fault: np.ndarray
    step_type: np.ndarray
    next_step_type: np.ndarray
    zero_boundary: np.ndarray
    zero_transition: np.ndarray


def pair_tables() -> PairTables:
    """What follows from the flags of two rows in a row.

    >>> tables = pair_tables()
    >>> first, last, terminal = 1, 2, 4
    >>> FAULTS[tables.fault[9 * terminal + last]]
    'Terminal step must be the last step of an episode.'
    >>> int(tables.next_step_type[9 * first + (last | terminal)])
    2
    """
    columns = zip(*(_pair(now, then) for now in range(KINDS) for then in range(KINDS)), strict=True)
    dtypes = (np.int32, np.int32, np.int32, np.bool_, np.bool_)
    return PairTables(*(np.array(column, dtype) for column, dtype in zip(columns, dtypes, strict=True)))


def _pair(now: int, then: int) -> tuple[int, int, int, bool, bool]:
    first, last, terminal = (bool(now & bit) for bit in (FIRST_BIT, LAST_BIT, TERMINAL_BIT))
    then_first = then == EDGE_KIND or bool(then & FIRST_BIT)
    types = _step_type(first, last), _step_type(then_first, bool(then & LAST_BIT))
    if first and then_first:
        types = STEP_LAST, STEP_LAST  # an episode of one step
    into_terminal = not last and bool(then & TERMINAL_BIT)
    return (_fault(now, first, last, terminal, then_first), *types, last and terminal, into_terminal)


def _step_type(first: bool, last: bool) -> int:
    if first:
        return STEP_FIRST
    return STEP_LAST if last else STEP_MID


def _fault(now: int, first: bool, last: bool, terminal: bool, then_first: bool) -> int:
    if now == EDGE_KIND:
        return EDGE if then_first else STARTS_INSIDE
    if terminal and not last:
        return TERMINAL_INSIDE
    if last:
        return 0 if then_first else LAST_MID
    if then_first:
        return FIRST_FIRST if first else MID_FIRST
    return 0
