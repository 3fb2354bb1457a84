"""Gymnasium's spaces as step specs, without importing Gymnasium."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.spec import FieldSpec, StepSpec

__all__ = [
    "MAX_VALUES",
    "box",
    "discrete",
    "is_pair_of_spaces",
    "multi_binary",
    "multi_discrete",
    "number_field",
    "spec_of_spaces",
    "step_spec",
]

MAX_VALUES = 256
"""A Discrete space with more values than this is described by its limits."""


def step_spec(spec_or_spaces: Any) -> StepSpec:
    """A :class:`StepSpec` as it is, or a pair ``(observation space, action space)`` as one.

    Raises:
        TypeError: neither, or a space without a fixed shape.
    """
    if isinstance(spec_or_spaces, StepSpec):
        return spec_or_spaces
    if is_pair_of_spaces(spec_or_spaces):
        return spec_of_spaces(*spec_or_spaces)
    number = "; how much a buffer holds is its capacity=" if isinstance(spec_or_spaces, int) else ""
    raise TypeError(
        "spec must be a StepSpec, such as source.spec or spec_of(episode), or a pair "
        f"(observation space, action space), got {type(spec_or_spaces).__name__}{number}"
    )


def is_pair_of_spaces(value: Any) -> bool:
    """Whether these are an observation space and an action space (or nests of fields), told by their first leaves."""
    return isinstance(value, tuple) and len(value) == 2 and all(map(_is_space, value))


def spec_of_spaces(observation_space: Any, action_space: Any) -> StepSpec:
    """The spec of steps in an environment with these spaces; rewards are float32, discounts are not kept.

    Any nest of ``Dict``, ``Tuple`` and spaces with a shape and a dtype will do, also nests of
    :class:`FieldSpec`.  A ``Box``'s limits become the field's, ``Discrete`` and ``MultiBinary`` its finite set
    (its limits where there are more than 256 values), and those of ``MultiDiscrete`` its limits; ``Text`` is a byte
    string.  Pass a single environment's spaces, not the batched ones of a vector environment.

    Raises:
        TypeError: a space has no fixed shape (``Sequence``, ``Graph``, ``OneOf``).

    >>> from types import SimpleNamespace
    >>> box = SimpleNamespace(shape=(2,), dtype=np.float32, low=np.array([-1, -2]), high=np.array([1, 1]))
    >>> spec_of_spaces(box, SimpleNamespace(shape=(), dtype=np.int64, start=1, n=3)).action
    FieldSpec(int64[], values=(1, 2, 3))
    """
    return StepSpec(
        observation=_fields(observation_space, "observation"),
        action=_fields(action_space, "action"),
        discount=None,
    )


def number_field(spec: StepSpec) -> FieldSpec:
    """The field of a reward, cost, value or log probability: float64 if the spec's reward is, else float32."""
    wide = isinstance(spec.reward, FieldSpec) and spec.reward.dtype == np.float64
    return FieldSpec((), np.dtype(np.float64 if wide else np.float32))


def box(shape: tuple[int, ...], dtype: np.dtype, low: Any, high: Any) -> FieldSpec:
    """A Box's field.

    >>> box((2,), np.dtype("float32"), [-1, -np.inf], 5)
    FieldSpec(float32[2], low=[-1.0, -inf], high=5.0)
    """
    return FieldSpec(shape, dtype, _limit(low, dtype, shape, -np.inf), _limit(high, dtype, shape, np.inf))


def discrete(dtype: np.dtype, start: int, n: int) -> FieldSpec:
    """A Discrete space's field: its set of values, or where they are many its limits."""
    if n <= MAX_VALUES:
        return FieldSpec((), dtype, values=tuple(range(start, start + n)))
    return FieldSpec((), dtype, start, start + n - 1)


def multi_discrete(dtype: np.dtype, start: Any, counts: Any) -> FieldSpec:
    """A MultiDiscrete space's field: from `start`, ``counts`` values in each element."""
    many = np.asarray(counts, np.int64)
    first = np.asarray(start, np.int64)
    low = _limit(first, dtype, many.shape, -np.inf)
    return FieldSpec(many.shape, dtype, low, _limit(first + many - 1, dtype, many.shape, np.inf))


def multi_binary(shape: tuple[int, ...]) -> FieldSpec:
    """A MultiBinary space's field."""
    return FieldSpec(shape, np.dtype(np.int8), values=(0, 1))


def _is_space(value: Any) -> bool:
    if isinstance(value, FieldSpec):
        return True
    children = _children(value)
    if children is not None:
        inside = list(children.values() if isinstance(children, Mapping) else children)
        return bool(inside) and all(map(_is_space, inside))  # {} is no space: it may be options
    # Spaces without a fixed shape have these attributes too, as None; so do arrays, which are data.
    return hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, np.ndarray | np.generic)


def _children(space: Any) -> Mapping[str, Any] | tuple[Any, ...] | None:
    """The spaces inside a Dict or Tuple (or a dict or tuple of spaces), else None."""
    children = space if isinstance(space, Mapping | tuple) else getattr(space, "spaces", None)
    return children if isinstance(children, Mapping | tuple) else None


def _fields(space: Any, name: str) -> nest.Nest:
    if isinstance(space, FieldSpec):
        return space
    kind = type(space).__name__
    children = None if kind == "OneOf" else _children(space)
    if isinstance(children, Mapping):
        return {key: _fields(child, f"{name}/{key}") for key, child in children.items()}
    if children is not None:
        return tuple(_fields(child, f"{name}/{i}") for i, child in enumerate(children))
    if hasattr(space, "max_length") and hasattr(space, "character_set"):
        return FieldSpec((), np.dtype(object))
    shape, dtype = getattr(space, "shape", None), getattr(space, "dtype", None)
    if shape is None or dtype is None:
        way = "; give FieldSpec(shape, dtype) in its place, with None for an axis that varies" * (kind == "Sequence")
        raise TypeError(f"{name}: {kind} has no fixed shape and dtype{way}")
    return _field(space, tuple(shape), np.dtype(dtype))


def _field(space: Any, shape: tuple[int, ...], dtype: np.dtype) -> FieldSpec:
    """A space is known by what it has, so that those of Gym and wrapped ones are understood too."""
    if hasattr(space, "nvec"):
        return multi_discrete(dtype, getattr(space, "start", np.zeros_like(space.nvec)), space.nvec)
    if hasattr(space, "n"):
        return multi_binary(shape) if shape else discrete(dtype, int(getattr(space, "start", 0)), int(space.n))
    if hasattr(space, "low") and hasattr(space, "high"):
        return box(shape, dtype, space.low, space.high)
    return FieldSpec(shape, dtype)


def _limit(values: Any, dtype: np.dtype, shape: tuple[int, ...], nothing: float) -> Any:
    """Limits as FieldSpec has them: one number where all are equal, None where none bounds."""
    given = np.asarray(values)
    if dtype.kind in "iu" and ((given < np.iinfo(dtype).min).any() or (given > np.iinfo(dtype).max).any()):
        raise ValueError(f"{dtype} has no {values}")
    array = given.astype(dtype)
    every = np.broadcast_to(array, shape)  # which may be far more than is given
    if every.size == 0 or (dtype.kind == "f" and (array == nothing).all()):
        return None
    return array.flat[0].item() if (array == array.flat[0]).all() else every.tolist()
