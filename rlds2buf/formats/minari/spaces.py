"""Gymnasium spaces in the JSON that Minari keeps them in: read as field specs, and written from them."""

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
from rlds2buf.core.spaces import MAX_VALUES, box, discrete, multi_binary, multi_discrete
from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import SourceFormatError

__all__ = ["TextRange", "is_image", "space_json", "space_specs"]

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
        read = _READ.get(kind)
        if read is None:
            raise SourceFormatError(f"a {kind} space has no fixed columns, or is not known here")
        return read(parsed, budget)
    except SourceFormatError:
        raise
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError) as cause:
        raise SourceFormatError(f"not a space as Minari writes it ({cause!r}): {str(space)[:80]}") from cause


def space_json(spec: nest.Nest, texts: Callable[[nest.Path], TextRange], path: nest.Path = ()) -> dict[str, Any]:
    """The space of a field, as Minari's ``serialize_space`` writes it; dicts and tuples nest.

    What :func:`space_specs` reads back is the spec, but for limits of integers, which a space always has.

    ================================================  ====================================
    a field                                           its space
    ================================================  ====================================
    integer, ``values`` without a gap                 Discrete
    int64, limits more than 256 apart                 Discrete, which is read so
    int64 with an axis, from 0 to a limit             MultiDiscrete
    int8 with an axis, ``values`` 0 and 1             MultiBinary
    text                                              Text, with what `texts` knows of it
    other numbers                                     Box; no limit is the dtype's, or infinite
    ================================================  ====================================

    Args:
        spec: a FieldSpec, or dicts and tuples of them; those that are None are left out.
        texts: what is known of the text at a path.
        path: where `spec` is.

    >>> space_json(FieldSpec((), np.int64, values=(0, 1)), lambda path: TextRange())
    {'type': 'Discrete', 'dtype': 'int64', 'start': 0, 'n': 2}
    >>> space_json(FieldSpec((2,), np.float32, low=-1.0), lambda path: TextRange())
    {'type': 'Box', 'dtype': 'float32', 'shape': [2], 'low': [-1.0, -1.0], 'high': [inf, inf]}
    """
    if isinstance(spec, Mapping):
        children = {key: child for key, child in spec.items() if child is not None}
        return {"type": "Dict", "subspaces": {k: space_json(v, texts, (*path, k)) for k, v in children.items()}}
    if isinstance(spec, tuple):
        return {"type": "Tuple", "subspaces": [space_json(v, texts, (*path, i)) for i, v in enumerate(spec)]}
    field: FieldSpec = spec
    if field.is_string:
        letters, longest = texts(path).to_json()
        return {"type": "Text", "max_length": max(1, longest), "min_length": 0, "charset": letters}
    return _discrete_json(field) or _multi_discrete_json(field) or _multi_binary_json(field) or _box_json(field)


class TextRange:
    """The letters and lengths that texts have, which a Text space is to be declared with.

    Attributes:
        letters: every character that occurs.
        longest: the most characters one text has.

    >>> texts = TextRange()
    >>> texts.add(np.array([b"go", b"left"], object))
    >>> texts.to_json()
    ['efglot', 4]
    """

    def __init__(self, letters: str = "", longest: int = 0) -> None:
        self.letters = set(letters)
        self.longest = longest

    def add(self, column: np.ndarray) -> None:
        """Take UTF-8 texts of any shape into account."""
        for text in set(column.reshape(-1).tolist()):
            decoded = text.decode()
            self.letters.update(decoded)
            self.longest = max(self.longest, len(decoded))

    def to_json(self) -> list[Any]:
        """The arguments that make it again."""
        return ["".join(sorted(self.letters)), self.longest]


def is_image(spec: FieldSpec) -> bool:
    """Whether Minari stores such a field as JPEGs, unless told not to.

    That is: uint8 from 0 to 255, two or three axes, the first two at least 32 long.
    """
    large = len(spec.shape) in (2, 3) and all(n is not None and n >= _MIN_IMAGE for n in spec.shape[:2])
    if not large or spec.dtype != np.uint8:
        return False
    return bool((_limit(spec, "low") == 0).all() and (_limit(spec, "high") == 255).all())


def _read_shape(lengths: tuple[int, ...], dtype: np.dtype, budget: Budget) -> tuple[int, ...]:
    """The shape, if one value of it is not too large."""
    budget.check_bytes(math.prod(lengths) * dtype.itemsize, f"one value of {dtype}{list(lengths)}")
    return lengths


def _read_box(space: Mapping[str, Any], budget: Budget) -> FieldSpec:
    dtype = parse_dtype(space["dtype"])
    shape = _read_shape(Entries(space).lengths("shape"), dtype, budget)
    for limit in (space["low"], space["high"]):
        if 1 < np.size(limit) < math.prod(shape):  # it becomes a number for each element
            budget.check_objects(math.prod(shape), f"a limit of the shape {list(shape)}")
    return box(shape, dtype, space["low"], space["high"])


