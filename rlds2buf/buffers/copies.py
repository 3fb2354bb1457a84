"""Copies of buffers, and what of them goes through ``pickle`` or ``copy``.

A buffer goes as a maker and plain values, so that a lock or a compiled plan is never among them, and
of its rows only those that are held.  One whose files are as they were saved goes as their path.
Nothing here, and nothing that opens files, unpickles.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds2buf.core.forks import seed_of
from rlds2buf.errors import ReplayError

if TYPE_CHECKING:
    from rlds2buf.buffers.buffer import Buffer

__all__ = ["parts_of", "require_names", "revived"]

_OTHERS = ("cloudpickle", "dill", "ray.cloudpickle")
"""Packages that pickle functions by value."""


def parts_of(buffer: Buffer) -> dict[str, Any]:
    """What :func:`revived` makes a copy of.

    Raises:
        ReplayError: its folder's files were changed after it was last saved.
    """
    from rlds2buf.buffers.state import get_state

    functions = {} if buffer._hindsight is None else dict(buffer._hindsight.given)
    home, path = buffer._home, buffer._origin
    if home is not None:
        if not home.is_clean or home.is_lost:
            raise ReplayError(
                f"{home.path}: a copy opens the folder, which was changed after it was saved; save() first"
            )
        path = home.path
    if path is not None:
        counts = buffer._drawing.sampled, buffer._rng.bit_generator.state
        return {"path": str(path), "functions": functions, "drawn": counts}
    return {
        "kind": buffer.kind,
        "spec": buffer.spec,
        "options": dict(buffer._options),
        "functions": functions,
        "state": get_state(buffer),
        "provenance": dict(buffer.provenance),
    }


def revived(parts: Mapping[str, Any]) -> Buffer:
    """A buffer of :func:`parts_of`; it can be changed, the files of one in a folder never are."""
    from rlds2buf.buffers.disk.snapshot import load_buffer
    from rlds2buf.buffers.factories import empty_like
    from rlds2buf.buffers.state import restore

    functions = parts["functions"]
    if "path" in parts:
        buffer = load_buffer(parts["path"], **functions)
        buffer._drawing.sampled, buffer._rng.bit_generator.state = parts["drawn"]
        buffer._seed = seed_of(buffer._rng)
        return buffer
    buffer = empty_like(parts["kind"], parts["spec"], {**parts["options"], **functions})
    arrays = {name: np.array(array) for name, array in parts["state"]["arrays"].items()}
    for array in arrays.values():
        array.flags.writeable = False  # as a saved buffer's: the first change takes as many slots as there must be
    restore(buffer, parts["state"], arrays)
    buffer.provenance = dict(parts["provenance"])
    return buffer


def require_names(functions: Mapping[str, Any]) -> None:
    """Raise if a function can't be pickled, which is done by its name, unless a package is there that can.

    Raises:
        TypeError: the message says which one.
    """
    for name, function in functions.items():
        place = getattr(function, "__qualname__", None)
        if place is None or any(package in sys.modules for package in _OTHERS):
            continue  # an object with a class of its own, or by value
        found: Any = sys.modules.get(function.__module__)
        for part in place.split("."):
            found = getattr(found, part, None)
        if found is not function:
            raise TypeError(
                f"{name} can't be pickled: {place} of {function.__module__} is not found under its name; define it "
                "at the top of a module"
            )
