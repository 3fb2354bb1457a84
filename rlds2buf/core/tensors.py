"""What PyTorch's tensors are in NumPy, and back; it is not imported here."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np

from rlds2buf.core import nest

__all__ = ["tensors_too", "to_numpy"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def to_numpy(value: Any) -> Any:
    """A tensor (any device, with or without gradient) as an array; everything else as it is."""
    if hasattr(value, "detach"):
        return value.detach().cpu().numpy()
    return value


def tensors_too(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """A decorator: called with PyTorch tensors, a function of arrays gives tensors.

    They are on the device of the first tensor given, and without gradient.
    """

    @functools.wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        first: Any = next((value for value in (*args, *kwargs.values()) if hasattr(value, "detach")), None)
        if first is None:
            return function(*args, **kwargs)
        plain: Callable[..., _R] = function
        result = plain(*map(to_numpy, args), **{name: to_numpy(value) for name, value in kwargs.items()})
        from_numpy = sys.modules["torch"].from_numpy
        moved: _R = nest.map_structure(lambda a: from_numpy(np.ascontiguousarray(a)).to(first.device), result)
        return moved

    return called
