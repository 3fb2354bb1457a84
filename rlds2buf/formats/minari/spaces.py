"""Gymnasium spaces, as Minari writes them to JSON, turned into field specs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.core.dtypes import parse_dtype
from rlds2buf.core.entries import Entries
from rlds2buf.core.json_text import parse_json
from rlds2buf.core.space_fields import box, discrete, multi_binary, multi_discrete
from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import SourceFormatError

__all__ = ["is_image", "space_specs"]

_MIN_IMAGE = 32


def space_specs(space: Any, budget: Budget = BUDGET) -> nest.Nest:
    """The field specs of a space; Dict and Tuple become dicts and tuples of them.

    Args:
        space: the JSON value, or its text.  Infinite limits may be written ``Infinity``, as
            Python's json does; a limit that is infinite everywhere is None in the spec.
        budget: for one value of the space.

    Raises:
        LimitExceeded: a value would take too much memory.
        SourceFormatError: it is no such JSON, or a kind of space that has no fixed columns.

    >>> space_specs('{"type": "Discrete", "dtype": "int64", "start": 0, "n": 2}')
    FieldSpec(int64[], values=(0, 1))
    >>> space_specs('{"type": "Box", "dtype": "float32", "shape": [2], "low": [-1, -Infinity], "high": [1, 5]}')
    FieldSpec(float32[2], low=[-1.0, -inf], high=[1.0, 5.0])
    """
    try:
        parsed = parse_json(space) if isinstance(space, str) else space
        kind = parsed["type"]
        read = _KINDS.get(kind)
        if read is None:
            raise SourceFormatError(f"a {kind} space has no fixed columns, or is not known here")
        return read(parsed, budget)
    except SourceFormatError:
        raise
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError) as cause:
        raise SourceFormatError(f"not a space as Minari writes it ({cause!r}): {str(space)[:80]}") from cause


def is_image(spec: FieldSpec) -> bool:
    """Whether Minari stores such a field as JPEGs, unless told not to.

    That is: uint8 from 0 to 255, two or three axes, the first two at least 32 long.
    """
    large = len(spec.shape) in (2, 3) and all(n is not None and n >= _MIN_IMAGE for n in spec.shape[:2])
    return large and spec.dtype == np.uint8 and spec.low == 0 and spec.high == 255


def _shape(lengths: tuple[int, ...], dtype: np.dtype, budget: Budget) -> tuple[int, ...]:
    """The shape, if one value of it is not too large."""
    budget.check_bytes(math.prod(lengths) * dtype.itemsize, f"one value of {dtype}{list(lengths)}")
    return lengths


def _box(space: Mapping[str, Any], budget: Budget) -> FieldSpec:
    dtype = parse_dtype(space["dtype"])
    shape = _shape(Entries(space).lengths("shape"), dtype, budget)
    for limit in (space["low"], space["high"]):
        if 1 < np.size(limit) < math.prod(shape):  # it becomes a number for each element
            budget.check_objects(math.prod(shape), f"a limit of the shape {list(shape)}")
    return box(shape, dtype, space["low"], space["high"])


def _discrete(space: Mapping[str, Any], budget: Budget) -> FieldSpec:
    return discrete(parse_dtype(space.get("dtype", "int64")), int(space.get("start", 0)), int(space["n"]))


def _multi_discrete(space: Mapping[str, Any], budget: Budget) -> FieldSpec:
    many = np.asarray(space["nvec"], np.int64)
    return multi_discrete(parse_dtype(space["dtype"]), space.get("start", np.zeros_like(many)), many)


def _multi_binary(space: Mapping[str, Any], budget: Budget) -> FieldSpec:
    n = space["n"]
    return multi_binary(_shape(tuple(n) if isinstance(n, list) else (int(n),), np.dtype(np.int8), budget))


def _text(space: Mapping[str, Any], budget: Budget) -> FieldSpec:
    return FieldSpec((), np.dtype(object))


def _dict(space: Mapping[str, Any], budget: Budget) -> dict[str, nest.Nest]:
    return {name: _member(name, child, budget) for name, child in space["subspaces"].items()}


def _tuple(space: Mapping[str, Any], budget: Budget) -> tuple[nest.Nest, ...]:
    return tuple(_member(i, child, budget) for i, child in enumerate(space["subspaces"]))


def _member(name: str | int, space: Any, budget: Budget) -> nest.Nest:
    try:
        return space_specs(space, budget)
    except SourceFormatError as cause:
        raise cause.at(name) from cause


_KINDS: dict[str, Callable[[Mapping[str, Any], Budget], nest.Nest]] = {
    "Box": _box,
    "Dict": _dict,
    "Discrete": _discrete,
    "MultiBinary": _multi_binary,
    "MultiDiscrete": _multi_discrete,
    "Text": _text,
    "Tuple": _tuple,
}
