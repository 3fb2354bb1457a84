"""The rules on how observations follow each other, one number at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

Row = Sequence[float]


def scale(rows: Sequence[Row]) -> list[float]:
    """The mean absolute change of each dimension."""
    steps = len(rows) - 1
    return [sum(abs(rows[t + 1][j] - rows[t][j]) for t in range(steps)) / steps for j in range(len(rows[0]))]


def distance(one: Row, other: Row, units: Sequence[float]) -> float:
    """The mean over the dimensions that vary of the difference in their unit."""
    varying = [j for j, unit in enumerate(units) if unit > 0]
    return sum(abs(one[j] - other[j]) / units[j] for j in varying) / len(varying)


def jumps(rows: Sequence[Row]) -> list[int]:
    """Rows behind jumps of an episode."""
    steps = len(rows) - 1
    if len(rows) < 20:
        return []
    units = scale(rows)
    varying = [j for j, unit in enumerate(units) if unit > 0]
    if len(varying) < 2:
        return []
    # The value of which at most 5% of the steps are above.
    usual = [sorted(abs(rows[t + 1][j] - rows[t][j]) for t in range(steps))[int(0.95 * (steps - 1))] for j in varying]
    found = []
    for t in range(1, len(rows)):
        change = distance(rows[t], rows[t - 1], units)
        far = sum(abs(rows[t][j] - rows[t - 1][j]) > 3 * usual[k] for k, j in enumerate(varying))
        home = distance(rows[t], rows[0], units)
        if change >= 5 and far >= max(2, 0.3 * len(varying)) and home <= 0.9 * change:
            found.append(t)
    return found


def goes_on(rows: Sequence[Row], first: Row) -> bool:
    """Whether `first` lies within an ordinary step of the end of `rows`, or on the course of its last step."""
    if len(rows) < 20:
        return False
    units = scale(rows)
    if sum(unit > 0 for unit in units) < 2:
        return False
    if any(first[j] != rows[-1][j] for j, unit in enumerate(units) if unit == 0):
        return False
    course = [2 * last - before for last, before in zip(rows[-1], rows[-2], strict=True)]
    return distance(first, rows[-1], units) <= 1 or distance(first, course, units) <= 0.5


def finite_rows(rows: Sequence[Row]) -> list[int]:
    """Rows with a number that is NaN or infinite."""
    return [t for t, row in enumerate(rows) if not all(math.isfinite(x) for x in row)]
