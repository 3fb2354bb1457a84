"""Numbers brought to one scale, and back: the three ways in which policies have them.

============  =======================================================  ==============================================
how           normalised                                               as
============  =======================================================  ==============================================
``q01_q99``   ``2 (x - q01) / (q99 - q01 + 1e-8) - 1``, in [-1, 1]     OpenVLA's BOUNDS_Q99; what lies beyond is cut
``min_max``   ``2 (x - min) / (max - min + 1e-8) - 1``, in [-1, 1]     OpenVLA's BOUNDS
``mean_std``  ``(x - mean) / (std + 1e-8)``                            OpenVLA's and Octo's NORMAL
============  =======================================================  ==============================================

A dimension that has one value only becomes 0, in each of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rlds2buf.core.arguments import choice
from rlds2buf.core.json_text import parse_json
from rlds2buf.errors import SourceFormatError, SourceNotFound
from rlds2buf.numbers.dataset_numbers import FieldStatistics, Statistics

__all__ = ["WAYS", "Scaling", "as_statistics", "field_and_part", "normalize", "unnormalize"]

WAYS: Final = ("q01_q99", "mean_std", "min_max")

_SMALL = 1e-8
_PART = re.compile(r"(?P<field>[^\[\]]+)\[(?:(?P<one>-?\d+)|(?P<first>-?\d*):(?P<last>-?\d*))\]")


def normalize(
    x: npt.ArrayLike,
    stats: Statistics | Mapping[str, Any] | str | os.PathLike[str],
    field: str = "action",
    how: str = "q01_q99",
) -> np.ndarray:
    """Values of a field on the scale that policies are trained on.

    Args:
        x: ``[..., *shape]``: one row of the field, or any number of them.
        stats: what :func:`rlds2buf.statistics` gives, its JSON, the path of a file with that (``rlds2buf stats --json
            --out FILE``), or the folder that ``convert --normalize`` has written.
        field: as ``"action"``, or with the dimensions (of the last axis) that are changed, as ``"action[:-1]"``: all
            but the last.
        how: ``"q01_q99"``, ``"mean_std"`` or ``"min_max"``: see :mod:`rlds2buf.numbers.normalizing`.

    Returns:
        As `x`; float64 where that is, else float32.

    Raises:
        KeyError: there are no statistics of the field.
        ValueError: `x` is of another shape, a wrong `how`, or no statistics.
        SourceError: the file can't be read.

    >>> import rlds2buf
    >>> episode = rlds2buf.Episode(action=np.array([[0.0, 1.0], [1.0, 0.0], [2.0, 1.0], [0.0, 0.0]]))
    >>> stats = rlds2buf.statistics([episode])
    >>> normalize([2.0, 1.0], stats, "action[:-1]", "min_max").round(6).tolist()
    [1.0, 1.0]
    """
    scaling, x = _scaling(x, stats, field, how)
    return scaling.forward(x)


def unnormalize(
    x: npt.ArrayLike,
    stats: Statistics | Mapping[str, Any] | str | os.PathLike[str],
    field: str = "action",
    how: str = "q01_q99",
) -> np.ndarray:
    """The inverse of :func:`normalize`: what a policy gives, on the scale of the dataset.

    What was cut stays cut, and a dimension of one value gets that value.

    Args:
        x, stats, field, how: as of :func:`normalize`, which raises the same.

    >>> import rlds2buf
    >>> stats = rlds2buf.statistics([rlds2buf.Episode(action=np.array([[-1.0], [1.0], [3.0], [0.0]]))])
    >>> unnormalize(normalize([2.5], stats, how="mean_std"), stats, how="mean_std").round(6).tolist()
    [2.5]
    """
    scaling, x = _scaling(x, stats, field, how)
    return scaling.backward(x)


@dataclasses.dataclass(frozen=True, eq=False)
class Scaling:
    """How the values of one field are brought to one scale.

    Attributes:
        low, width: of each dimension, float64: what is taken off, and what the rest is divided by.
        constant: which dimensions have one value only, which is then their `low`.
        chosen: which dimensions are changed.
        is_range: whether the result is spread from -1 to 1, and what lies beyond is cut.
    """

    low: np.ndarray
    width: np.ndarray
    constant: np.ndarray
    chosen: np.ndarray
    is_range: bool

    @classmethod
    def of(cls, field: FieldStatistics, how: str, part: slice | int | None = None) -> Scaling:
        """By a field's statistics; `part` tells which dimensions of the last axis are changed, None all.

        Raises:
            ValueError: a wrong `how`, or dimensions that are not there.
        """
        choice("how", how, WAYS)
        if not field.count.all():
            raise ValueError("a dimension has no finite value")
        low, high = {
            "q01_q99": (field.q01, field.q99),
            "min_max": (field.min, field.max),
            "mean_std": (field.mean, field.mean),
        }[how]
        low = np.where(field.is_constant, field.min, low).astype(np.float64)
        width = field.std if how == "mean_std" else high.astype(np.float64) - low
        chosen = np.ones(field.mean.shape, np.bool_)
        if part is not None:
            if not field.mean.ndim:
                raise ValueError("it is one number a step, without dimensions to choose from")
            chosen[...] = False
            try:
                chosen[..., part] = True
            except IndexError as cause:
                raise ValueError(f"there is no dimension {part} among {field.mean.shape[-1]}") from cause
        return cls(low, width + _SMALL, field.is_constant, chosen, how != "mean_std")

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Values ``[..., *shape]`` on the common scale."""
        scaled = x - self.low
        if self.is_range:
            scaled *= 2
        scaled /= self.width
        if self.is_range:
            scaled -= 1
            np.clip(scaled, -1, 1, out=scaled)
        return self._merged(np.where(self.constant, 0.0, scaled), x)

    def backward(self, x: np.ndarray) -> np.ndarray:
        """Their inverse."""
        scaled = (x + np.float64(1)) / 2 if self.is_range else x
        return self._merged(np.where(self.constant, self.low, scaled * self.width + self.low), x)

    def _merged(self, changed: np.ndarray, x: np.ndarray) -> np.ndarray:
        changed = changed if self.chosen.all() else np.where(self.chosen, changed, x)
        return changed.astype(x.dtype if x.dtype == np.float64 else np.float32)


