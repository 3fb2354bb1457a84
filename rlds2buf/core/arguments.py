"""Arguments of the wrong type or by the wrong name, told before they do harm further down."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

import numpy as np

__all__ = ["choice", "fraction", "guess", "integer", "named_well"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def integer(name: str, value: Any, least: int | None = None) -> int:
    """A whole number as an int: NumPy's integers too, but no float, text or bool.

    Args:
        name: of the argument, for the message.
        value: what was given.
        least: the smallest number allowed, 0 or 1; None for any.

    Raises:
        TypeError: it is no integer.
        ValueError: it is below `least`.

    >>> integer("batch_size", np.int64(256), 1)
    256
    >>> integer("batch_size", 2.0)
    Traceback (most recent call last):
    TypeError: batch_size must be an integer, got 2.0 (a float)
    """
    if type(value) is not int:
        if not isinstance(value, int | np.integer) or isinstance(value, bool):
            raise TypeError(f"{name} must be an integer, got {_shown(value)}")
        value = int(value)
    if least is not None and value < least:
        raise ValueError(f"{name} must {f'be at least {least}' if least else 'not be negative'}, got {value}")
    return value


def fraction(name: str, value: Any) -> float:
    """A number from 0 to 1, as it was given.

    Raises:
        TypeError: it is no number.
        ValueError: it lies outside.

    >>> fraction("gamma", 1.5)
    Traceback (most recent call last):
    ValueError: gamma must be in [0, 1], got 1.5
    """
    if type(value) is not float and (not isinstance(value, int | float | np.number) or isinstance(value, bool)):
        raise TypeError(f"{name} must be a number, got {_shown(value)}")
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must be in [0, 1], got {value}")
    return value  # type: ignore[return-value]  # NumPy's numbers too, as they are


def choice(name: str, value: Any, allowed: Collection[str]) -> None:
    """Raise ValueError unless the value is one of those allowed.

    >>> choice("strategy", "best", ("final", "future"))
    Traceback (most recent call last):
    ValueError: strategy must be one of final, future, got 'best'
    """
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def guess(wrong: str, known: Iterable[str], others: Mapping[str, str] | None = None) -> str:
    """The end of a message about an unknown name: which one may be meant, and which there are.

    Args:
        wrong: the unknown name.
        known: the names there are.
        others: names by which other libraries call them, to the name here (or what to do instead).

    >>> guess("n_steps", ["n_step", "gamma"])
    'did you mean n_step? Known: n_step, gamma'
    >>> guess("buffer_size", ["capacity"], {"buffer_size": "capacity"})
    'did you mean capacity? Known: capacity'
    """
    names = list(known)
    near = (others or {}).get(wrong) or next(iter(difflib.get_close_matches(wrong, names, n=1)), None)
    every = ", ".join(names) or "none"
    return f"did you mean {near}? Known: {every}" if near else f"known: {every}"


def named_well(called: str | None = None, /, **others: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """A decorator: what is called with an unknown keyword says which one may be meant.

    Args:
        called: how messages call the function; its own name unless given, nothing if it is ``""``.
        others: names of other libraries, to the name here.

    >>> @named_well(size="capacity")
    ... def make(capacity, *, seed=None): ...
    >>> make(size=10)
    Traceback (most recent call last):
    TypeError: make() takes no 'size'; did you mean capacity? Known: capacity, seed
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        known = [name for name in inspect.signature(function).parameters if name != "self"]
        own = function.__name__ if called is None else called
        what = f"{own}() takes no" if own else "there is no argument"

        @functools.wraps(function)
        def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            for name in kwargs:
                if name not in known:
                    raise TypeError(f"{what} {name!r}; {guess(name, known, others)}")
            return function(*args, **kwargs)

        return checked

    return decorate


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} (a {type(value).__name__})"
