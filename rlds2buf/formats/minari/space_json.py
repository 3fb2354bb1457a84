"""Specs of fields as Gymnasium spaces, in the JSON that Minari keeps them in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.spec import FieldSpec

__all__ = ["TextRange", "has_pictures", "space_json", "space_limit"]

_MAX_VALUES = 256
"""A Discrete space with up to so many values is read as a FieldSpec with `values`, others with limits."""

_MIN_PICTURE = 32


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


def space_json(spec: nest.Nest, texts: Callable[[nest.Path], TextRange], path: nest.Path = ()) -> dict[str, Any]:
    """The space of a field, as Minari's ``serialize_space`` writes it; dicts and tuples nest.

    What :func:`rlds2buf.formats.minari.spaces.space_specs` reads back is the spec, but for limits of
    integers, which a space always has.

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
    return _discrete(field) or _multi_discrete(field) or _multi_binary(field) or _box(field)


def has_pictures(spec: nest.Nest) -> bool:
    """Whether Minari stores one of the fields as JPEG, unless it is told not to."""
    return any(_is_picture(field) for _, field in nest.flatten(spec) if field is not None)


def space_limit(field: FieldSpec, side: str) -> np.ndarray:
    """A field's ``"low"`` or ``"high"`` as an array of its shape and dtype; without one the dtype's, or infinity."""
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
    shape = tuple(1 if n is None else n for n in field.shape)
    return np.broadcast_to(np.asarray(given).astype(field.dtype), shape)


def _is_picture(field: FieldSpec) -> bool:
    large = len(field.shape) in (2, 3) and all(n is not None and n >= _MIN_PICTURE for n in field.shape[:2])
    if not large or field.dtype != np.uint8:
        return False
    return bool((space_limit(field, "low") == 0).all() and (space_limit(field, "high") == 255).all())


def _discrete(field: FieldSpec) -> dict[str, Any] | None:
    if field.shape or field.dtype.kind not in "iu":
        return None
    if field.values:
        start, stop = int(min(field.values)), int(max(field.values)) + 1
        if sorted(field.values) != list(range(start, stop)):
            return None
    elif field.dtype == np.int64 and isinstance(field.low, int) and isinstance(field.high, int):
        start, stop = field.low, field.high + 1
        if stop - start <= _MAX_VALUES:
            return None  # it was a Box: a Discrete space of this size is read with values
    else:
        return None
    if stop - start > np.iinfo(np.int64).max or stop > np.iinfo(np.int64).max:
        return None
    return {"type": "Discrete", "dtype": "int64", "start": start, "n": stop - start}


def _multi_discrete(field: FieldSpec) -> dict[str, Any] | None:
    """A Box of int64 reads as the same spec, but what has such limits is rather a choice than a measure."""
    if field.dtype != np.int64 or not field.shape or None in field.shape or field.low is None or field.high is None:
        return None
    high = space_limit(field, "high")
    if not high.size or (space_limit(field, "low") != 0).any() or (high < 0).any() or (high >= 1 << 31).any():
        return None
    return {
        "type": "MultiDiscrete",
        "dtype": "int64",
        "nvec": (high + 1).tolist(),
        "start": np.zeros_like(high).tolist(),
    }


def _multi_binary(field: FieldSpec) -> dict[str, Any] | None:
    if field.dtype != np.int8 or not field.shape or field.values != (0, 1) or None in field.shape:
        return None
    shape = [n for n in field.shape if n is not None]
    return {"type": "MultiBinary", "n": shape[0] if len(shape) == 1 else shape}


def _box(field: FieldSpec) -> dict[str, Any]:
    return {
        "type": "Box",
        "dtype": field.dtype.name,
        "shape": list(field.shape),
        "low": space_limit(field, "low").tolist(),
        "high": space_limit(field, "high").tolist(),
    }
