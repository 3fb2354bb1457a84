"""What a step looks like: shape, dtype and limits of every field."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds2buf.core import nest, shown
from rlds2buf.core.dtypes import as_dtype, dtype_name
from rlds2buf.core.entries import Entries
from rlds2buf.core.fields import DATA_FIELDS, FLAG_FIELDS, STEP_FIELDS
from rlds2buf.errors import SpecMismatch

if TYPE_CHECKING:
    from rlds2buf.core.episode import Episode

__all__ = ["FieldSpec", "StepSpec", "spec_of"]


_MAX_LIMITS = 40
"""How many characters of limits are printed."""


@dataclasses.dataclass(frozen=True)
class FieldSpec:
    """One field of one step.

    Attributes:
        shape: without the time axis; None where the length varies.
        dtype: numpy dtype (PyTorch's and TensorFlow's are taken too); ``object`` stands for
            variable-length byte strings.
        low, high: inclusive limits (a number, or nested lists of the field's shape), or None.
        values: the finite set of allowed values, or None.
        image: for byte strings that are image files (JPEG, PNG), or stand for frames of videos: what the decoded
            pixels are; else None.
        is_video: whether such byte strings stand for frames of videos
            (:mod:`rlds2buf.codecs.video.frame_names`).

    >>> FieldSpec((17,), np.float32)
    FieldSpec(float32[17])
    >>> FieldSpec((), object, image=FieldSpec((64, 64, 3), np.uint8))
    FieldSpec(string[], image=uint8[64, 64, 3])
    """

    shape: tuple[int | None, ...]
    dtype: np.dtype
    low: Any = None
    high: Any = None
    values: tuple[Any, ...] | None = None
    image: FieldSpec | None = None
    is_video: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "dtype", as_dtype(self.dtype))

    @property
    def is_string(self) -> bool:
        """Whether the field holds variable-length byte strings."""
        return self.dtype == np.dtype(object)

    @property
    def row_bytes(self) -> int:
        """Bytes of one step of this field (strings: the pointer); variable axes count as 1."""
        return int(np.prod([1 if n is None else n for n in self.shape], dtype=np.int64)) * self.dtype.itemsize

    def accepts(self, shape: tuple[int, ...], dtype: np.dtype) -> bool:
        """Whether a column of rows with this `shape` (no time axis) and `dtype` fits.

        Where lengths vary (None) and differ between the rows of an episode, its column is an object
        array of arrays; that fits too.
        """
        if shape == self.shape and dtype == self.dtype:
            return True
        known, rest = self.shape[: len(shape)], self.shape[len(shape) :]
        is_ragged = np.dtype(dtype) == np.dtype(object) and None in rest
        if (np.dtype(dtype) != self.dtype or rest) and not is_ragged:
            return False
        return len(known) == len(shape) and all(want in (None, got) for want, got in zip(known, shape, strict=True))

    def __str__(self) -> str:
        dims = ", ".join("?" if n is None else str(n) for n in self.shape)
        return f"{dtype_name(self.dtype)}[{dims}]"

    def __repr__(self) -> str:
        limits = "".join(
            f", {name}={_short(value, self.dtype)}"
            for name, value in (("low", self.low), ("high", self.high), ("values", self.values), ("image", self.image))
            if value is not None
        )
        return f"FieldSpec({self}{limits})"

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; :meth:`from_json` reads it back."""
        out: dict[str, Any] = {"shape": list(self.shape), "dtype": dtype_name(self.dtype)}
        for name in ("low", "high", "values"):
            value = getattr(self, name)
            if value is not None:
                out[name] = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        if self.image is not None:
            out["image"] = self.image.to_json()
        if self.is_video:
            out["is_video"] = True
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FieldSpec:
        """The inverse of :meth:`to_json`.

        Raises:
            ValueError: it is no such description; the message names the entry.
        """
        return _field_from_json(Entries(data))


_FLAG = FieldSpec((), np.dtype(np.bool_))


@dataclasses.dataclass(frozen=True)
class StepSpec:
    """The fields of one step: a nest of :class:`FieldSpec` for each, None where the data lack it.

    >>> StepSpec(observation=FieldSpec((3,), np.float32), action=FieldSpec((), np.int64)).action
    FieldSpec(int64[])
    """

    observation: nest.Nest = None
    action: nest.Nest = None
    reward: nest.Nest = FieldSpec((), np.dtype(np.float32))
    discount: nest.Nest = FieldSpec((), np.dtype(np.float32))
    extras: dict[str, nest.Nest] = dataclasses.field(default_factory=dict)
    is_first: FieldSpec = _FLAG
    is_last: FieldSpec = _FLAG
    is_terminal: FieldSpec = _FLAG

    def fields(self) -> Iterator[tuple[nest.Path, FieldSpec]]:
        """Yield ``(path, FieldSpec)`` for every leaf; extras are under ``("extras", ...)``."""
        for name in (*STEP_FIELDS, "extras"):
            for path, leaf in nest.flatten(getattr(self, name), (name,)):
                if leaf is not None:
                    yield path, leaf

    def __repr__(self) -> str:
        return shown.aligned("StepSpec", shown.spec_rows(self))

    @functools.cached_property
    def _expected(self) -> dict[nest.Path, FieldSpec]:
        return dict(self.fields())

    @property
    def row_bytes(self) -> int:
        """Bytes of one step, all fields together."""
        return sum(field.row_bytes for _, field in self.fields())

    def check(self, episode: Episode) -> None:
        """Raise unless the episode has these fields, shapes and dtypes.

        Raises:
            SpecMismatch: it differs; the message names the field, what was expected and what came.
        """
        expected = self._expected
        found = dict(episode.flatten())
        if found.keys() == expected.keys() and all(
            field.accepts(found[path].shape[1:], found[path].dtype) for path, field in expected.items()
        ):
            return
        where: dict[str, Any] = {"source": episode.source, "episode": episode.index}
        for path, field in expected.items():
            name = nest.path_name(path)
            if path not in found:
                raise SpecMismatch(f"the field is missing, expected {field}", path=name, rule="spec", **where)
            column = found[path]
            if not field.accepts(column.shape[1:], column.dtype):
                got = FieldSpec(column.shape[1:], column.dtype)
                raise SpecMismatch(f"expected {field}, got {got}", path=name, rule="spec", **where)
        for path in found:
            if path not in expected:
                raise SpecMismatch("the field is not in the spec", path=nest.path_name(path), rule="spec", **where)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; :meth:`from_json` reads it back."""
        return {name: _nest_to_json(getattr(self, name)) for name in (*STEP_FIELDS, "extras")}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StepSpec:
        """The inverse of :meth:`to_json`.

        Raises:
            ValueError: it is no such description; the message names the entry.
        """
        told = Entries(data)
        parts = {name: _nest_from_json(told.inside(name, None).values, name) for name in (*STEP_FIELDS, "extras")}
        for name in FLAG_FIELDS:
            if parts[name] != _FLAG:
                raise ValueError(f"{name} should be a bool, it is {parts[name]}")
        if not isinstance(parts["extras"], dict):
            raise ValueError("extras should be a dict")
        return cls(**parts)


def spec_of(episode: Episode) -> StepSpec:
    """The :class:`StepSpec` of one episode: what a buffer for such episodes is made from.

    >>> from rlds2buf import Episode
    >>> ep = Episode(observation=np.zeros((3, 4), np.float32), action=np.zeros(3, np.int64),
    ...              reward=np.zeros(3), discount=np.ones(3))
    >>> spec_of(ep).observation
    FieldSpec(float32[4])
    """

    def field(column: np.ndarray | None) -> FieldSpec | None:
        return None if column is None else FieldSpec(column.shape[1:], column.dtype)

    parts = {name: nest.map_structure(field, getattr(episode, name)) for name in (*DATA_FIELDS, *FLAG_FIELDS)}
    return StepSpec(**parts, extras=nest.map_structure(field, episode.extras))


def _short(limits: Any, dtype: np.dtype) -> str:
    """Limits or values as a field of this dtype has them; of many the first and the last."""
    plain = _plain(limits.tolist() if isinstance(limits, np.ndarray) else limits, dtype)
    text = str(plain)
    if len(text) <= _MAX_LIMITS or not isinstance(plain, list | tuple):
        return text
    first, last = plain[0], plain[-1]
    while isinstance(first, list):
        first, last = first[0], last[-1]
    left, right = ("[", "]") if isinstance(plain, list) else ("(", ")")
    return f"{left}{first!r}, ..., {last!r}{right}"


def _plain(limits: Any, dtype: np.dtype) -> Any:
    """4.8 in float32 is written out as 4.8, not as the float64 4.800000190734863."""
    if isinstance(limits, list | tuple):
        return type(limits)(_plain(limit, dtype) for limit in limits)
    narrow = isinstance(limits, float) and dtype.kind == "f" and dtype.itemsize < 8
    return float(str(dtype.type(limits))) if narrow else limits


def _nest_to_json(value: nest.Nest) -> Any:
    if isinstance(value, FieldSpec):
        return {"field": value.to_json()}
    if isinstance(value, Mapping):
        return {"dict": {key: _nest_to_json(child) for key, child in value.items()}}
    if isinstance(value, tuple):
        return {"tuple": [_nest_to_json(child) for child in value]}
    return None


def _nest_from_json(value: Any, name: str) -> nest.Nest:
    if not value:
        return None
    told = Entries(value, name)
    if "field" in told:
        return _field_from_json(told.inside("field"))
    if "dict" in told:
        children = told.inside("dict").values
        return {key: _nest_from_json(child, f"{name}.{key}") for key, child in children.items()}
    return tuple(_nest_from_json(child, f"{name}[{i}]") for i, child in enumerate(told.items("tuple")))


def _field_from_json(told: Entries) -> FieldSpec:
    shape = tuple(told.items("shape"))
    if not all(n is None or (type(n) is int and 0 <= n < 1 << 62) for n in shape):
        raise ValueError(f"{told.path('shape')} should be a list of lengths, got {list(shape)}")
    dtype = np.dtype(object) if told.values.get("dtype") == "string" else told.dtype("dtype")
    values = told.items("values", None)
    image = _field_from_json(told.inside("image")) if "image" in told else None
    low, high = (_limit_from_json(told, name, shape) for name in ("low", "high"))
    is_video = bool(told.values.get("is_video", False))
    return FieldSpec(shape, dtype, low, high, None if values is None else tuple(values), image, is_video)


def _limit_from_json(told: Entries, name: str, shape: tuple[int | None, ...]) -> Any:
    limit = told.values.get(name)
    if limit is None:
        return None
    try:
        array = np.asarray(limit)
        fits = array.dtype.kind in "biuf" and np.broadcast_shapes(array.shape, tuple(n or 1 for n in shape)) is not None
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"{told.path(name)} should be numbers of the field's shape, got {repr(limit)[:80]}")
    return limit
