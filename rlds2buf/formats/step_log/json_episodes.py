"""One episode as a JSON object of lists."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import numpy as np

from rlds2buf.formats.step_log.column_map import FIELD_NAMES
from rlds2buf.formats.step_log.json_values import Misfit, column_of, columns_of

__all__ = [
    "FOLLOWING",
    "episode_columns",
    "flat_values",
    "is_flag_name",
    "looks_like_an_episode",
    "reference_names",
]

FOLLOWING: Final = "[1:]"
"""Ends the name of a column moved one row up, for a list with one entry more than there are steps."""

_SINGLE = ("reward", "terminated", "truncated", "done", "is_first", "is_last", "is_terminal", "discount")
_FLAGS = ("terminated", "truncated", "done", "is_last", "is_terminal")
_STEPS = "steps"
_DEPTH = 32


def looks_like_an_episode(value: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Whether an object holds the lists of an episode, not the values of a step.

    Args:
        value: the object.
        given: field to column, as the caller named them.

    >>> looks_like_an_episode({"obs": [0.1, 0.2], "reward": 1.0}, {})
    False
    >>> looks_like_an_episode({"obs": [0.1, 0.2], "r": [1.0, 0.0]}, {"reward": "r"})
    True
    """
    if isinstance(value.get(_STEPS), list):
        return True
    names = [name for field in _SINGLE for name in FIELD_NAMES[field]]
    names += [name for field in _SINGLE if isinstance(name := given.get(field), str)]
    flat = flat_values(value)
    return any(isinstance(flat.get(name), list) for name in names)


def episode_columns(value: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The columns ``[T, ...]`` of an episode, and its metadata.

    Raises:
        Misfit: there is no list of steps, or lists differ in length.
    """
    if isinstance(value.get(_STEPS), list):
        notes = {key: child for key, child in value.items() if key != _STEPS}
        if not value[_STEPS]:
            raise Misfit(0, _STEPS, "is empty")
        if not isinstance(value[_STEPS][0], Mapping):
            raise Misfit(0, _STEPS, "should hold objects")
        return columns_of(value[_STEPS]), notes
    flat = flat_values(value)
    lists = {name: child for name, child in flat.items() if isinstance(child, list)}
    steps = _length(lists)
    columns: dict[str, np.ndarray] = {}
    notes = {}
    for name, child in flat.items():
        if name in lists:
            if len(child) not in (steps, steps + 1):
                raise Misfit(0, name, f"has {len(child)} entries, but others have {steps}")
            column = column_of(child, name)
            columns[name] = column[:steps]
            if len(child) == steps + 1:
                columns[name + FOLLOWING] = column[1:]
        elif _is_flag(name, child):
            columns[name] = np.zeros(steps, np.bool_)
            columns[name][-1] = bool(child)
        else:
            notes[name] = child
    return columns, notes


def reference_names(lists: Collection[str]) -> list[str]:
    """The lists whose length is T, the first of them foremost: the reward, flags, the action."""
    return [name for field in (*_SINGLE, "action") for name in FIELD_NAMES[field] if name in lists]


def _length(lists: Mapping[str, list[Any]]) -> int:
    """T: the entries of the reward or a flag, else the fewest."""
    names = reference_names(lists)
    steps = len(lists[names[0]]) if names else min((len(child) for child in lists.values()), default=0)
    if not steps:
        raise Misfit(0, names[0] if names else "the line", "has no steps")
    return steps


def _is_flag(name: str, value: Any) -> bool:
    return value in (0, 1) and is_flag_name(name)


def is_flag_name(name: str) -> bool:
    """Whether a single value of that name is the flag of an episode's last step."""
    return any(name in FIELD_NAMES[field] for field in _FLAGS)


def flat_values(value: Mapping[str, Any], prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """An object's values by ``outer/inner``."""
    if depth > _DEPTH:
        raise Misfit(0, prefix, "objects nest too deep")
    found: dict[str, Any] = {}
    for key, child in value.items():
        if isinstance(child, Mapping):
            found.update(flat_values(child, f"{prefix}{key}/", depth + 1))
        else:
            found[prefix + key] = child
    return found
