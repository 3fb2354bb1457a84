"""Options by name, whoever wrote them: of the type that the function they are for is annotated with."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["Option", "check_types", "options_of"]


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
    for other in getattr(function, "options_for", ()):
        check_types(other, options)
    for name, parameter in inspect.signature(function).parameters.items():
        kinds = _BETWEEN.split(_annotation(parameter))
        if name not in options or not set(kinds) <= _KINDS.keys():
            continue
        value = options[name]
        if not any(_KINDS[kind][0](value) for kind in kinds):
            words = [_KINDS[kind][1] for kind in kinds if kind != "None"]
            raise TypeError(f"{name} must be {' or '.join(words)}, got {repr(value)[:80]}")


@dataclasses.dataclass(frozen=True)
class Option:
    """An option that can be given by name.

    Attributes:
        name: the parameter's.
        type: as it is annotated; empty if it isn't.
        default: where it is not given; None also where there is none.
        help: what the docstring says of it, in one line.
    """

    name: str
    type: str
    default: Any
    help: str


def options_of(function: Callable[..., Any]) -> list[Option] | None:
    """What a function or class takes by name beside its first argument, as it says itself: signature and docstring.

    A class with ``**options`` names the functions that they are for in ``options_for``; a docstring that leaves out
    an argument has it from the class above.

    Returns:
        The options in the order of the signature; None if any name is taken.

    >>> class Reader:
    ...     '''Reads.
    ...
    ...     Args:
    ...         path: a file.
    ...         infos: whether to read the ``infos``,
    ...             if there are any.
    ...     '''
    ...     def __init__(self, path, *, infos=True) -> None: ...
    >>> options_of(Reader)
    [Option(name='infos', type='', default=True, help='whether to read the infos, if there are any')]
    """
    helps = _helps(function)
    found = []
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        if parameter.kind is parameter.VAR_KEYWORD:
            others = getattr(function, "options_for", ())
            if not others:
                return None
            for other in others:
                found += options_of(other) or []
        elif parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            default = None if parameter.default is parameter.empty else parameter.default
            found.append(Option(parameter.name, _annotation(parameter), default, helps.get(parameter.name, "")))
    return found


def _annotation(parameter: inspect.Parameter) -> str:
    """As it is written, whether the module postpones it or not."""
    given = parameter.annotation
    return "" if given is parameter.empty else given if isinstance(given, str) else inspect.formatannotation(given)


def _helps(function: Callable[..., Any]) -> dict[str, str]:
    """What the docstring says of each argument; of a class, those of the classes above too."""
    found: dict[str, str] = {}
    for one in reversed(inspect.getmro(function) if inspect.isclass(function) else (function,)):
        found.update(_arguments(inspect.cleandoc(one.__doc__ or "")))
    return found


def _arguments(text: str) -> Iterator[tuple[str, str]]:
    """The entries below ``Args:``, or of a dataclass below ``Attributes:``, each name with its text in one line."""
    section = _SECTION.search(text)
    for entry in _ENTRY.finditer(section[1] if section else ""):
        words = _ROLE.sub(r"\1", " ".join(entry[2].split())).replace("`", "").rstrip(".")
        for name in entry[1].split(", "):
            yield name, words


_SECTION = re.compile(r"^(?:Args|Attributes):\n((?:    .*\n?|\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"^    (\w+(?:, \w+)*): (.*(?:\n {5,}.*|\n(?=\n* {5}))*)", re.MULTILINE)
_ROLE = re.compile(r":\w+:`~?(?:[\w.]*\.)?(\w+)`")

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
