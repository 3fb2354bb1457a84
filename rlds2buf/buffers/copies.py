"""Copies of buffers, and what of them goes through ``pickle`` or ``copy``.

A buffer goes as a maker and plain values, so that a lock or a compiled plan is never among them, and
of its rows only those that are held.  One whose files are as they were saved goes as their path.
Nothing here, and nothing that opens files, unpickles.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.buffers.disk.following import Follower
from rlds2buf.buffers.disk.manifest import read_manifest
from rlds2buf.buffers.disk.opening import empty_like, open_saved
from rlds2buf.buffers.engine import Engine, HasEngine
from rlds2buf.errors import ReplayError

__all__ = ["parts_of", "require_names", "revived"]

_OTHERS = ("cloudpickle", "dill", "ray.cloudpickle")
"""Packages that pickle functions by value."""


def parts_of(engine: Engine | Follower) -> dict[str, Any]:
    """What :func:`revived` makes a copy of.

    Raises:
        ReplayError: its folder's files were changed after it was last saved.
    """
    if isinstance(engine, Follower):
        return {"kind": engine.kind, "make": engine.make, "functions": engine.functions, "follow": str(engine.folder)}
    functions = {} if engine.hindsight is None else dict(engine.hindsight.given)
    home, path = engine.home, engine.origin
    if home is not None:
        if not home.is_clean or home.is_lost:
            raise ReplayError(
                f"{home.path}: a copy opens the folder, which was changed after it was saved; save() first"
            )
        path = home.path
    parts: dict[str, Any] = {"kind": engine.kind, "make": engine.make, "functions": functions}
    if path is not None:
        return {**parts, "path": str(path), "drawn": (engine.sampled, engine.rng.bit_generator.state)}
    return {
        **parts,
        "spec": engine.spec,
        "options": dict(engine.options),
        "state": engine.state(),
        "provenance": dict(engine.provenance),
    }


def revived(parts: Mapping[str, Any]) -> HasEngine:
    """A buffer of :func:`parts_of`; it can be changed, the files of one in a folder never are."""
    make: Callable[..., HasEngine] = parts["make"]
    kind, functions = parts["kind"], parts["functions"]
    if "follow" in parts:
        follower: HasEngine = Follower(Path(parts["follow"]), {kind: make}, functions=functions).buffer
        return follower
    if "path" in parts:
        folder = Path(parts["path"])
        buffer = open_saved(folder, read_manifest(folder), {kind: make}, functions=functions)
        buffer.engine.sampled, state = parts["drawn"]
        buffer.engine.draw_from(state)
        return buffer
    buffer = empty_like(kind, parts["spec"], {**parts["options"], **functions}, {kind: make})
    arrays = {name: np.array(array) for name, array in parts["state"]["arrays"].items()}
    for array in arrays.values():
        array.flags.writeable = False  # as a saved buffer's: the first change takes as many slots as there must be
    buffer.engine.restore(parts["state"], arrays)
    buffer.engine.provenance = dict(parts["provenance"])
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
