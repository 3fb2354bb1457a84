"""Which type each field is to have."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rlds2buf.core import nest
from rlds2buf.core.dtypes import as_dtype
from rlds2buf.core.fields import FLAG_FIELDS
from rlds2buf.core.nest import Nest
from rlds2buf.transform.leaves import Leaves
from rlds2buf.transform.tree import TOP, find, is_pattern, matching, near_miss

__all__ = ["Casting"]

_FLOAT32 = np.dtype(np.float32)
_BOOL = np.dtype(np.bool_)


class Casting:
    """The types that fields are to have after mapping.

    Args:
        float32: every float64 and float16 field becomes float32.  A finite value that would become
            infinite is an error.
        cast: path or pattern, of a field or of a nest, to a numpy type.  It wins over `float32`; of
            several that fit, the last one wins.  Whole numbers must be in range, floats become integers
            only where they are whole, and bool only 0 and 1.

    Raises:
        TypeError: `cast` is no mapping.
        ValueError: no numeric type.

    >>> casting = Casting(float32=True, cast={"action": "int64"})
    >>> casting.wanted("reward", np.dtype(np.float64)), casting.wanted("action", np.dtype(np.int8))
    (dtype('float32'), dtype('int64'))
    """

    def __init__(self, *, float32: bool = False, cast: Mapping[str, npt.DTypeLike] | None = None) -> None:
        if cast is not None and not isinstance(cast, Mapping):
            raise TypeError(f"cast: expected a dict of field to type, for example {{'action': 'int64'}}, got {cast!r}")
        self._float32 = float32
        self._given = list(cast or {})
        self._cast = {_full(name): _dtype(name, given) for name, given in (cast or {}).items()}

    def wanted(self, name: str, dtype: np.dtype) -> np.dtype | None:
        """The type that a field of this type should have, or None to keep it."""
        if dtype.kind not in "biufO":
            return None
        chosen = None
        for pattern, wanted in self._cast.items():
            if _fits(name, pattern):
                chosen = wanted
        if chosen is not None:
            return chosen
        if name in FLAG_FIELDS and dtype.kind in "iuf":
            return _BOOL
        return _FLOAT32 if self._float32 and dtype.kind == "f" and dtype.itemsize in (2, 8) else None

    def check(self, tree: Mapping[str, Nest]) -> None:
        """Raise unless everything that is to be cast is there.

        Raises:
            ValueError: it is not; the message names what is.
        """
        for name in self._given:
            if find(tree, name) is None and not (is_pattern(name) and matching(tree, name)):
                raise ValueError(f"cast: no field {name!r}{near_miss(tree, name)}")

    def apply(self, tree: Mapping[str, Nest], leaves: Leaves, types: Mapping[nest.Path, np.dtype]) -> dict[str, Any]:
        """The tree with its fields cast; `types` are those that the spec has for them, by path."""

        def visit(value: Nest, path: nest.Path) -> Nest:
            if isinstance(value, Mapping):
                return {key: visit(child, (*path, key)) for key, child in value.items()}
            if isinstance(value, tuple):
                parts = [visit(child, (*path, i)) for i, child in enumerate(value)]
                return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
            if value is None:
                return None
            name = nest.path_name(path)
            wanted = self.wanted(name, types.get(path, leaves.dtype(value)))
            return value if wanted is None else leaves.cast(value, wanted, name)

        return {key: visit(child, (key,)) for key, child in tree.items()}


def _full(name: str) -> str:
    return name if name.split("/")[0] in TOP else f"extras/{name}"


def _fits(name: str, pattern: str) -> bool:
    """Whether a field's path is the pattern's, or lies in the nest that it names."""
    parts, wanted = name.split("/"), pattern.split("/")
    return len(parts) >= len(wanted) and all(
        fnmatch.fnmatchcase(part, want) for part, want in zip(parts, wanted, strict=False)
    )


def _dtype(name: str, given: npt.DTypeLike) -> np.dtype:
    try:
        dtype = as_dtype(given)
    except TypeError as cause:
        raise ValueError(f"cast: {given!r} for {name!r} is no numpy type") from cause
    if dtype.kind not in "biuf":
        raise ValueError(f"cast: {name!r} can become a number or bool, not {dtype.name}")
    return dtype