def _read_discrete(space: Mapping[str, Any], budget: Budget) -> FieldSpec:
    return discrete(parse_dtype(space.get("dtype", "int64")), int(space.get("start", 0)), int(space["n"]))


def _read_multi_discrete(space: Mapping[str, Any], budget: Budget) -> FieldSpec:
    many = np.asarray(space["nvec"], np.int64)
    return multi_discrete(parse_dtype(space["dtype"]), space.get("start", np.zeros_like(many)), many)


def _read_multi_binary(space: Mapping[str, Any], budget: Budget) -> FieldSpec:
    n = space["n"]
    return multi_binary(_read_shape(tuple(n) if isinstance(n, list) else (int(n),), np.dtype(np.int8), budget))


def _read_text(space: Mapping[str, Any], budget: Budget) -> FieldSpec:
    return FieldSpec((), np.dtype(object))


def _read_dict(space: Mapping[str, Any], budget: Budget) -> dict[str, nest.Nest]:
    return {name: _read_member(name, child, budget) for name, child in space["subspaces"].items()}


def _read_tuple(space: Mapping[str, Any], budget: Budget) -> tuple[nest.Nest, ...]:
    return tuple(_read_member(i, child, budget) for i, child in enumerate(space["subspaces"]))


def _read_member(name: str | int, space: Any, budget: Budget) -> nest.Nest:
    try:
        return space_specs(space, budget)
    except SourceFormatError as cause:
        raise cause.at(name) from cause


_READ: dict[str, Callable[[Mapping[str, Any], Budget], nest.Nest]] = {
    "Box": _read_box,
    "Dict": _read_dict,
    "Discrete": _read_discrete,
    "MultiBinary": _read_multi_binary,
    "MultiDiscrete": _read_multi_discrete,
    "Text": _read_text,
    "Tuple": _read_tuple,
}


def _limit(field: FieldSpec, side: str) -> np.ndarray:
    """A field's ``"low"`` or ``"high"`` in its dtype, one for all or one each; without one the dtype's, or infinity."""
    given = getattr(field, side)
    if given is None and field.values:
        given = min(field.values) if side == "low" else max(field.values)
    if given is None:
        if field.dtype.kind == "b":
            given = side == "high"
        elif field.dtype.kind in "iu":
            limits = np.iinfo(field.dtype)
            given = limits.min if side == "low" else limits.max
        else:
            given = -np.inf if side == "low" else np.inf
    return np.asarray(given).astype(field.dtype)


def _limits(field: FieldSpec, side: str) -> np.ndarray:
    """The same as an array of the field's shape."""
    return np.broadcast_to(_limit(field, side), tuple(1 if n is None else n for n in field.shape))


def _discrete_json(field: FieldSpec) -> dict[str, Any] | None:
    if field.shape or field.dtype.kind not in "iu":
        return None
    if field.values:
        start, stop = int(min(field.values)), int(max(field.values)) + 1
        if sorted(field.values) != list(range(start, stop)):
            return None
    elif field.dtype == np.int64 and isinstance(field.low, int) and isinstance(field.high, int):
        start, stop = field.low, field.high + 1
        if stop - start <= MAX_VALUES:
            return None  # it was a Box: a Discrete space of this size is read with values
    else:
        return None
    if stop - start > np.iinfo(np.int64).max or stop > np.iinfo(np.int64).max:
        return None
    return {"type": "Discrete", "dtype": "int64", "start": start, "n": stop - start}


def _multi_discrete_json(field: FieldSpec) -> dict[str, Any] | None:
    """A Box of int64 reads as the same spec, but what has such limits is rather a choice than a measure."""
    if field.dtype != np.int64 or not field.shape or None in field.shape or field.low is None or field.high is None:
        return None
    high = _limits(field, "high")
    if not high.size or (_limits(field, "low") != 0).any() or (high < 0).any() or (high >= 1 << 31).any():
        return None
    return {
        "type": "MultiDiscrete",
        "dtype": "int64",
        "nvec": (high + 1).tolist(),
        "start": np.zeros_like(high).tolist(),
    }


def _multi_binary_json(field: FieldSpec) -> dict[str, Any] | None:
    if field.dtype != np.int8 or not field.shape or field.values != (0, 1) or None in field.shape:
        return None
    shape = [n for n in field.shape if n is not None]
    return {"type": "MultiBinary", "n": shape[0] if len(shape) == 1 else shape}


def _box_json(field: FieldSpec) -> dict[str, Any]:
    return {
        "type": "Box",
        "dtype": field.dtype.name,
        "shape": list(field.shape),
        "low": _limits(field, "low").tolist(),
        "high": _limits(field, "high").tolist(),
    }
