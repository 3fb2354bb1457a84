"""Pearson's chi-square test of counts against expected frequencies."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

__all__ = ["p_value"]


def p_value(counts: npt.ArrayLike, probability: npt.ArrayLike) -> float:
    """The chance of counts at least this far from ``probability * counts.sum()``.

    The tail of the chi-square distribution by the cube-root approximation of Wilson and Hilferty
    (1931), good to three digits where every expected count is 5 or more (which is checked).

    >>> p_value([100, 100, 100], [1 / 3, 1 / 3, 1 / 3])
    1.0
    >>> p_value([200, 50, 50], [1 / 3, 1 / 3, 1 / 3]) < 1e-9
    True
    """
    observed = np.asarray(counts, np.float64)
    expected = np.asarray(probability, np.float64) * observed.sum()
    assert math.isclose(expected.sum(), observed.sum(), rel_tol=1e-9)
    assert expected.min() >= 5
    statistic = float(((observed - expected) ** 2 / expected).sum())
    freedom = len(observed) - 1
    spread = 2 / (9 * freedom)
    z = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(z / math.sqrt(2)) if statistic else 1.0
