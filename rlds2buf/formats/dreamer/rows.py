"""Rows as Dreamer and dm_control's wrappers log them: an observation, and the action and reward that led to it."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds2buf.core.row_flags import OPEN_TAIL
from rlds2buf.errors import SpecMismatch

__all__ = ["ROWS", "in_place", "lowered", "raised"]

ROWS = ("led", "taken")
"""What an action is to its row: it led there, or it was taken there."""


def raised(column: np.ndarray) -> np.ndarray:
    """``[N, ...]``: each row's value from the row behind it, zeros in the last one.

    >>> raised(np.array([0, 5, 6])).tolist()
    [5, 6, 0]
    """
    out = np.zeros_like(column)
    out[:-1] = column[1:]
    return out


def lowered(column: np.ndarray) -> np.ndarray:
    """The inverse: each row's value from the row before it, zeros in the first one; the last one's is gone.

    >>> lowered(np.array([5, 6, 0])).tolist()
    [0, 5, 6]
    """
    out = np.zeros_like(column)
    out[1:] = column[:-1]
    return out


def in_place(logged: dict[str, Any], *, rows: str, where: dict[str, Any]) -> dict[str, Any]:
    """The step fields and flags of one episode, from how it was logged.

    Args:
        logged: ``action``, ``reward`` and those of ``discount``, ``is_terminal``, ``is_last`` that there are, columns
            ``[N, ...]``.
        rows: a member of :data:`ROWS`.
        where: of the episode, for messages.

    Raises:
        SpecMismatch: the first row has an action that is not zeros, so it did not lead there; or a column is not
            one number a row.
    """
    action = logged["action"]
    if rows == "led" and np.any(action[:1]):
        raise SpecMismatch(
            "row 0 has an action other than zeros, so actions did not lead to their rows, as Dreamer's do",
            step=0,
            path="action",
            rule="spec",
            advice="rows='taken' takes each action for one taken at its row, as DreamerV3 logs",
            **where,
        )
    numbers = {name: _number(logged[name], name, where) for name in logged.keys() - {"action"}}
    count = len(action)
    last = np.arange(count) == count - 1
    told = numbers.get("is_terminal")
    discount = numbers.get("discount")
    terminal = told != 0 if told is not None else discount == 0 if discount is not None else None
    is_terminal = None if terminal is None else last & terminal
    if discount is None:
        discount = np.ones(count, np.float32)
        if is_terminal is not None and is_terminal[-1]:
            discount[-2:] = 0
    else:
        discount = np.append(discount[1:], discount[-1:])
    is_open = "is_last" in numbers and not numbers["is_last"][-1]
    return {
        "action": raised(action) if rows == "led" else action,
        "reward": raised(numbers["reward"]),
        "discount": discount,
        "is_first": np.arange(count) == 0,
        "is_last": last,
        "is_terminal": is_terminal,
        "metadata": {OPEN_TAIL: True} if is_open else {},
    }


def _number(column: np.ndarray, name: str, where: dict[str, Any]) -> np.ndarray:
    if column.shape[1:] == (1,):
        column = column[:, 0]
    if column.ndim != 1 or column.dtype.kind not in "biuf":
        message = f"should be one number a row, got {column.dtype}{list(column.shape)}"
        raise SpecMismatch(message, path=name, rule="spec", **where)
    return column
