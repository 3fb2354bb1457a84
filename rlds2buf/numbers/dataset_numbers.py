"""The statistics of a dataset: ten numbers of each dimension of each field."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rlds2buf.core import shown
from rlds2buf.core.dtypes import parse_dtype
from rlds2buf.core.entries import Entries
from rlds2buf.numbers.accumulators import ColumnNumbers
from rlds2buf.numbers.by_episode import KEYS
from rlds2buf.numbers.quantiles import LEVEL_NAMES

__all__ = ["FieldStatistics", "Statistics"]


@dataclasses.dataclass(frozen=True, eq=False)
class FieldStatistics:
    """The numbers of one field, each an array of the shape of one row; of pictures ``[C]``, by channel.

    Attributes:
        count: ``int64``, how many values are counted in the others: finite ones; of pictures frames.
        min, max: exact, of the field's own type; of pictures, as all the others, of pixels from 0 to 1.
        mean, std: ``float64``; the deviation is that of the population (ddof 0).
        q01, q10, q50, q90, q99: ``float64`` quantiles, as ``numpy.quantile`` gives them (linear).
        is_picture: whether it is a field of pictures, of which a sample of frames was counted; large ones with fewer
            pixels, as LeRobot does (:func:`~rlds2buf.numbers.pictures.thinned`).
    """

    count: np.ndarray
    min: np.ndarray
    max: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    q01: np.ndarray
    q10: np.ndarray
    q50: np.ndarray
    q90: np.ndarray
    q99: np.ndarray
    is_picture: bool = False

    @classmethod
    def of_columns(cls, found: ColumnNumbers, shape: tuple[int, ...]) -> FieldStatistics:
        """Of a field whose rows are of this shape."""
        plain = {name: getattr(found, name) for name in KEYS if name not in LEVEL_NAMES}
        every = {**plain, **dict(zip(LEVEL_NAMES, found.quantiles, strict=True))}
        return cls(**{name: values.reshape(shape) for name, values in every.items()})

    @property
    def is_constant(self) -> np.ndarray:
        """Which dimensions have one value only, of the shape of a row; those without any count as constant."""
        return ~(self.min < self.max)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        numbers = {name: getattr(self, name).tolist() for name in KEYS}
        return {"dtype": self.min.dtype.name, "shape": list(self.mean.shape), "is_picture": self.is_picture, **numbers}

    @classmethod
    def from_json(cls, told: Entries) -> FieldStatistics:
        """The inverse of :meth:`to_json`.

        Raises:
            ValueError: it is not what that gives; the message names the entry.
        """
        shape = told.lengths("shape")
        own = parse_dtype(told.text("dtype"))
        types = {"count": np.dtype(np.int64), "min": own, "max": own}
        numbers = {name: _array(told, name, shape, types.get(name, np.dtype(np.float64))) for name in KEYS}
        return cls(**numbers, is_picture=told.flag("is_picture", False))


@dataclasses.dataclass(frozen=True, eq=False)
class Statistics:
    """The statistics of a dataset, as :func:`rlds2buf.statistics` gives them.

    Attributes:
        source: the dataset's name.
        episodes: how many were counted.
        steps: their rows, final rows included.
        transitions: rows whose action counts: those from which a transition starts, and final rows whose action is
            real.
        fields: name to :class:`FieldStatistics`, which ``statistics[name]`` gives too.
        left_out: fields without numbers to the reason (text, lengths that vary).
        warnings: what should be known of the data before they are used.
        format: the dataset's.
    """

    source: str
    episodes: int
    steps: int
    transitions: int
    fields: Mapping[str, FieldStatistics]
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    format: str = ""

    def __getitem__(self, name: str) -> FieldStatistics:
        for full in (name, f"extras/{name}"):
            if full in self.fields:
                return self.fields[full]
        if name in self.left_out:
            raise KeyError(f"no statistics of {name!r}: {self.left_out[name]}")
        near = difflib.get_close_matches(name, self.fields, n=1)
        hint = f"; is it {near[0]!r}?" if near else ""
        raise KeyError(f"no statistics of {name!r}{hint} There are: {', '.join(self.fields) or 'none'}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __contains__(self, name: object) -> bool:
        return name in self.fields

    def only(self, names: Iterator[str] | list[str]) -> Statistics:
        """The same of some fields."""
        return dataclasses.replace(self, fields={name: self.fields[name] for name in names}, left_out={})

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; :meth:`from_json` reads it back."""
        return {
            "source": self.source,
            "format": self.format,
            "episodes": self.episodes,
            "steps": self.steps,
            "transitions": self.transitions,
            "fields": {name: field.to_json() for name, field in self.fields.items()},
            "left_out": dict(self.left_out),
            "warnings": list(self.warnings),
        }

    @classmethod
    def from_json(cls, data: Any) -> Statistics:
        """The inverse of :meth:`to_json`.

        Raises:
            ValueError: it is no such description; the message names the entry.
        """
        told = Entries(data)
        fields = told.inside("fields")
        return cls(
            source=told.text("source"),
            format=told.text("format", ""),
            episodes=told.integer("episodes"),
            steps=told.integer("steps"),
            transitions=told.integer("transitions"),
            fields={name: FieldStatistics.from_json(fields.inside(name)) for name in fields.values},
            left_out={str(name): str(why) for name, why in told.inside("left_out", None).values.items()},
            warnings=tuple(told.texts("warnings", ())),
        )

    def __repr__(self) -> str:
        rows = [(f"  {name}", _short(field)) for name, field in self.fields.items()]
        return shown.aligned(f"{self.source}: {self.episodes:,} episodes, {self.steps:,} steps", rows)


def _short(field: FieldStatistics) -> str:
    with np.errstate(invalid="ignore"):
        low, high = (np.nanmin(field.min), np.nanmax(field.max)) if field.min.size else (np.nan, np.nan)
    dims = ", ".join(map(str, field.mean.shape))
    return f"{'pictures' if field.is_picture else field.min.dtype.name}[{dims}] from {low:.6g} to {high:.6g}"


def _array(told: Entries, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    value = told.values.get(name)
    try:
        exact = np.array(value, dtype) if dtype.kind in "biu" else np.array(value, np.float64).astype(dtype)
    except (TypeError, ValueError, OverflowError) as cause:
        raise ValueError(f"{told.path(name)} should be numbers, got {repr(value)[:80]}") from cause
    if value is None or exact.shape != shape:
        raise ValueError(f"{told.path(name)} should be numbers of the shape {list(shape)}, got {repr(value)[:80]}")
    return exact
