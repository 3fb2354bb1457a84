"""What explicit transitions say of the episode they are of: `episode_id`, `t` and `agent_index`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds2buf.errors import SpecMismatch

__all__ = ["IDS", "Mark", "StepIds", "checked_marks", "checked_times"]

IDS = ("episode_id", "t", "agent_index")

Mark = dict[str, Any]
"""The ids of one transition that were given, as plain JSON values."""


class StepIds:
    """Ids of n transitions, from which follows where an episode ends that no flag ends.

    A transition goes on with the one before it unless another `episode_id` or `agent_index` is given
    for it, or a `t` that is 0 or not the earlier one's plus 1.  What only one of the two says says
    nothing.

    Args:
        columns: of :data:`IDS` those given, each ``[n]``: `t` int64, the others integers or an object
            array of str and int.
    """

    __slots__ = ("columns",)

    def __init__(self, columns: Mapping[str, np.ndarray]) -> None:
        self.columns = dict(columns)

    @classmethod
    def of(cls, data: Mapping[str, Any], count: int) -> StepIds | None:
        """Those among the columns of `count` transitions; None if there are none.

        Raises:
            SpecMismatch: an id is no integer (or, but for `t`, text), `t` is negative, or there are not
                as many as transitions.
        """
        given = {name: _column(name, data[name], count) for name in IDS if data.get(name) is not None}
        return cls(given) if given else None

    def rows(self, index: Any) -> StepIds:
        """Those of some of the transitions."""
        return StepIds({name: column[index] for name, column in self.columns.items()})

    def begins(self) -> np.ndarray:
        """``[n - 1] bool``: whether each transition but the first begins anew."""
        count = len(next(iter(self.columns.values())))
        out = np.zeros(max(count - 1, 0), np.bool_)
        for name, column in self.columns.items():
            out |= (column[1:] != column[:-1] + 1) if name == "t" else np.asarray(column[1:] != column[:-1], np.bool_)
        return out

    def at(self, row: int) -> Mark:
        """Those of one transition."""
        return {name: column[row : row + 1].tolist()[0] for name, column in self.columns.items()}

    def follows(self, row: int, before: Mark | None) -> bool:
        """Whether a transition goes on with one of which `before` is known."""
        mine, earlier = self.at(row), before or {}
        t, last = mine.pop("t", None), earlier.get("t")
        if t == 0 or (t is not None and last is not None and t != last + 1):
            return False
        return all(earlier.get(name, value) == value for name, value in mine.items())


def checked_marks(marks: Mapping[str, Any]) -> dict[int, Mark]:
    """Marks by source as they were saved.

    Raises:
        ValueError: they are none.
    """
    for mark in marks.values():
        known = {name: int if name == "t" else (int, str) for name in IDS}
        if not isinstance(mark, dict) or not all(isinstance(mark[name], known.get(name, ())) for name in mark):
            raise ValueError(f"no ids of a transition: {mark!r}")
    return {int(source): dict(mark) for source, mark in marks.items()}


def _column(name: str, value: Any, count: int) -> np.ndarray:
    column = np.asarray(value)
    if name != "t" and column.dtype.kind in "SUO":
        column = _labels(name, column)
    elif column.dtype.kind not in "iu":
        expected = "integers" if name == "t" else "integers or strings"
        raise SpecMismatch(f"expected {expected}, got {column.dtype}", path=name, rule="spec")
    if column.shape not in ((), (count,)):
        raise SpecMismatch(f"expected {count} of them, got shape {list(column.shape)}", path=name, rule="spec")
    if name == "t":
        column = checked_times(column)
    return np.broadcast_to(column, (count,))


def checked_times(column: np.ndarray) -> np.ndarray:
    """Integers as ``int64``, if they can be the numbers of steps.

    Raises:
        SpecMismatch: one is negative or too large.
    """
    for end in (int(column.min()), int(column.max())) if column.size else ():
        if not 0 <= end < (1 << 63) - 1:
            raise SpecMismatch(f"steps of an episode count from 0 up, got {end}", path="t", rule="spec")
    return column.astype(np.int64)


def _labels(name: str, column: np.ndarray) -> np.ndarray:
    """Names and large numbers as an object array of str and int."""
    out = np.empty(column.shape, object)
    flat = out.reshape(-1)
    for i, label in enumerate(column.reshape(-1).tolist()):
        if not isinstance(label, str | bytes | int) or isinstance(label, bool):
            raise SpecMismatch(f"expected integers or strings, got {label!r}", path=name, rule="spec")
        flat[i] = label.decode("utf-8", "surrogateescape") if isinstance(label, bytes) else label
    return out
