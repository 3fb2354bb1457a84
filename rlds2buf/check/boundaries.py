"""The grammar of an episode's flags.

An episode is one first row, any number of middle rows and one last row; one row may be both first
and last.  ``is_terminal`` may stand on the last row only.  The same grammar as in dm_env and RLDS
(Ramos et al. 2021); TF-Agents' converter refuses some of the other patterns without saying where,
and silently cuts the rest into one-step episodes.
"""

from __future__ import annotations

import numpy as np

from rlds2buf.check.batch_columns import BatchColumns
from rlds2buf.check.rules import Fault

__all__ = ["boundary_faults", "boundary_suspects", "seams", "well_formed"]


def well_formed(is_first: np.ndarray, is_last: np.ndarray, is_terminal: np.ndarray) -> bool:
    """Whether the flags ``[N] bool`` (N at least 1) obey the grammar.

    >>> flag = np.array
    >>> well_formed(flag([True, False]), flag([False, True]), flag([False, True]))
    True
    """
    # count_nonzero on a bool column costs 0.3 us per 1000 rows, a quarter of any().
    return bool(
        is_first[0]
        and is_last[-1]
        and np.count_nonzero(is_first) == 1
        and np.count_nonzero(is_last) == 1
        and np.count_nonzero(is_terminal) == is_terminal[-1]
    )


def boundary_faults(is_first: np.ndarray, is_last: np.ndarray, is_terminal: np.ndarray) -> list[Fault]:
    """What is wrong with an episode's flags ``[N] bool``, N at least 1; by step, then in the order below.

    ===============  ====================================  =================================================
    rule             when                                  step
    ===============  ====================================  =================================================
    first-missing    row 0 is not first                    0
    first-inside     another row is first                  the first such row
    last-inside      a row before the end is last          the first such row
    last-missing     the end is not last                   the end; but where later rows are first, so that the
                                                           record reads as several episodes, the start of the
                                                           first of these that has no last row, if one lacks it
    terminal-inside  a row is terminal and not last        the first such row
    ===============  ====================================  =================================================

    Returns:
        At most one fault per rule; none if and only if :func:`well_formed`.

    >>> flag = np.array
    >>> [f.message for f in boundary_faults(flag([True, True]), flag([False, True]), flag([False, False]))]
    ['is_first inside an episode']
    """
    if well_formed(is_first, is_last, is_terminal):
        return []
    faults = []
    if not is_first[0]:
        faults.append(Fault("first-missing", "episode does not start with is_first", 0, "is_first"))
    firsts = np.flatnonzero(is_first[1:]) + 1
    if len(firsts):
        faults.append(_fault("first-inside", "is_first inside an episode", firsts, "is_first"))
    lasts = np.flatnonzero(is_last[:-1])
    if len(lasts):
        faults.append(_fault("last-inside", "is_last before the end of the episode", lasts, "is_last"))
    if not is_last[-1]:
        faults.append(_missing_last(len(is_last), firsts, lasts))
    early = np.flatnonzero(is_terminal & ~is_last)
    if len(early):
        faults.append(_fault("terminal-inside", "is_terminal without is_last", early, "is_terminal"))
    return sorted(faults, key=lambda fault: fault.step or 0)


def boundary_suspects(block: BatchColumns) -> np.ndarray:
    """``[E] bool``: the episodes of a batch that are not :func:`well_formed`."""
    rows, starts, ends = block.rows, block.starts, block.ends
    first, last, terminal = rows.is_first[starts], rows.is_last[ends], rows.is_terminal[ends]
    episodes = len(starts)
    if (
        np.count_nonzero(first) == np.count_nonzero(rows.is_first) == episodes
        and np.count_nonzero(last) == np.count_nonzero(rows.is_last) == episodes
        and np.count_nonzero(terminal) == np.count_nonzero(rows.is_terminal)
    ):
        return np.zeros(episodes, np.bool_)
    firsts, lasts, terminals = (
        np.add.reduceat(flag, starts, dtype=np.int64) for flag in (rows.is_first, rows.is_last, rows.is_terminal)
    )
    return np.asarray(~(first & last & (firsts == 1) & (lasts == 1) & (terminals == terminal)))


def seams(is_first: np.ndarray, is_last: np.ndarray) -> np.ndarray:
    """Rows ``[K]`` that are last and followed by a first row: borders between episodes glued into one record.

    >>> seams(np.array([True, False, True, False]), np.array([False, True, False, True]))
    array([1])
    """
    return np.flatnonzero(is_last[:-1] & is_first[1:])


def _missing_last(rows: int, firsts: np.ndarray, lasts: np.ndarray) -> Fault:
    starts = np.concatenate([[0], firsts])
    stops = np.append(firsts, rows)
    # Number of last rows before each border; a start with none until the next start is unclosed.
    closed = np.searchsorted(lasts, stops) > np.searchsorted(lasts, starts)
    unclosed = starts[~closed]
    if not len(firsts) or not len(unclosed):
        return Fault("last-missing", "episode does not end in is_last", rows - 1, "is_last")
    return Fault(
        "last-missing", "is_first not followed by its own last step", int(unclosed[0]), "is_last", len(unclosed)
    )


def _fault(rule: str, message: str, rows: np.ndarray, path: str) -> Fault:
    count = len(rows)
    more = f" ({count} rows)" if count > 1 else ""
    return Fault(rule, message + more, int(rows[0]), path, count)
