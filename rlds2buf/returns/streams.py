"""Arguments of the estimators brought into the kernels' form: ``[T, B]`` columns and end codes."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from rlds2buf.core.row_flags import CONTINUE, TERMINATED, TRUNCATED

__all__ = ["Streams", "ends_of", "fraction", "time_first"]


@dataclasses.dataclass(frozen=True)
class Streams:
    """B streams of T steps, time first, contiguous.

    Attributes:
        columns: float arrays ``[T, B]`` of one dtype, float32 or float64.
        successor: the same for the values of the steps' true successors; only those of cut steps
            are certain to be set if no value function takes part.
        end: ``[T, B] uint8``: 0 goes on, 1 terminated, 2 cut; the last row is never 0.
        shape: of the arguments, time moved to the front.
        time_axis: where it came from.
    """

    columns: tuple[np.ndarray, ...]
    successor: np.ndarray
    end: np.ndarray
    shape: tuple[int, ...]
    time_axis: int

    @classmethod
    def of(
        cls,
        columns: tuple[npt.ArrayLike, ...],
        terminated: npt.ArrayLike | None,
        truncated: npt.ArrayLike | None,
        next_values: npt.ArrayLike | None,
        last_value: npt.ArrayLike | None,
        *,
        time_axis: int,
        need_values: bool = True,
    ) -> Streams:
        """Check and convert; `columns` are the rewards and, if there are any, the values.

        Raises:
            ValueError: shapes differ, or the value of a successor is missing or given twice.
        """
        if next_values is not None and last_value is not None:
            raise ValueError("give next_values or last_value, not both")
        names = ("rewards", "values")[: len(columns)]
        moved = [time_first(name, data, time_axis) for name, data in zip(names, columns, strict=True)]
        shape = moved[0].shape
        dtype = _working_dtype(moved)
        numbers = tuple(_column(name, data, shape, dtype) for name, data in zip(names, moved, strict=True))
        end = np.zeros(numbers[0].shape, np.uint8)
        for code, name, flags in ((TRUNCATED, "truncated", truncated), (TERMINATED, "terminated", terminated)):
            if flags is not None:
                end[_column(name, time_first(name, flags, time_axis), shape, np.dtype(np.bool_))] = code
        if next_values is not None:
            successor = _column("next_values", time_first("next_values", next_values, time_axis), shape, dtype)
        else:
            flagged = terminated is not None or truncated is not None
            value = numbers[1] if need_values else None
            successor = _successors(numbers[0], value, end, last_value, shape[1:], flagged=flagged)
        end[-1:][end[-1:] == CONTINUE] = TRUNCATED
        return cls(numbers, successor, end, shape, time_axis)

    def like(self, name: str, data: npt.ArrayLike | None, *, fill: float) -> np.ndarray:
        """A further argument of the rewards' shape as ``[T, B]``; `fill` everywhere if it is None."""
        if data is None:
            return np.full(self.end.shape, fill, self.columns[0].dtype)
        return _column(name, time_first(name, data, self.time_axis), self.shape, self.columns[0].dtype)

    def empty(self) -> np.ndarray:
        """Room for a result, ``[T, B]``."""
        return np.empty_like(self.columns[0])

    def restore(self, result: np.ndarray) -> np.ndarray:
        """``[T, B]`` in the shape of the arguments."""
        return np.moveaxis(result.reshape(self.shape), 0, self.time_axis)


def time_first(name: str, data: npt.ArrayLike, time_axis: int) -> np.ndarray:
    """`data` as an array with time in front.

    Raises:
        ValueError: it has no such axis, or is no array of numbers.
    """
    array = np.asarray(data)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} must hold real numbers, got {array.dtype}")
    if not -array.ndim <= time_axis < array.ndim:
        raise ValueError(f"{name} has shape {list(array.shape)}, and no time axis {time_axis}")
    return np.moveaxis(array, time_axis, 0)


def ends_of(name: str, data: npt.ArrayLike, shape: tuple[int, ...]) -> np.ndarray:
    """One number per stream: `data` of that shape, or a single number for all.

    Raises:
        ValueError: neither.
    """
    array = np.asarray(data)
    if array.size == 1 and (not shape or array.ndim == 0):
        return np.full(shape, array.item())
    if array.shape != shape:
        raise ValueError(f"{name} has shape {list(array.shape)}, expected {list(shape)} (no time axis)")
    return array


def fraction(name: str, value: float) -> float:
    """`value` as a float in [0, 1].

    Raises:
        ValueError: it is not.
    """
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must be in [0, 1], got {value}")
    return float(value)


def _working_dtype(columns: list[np.ndarray]) -> np.dtype:
    narrow = all(column.dtype.kind == "f" and column.dtype.itemsize <= 4 for column in columns)
    return np.dtype(np.float32 if narrow else np.float64)


def _column(name: str, data: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    if data.shape != shape:
        raise ValueError(f"{name} has shape {list(data.shape)}, rewards {list(shape)} (time first)")
    return np.ascontiguousarray(data.reshape(len(data), math.prod(shape[1:])), dtype)


def _successors(
    reward: np.ndarray,
    value: np.ndarray | None,
    end: np.ndarray,
    last_value: npt.ArrayLike | None,
    batch: tuple[int, ...],
    *,
    flagged: bool,
) -> np.ndarray:
    """``[T, B]``: the next row's value, at the end of the data `last_value`; `value` None: only the latter."""
    successor = np.zeros_like(reward)
    cut = np.count_nonzero(end[:-1] == TRUNCATED)
    if cut and (value is not None or last_value is not None):
        raise ValueError(
            f"{cut} paths are cut before the end of the data: next_values must say what follows them "
            "(see successor_values)"
        )
    if value is not None:
        if last_value is None and flagged and (end[-1:] != TERMINATED).any():
            raise ValueError("the last row does not terminate: give last_value or next_values")
        successor[:-1] = value[1:]
    if last_value is not None:
        successor[-1:] = ends_of("last_value", last_value, batch).reshape(-1)
    return successor