def field_and_part(name: str) -> tuple[str, slice | int | None]:
    """A field's path, and which dimensions of its last axis are meant; None: all.

    Raises:
        ValueError: the brackets hold neither a number nor ``first:last``.

    >>> field_and_part("action[:-1]"), field_and_part("observation/state")
    (('action', slice(None, -1, None)), ('observation/state', None))
    """
    if "[" not in name and "]" not in name:
        return name, None
    match = _PART.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r}: dimensions are chosen as in action[:-1], action[0:6] or action[6]")
    if match["one"]:
        return match["field"], int(match["one"])
    first, last = (int(match[side]) if match[side] else None for side in ("first", "last"))
    return match["field"], slice(first, last)


def as_statistics(stats: Any) -> Statistics:
    """Statistics, their JSON, a file with it, or what ``convert --normalize`` has written or kept of them.

    Raises:
        ValueError: none of these.
        SourceError: the file can't be read, or holds something else.
    """
    if isinstance(stats, Statistics):
        return stats
    if isinstance(stats, Mapping):
        return Statistics.from_json(_kept(stats) or stats)
    if not isinstance(stats, str | os.PathLike):
        raise ValueError(f"stats should be statistics, their JSON or a path, got {type(stats).__name__}")
    path = Path(stats)
    if path.is_dir():
        return _of_folder(path)
    how = "a file of statistics is written by `rlds2buf stats SRC --json --out FILE`"
    try:
        told = parse_json(path.read_bytes())
        return Statistics.from_json(_kept(told) or told)
    except FileNotFoundError as cause:
        raise SourceNotFound(f"{stats}: no such file; {how}") from cause
    except (OSError, ValueError) as cause:
        why = cause.strerror if isinstance(cause, OSError) else cause
        raise SourceFormatError(f"{stats}: {why}; {how}") from cause


_PROVENANCE: Final = ("manifest.json", "metadata.json", "*/metadata.json", "meta/rlds2buf.json")
"""Where what is written has its provenance: a buffer, an RLDS folder, one of several versions or Minari, LeRobot."""
_KEPT: Final = "normalize_statistics"


def _of_folder(folder: Path) -> Statistics:
    for pattern in _PROVENANCE:
        for path in sorted(folder.glob(pattern)):
            with contextlib.suppress(OSError, ValueError):
                found = _kept(parse_json(path.read_bytes()))
                if found is not None:
                    return Statistics.from_json(found)
    raise SourceFormatError(f"{folder}: nothing there that `rlds2buf convert --normalize` has written")


def _kept(told: Any) -> Any:
    """The statistics in a provenance, however deep it lies; None if there are none."""
    if not isinstance(told, Mapping):
        return None
    if _KEPT in told:
        return told[_KEPT]
    return next((found for found in map(_kept, told.values()) if found is not None), None)


def _scaling(x: npt.ArrayLike, stats: Any, field: str, how: str) -> tuple[Scaling, np.ndarray]:
    name, part = field_and_part(field)
    known = as_statistics(stats)[name]
    values = np.asarray(x)
    if values.dtype.kind not in "biuf":
        raise ValueError(f"x should be numbers, got {values.dtype}")
    shape = known.mean.shape
    if values.shape[values.ndim - len(shape) :] != shape:
        raise ValueError(f"x should end in the shape {list(shape)} of {name}, got {list(values.shape)}")
    try:
        return Scaling.of(known, how, part), values
    except ValueError as cause:
        raise ValueError(f"{field}: {cause}") from cause
