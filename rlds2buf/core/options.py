"""Options by name, whoever wrote them: of the type that the function they are for is annotated with."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["check_types"]


def check_types(function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise unless each option is of a type that the parameter of its name is annotated with.

    Numbers, flags, texts, and lists and mappings of them are told apart here, once; what else a parameter
    takes (functions, specs), and which values are in range, is for the function to say.

    Args:
        function: whose parameters they are (or a class).
        options: by name; unknown names are passed over.

    Raises:
        TypeError: an option is of another type; the message says what it may be.

    >>> def read(path, *, infos: bool = True): ...
    >>> check_types(read, {"infos": "maybe"})
    Traceback (most recent call last):
    TypeError: infos must be true or false, got 'maybe'
    """
    for name, parameter in inspect.signature(function).parameters.items():
        kinds = _BETWEEN.split(str(parameter.annotation))
        if name not in options or not set(kinds) <= _KINDS.keys():
            continue
        value = options[name]
        if not any(_KINDS[kind][0](value) for kind in kinds):
            words = [_KINDS[kind][1] for kind in kinds if kind != "None"]
            raise TypeError(f"{name} must be {' or '.join(words)}, got {repr(value)[:80]}")


_BETWEEN = re.compile(r" \| (?![^\[]*\])")


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool | np.bool_) or (type(value) is int and value in (0, 1))


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike)


def _are_texts(value: Any) -> bool:
    return isinstance(value, Sequence) and all(isinstance(one, str) for one in value)


def _are_two_integers(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and all(_is_integer(n) for n in value)


_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "None": (lambda value: value is None, "nothing"),
    "bool": (_is_flag, "true or false"),
    "int": (_is_integer, "an integer"),
    "float": (_is_number, "a number"),
    "str": (lambda value: isinstance(value, str), "a text"),
    "os.PathLike[str]": (_is_path, "a path"),
    "Sequence[str]": (_are_texts, "a list of texts"),
    "tuple[int, int]": (_are_two_integers, "a pair of integers"),
    "Mapping[str, Any]": (lambda value: isinstance(value, Mapping), "a mapping"),
    "Mapping[str, str | Sequence[str]]": (lambda value: isinstance(value, Mapping), "a mapping"),
}
"""What annotations stand for: a test, and words for people."""
