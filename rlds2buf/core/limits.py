"""Values compared with the limits and the finite set that their field states."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds2buf.core.spec import FieldSpec

__all__ = ["Limits"]

_SHOWN = 8
"""Of a finite set, how many values a message names."""


class Limits:
    """What the values of one field may be.

    NaN and infinity are not compared: they are a matter of their own (the rule ``nonfinite``).  Limits that
    don't fit the field's shape say nothing.

    >>> limits = Limits.of(FieldSpec((2,), np.float32, low=-1.0, high=[1.0, 2.0]))
    >>> limits.outside(np.array([[0.0, 1.5], [1.5, 0.0], [np.nan, -2.0]], np.float32)).tolist()
    [False, True, True]
    >>> limits.reason(np.array([1.5, 0.0], np.float32))
    '1.5 is above 1 (element 0)'
    """

    def __init__(self, field: FieldSpec) -> None:
        self._low = _bound(field, field.low)
        self._high = _bound(field, field.high)
        self._values: np.ndarray | None = None
        self._texts: frozenset[bytes] | None = None
        self._is_run = False
        if field.values is None:
            return
        if field.is_string and None not in field.shape:
            self._texts = frozenset(map(_bytes, field.values))
        elif _numbers(field.values) is not None and not field.is_string:
            self._values = _numbers(field.values)
        self._is_run = field.dtype.kind in "iu" and _is_run(self._values)

    @classmethod
    def of(cls, field: FieldSpec) -> Limits | None:
        """Of a field, or None if it allows everything that its dtype can hold."""
        limits = cls(field)
        sets = limits._values is not None or limits._texts is not None
        return limits if field.image is None and (sets or not _unbounded(field, limits._low, limits._high)) else None

    def outside(self, column: np.ndarray) -> np.ndarray:
        """``[N] bool``: which rows of a column ``[N, ...]`` have a value that is not allowed.

        Of a field whose shape varies the column is ``[N] object``, of arrays.
        """
        if column.dtype == np.dtype(object) and self._texts is None:
            return np.array([self._any(row) for row in column], np.bool_)
        if self._all_inside(column):
            return np.zeros(len(column), np.bool_)
        bad = self._bad(column)
        return np.asarray(bad if bad.ndim == 1 else bad.reshape(len(bad), -1).any(axis=1))

    def reason(self, value: np.ndarray) -> str:
        """What is wrong with the first offending element of one row's value ``[...]``."""
        array = np.asarray(value)
        if array.dtype == np.dtype(object) and self._texts is None:
            array = next(np.asarray(part) for part in array.reshape(-1) if self._any(part))
            return self.reason(array)
        bad = self._bad(array[None])[0]
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        where = f" (element {', '.join(map(str, index))})" if index else ""
        return f"{_text(array[index])} is {self._rule(array[index], index)}{where}"

    def _all_inside(self, column: np.ndarray) -> bool:
        """Whether that can be said at once: one limit for all elements is compared with the least or largest."""
        if self._texts is not None or not column.size:
            return not column.size
        low, high = self._low, self._high
        if self._values is not None:
            if not self._is_run or low is not None or high is not None:
                return False
            low, high = self._values.min(), self._values.max()
        return _none_below(column, low) and _none_above(column, high)

    def _any(self, value: Any) -> bool:
        array = np.asarray(value)
        if array.dtype == np.dtype(object):
            return any(self._any(part) for part in array.reshape(-1))
        return bool(self._bad(array[None]).any())

    def _bad(self, column: np.ndarray) -> np.ndarray:
        """Element by element."""
        if self._texts is not None:
            texts = [_bytes(text) not in self._texts for text in column.reshape(-1).tolist()]
            return np.array(texts, np.bool_).reshape(column.shape)
        bad = np.zeros(column.shape, np.bool_)
        if self._low is not None:
            bad |= column < self._low
        if self._high is not None:
            bad |= column > self._high
        if self._values is not None:
            bad |= ~np.isin(column, self._values)
        if column.dtype.kind in "fc" and bad.any():
            bad &= np.isfinite(column)
        return bad

    def _rule(self, value: Any, index: tuple[int, ...]) -> str:
        for bound, side in ((self._low, "below"), (self._high, "above")):
            if bound is not None:
                limit = bound[index[len(index) - bound.ndim :]]
                if (value < limit) if side == "below" else (value > limit):
                    return f"{side} {_text(limit)}"
        texts, values = self._texts, self._values
        allowed = sorted(texts) if texts is not None else [] if values is None else values.reshape(-1).tolist()
        more = f" and {len(allowed) - _SHOWN} more" if len(allowed) > _SHOWN else ""
        return f"none of {', '.join(map(_text, allowed[:_SHOWN]))}{more}"


def _bound(field: FieldSpec, limit: Any) -> np.ndarray | None:
    bound = _numbers(limit)
    if bound is None or field.dtype.kind not in "biuf":
        return None
    if bound.shape not in ((), field.shape):
        return None
    # Compared as the column has them: 0.1 in float32 is above 0.1.  A limit beyond all its values is infinite there.
    with np.errstate(over="ignore"):
        return bound.astype(field.dtype) if field.dtype.kind == "f" else bound


def _numbers(values: Any) -> np.ndarray | None:
    try:
        array = np.asarray(values)
    except ValueError:  # lists of several lengths
        return None
    return array if array.dtype.kind in "biuf" else None


def _is_run(values: np.ndarray | None) -> bool:
    """Whether these are all the whole numbers between the first and the last one."""
    if values is None or values.dtype.kind not in "iu" or not values.size:
        return False
    return bool((np.diff(np.sort(values)) == 1).all())


def _bytes(text: Any) -> Any:
    return text.encode() if isinstance(text, str) else text


def _none_below(column: np.ndarray, low: np.ndarray | None) -> bool:
    """Of a column with NaN the least is NaN, of which this can't be said."""
    if low is None:
        return True
    return bool(np.minimum.reduce(column, axis=None) >= low) if low.ndim == 0 else not np.count_nonzero(column < low)


def _none_above(column: np.ndarray, high: np.ndarray | None) -> bool:
    if high is None:
        return True
    return bool(np.maximum.reduce(column, axis=None) <= high) if high.ndim == 0 else not np.count_nonzero(column > high)


def _unbounded(field: FieldSpec, low: np.ndarray | None, high: np.ndarray | None) -> bool:
    if field.dtype.kind == "b":
        least, most = 0.0, 1.0
    elif field.dtype.kind in "iu":
        least, most = np.iinfo(field.dtype).min, np.iinfo(field.dtype).max
    else:
        least, most = -np.inf, np.inf
    return (low is None or bool((low <= least).all())) and (high is None or bool((high >= most).all()))


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return repr(value.decode(errors="replace"))
    return f"{np.asarray(value).item():.6g}" if np.asarray(value).dtype.kind == "f" else str(value)
