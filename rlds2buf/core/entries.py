"""The entries of a JSON object, asked for by name and type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, overload

import numpy as np

from rlds2buf.core.dtypes import parse_dtype

__all__ = ["Entries"]

_REQUIRED: Any = object()
_D = TypeVar("_D")


class Entries:
    """A JSON object out of a file, whose values may be anything; whoever asks gets the type asked for.

    Args:
        value: the object.
        name: how messages call it: ``""`` for a file's own, or as ``"columns[3]"``.

    Raises:
        ValueError: it is no object.  Each method too, naming the entry: where it is missing and has no
            default, or is of another type.  An entry that is null counts as missing where None is the default.

    >>> Entries({"shape": [3, "x"]}, "columns[0]").lengths("shape")
    Traceback (most recent call last):
    ValueError: columns[0].shape should be a list of integers of at least 0, got [3, 'x']
    """

    def __init__(self, value: Any, name: str = "") -> None:
        if not isinstance(value, Mapping):
            raise ValueError(f"{name or 'it'} should be an object, got {_shown(value)}")
        self.values: Mapping[str, Any] = value
        self._name = name

    def __contains__(self, key: str) -> bool:
        return key in self.values

    @overload
    def text(self, key: str) -> str: ...
    @overload
    def text(self, key: str, default: _D) -> str | _D: ...
    def text(self, key: str, default: Any = _REQUIRED) -> Any:
        """A text."""
        return self._get(key, default, lambda value: isinstance(value, str), "a text")

    @overload
    def integer(self, key: str, *, least: int | None = 0) -> int: ...
    @overload
    def integer(self, key: str, default: _D, *, least: int | None = 0) -> int | _D: ...
    def integer(self, key: str, default: Any = _REQUIRED, *, least: int | None = 0) -> Any:
        """A whole number, of at least `least`; of any size if that is None."""
        what = "an integer" if least is None else f"an integer of at least {least}"
        return self._get(key, default, lambda value: _is_integer(value, least), what)

    def flag(self, key: str, default: Any = _REQUIRED) -> bool:
        """True or False."""
        return bool(self._get(key, default, lambda value: isinstance(value, bool), "true or false"))

    def number(self, key: str, default: Any = _REQUIRED) -> float:
        """A finite number."""
        return float(self._get(key, default, _is_number, "a finite number"))

    def dtype(self, key: str) -> np.dtype:
        """A type of numbers."""
        try:
            return parse_dtype(self._get(key, _REQUIRED, lambda value: True, ""))
        except ValueError as cause:
            raise ValueError(f"{self.path(key)}: {cause}") from cause

    def lengths(self, key: str, default: Any = _REQUIRED, *, least: int = 0) -> tuple[int, ...]:
        """A list of whole numbers, of at least `least` each."""
        what = f"a list of integers of at least {least}"
        return tuple(self._get(key, default, lambda value: _is_list(value, lambda n: _is_integer(n, least)), what))

    def texts(self, key: str, default: Any = _REQUIRED) -> list[str]:
        """A list of texts."""
        return list(
            self._get(key, default, lambda value: _is_list(value, lambda v: isinstance(v, str)), "a list of texts")
        )

    def items(self, key: str, default: Any = _REQUIRED) -> Any:
        """A list of anything."""
        return self._get(key, default, lambda value: isinstance(value, list | tuple), "a list")

    def inside(self, key: str, default: Any = _REQUIRED) -> Entries:
        """An object in this one; an empty one where that is missing and the default is None."""
        value = self._get(key, default, lambda value: isinstance(value, Mapping), "an object")
        return Entries({} if value is None else value, self.path(key))

    def each(self, key: str) -> list[Entries]:
        """A list of objects."""
        return [Entries(value, f"{self.path(key)}[{i}]") for i, value in enumerate(self.items(key))]

    def _get(self, key: str, default: Any, fits: Any, what: str) -> Any:
        value = self.values.get(key, default)
        if value is _REQUIRED:
            raise ValueError(f"{self.path(key)} is missing")
        if key not in self.values or (value is None and default is None):
            return default
        if not fits(value):
            raise ValueError(f"{self.path(key)} should be {what}, got {_shown(value)}")
        return value

    def path(self, key: str) -> str:
        """How messages call an entry."""
        return f"{self._name}.{key}" if self._name else key


def _is_integer(value: Any, least: int | None) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and (least is None or least <= value < 1 << 63)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(abs(value) < 1e308)


def _is_list(value: Any, fits: Any) -> bool:
    return isinstance(value, list | tuple) and all(fits(one) for one in value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
