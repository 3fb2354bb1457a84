"""How many rows a second a dataset has: LeRobot wants one whole number for all of it."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.spec import StepSpec

__all__ = ["Rate"]

_NAMES: Final = ("timestamp", "timestamps")
_TOLERANCE_S: Final = 1e-4
"""As LeRobot's own."""
_WAY_OUT: Final = "-T fps=N says how many rows a second are written"


class Rate:
    """Told, known of the dataset, or found in its timestamps, which must be regular then.

    Args:
        spec: of the episodes.
        told: by the user.
        known: of the dataset.

    Attributes:
        fps: rows a second; None until the first timestamps are seen.

    Raises:
        ValueError: there is none of the three, or the dataset's own is no whole number.

    >>> Rate(StepSpec(), 10, None).fps
    10
    >>> Rate(StepSpec(), None, 29.97)
    Traceback (most recent call last):
    ValueError: the dataset has 29.97 rows a second, and LeRobot a whole number: -T fps=N says how many rows a second \
are written
    """

    def __init__(self, spec: StepSpec, told: int | None, known: Any) -> None:
        self.fps = told
        self._field: nest.Path | None = None
        if told is not None:
            return
        if isinstance(known, int | float) and known > 0:
            if known != int(known):
                raise ValueError(f"the dataset has {known:g} rows a second, and LeRobot a whole number: {_WAY_OUT}")
            self.fps = int(known)
            return
        self._field = next(
            (
                path
                for path, field in spec.fields()
                if path[-1] in _NAMES and not field.shape and field.dtype.kind == "f"
            ),
            None,
        )
        if self._field is None:
            raise ValueError(f"nothing tells how many rows a second there are, no timestamp either: {_WAY_OUT}")

    def see(self, columns: dict[nest.Path, np.ndarray], edges: np.ndarray) -> int:
        """The rate, which the rows of some episodes must have.

        Raises:
            ValueError: their timestamps are not regular, or not those of a whole number of rows a second.
        """
        if self._field is None:
            assert self.fps is not None
            return self.fps
        times = columns[self._field].astype(np.float64)
        starts, lengths = edges[:-1], np.diff(edges)
        frame = np.arange(len(times)) - np.repeat(starts, lengths)
        name = nest.path_name(self._field)
        if self.fps is None:
            self.fps = self._found(times, frame, name)
        off = np.abs(times - np.repeat(times[starts], lengths) - frame / self.fps)
        if not (off <= _TOLERANCE_S).all():
            worst = int(np.argmax(np.where(np.isnan(off), np.inf, off)))
            raise ValueError(
                f"{name} is not regular: row {frame[worst]} of an episode is {off[worst]:.4g} s from where it would be "
                f"at {self.fps} rows a second: {_WAY_OUT}"
            )
        return self.fps

    @staticmethod
    def _found(times: np.ndarray, frame: np.ndarray, name: str) -> int:
        steps = np.diff(times)[frame[1:] > 0]
        step = float(np.median(steps)) if len(steps) else 0.0
        rate = 1 / step if step > 0 else 0.0
        if rate < 1 - 1e-6 or abs(rate - round(rate)) > 1e-3 * rate:
            raise ValueError(f"{name} has {rate:.4g} rows a second, and LeRobot a whole number: {_WAY_OUT}")
        return round(rate)
